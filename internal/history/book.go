package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// DefaultKeep is how many runs of a cluster are kept.
const DefaultKeep = 50

// NewRevision is the cause of a run that a push began.
const NewRevision = "a new revision"

// What one run holds at most, so that a book stays small with a thousand nodes.
const (
	mostSteps   = 200
	mostActions = 200
	mostWaits   = 5
	mostWatched = 3000 // waits among which these are found
)

// Book is the history of one cluster: a fold of its statuses, its actions and
// admin commands into runs. It is for one goroutine at a time.
type Book struct {
	cluster   string
	keep      int
	runs      []cluster.Run // oldest first; the last may be going on
	last      *cluster.Status
	requested string            // by root, since the last run began
	turns     bool              // it takes the place of the run that goes on
	unheeded  int               // statuses since then that it led to nothing in
	early     []cluster.Outcome // of the run to come
	begun     []begun           // and not ended
	noted     time.Time         // how far what is to be kept knows of the run that goes on
	unkept    []Entry           // what has changed since it was last asked for
	waits     map[cluster.Key]lasted
	partly    bool // the plan of the run that goes on is not the whole one yet
	usual     map[cluster.ActionKind]time.Duration
}

// begun is an action that goes on. atRest: the cluster was seen at rest after it began, so that
// it is no work of the run to come.
type begun struct {
	cluster.Outcome
	atRest bool
}

// lasted is how long a wait has taken, and its message then.
type lasted struct {
	message string
	took    time.Duration
}

func (l lasted) of(w cluster.Key) cluster.LongWait {
	return cluster.LongWait{Subject: w.Subject, Reason: w.Reason, About: w.About, Message: l.message, DurationMS: l.took.Milliseconds()}
}

// NewBook opens the book of a cluster with the runs of earlier lives, in any
// order; of two with one number the later counts. One that was going on was
// interrupted.
func NewBook(name string, keep int, old []cluster.Run) *Book {
	b := &Book{cluster: name, keep: keep, waits: map[cluster.Key]lasted{}, usual: map[cluster.ActionKind]time.Duration{}}
	at := map[int]int{}
	for _, r := range old {
		if r.Number < 1 || r.Cluster != name {
			continue
		}
		if i, ok := at[r.Number]; ok {
			b.runs[i] = r
			continue
		}
		at[r.Number] = len(b.runs)
		b.runs = append(b.runs, r)
	}
	slices.SortFunc(b.runs, func(x, y cluster.Run) int { return cmp.Compare(x.Number, y.Number) })
	for i := range b.runs {
		if r := &b.runs[i]; r.Ended.IsZero() {
			interrupt(r, r.Began)
			b.keepRun(*r)
		}
	}
	b.cut()
	for _, r := range b.runs {
		for _, d := range r.Actions {
			b.learn(d)
		}
	}
	return b
}

// Usual is how long an action of each kind took at most, of those that were done
// in the runs that are kept and since.
func (b *Book) Usual() map[cluster.ActionKind]time.Duration { return maps.Clone(b.usual) }

// learn notes how long an action took that was done.
func (b *Book) learn(d cluster.Outcome) {
	if d.Result == cluster.Done {
		b.usual[d.Action] = max(b.usual[d.Action], time.Duration(d.DurationMS)*time.Millisecond)
	}
}

// Runs returns the runs, newest first.
func (b *Book) Runs() []cluster.Run {
	out := []cluster.Run{}
	for _, r := range slices.Backward(b.runs) {
		out = append(out, b.shown(r))
	}
	return out
}

// Run returns one run.
func (b *Book) Run(number int) (cluster.Run, bool) {
	for _, r := range b.runs {
		if r.Number == number {
			return b.shown(r), true
		}
	}
	return cluster.Run{}, false
}

// shown is a run for readers: with the waits so far while it goes on, and with
// lists of its own that are never null.
func (b *Book) shown(r cluster.Run) cluster.Run {
	if r.Ended.IsZero() {
		r.Waits = b.longest()
	}
	r.Plan = append([]cluster.Step{}, r.Plan...)
	r.Actions = append([]cluster.Outcome{}, r.Actions...)
	r.Waits = append([]cluster.LongWait{}, r.Waits...)
	return r
}

// Request takes an admin command: it is the cause of what comes next. turns: it is carried out in the place of what is under
// way, so that the run that goes on ends with it.
func (b *Book) Request(what string, turns bool) {
	b.requested, b.turns, b.unheeded = "root "+what, turns, 0
}

// Begin takes an action that begins: what interrupts it is the end of the agent, which
// reports nothing more.
func (b *Book) Begin(d cluster.Outcome) {
	b.begun = append(b.begun, begun{Outcome: d})
	if r := b.open(); r != nil {
		b.keepNote(Note{Run: r.Number, At: d.Began, Begun: &d})
	}
}

