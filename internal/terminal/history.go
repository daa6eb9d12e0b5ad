package terminal

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/text"
)

// PrintRuns prints a list of runs.
func (p Printer) PrintRuns(name string, runs []cluster.Run) {
	if len(runs) == 0 {
		p.Printf("%s: nothing was done yet, as far as is known\n", name)
		return
	}
	rows := [][]string{{"RUN", "BEGAN", "TOOK", "RESULT", "REVISION", "CAUSE"}}
	for _, r := range runs {
		rows = append(rows, []string{strconv.Itoa(r.Number), FormatTime(r.Began), p.formatLength(r), formatResult(r), orDash(r.Revision.Short()), text.Cut(formatCause(r), 70)})
	}
	p.PrintRows(rows)
}

// formatCause is why a run began; of a new revision with its author's message.
func formatCause(r cluster.Run) string {
	if r.Subject != "" && r.Cause == history.NewRevision {
		return r.Cause + ": " + r.Subject
	}
	return r.Cause
}

// formatLength is how long a run took, or has taken so far.
func (p Printer) formatLength(r cluster.Run) string {
	if r.Ended.IsZero() {
		return text.Duration(p.now.Sub(r.Began))
	}
	return text.Duration(r.Ended.Sub(r.Began))
}

// formatDuration is a duration for comparing short ones.
func formatDuration(ms int64) string {
	if ms < 10_000 {
		return fmt.Sprintf("%.1fs", float64(ms)/1000)
	}
	return text.Duration(time.Duration(ms) * time.Millisecond)
}

// formatAfter is how long after the begin of its run an action began, or before it: not all of
// what ends in a run began in it.
func formatAfter(d time.Duration) string {
	if d <= -time.Second {
		return "-" + text.Duration(-d)
	}
	return text.Duration(d)
}

func formatResult(r cluster.Run) string {
	if r.Result == "" {
		return "goes on"
	}
	return string(r.Result)
}

// PrintRun prints one run in full.
func (p Printer) PrintRun(r cluster.Run) {
	p.Printf("%s run %d: %s\n", r.Cluster, r.Number, text.OneLine(formatCause(r)))
	p.Printf("  revision %s\n  began %s, ", orDash(r.Revision.Short()), FormatTime(r.Began))
	if r.Ended.IsZero() {
		p.Printf("goes on for %s\n", p.formatLength(r))
	} else {
		p.Printf("ended %s after %s: %s\n", FormatTime(r.Ended), p.formatLength(r), formatResult(r))
	}
	if r.Message != "" {
		p.Printf("  %s\n", text.OneLine(r.Message))
	}
	if r.Hint != "" {
		p.Printf("  -> %s\n", text.OneLine(r.Hint))
	}
	if len(r.Plan) > 0 {
		p.Printf("\n  PLANNED\n")
		for i, s := range r.Plan {
			p.Printf("  %3d. %s\n", i+1, s.Text)
		}
		p.printMore(r.PlanMore)
	}
	if len(r.Actions) > 0 {
		rows := [][]string{{"AFTER", "TOOK", "DONE"}}
		for _, d := range r.Actions {
			done := d.Text
			switch {
			case d.Result == cluster.ResultInterrupted:
				done = "INTERRUPTED " + text.Cut(done+": "+d.Error, 150)
			case d.Error != "":
				done = "FAILED " + text.Cut(done+": "+d.Error, 150)
			}
			rows = append(rows, []string{formatAfter(d.Began.Sub(r.Began)), formatDuration(d.DurationMS), done})
		}
		p.PrintTable(rows)
		p.printMore(r.ActionsMore)
	}
	if len(r.Waits) > 0 {
		rows := [][]string{{"WAITED", "FOR"}}
		for _, w := range r.Waits {
			rows = append(rows, []string{formatDuration(w.DurationMS), text.Cut(w.Subject+": "+cmp.Or(w.Message, string(w.Reason)), 110)})
		}
		p.PrintTable(rows)
	}
}

func (p Printer) printMore(n int) {
	if n > 0 {
		p.Printf("  ... and %d more\n", n)
	}
}
