package history

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// file is what a book has to keep since it was last asked for, as it is written.
func file(t *testing.T, b *Book) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, e := range b.TakeChanges() {
		line, err := Line(e)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(line)
	}
	return out.Bytes()
}

// did is an action at seconds after begin; an end of 0: it goes on.
func did(what string, from, to int) cluster.Outcome {
	d := cluster.Outcome{Action: cluster.CreateVM, Subject: what, Text: what, Began: begin.Add(time.Duration(from) * time.Second)}
	if to > 0 {
		d.DurationMS, d.Result = int64(to-from)*1000, cluster.Done
	}
	return d
}

// tell is a run in one line, with its actions and when they began and ended.
func tell(r cluster.Run) string {
	out := fmt.Sprintf("%d %s %s+%s", r.Number, r.Result, r.Began.Sub(begin), r.Ended.Sub(r.Began))
	for _, d := range r.Actions {
		out += fmt.Sprintf("; %s %s %s+%dms", d.Text, d.Result, d.Began.Sub(begin), d.DurationMS)
	}
	return out
}

func update(b *Book, s cluster.Status, seconds int) {
	b.Update(s, begin.Add(time.Duration(seconds)*time.Second), func() ([]cluster.Step, bool) { return nil, true })
}

// TestAnAgentThatIsKilled: of an agent that writes nothing more the file has all that was done
// in the run that went on, what was interrupted, and about when; and again after a third life.
func TestAnAgentThatIsKilled(t *testing.T) {
	b := NewBook("dev", 10, nil)
	b.Begin(did("first", 0, 0))
	update(b, st(one, cluster.Reconciling), 0)
	b.Did(did("first", 0, 5))
	b.Begin(did("second", 6, 0))
	s := st(one, cluster.Reconciling)
	s.Waiting = []cluster.WaitStatus{{Wait: cluster.Wait{Subject: "wk-1", Reason: cluster.WaitingForBoot, Message: "boots"}, Since: begin}}
	update(b, s, 24)
	text := file(t, b)

	const want = "1 Interrupted 0s+24s; first done 0s+5000ms; second interrupted 6s+18000ms"
	next, bad := OpenBook("dev", 10, text)
	r, _ := next.Run(1)
	if got := tell(r); got != want || bad != 0 || len(r.Waits) != 1 || r.Waits[0].DurationMS != 24_000 || r.Actions[1].Error == "" {
		t.Errorf("got\n%s\nwant\n%s\n%d bad, waits %+v", got, want, bad, r.Waits)
	}
	text = append(text, file(t, next)...)
	update(next, st(one, cluster.Reconciling), 100)
	text = append(text, file(t, next)...)
	third, _ := OpenBook("dev", 10, text)
	if r, _ := third.Run(1); tell(r) != want {
		t.Errorf("in the third life\n%s", tell(r))
	}
	if r, _ := third.Run(2); tell(r) != "2 Interrupted 1m40s+0s" {
		t.Errorf("the second run: %s", tell(r))
	}
	// An older agent finds runs with numbers, and what has none is left out.
	runs, bad := Lines[cluster.Run](text)
	for _, r := range runs {
		if r.Number != 0 && r.Cluster != "dev" || bad != 0 {
			t.Errorf("an older agent reads %+v, %d bad", r, bad)
		}
	}
}

// TestWhatOutlastsARun: an action that goes on when its run ends was interrupted in that run, if
// the agent is killed before there is another, and else in the next.
func TestWhatOutlastsARun(t *testing.T) {
	b := NewBook("dev", 10, nil)
	update(b, st(one, cluster.Reconciling), 0)
	b.Begin(did("slow", 1, 0))
	update(b, st(one, cluster.Stalled), 10)
	text := file(t, b)
	next, _ := OpenBook("dev", 10, text)
	if r, _ := next.Run(1); tell(r) != "1 Stalled 0s+10s; slow interrupted 1s+9000ms" {
		t.Errorf("%s", tell(r))
	}
	update(b, st(two, cluster.Reconciling), 20)
	text = append(text, file(t, b)...)
	next, _ = OpenBook("dev", 10, text)
	first, _ := next.Run(1)
	second, _ := next.Run(2)
	if tell(first) != "1 Stalled 0s+10s" || tell(second) != "2 Interrupted 20s+0s; slow interrupted 1s+19000ms" {
		t.Errorf("%s\n%s", tell(first), tell(second))
	}
	b.Did(did("slow", 1, 25))
	text = append(text, file(t, b)...)
	next, _ = OpenBook("dev", 10, text)
	if second, _ = next.Run(2); tell(second) != "2 Interrupted 20s+5s; slow done 1s+24000ms" {
		t.Errorf("%s", tell(second))
	}
}