// Did takes an action that has ended. It belongs to the run that goes on. Without
// one, it belongs to the last if it began in it, because not everything ends when
// a cluster stalls; else it was quicker than the status of the pass that began
// it, and belongs to the run to come, unless the cluster was seen at rest meanwhile:
// a snapshot of etcd changes nothing, and is the work of no run.
func (b *Book) Did(d cluster.Outcome) {
	b.learn(d)
	atRest := false
	b.begun = slices.DeleteFunc(b.begun, func(x begun) bool {
		same := isSame(x.Outcome, d)
		atRest = atRest || same && x.atRest
		return same
	})
	var r *cluster.Run
	if n := len(b.runs); n > 0 {
		r = &b.runs[n-1]
	}
	if r == nil || !r.Ended.IsZero() && d.Began.After(r.Ended) {
		if len(b.early) < mostActions && !atRest {
			b.early = append(b.early, d)
		}
		return
	}
	addAction(r, d)
	if r.Ended.IsZero() {
		b.keepNote(Note{Run: r.Number, At: endOf(d), Ended: &d})
		return
	}
	b.keepRun(*r)
}

// addAction adds an action to a run, within the bound.
func addAction(r *cluster.Run, d cluster.Outcome) {
	if len(r.Actions) >= mostActions {
		r.ActionsMore++
		return
	}
	r.Actions = append(r.Actions, d)
}

// Update takes a status, with which runs begin and end. plan forecasts what will happen; it is
// asked when a run begins, and again until it knows the whole.
func (b *Book) Update(s cluster.Status, now time.Time, plan func() (steps []cluster.Step, whole bool)) {
	if s.Condition == cluster.Unknown {
		return // neither work nor rest: it is not known
	}
	before := b.last
	b.last = &s
	open := b.open()
	if open != nil {
		b.watch(open, s, now)
		if b.partly && b.foretell(open, plan) {
			b.keepRun(*open)
		}
		b.noteSeen(open, now)
		if why := b.explainSuperseded(*open, before, s); why != "" {
			b.end(open, now, cluster.Superseded, why, "")
			open = nil
		}
	}
	if open == nil {
		if !b.begins(s) {
			b.rest()
			return
		}
		open = b.begin(before, s, now)
		b.foretell(open, plan)
		b.watch(open, s, now)
		if s.Condition == cluster.Reconciling {
			b.keepOpen(now)
		}
	}
	if s.Condition != cluster.Reconciling {
		b.end(open, now, s.Condition, s.Message, s.Hint)
		if !b.turns {
			b.requested = ""
		}
	}
	b.cut()
}

// rest notes that a cluster is at rest: what was done until now belongs to no run to come.
func (b *Book) rest() {
	// The first status may be of a pass from before the word.
	if b.unheeded++; b.unheeded > 1 {
		b.requested, b.turns = "", false
	}
	b.early = nil
	for i := range b.begun {
		b.begun[i].atRest = true
	}
}

// begin begins a run with a status.
func (b *Book) begin(before *cluster.Status, s cluster.Status, now time.Time) *cluster.Run {
	since := time.Time{} // when the last one ended
	if n := len(b.runs); n > 0 {
		since = b.runs[n-1].Ended
	}
	b.runs = append(b.runs, cluster.Run{Number: b.next(), Cluster: b.cluster, Revision: s.Revision, Subject: s.Subject, Cause: b.cause(before, s), Began: now.UTC()})
	b.requested, b.turns, b.partly = "", false, false
	clear(b.waits)
	open := &b.runs[len(b.runs)-1]
	if before != nil && before.Condition != s.Condition && before.Revision == s.Revision && !s.Since.IsZero() {
		open.Began = s.Since.UTC() // it may have been reported a while later only
	}
	open.Actions, b.early = b.early, nil
	for _, d := range open.Actions {
		if d.Began.Before(open.Began) {
			open.Began = d.Began.UTC()
		}
	}
	for _, d := range b.begun {
		if d.Began.Before(open.Began) && d.Began.After(since) && !d.atRest {
			open.Began = d.Began.UTC() // by the pass that reports it
		}
	}
	return open
}

// open is the run that goes on, nil when there is none.
func (b *Book) open() *cluster.Run {
	if n := len(b.runs); n > 0 && b.runs[n-1].Ended.IsZero() {
		return &b.runs[n-1]
	}
	return nil
}

func (b *Book) next() int {
	if n := len(b.runs); n > 0 {
		return b.runs[n-1].Number + 1
	}
	return 1
}

