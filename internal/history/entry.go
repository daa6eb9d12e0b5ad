package history

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Entry is one line of the file that a book is kept in: a whole run when it begins, ends or is
// found to differ, and between that notes of what happens in it, each as it happens. An agent
// that is killed writes nothing more.
type Entry struct {
	Run  cluster.Run
	Note *Note // instead of a run
}

// Note is one thing that happened in a run that goes on. Agents of before take its line for a
// run without a number, and leave it out.
type Note struct {
	Run   int                `json:"run"` // its number
	At    time.Time          `json:"at"`
	Begun *cluster.Outcome   `json:"begun,omitempty"` // without a result
	Ended *cluster.Outcome   `json:"ended,omitempty"`
	Waits []cluster.LongWait `json:"waits,omitempty"` // so far
}

// noteLine is how a note is written.
type noteLine struct {
	Note *Note `json:"note"`
}

// MarshalJSON writes the run or the note.
func (e Entry) MarshalJSON() ([]byte, error) {
	if e.Note != nil {
		return json.Marshal(noteLine{e.Note})
	}
	return json.Marshal(e.Run)
}

// UnmarshalJSON reads either.
func (e *Entry) UnmarshalJSON(text []byte) error {
	var l noteLine
	if err := json.Unmarshal(text, &l); err != nil || l.Note != nil {
		e.Note = l.Note
		return err
	}
	return json.Unmarshal(text, &e.Run)
}

// OpenBook opens the book of a cluster with the entries of a file. A run that goes on by them
// was interrupted when the last of them was written, and so was every action that had begun then
// and had not ended. bad counts what cannot be read.
func OpenBook(name string, keep int, text []byte) (b *Book, bad int) {
	entries, bad := Lines[Entry](text)
	runs, interrupted := foldEntries(name, entries)
	b = NewBook(name, keep, runs)
	for _, r := range interrupted {
		b.keepRun(r)
	}
	return b, bad
}

// foldEntries returns the runs of a cluster that entries add up to, and those of them that the
// end of the agent has interrupted without writing that down, or actions of them.
func foldEntries(name string, entries []Entry) (runs, interrupted []cluster.Run) {
	at, seen, last := map[int]int{}, map[int]time.Time{}, 0
	for _, e := range entries {
		if n := e.Note; n != nil {
			if i, ok := at[n.Run]; ok {
				addNote(&runs[i], *n)
				seen[n.Run] = later(seen[n.Run], n.At)
			}
			continue
		}
		r := e.Run
		if r.Number < 1 || r.Cluster != name {
			continue
		}
		last = max(last, r.Number)
		i, ok := at[r.Number]
		if !ok {
			at[r.Number] = len(runs)
			runs = append(runs, r)
			continue
		}
		for _, d := range runs[i].Actions {
			if isGoingOn(d) && !hasAction(r, d) {
				addAction(&r, d)
			}
		}
		runs[i] = r
	}
	for i := range runs {
		r := &runs[i]
		if r.Number != last {
			// What outlasted its run was noted again, in the next.
			r.Actions = slices.DeleteFunc(r.Actions, isGoingOn)
			continue
		}
		if r.Ended.IsZero() || slices.ContainsFunc(r.Actions, isGoingOn) {
			interrupt(r, seen[r.Number])
			interrupted = append(interrupted, *r)
		}
	}
	return runs, interrupted
}

// addNote adds a note to its run.
func addNote(r *cluster.Run, n Note) {
	if d := n.Ended; d != nil {
		r.Actions = slices.DeleteFunc(r.Actions, func(x cluster.Outcome) bool { return isGoingOn(x) && isSame(x, *d) })
		addAction(r, *d)
	}
	if d := n.Begun; d != nil && !hasAction(*r, *d) {
		begun := *d
		begun.Result = ""
		addAction(r, begun)
	}
	if n.Waits != nil {
		r.Waits = n.Waits[:min(len(n.Waits), mostWaits)]
	}
}

// interrupt ends a run that the end of the agent has interrupted, which was not before seen, and
// each of its actions that go on. That of a run which had ended may go on.
func interrupt(r *cluster.Run, seen time.Time) {
	seen = later(later(seen, r.Began), r.Ended)
	for _, d := range r.Actions {
		seen = later(seen, endOf(d))
	}
	if r.Ended.IsZero() {
		r.Ended, r.Result, r.Message, r.Hint = seen.UTC(), cluster.Interrupted, "the agent ended; what it began was found again by looking", ""
	}
	for i := range r.Actions {
		if d := &r.Actions[i]; isGoingOn(*d) {
			d.Result, d.Error = cluster.ResultInterrupted, "the agent ended before it did"
			d.DurationMS = seen.Sub(d.Began).Milliseconds()
		}
	}
}

func isGoingOn(d cluster.Outcome) bool { return d.Result == "" }

// isSame reports whether two are one action, at its begin and at its end.
func isSame(x, y cluster.Outcome) bool {
	return x.Action == y.Action && x.Subject == y.Subject && x.Began.Equal(y.Began)
}

func hasAction(r cluster.Run, d cluster.Outcome) bool {
	return slices.ContainsFunc(r.Actions, func(x cluster.Outcome) bool { return isSame(x, d) })
}

// endOf is when an action ended, or began if it goes on.
func endOf(d cluster.Outcome) time.Time {
	return d.Began.Add(time.Duration(d.DurationMS) * time.Millisecond)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// TakeChanges returns what is to be kept since it was last asked for.
func (b *Book) TakeChanges() []Entry {
	all := b.unkept
	b.unkept = nil
	return all
}

// Entries are everything that there is to keep, oldest first.
func (b *Book) Entries() []Entry {
	var all []Entry
	for _, r := range slices.Backward(b.Runs()) {
		all = append(all, Entry{Run: r})
	}
	if r := b.open(); r != nil {
		all = append(all, b.noteOpen(*r, b.noted)...)
	}
	return all
}

// KeepOpen has the run that goes on kept as it stands now.
func (b *Book) KeepOpen(now time.Time) {
	if b.open() != nil {
		b.keepOpen(now)
	}
}

func (b *Book) keepOpen(now time.Time) {
	r := b.open()
	b.noted = now
	b.keepRun(*r)
	b.unkept = append(b.unkept, b.noteOpen(*r, now)...)
}

// noteOpen are the notes of a run that goes on which its own entry does not hold.
func (b *Book) noteOpen(r cluster.Run, now time.Time) []Entry {
	all := []Entry{{Note: &Note{Run: r.Number, At: now.UTC()}}}
	for _, d := range b.begun {
		all = append(all, Entry{Note: &Note{Run: r.Number, At: d.Began, Begun: &d.Outcome}})
	}
	return all
}

func (b *Book) keepRun(r cluster.Run) { b.unkept = append(b.unkept, Entry{Run: b.shown(r)}) }

func (b *Book) keepNote(n Note) { b.unkept = append(b.unkept, Entry{Note: &n}) }

// noteSeen has kept how far a run has come, each time that it has lasted a twentieth longer,
// and a second at least: so long ago it may have ended when the next note is missing.
func (b *Book) noteSeen(r *cluster.Run, now time.Time) {
	if now.Sub(b.noted) < max(time.Second, b.noted.Sub(r.Began)/20) {
		return
	}
	b.noted = now
	b.keepNote(Note{Run: r.Number, At: now.UTC(), Waits: b.longest()})
}
