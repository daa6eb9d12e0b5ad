package terminal

import (
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// PrintForecast prints everything that will happen.
func (p Printer) PrintForecast(f cluster.Forecast) {
	p.Printf("%s at %s\n", f.Cluster, f.Revision.Short())
	for _, pr := range f.Problems {
		p.Printf("  %s\n", pr)
	}
	for _, note := range f.Notes {
		p.Printf("  %s\n", note)
	}
	if len(f.Steps) == 0 && len(f.Blocked) == 0 && len(f.Waiting) == 0 {
		why := ""
		if len(f.Problems) == 0 {
			why = ": the host matches the repository"
		}
		p.Printf("  nothing to do%s\n", why)
	}
	first := func(w cluster.Wait) bool { return w.Reason == cluster.WaitingForWindow }
	for _, w := range f.Waiting {
		if first(w) {
			p.Printf("  %s: %s\n", w.Subject, w.Message)
		}
	}
	for i, s := range f.Steps {
		mark := " "
		if s.Destructive {
			mark = p.Paint("-", Red)
		} else if s.Reboots {
			mark = "~"
		}
		p.Printf("%s %3d. %s\n", mark, i+1, s.Text)
	}
	for _, w := range f.Waiting {
		if !first(w) {
			p.Printf("  then waits for %s: %s\n", w.Subject, w.Message)
		}
	}
	p.printBlocks(f.Blocked)
	destructive, reboots := 0, 0
	for _, s := range f.Steps {
		if s.Destructive {
			destructive++
		}
		if s.Reboots {
			reboots++
		}
	}
	if len(f.Steps) > 0 {
		p.Printf("%s, %d destructive, %s\n", text.Count(len(f.Steps), "step"), destructive, text.Count(reboots, "reboot"))
	}
	switch {
	case f.Unapproved && f.Digest == "":
		p.Printf("waits for approval once it is pushed\n")
	case f.Unapproved:
		p.Printf("waits for approval: `talos-agent approve %s %.12s`\n", f.Cluster, f.Digest)
	}
}
