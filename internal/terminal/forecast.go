package terminal

import (
	"fmt"
	"slices"
	"strings"

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
	held, ends := heldSteps(f)
	for i, s := range f.Steps {
		mark := " "
		if s.Destructive {
			mark = p.Paint("-", Red)
		} else if s.Reboots {
			mark = "~"
		}
		p.Printf("%s %3d. %s\n", mark, i+1, s.Text)
		if w, waits := held[i]; waits {
			p.Printf("       %s\n", strings.TrimSuffix(w.Message, ": "+s.Text))
			p.printHint("       ", w.Hint)
		}
	}
	then := "then "
	if len(f.Steps) == 0 {
		then = ""
	}
	for _, w := range joinGates(ends) {
		p.Printf("  %swaits for %s: %s\n", then, w.Subject, w.Message)
		p.printDrift(w.Message, w.Drift)
		p.printHint("    ", w.Hint)
	}
	p.printBlocks(f.Blocked)
	destructive, reboots, asked := 0, 0, 0
	for _, s := range f.Steps {
		if s.Destructive {
			destructive++
		}
		if s.Reboots {
			reboots++
		}
		if s.MayReboot {
			asked++
		}
	}
	if len(f.Steps) > 0 {
		p.Printf("%s, %d destructive, %s", text.Count(len(f.Steps), "step"), destructive, text.Count(reboots, "reboot"))
		if len(f.Hops) > 1 {
			p.Printf(", of the first of %d hops", len(f.Hops))
		}
		if asked > 0 {
			p.Printf(", and up to %d more: nodes are asked first", asked)
		}
		p.Printf("\n")
	}
	switch {
	case f.Unapproved && f.Digest == "":
		p.Printf("waits for approval once it is pushed\n")
	case f.Unapproved:
		p.Printf("waits for approval: `talos-agent approve %s %.12s`\n", f.Cluster, f.Digest)
	}
}

// heldSteps are the waits for a window that hold steps, by the index of the first step of each,
// and the waits that nothing comes after.
func heldSteps(f cluster.Forecast) (held map[int]cluster.Wait, ends []cluster.Wait) {
	held = map[int]cluster.Wait{}
	for _, w := range f.Waiting {
		i := slices.IndexFunc(f.Steps, func(s cluster.Step) bool { return s.Subject == w.Subject && string(s.Action) == w.About })
		if _, taken := held[i]; w.Reason == cluster.WaitingForWindow && i >= 0 && !taken {
			held[i] = w
		} else {
			ends = append(ends, w)
		}
	}
	return held, ends
}

// joinGates joins the waits of several nodes for one gate, which are the same for all of them, into one: it
// stands at the first, with the names of all.
func joinGates(all []cluster.Wait) (out []cluster.Wait) {
	of := map[string][]string{}
	key := func(w cluster.Wait) string {
		return fmt.Sprint(w.About, w.Message, w.Hint, formatDrift(w.Message, w.Drift))
	}
	for _, w := range all {
		if w.Reason != cluster.WaitingForGate {
			out = append(out, w)
			continue
		}
		if of[key(w)] = append(of[key(w)], w.Subject); len(of[key(w)]) == 1 {
			out = append(out, w)
		}
	}
	for i, w := range out {
		if w.Reason == cluster.WaitingForGate {
			out[i].Subject = text.JoinSome(of[key(w)], 5, ", ")
		}
	}
	return out
}

// printHint prints what to do, where there is something.
func (p Printer) printHint(indent, hint string) {
	if hint != "" {
		p.Printf("%s-> %s\n", indent, hint)
	}
}