// TestEntriesAreTheWhole: a file that is written again says what the one before did.
func TestEntriesAreTheWhole(t *testing.T) {
	b := NewBook("dev", 10, nil)
	update(b, st(one, cluster.Reconciling), 0)
	update(b, st(one, cluster.Ready), 3)
	update(b, st(two, cluster.Reconciling), 4)
	b.Begin(did("slow", 5, 0))
	update(b, st(two, cluster.Reconciling), 9)
	b.TakeChanges()
	b.unkept = b.Entries()
	next, _ := OpenBook("dev", 10, file(t, b))
	if r, _ := next.Run(2); tell(r) != "2 Interrupted 4s+5s; slow interrupted 5s+4000ms" {
		t.Errorf("%s", tell(r))
	}
	if got := text(next); !strings.HasPrefix(got, "1 1 a new revision: Ready\n") {
		t.Errorf("%s", got)
	}
	b.KeepOpen(begin.Add(time.Minute))
	if next, _ = OpenBook("dev", 10, file(t, b)); len(next.Runs()) != 1 || next.Runs()[0].Ended.Sub(begin) != time.Minute {
		t.Errorf("%+v", next.Runs())
	}
}

// TestNotesAreFew: a run of three days that only waits is noted a few hundred times.
func TestNotesAreFew(t *testing.T) {
	b := NewBook("dev", 10, nil)
	for s := 0; s < 3*24*3600; s++ {
		update(b, st(one, cluster.Reconciling), s)
	}
	if n := len(b.TakeChanges()); n < 100 || n > 400 {
		t.Errorf("%d entries", n)
	}
}

// TestAtRest: what is done while the cluster is at rest is the work of no run, and moves the
// begin of none; what a pass began that reports a change is, however quick.
func TestAtRest(t *testing.T) {
	b := NewBook("dev", 10, nil)
	update(b, st(one, cluster.Ready), 0)
	b.Begin(did("snapshot", 10, 0))
	update(b, st(one, cluster.Ready), 11)
	b.Did(did("snapshot", 10, 20))
	b.Begin(did("quick", 21, 0))
	b.Did(did("quick", 21, 22))
	update(b, st(one, cluster.Ready), 22)
	b.Begin(did("slow snapshot", 23, 0))
	update(b, st(one, cluster.Ready), 24)
	b.Begin(did("change", 40, 0))
	update(b, st(two, cluster.Reconciling), 41)
	b.Did(did("slow snapshot", 23, 50))
	b.Did(did("change", 40, 60))
	update(b, st(two, cluster.Ready), 61)
	if r, _ := b.Run(1); tell(r) != "1 Ready 40s+21s; slow snapshot done 23s+27000ms; change done 40s+20000ms" {
		t.Errorf("%s", tell(r))
	}
}

// TestCauses: a push is the cause of what follows it, and not what was ordered before it; and
// nodes that are changed once nothing stalls a cluster any more are no cause.
func TestCauses(t *testing.T) {
	for name, c := range map[string]struct {
		story []any
		want  string
	}{
		"ordered, then pushed": {[]any{st(one, cluster.Ready), st(one, cluster.Reconciling), "ordered the upgrade", st(two, cluster.Reconciling)},
			"1 1 a new revision: Superseded\n2 2 a new revision: "},
		"a node that is rebooted after a stall": {[]any{st(one, cluster.Ready), st(two, cluster.Stalled), st(two, cluster.Reconciling, "wk-1 stopped")},
			"1 2 a new revision: Stalled\n2 2 what kept it stalled is gone: "},
	} {
		b := NewBook("dev", 10, nil)
		feed(b, c.story...)
		if got := text(b); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

// FuzzEntries: whatever an earlier life has left, every run but one that this life begins has
// ended, and so has every action.
func FuzzEntries(f *testing.F) {
	f.Add([]byte("{\"number\":1,\"cluster\":\"dev\"}\n{\"note\":{\"run\":1,\"at\":\"2026-03-01T10:00:05Z\",\"begun\":{\"text\":\"x\"}}}\n{"))
	f.Add([]byte("{\"note\":{\"run\":7}}\n{\"number\":2,\"cluster\":\"dev\",\"ended\":\"2026-03-01T10:00:05Z\"}\n{\"note\":{\"run\":2,\"ended\":{}}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, _ := OpenBook("dev", 3, text)
		for _, r := range b.Runs() {
			if r.Ended.IsZero() && !r.Began.IsZero() || len(r.Actions) > len(text) {
				t.Errorf("%+v", r)
			}
		}
		update(b, st(one, cluster.Reconciling), 0)
		b.Begin(did("x", 1, 0))
		b.Did(did("x", 1, 2))
		if all := b.Runs(); len(all) == 0 || len(all) > 3 || !all[0].Ended.IsZero() {
			t.Errorf("%+v", all)
		}
	})
}