// begins reports whether a status is not the rest that the last run led to.
func (b *Book) begins(s cluster.Status) bool {
	if s.Condition == cluster.Reconciling {
		return true
	}
	if len(b.runs) == 0 {
		return s.Condition == cluster.Stalled
	}
	last := b.runs[len(b.runs)-1]
	if last.Result == cluster.Interrupted && s.Condition == cluster.Ready && s.Revision == last.Revision {
		return false // it had come to its end without the agent
	}
	return s.Revision != last.Revision || s.Condition != last.Result
}

// explainSuperseded returns why a run ends although the cluster still changes.
func (b *Book) explainSuperseded(r cluster.Run, before *cluster.Status, s cluster.Status) string {
	switch {
	case s.Revision != r.Revision && r.Revision != "":
		return s.Revision.Short() + " was pushed"
	case b.requested != "" && s.Condition == cluster.Reconciling && (b.turns || before != nil && before.Suspended != s.Suspended):
		return b.requested
	}
	return ""
}

// cause is why a run begins.
func (b *Book) cause(before *cluster.Status, s cluster.Status) string {
	var last cluster.Run
	if n := len(b.runs); n > 0 {
		last = b.runs[n-1]
	}
	switch {
	case before != nil && before.Revision != s.Revision && before.Revision != "" && !b.turns:
		return NewRevision // what was ordered before was about another
	case b.requested != "":
		return b.requested
	case s.Revision != last.Revision:
		return NewRevision
	case before == nil:
		return "the agent started"
	case before.Condition == cluster.Stalled && s.Condition != cluster.Stalled:
		return "what kept it stalled is gone" // nodes that are changed then are no cause
	}
	was := map[string]cluster.Phase{}
	for _, n := range before.Nodes {
		was[n.Name] = n.Phase
	}
	for _, n := range s.Nodes {
		if was[n.Name] == cluster.PhaseReady && n.Phase != cluster.PhaseReady {
			return fmt.Sprintf("%s is %s, no longer Ready", n.Name, n.Phase)
		}
	}
	ready := map[string]bool{}
	for _, a := range before.Addons {
		ready[a.Name] = a.State == "ready"
	}
	for _, a := range s.Addons {
		if ready[a.Name] && a.State != "ready" {
			return fmt.Sprintf("addon %s is %s, no longer ready", a.Name, a.State)
		}
	}
	if s.Condition == cluster.Stalled {
		return "something stands in its way" // the message names it
	}
	return "the world differs from the inventory"
}

// watch notes where a run stands, and how long it has waited for what.
func (b *Book) watch(r *cluster.Run, s cluster.Status, now time.Time) {
	r.Message, r.Hint = s.Message, s.Hint
	for _, w := range s.Waiting {
		since := w.Since
		if since.Before(r.Began) {
			since = r.Began
		}
		key := w.Key()
		if took := now.Sub(since); took >= b.waits[key].took {
			b.waits[key] = lasted{w.Message, took}
		}
	}
	if len(b.waits) > mostWatched {
		longest := b.longest()
		maps.DeleteFunc(b.waits, func(w cluster.Key, l lasted) bool { return !slices.Contains(longest, l.of(w)) })
	}
}

// foretell notes what will happen in a run, and reports whether it has learned it. Of a plan
// that was not the whole one the steps were done first.
func (b *Book) foretell(r *cluster.Run, plan func() ([]cluster.Step, bool)) bool {
	steps, whole := plan()
	if b.partly && !whole {
		return false // no wiser than before
	}
	r.Plan, b.partly = append(r.Plan, steps...), !whole
	if over := len(r.Plan) - mostSteps; over > 0 {
		r.Plan, r.PlanMore = r.Plan[:mostSteps:mostSteps], over
	}
	return true
}

// longest are the longest waits of the run that goes on, of a second at least.
func (b *Book) longest() []cluster.LongWait {
	out := []cluster.LongWait{}
	for w, l := range b.waits {
		if l.took >= time.Second {
			out = append(out, l.of(w))
		}
	}
	slices.SortFunc(out, func(x, y cluster.LongWait) int {
		return cmp.Or(-cmp.Compare(x.DurationMS, y.DurationMS), cmp.Compare(x.Subject, y.Subject), cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.About, y.About))
	})
	return out[:min(len(out), mostWaits)]
}

func (b *Book) end(r *cluster.Run, now time.Time, result cluster.Condition, message, hint string) {
	r.Waits = b.longest()
	r.Ended, r.Result, r.Message, r.Hint = now.UTC(), result, message, hint
	b.keepRun(*r)
}

func (b *Book) cut() {
	if over := len(b.runs) - b.keep; over > 0 {
		b.runs = slices.Delete(b.runs, 0, over)
	}
}
