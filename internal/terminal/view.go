package terminal

import (
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// View shows how clusters stand, and what changes.
type View interface {
	// Show takes what is there now, of which changed is what is new, and the
	// problems that are no cluster's; away is why nothing is known at the moment.
	Show(all []cluster.Status, changed *cluster.Status, problems []string, away error) error
	// Ticks is when to show the same again, because time goes by; nil: never.
	Ticks() <-chan time.Time
	Begin() error
	End()
}

// NewView makes the view that fits: in place on a terminal that can, one line for
// each change or one JSON value elsewhere. w is what p writes to.
func NewView(p Printer, w io.Writer) View {
	f, ok := w.(*os.File)
	switch {
	case p.json:
		return &jsonView{p: p, shown: map[string]bool{}}
	case ok && IsTerminal(f) && !IsDumb():
		return newScreen(f, p)
	default:
		return NewLineView(p)
	}
}

// NewLineView makes the view that writes one line for each change.
func NewLineView(p Printer) View { return &lineView{p: p, shown: map[string]cluster.Status{}} }

// jsonView writes one envelope a line: a status, or which cluster is not looked
// after any more.
type jsonView struct {
	p     Printer
	shown map[string]bool
}

// deletedStatus is the last that is written of a cluster.
type deletedStatus struct {
	Cluster string `json:"cluster"`
}

func (j *jsonView) Show(all []cluster.Status, changed *cluster.Status, _ []string, _ error) error {
	for _, name := range findDeleted(j.shown, all) {
		if err := j.p.PrintJSONLine("StatusGone", deletedStatus{name}); err != nil {
			return err
		}
		delete(j.shown, name)
	}
	if changed == nil {
		return nil
	}
	j.shown[changed.Cluster] = true
	return j.p.PrintJSONLine("Status", changed)
}
func (*jsonView) Ticks() <-chan time.Time { return nil }
func (*jsonView) Begin() error            { return nil }
func (*jsonView) End()                    {}

// findDeleted names the clusters that were shown and are not there any more.
func findDeleted[T any](shown map[string]T, all []cluster.Status) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(shown)), func(name string) bool {
		return slices.ContainsFunc(all, func(s cluster.Status) bool { return s.Cluster == name })
	})
}

// lineView writes a line for each change.
type lineView struct {
	p        Printer
	shown    map[string]cluster.Status
	problems []string
	away     error
}

func (l *lineView) Show(all []cluster.Status, changed *cluster.Status, problems []string, away error) error {
	at := time.Now().Format(time.TimeOnly)
	if away != nil && l.away == nil {
		l.p.Printf("%s %v\n", at, away)
	}
	if away == nil && l.away != nil {
		l.p.Printf("%s the daemon is back\n", at)
	}
	l.away = away
	for _, t := range problems {
		if !slices.Contains(l.problems, t) {
			l.p.Printf("%s problem %s\n", at, text.OneLine(t))
		}
	}
	for _, t := range l.problems {
		if !slices.Contains(problems, t) {
			l.p.Printf("%s problem is over: %s\n", at, text.OneLine(t))
		}
	}
	l.problems = problems
	for _, name := range findDeleted(l.shown, all) {
		l.p.Printf("%s %s is no longer managed\n", at, name)
		delete(l.shown, name)
	}
	if changed == nil {
		return nil
	}
	before, ok := l.shown[changed.Cluster]
	l.shown[changed.Cluster] = *changed
	for _, line := range describeChanges(before, *changed, !ok) {
		l.p.Printf("%s %s %s\n", at, changed.Cluster, line)
	}
	return nil
}
func (*lineView) Ticks() <-chan time.Time { return nil }
func (*lineView) Begin() error            { return nil }
func (*lineView) End()                    {}

// describeChanges writes in lines what is new in a status: how the cluster stands, and
// which nodes and addons stand otherwise than before.
func describeChanges(before, after cluster.Status, first bool) []string {
	var out []string
	if first || before.Revision != after.Revision {
		out = append(out, strings.TrimSpace("revision "+orDash(after.Revision.Short())+" "+after.Subject))
	}
	if first || before.Condition != after.Condition || before.Message != after.Message {
		out = append(out, string(after.Condition)+": "+text.OneLine(after.Message))
		if after.Hint != "" {
			out = append(out, "-> "+text.OneLine(after.Hint))
		}
	}
	phases := map[string]cluster.Phase{}
	for _, n := range before.Nodes {
		phases[n.Name] = n.Phase
	}
	for _, n := range after.Nodes {
		if phases[n.Name] != n.Phase {
			out = append(out, n.Name+" is "+string(n.Phase))
		}
	}
	states := map[string]string{}
	for _, a := range before.Addons {
		states[a.Name] = a.State
	}
	for _, a := range after.Addons {
		if states[a.Name] != a.State {
			out = append(out, "addon "+a.Name+" is "+a.State)
		}
	}
	return out
}
