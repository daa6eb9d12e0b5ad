package terminal

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// FormatTime is a point in time as a column of a list.
func FormatTime(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// PrintEvent prints an event: when, of which cluster, what, and the hint below it.
func (p Printer) PrintEvent(e cluster.Event) {
	line := text.OneLine(e.Message)
	if e.Error != "" {
		line += ": " + text.OneLine(e.Error)
	}
	switch e.Level {
	case "error":
		line = p.Paint("error", Red) + " " + line
	case "warning":
		line = p.Paint("warning", Yellow) + " " + line
	}
	if e.Cluster != "" {
		line = "[" + e.Cluster + "] " + line
	}
	p.Printf("%s %s\n", FormatTime(e.At), line)
	if e.Hint != "" {
		p.Printf("                    -> %s\n", text.OneLine(e.Hint))
	}
}
