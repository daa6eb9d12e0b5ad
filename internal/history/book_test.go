package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

const (
	one cluster.Revision = "main@sha1:0000000000000000000000000000000000000001"
	two cluster.Revision = "main@sha1:0000000000000000000000000000000000000002"
)

var begin = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

// st is a status; each word of how describes it.
func st(rev cluster.Revision, c cluster.Condition, how ...string) cluster.Status {
	s := cluster.Status{Cluster: "dev", Revision: rev, Condition: c, Message: string(c) + " it is", Nodes: []cluster.NodeStatus{{Name: "wk-1", Phase: cluster.PhaseReady}}}
	for _, h := range how {
		switch h {
		case "suspended":
			s.Suspended = true
		case "wk-1 stopped":
			s.Nodes[0].Phase = cluster.PhaseStopped
		case "addon ready":
			s.Addons = []cluster.AddonStatus{{Name: "cilium", State: "ready"}}
		case "addon failed":
			s.Addons = []cluster.AddonStatus{{Name: "cilium", State: "failed"}}
		default:
			panic(h)
		}
	}
	return s
}

// feed feeds a book, one status a minute; a string is an admin command, which takes the place of what is under way after "turn: ".
func feed(b *Book, story ...any) {
	now := begin
	for _, s := range story {
		switch s := s.(type) {
		case cluster.Status:
			b.Update(s, now, func() ([]cluster.Step, bool) { return []cluster.Step{{Text: "step"}}, true })
		case cluster.Outcome:
			b.Did(s)
		case string:
			what, turns := strings.CutPrefix(s, "turn: ")
			b.Request(what, turns)
		}
		now = now.Add(time.Minute)
	}
}

// text is a book in one line a run.
func text(b *Book) string {
	var out []string
	for _, r := range b.Runs() {
		out = append([]string{fmt.Sprintf("%d %s %s: %s", r.Number, r.Revision[len(r.Revision)-1:], r.Cause, r.Result)}, out...)
	}
	return strings.Join(out, "\n")
}

func TestRuns(t *testing.T) {
	for name, c := range map[string]struct {
		story []any
		want  string
	}{
		"a first push": {[]any{st("", cluster.Unknown), st(one, cluster.Reconciling), st(one, cluster.Reconciling), st(one, cluster.Ready), st(one, cluster.Ready)},
			"1 1 a new revision: Ready"},
		"nothing happens": {[]any{st(one, cluster.Unknown), st(one, cluster.Ready), st(one, cluster.Unknown), st(one, cluster.Ready)}, ""},
		"goes on":         {[]any{st(one, cluster.Reconciling)}, "1 1 a new revision: "},
		"a push that needs nothing": {[]any{st(one, cluster.Reconciling), st(one, cluster.Ready), st(two, cluster.Ready)},
			"1 1 a new revision: Ready\n2 2 a new revision: Ready"},
		"a push in the middle": {[]any{st(one, cluster.Reconciling), st(two, cluster.Reconciling), st(two, cluster.Ready)},
			"1 1 a new revision: Superseded\n2 2 a new revision: Ready"},
		"an invalid push in the middle": {[]any{st(one, cluster.Reconciling), st(two, cluster.Stalled), st(two, cluster.Stalled)},
			"1 1 a new revision: Superseded\n2 2 a new revision: Stalled"},
		"drift": {[]any{st(one, cluster.Reconciling), st(one, cluster.Ready), st(one, cluster.Reconciling, "wk-1 stopped"), st(one, cluster.Ready)},
			"1 1 a new revision: Ready\n2 1 wk-1 is Stopped, no longer Ready: Ready"},
		"an addon falls": {[]any{st(one, cluster.Reconciling), st(one, cluster.Ready, "addon ready"), st(one, cluster.Reconciling, "addon failed")},
			"1 1 a new revision: Ready\n2 1 addon cilium is failed, no longer ready: "},
		"stalled and free again": {[]any{st(one, cluster.Reconciling), st(one, cluster.Stalled), st(one, cluster.Reconciling), st(one, cluster.Ready)},
			"1 1 a new revision: Stalled\n2 1 what kept it stalled is gone: Ready"},
		"a policy that is lost": {[]any{st(one, cluster.Reconciling), st(one, cluster.Ready), st(one, cluster.Stalled), st(one, cluster.Ready)},
			"1 1 a new revision: Ready\n2 1 something stands in its way: Stalled\n3 1 what kept it stalled is gone: Ready"},
		"stalled and Ready at once": {[]any{st(one, cluster.Reconciling), st(one, cluster.Stalled), st(one, cluster.Ready)},
			"1 1 a new revision: Stalled\n2 1 what kept it stalled is gone: Ready"},
		"blind in the middle": {[]any{st(one, cluster.Reconciling), st(one, cluster.Unknown), st(one, cluster.Ready)}, "1 1 a new revision: Ready"},
		"suspend and resume": {[]any{st(one, cluster.Reconciling), st(one, cluster.Ready), "suspended", st(one, cluster.Suspended, "suspended"), "resumed", st(one, cluster.Ready)},
			"1 1 a new revision: Ready\n2 1 root suspended: Suspended\n3 1 root resumed: Ready"},
		"suspended in the middle": {[]any{st(one, cluster.Reconciling), "suspended", st(one, cluster.Reconciling), st(one, cluster.Suspended, "suspended")},
			"1 1 a new revision: Suspended"},
		"destroyed in the middle": {[]any{st(one, cluster.Reconciling), "asked", st(one, cluster.Reconciling, "suspended"), st(one, cluster.Suspended, "suspended")},
			"1 1 a new revision: Superseded\n2 1 root asked: Suspended"},
		"turned in the middle": {[]any{st(one, cluster.Reconciling), "turn: ordered", st(one, cluster.Reconciling), st(one, cluster.Reconciling), st(one, cluster.Ready)},
			"1 1 a new revision: Superseded\n2 1 root ordered: Ready"},
		"turned at the end": {[]any{st(one, cluster.Reconciling), "turn: ordered", st(one, cluster.Stalled), st(one, cluster.Reconciling), st(one, cluster.Ready), st(one, cluster.Reconciling)},
			"1 1 a new revision: Stalled\n2 1 root ordered: Ready\n3 1 the world differs from the inventory: "},
		"turned at rest": {[]any{st(one, cluster.Reconciling), st(one, cluster.Ready), "turn: ordered", st(one, cluster.Ready), st(one, cluster.Reconciling), st(one, cluster.Stalled), st(one, cluster.Reconciling)},
			"1 1 a new revision: Ready\n2 1 root ordered: Stalled\n3 1 what kept it stalled is gone: "},
		"a turn that led to nothing": {[]any{st(one, cluster.Reconciling), "turn: ordered", st(one, cluster.Stalled), st(one, cluster.Stalled), st(one, cluster.Stalled), st(one, cluster.Reconciling)},
			"1 1 a new revision: Stalled\n2 1 what kept it stalled is gone: "},
		"ordered in the middle": {[]any{st(one, cluster.Reconciling), "ordered", st(one, cluster.Reconciling), st(one, cluster.Stalled), st(one, cluster.Reconciling)},
			"1 1 a new revision: Stalled\n2 1 what kept it stalled is gone: "},
		"a word that led to nothing is not the cause of what comes later": {[]any{st(one, cluster.Reconciling), st(one, cluster.Ready), "suspended", "resumed", st(one, cluster.Ready), st(one, cluster.Ready), st(one, cluster.Reconciling, "wk-1 stopped")},
			"1 1 a new revision: Ready\n2 1 wk-1 is Stopped, no longer Ready: "},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBook("dev", 10, nil)
			feed(b, c.story...)
			if got := text(b); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestARunBeganWhenItDid: what is reported late began when the cluster began to
// change.
func TestARunBeganWhenItDid(t *testing.T) {
	b := NewBook("dev", 10, nil)
	late := st(one, cluster.Reconciling, "wk-1 stopped")
	late.Since = begin.Add(90 * time.Second)
	feed(b, st(one, cluster.Reconciling), st(one, cluster.Ready), late)
	if r, _ := b.Run(2); !r.Began.Equal(late.Since) {
		t.Errorf("the run began %v, want %v", r.Began, late.Since)
	}
	pushed := st(two, cluster.Reconciling)
	pushed.Since = late.Since
	b = NewBook("dev", 10, nil)
	feed(b, st(one, cluster.Reconciling), pushed)
	if r, _ := b.Run(2); !r.Began.Equal(begin.Add(time.Minute)) {
		t.Errorf("the run of a new revision began %v, before it was pushed", r.Began)
	}
}

func TestALaterLife(t *testing.T) {
	first := NewBook("dev", 10, nil)
	feed(first, st(one, cluster.Reconciling), cluster.Outcome{Text: "create vm", Began: begin.Add(time.Minute), DurationMS: 60_000})
	for name, c := range map[string]struct {
		story []any
		want  string
	}{
		"found ready":       {[]any{st("", cluster.Unknown), st(one, cluster.Ready)}, "1 1 a new revision: Interrupted"},
		"goes on":           {[]any{st(one, cluster.Reconciling), st(one, cluster.Ready)}, "1 1 a new revision: Interrupted\n2 1 the agent started: Ready"},
		"pushed meanwhile":  {[]any{st(two, cluster.Ready)}, "1 1 a new revision: Interrupted\n2 2 a new revision: Ready"},
		"stalled meanwhile": {[]any{st(one, cluster.Stalled)}, "1 1 a new revision: Interrupted\n2 1 the agent started: Stalled"},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBook("dev", 10, first.Runs())
			if r, ok := b.Run(1); !ok || !r.Ended.Equal(begin.Add(2*time.Minute)) {
				t.Errorf("the interrupted run ended %v, want when its last action did", r.Ended)
			}
			feed(b, c.story...)
			if got := text(b); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	again := NewBook("dev", 10, first.Runs())
	feed(again, st(one, cluster.Ready), st(one, cluster.Ready))
	b := NewBook("dev", 10, again.Runs())
	feed(b, st(one, cluster.Ready))
	if got := text(b); got != "1 1 a new revision: Interrupted" {
		t.Errorf("a start in which nothing happens makes a run: %s", got)
	}
}

func TestWhatARunHolds(t *testing.T) {
	b := NewBook("dev", 2, nil)
	s := st(one, cluster.Reconciling)
	s.Subject = "add a worker"
	s.Waiting = []cluster.WaitStatus{{Wait: cluster.Wait{Subject: "wk-1", Reason: cluster.WaitingForBoot, Message: "boots"}, Since: begin.Add(-time.Hour)}}
	feed(b, s, s, cluster.Outcome{Text: "create vm 520"}, st(one, cluster.Stalled), cluster.Outcome{Text: "late", Error: "no"})
	r, _ := b.Run(1)
	if r.Subject != "add a worker" || len(r.Plan) != 1 || len(r.Actions) != 2 || r.Actions[1].Error != "no" || r.Message != "Stalled it is" ||
		len(r.Waits) != 1 || r.Waits[0] != (cluster.LongWait{Subject: "wk-1", Reason: cluster.WaitingForBoot, Message: "boots", DurationMS: 60_000}) || r.Ended.Sub(r.Began) != 3*time.Minute {
		t.Errorf("%+v", r)
	}
	b.TakeChanges()
	b.Did(cluster.Outcome{})
	if changed := b.TakeChanges(); len(changed) != 1 || changed[0].Run.Number != 1 {
		t.Errorf("an action that ends after its run is to be written: %v", changed)
	}
	for range mostActions {
		b.Did(cluster.Outcome{})
	}
	if r, _ = b.Run(1); len(r.Actions) != mostActions || r.ActionsMore != 3 {
		t.Errorf("%d actions and %d more", len(r.Actions), r.ActionsMore)
	}
	b.Update(st(two, cluster.Reconciling), begin, func() ([]cluster.Step, bool) { return make([]cluster.Step, mostSteps+7), true })
	if r, _ = b.Run(2); len(r.Plan) != mostSteps || r.PlanMore != 7 {
		t.Errorf("%d steps and %d more", len(r.Plan), r.PlanMore)
	}
	feed(b, st(two, cluster.Ready), st(one, cluster.Ready))
	if got := text(b); got != "2 2 a new revision: Ready\n3 1 a new revision: Ready" {
		t.Errorf("two are kept, and the numbers go on: %s", got)
	}
}

// TestAnActionThatIsQuick: one that ends before the status of the pass that began
// it is an action of the run that this status begins.
func TestAnActionThatIsQuick(t *testing.T) {
	b := NewBook("dev", 5, nil)
	b.Did(cluster.Outcome{Text: "register", Began: begin.Add(-time.Second)})
	feed(b, st(one, cluster.Reconciling), st(one, cluster.Ready)) // ends a minute after begin
	b.Did(cluster.Outcome{Text: "late", Began: begin.Add(30 * time.Second)})
	b.Did(cluster.Outcome{Text: "start", Began: begin.Add(2 * time.Minute)})
	feed(b, st(one, cluster.Reconciling, "wk-1 stopped"))
	texts := func(number int) (out []string) {
		r, _ := b.Run(number)
		for _, a := range r.Actions {
			out = append(out, a.Text)
		}
		return out
	}
	if first, second := texts(1), texts(2); fmt.Sprint(first) != "[register late]" || fmt.Sprint(second) != "[start]" {
		t.Errorf("the first run did %v, the second %v", first, second)
	}
	if r, _ := b.Run(1); !r.Began.Equal(begin.Add(-time.Second)) {
		t.Errorf("the run began at %v, after what was done in it", r.Began)
	}
}

// TestReasonsThatChange: a run that never ends, with ever new reasons, stays small
// and keeps what it waited for longest.
func TestReasonsThatChange(t *testing.T) {
	b := NewBook("dev", 5, nil)
	s := st(one, cluster.Reconciling)
	feed(b, s)
	s.Waiting = []cluster.WaitStatus{{Wait: cluster.Wait{Subject: "wk-1", Reason: cluster.WaitingForBoot, Message: "boots"}, Since: begin}}
	b.Update(s, begin.Add(time.Hour), nil)
	for i := range 3 * mostWatched {
		s.Waiting = []cluster.WaitStatus{{Wait: cluster.Wait{Subject: "dev", Reason: cluster.ActionFailed, About: fmt.Sprint("try ", i)}, Since: begin.Add(2 * time.Hour)}}
		b.Update(s, begin.Add(2*time.Hour+time.Minute), nil)
		if len(b.waits) > mostWatched {
			t.Fatalf("%d waits are watched", len(b.waits))
		}
	}
	if r, _ := b.Run(1); len(r.Waits) == 0 || r.Waits[0].Message != "boots" || r.Waits[0].DurationMS != time.Hour.Milliseconds() {
		t.Errorf("%+v", r.Waits)
	}
}

// TestAWaitInOtherWords: a wait whose details change is one wait, reported in its
// last words.
func TestAWaitInOtherWords(t *testing.T) {
	b := NewBook("dev", 5, nil)
	s := st(one, cluster.Reconciling)
	feed(b, s)
	for i := range 3 * mostWatched {
		s.Waiting = []cluster.WaitStatus{{Wait: cluster.Wait{Subject: "cilium", Reason: cluster.AddonNotReady, Message: fmt.Sprintf("becomes ready: %d of 9999 pods ready", i)}, Since: begin}}
		if i == 0 {
			s.Waiting = append(s.Waiting, cluster.WaitStatus{Wait: cluster.Wait{Subject: "cilium", Reason: cluster.WaitingForChart, Message: "waits for its chart"}, Since: begin})
		}
		b.Update(s, begin.Add(time.Minute+time.Duration(i)*time.Second), nil)
	}
	got, _ := b.Run(1)
	want := []cluster.LongWait{
		{Subject: "cilium", Reason: cluster.AddonNotReady, Message: fmt.Sprintf("becomes ready: %d of 9999 pods ready", 3*mostWatched-1), DurationMS: 1000 * (60 + 3*mostWatched - 1)},
		{Subject: "cilium", Reason: cluster.WaitingForChart, Message: "waits for its chart", DurationMS: 60_000}}
	if !slices.Equal(got.Waits, want) || len(b.waits) != 2 {
		t.Errorf("%d are watched\ngot  %+v\nwant %+v", len(b.waits), got.Waits, want)
	}
}

// TestAPlanThatGrows: while only a part is known, the rest is added when it is.
func TestAPlanThatGrows(t *testing.T) {
	b := NewBook("dev", 5, nil)
	for _, p := range []struct {
		text  string
		whole bool
	}{{"register", false}, {"register", false}, {"create", true}, {"start", true}} {
		b.Update(st(one, cluster.Reconciling), begin, func() ([]cluster.Step, bool) { return []cluster.Step{{Text: p.text}}, p.whole })
	}
	if r, _ := b.Run(1); len(r.Plan) != 2 || r.Plan[0].Text != "register" || r.Plan[1].Text != "create" {
		t.Errorf("plan %+v", r.Plan)
	}
}

func TestLines(t *testing.T) {
	var file []byte
	for _, r := range []cluster.Run{{Number: 1, Cluster: "dev"}, {Number: 2, Cluster: "dev", Result: cluster.Ready}} {
		line, err := Line(r)
		if err != nil {
			t.Fatal(err)
		}
		file = append(file, line...)
	}
	if runs, bad := Lines[cluster.Run](append([]byte("garbage\n\n"), file...)); len(runs) != 2 || bad != 1 || runs[1].Result != cluster.Ready {
		t.Errorf("%+v, %d bad", runs, bad)
	}
	if runs, bad := Lines[cluster.Run](file[:len(file)-3]); len(runs) != 1 || bad != 1 {
		t.Errorf("torn: %+v, %d bad", runs, bad)
	}
}

// TestOlderHistory: what an earlier agent called "cut off" is interrupted.
func TestOlderHistory(t *testing.T) {
	runs, bad := Lines[cluster.Run]([]byte(`{"number":1,"actions":[{"action":"delete vm","result":"cut off"},{"action":"create vm","result":"done"}]}`))
	if bad != 0 || len(runs) != 1 || runs[0].Actions[0].Result != cluster.ResultInterrupted || runs[0].Actions[1].Result != cluster.Done {
		t.Errorf("%d bad, %+v", bad, runs)
	}
	if line, err := Line(runs[0]); err != nil || !strings.Contains(string(line), `"result":"interrupted"`) {
		t.Errorf("%s %v", line, err)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"number\":1,\"cluster\":\"dev\"}\n{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		runs, _ := Lines[cluster.Run](text)
		b := NewBook("dev", 3, runs)
		b.Update(st(one, cluster.Reconciling), begin, func() ([]cluster.Step, bool) { return nil, true })
		if all := b.Runs(); len(all) == 0 || len(all) > 3 || !all[0].Ended.IsZero() {
			t.Errorf("%+v", all)
		}
	})
}

// FuzzEvents: whatever an earlier life has left, what is added later is found by
// who has seen the one before.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("{\"seq\":18446744073709551614,\"message\":\"one\"}\n{\"seq\":3}\n{"))
	f.Add([]byte("{\"seq\":1}\n{\"seq\":2,\"at\":\"2300-01-01T00:00:00Z\"}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		old, _ := Lines[cluster.Event](text)
		r := NewRing(4)
		r.Recall(old)
		before := r.Add(cluster.Event{At: begin})
		after := r.Add(cluster.Event{At: begin})
		if got := r.Select(cluster.EventQuery{After: before.Seq}); len(got) != 1 || got[0].Seq != after.Seq {
			t.Errorf("%d, then %d: found %+v", before.Seq, after.Seq, got)
		}
		if all := r.Select(cluster.EventQuery{}); len(all) > 4 || !slices.IsSortedFunc(all, func(a, b cluster.Event) int { return cmp.Compare(a.Seq, b.Seq) }) {
			t.Errorf("%+v", all)
		}
	})
}

func TestRing(t *testing.T) {
	r := NewRing(3)
	at := begin
	add := func(cl, node string) cluster.Event {
		return r.Add(cluster.Event{At: at, Cluster: cl, Node: node})
	}
	changed := r.Changed()
	a := add("dev", "cp-1")
	b := add("", "")
	select {
	case <-changed:
	default:
		t.Error("no one is notified of an event")
	}
	at = at.Add(-time.Hour) // a clock that is set back
	c := add("prod", "cp-1")
	if !(a.Seq < b.Seq && b.Seq < c.Seq) {
		t.Errorf("numbers do not grow: %d %d %d", a.Seq, b.Seq, c.Seq)
	}
	for _, q := range []struct {
		q    cluster.EventQuery
		want []cluster.Event
	}{
		{cluster.EventQuery{}, []cluster.Event{a, b, c}},
		{cluster.EventQuery{Cluster: "dev"}, []cluster.Event{a, b}},
		{cluster.EventQuery{Node: "cp-1"}, []cluster.Event{a, c}},
		{cluster.EventQuery{After: a.Seq}, []cluster.Event{b, c}},
		{cluster.EventQuery{Since: begin}, []cluster.Event{a, b}},
		{cluster.EventQuery{Last: 1}, []cluster.Event{c}},
	} {
		if got := r.Select(q.q); fmt.Sprint(got) != fmt.Sprint(q.want) {
			t.Errorf("%+v picks %v, want %v", q.q, got, q.want)
		}
	}
	at = begin.Add(time.Hour)
	d := add("dev", "")
	if got := r.Select(cluster.EventQuery{}); fmt.Sprint(got) != fmt.Sprint([]cluster.Event{b, c, d}) {
		t.Errorf("three are kept, not %v", got)
	}

	// What an earlier life kept comes before, in order, within the bound.
	later := NewRing(3)
	e := later.Add(cluster.Event{At: at.Add(time.Hour)})
	later.Recall([]cluster.Event{a, c, b, d, {Seq: e.Seq + 1}})
	if got := later.Select(cluster.EventQuery{}); fmt.Sprint(got) != fmt.Sprint([]cluster.Event{c, d, e}) {
		t.Errorf("recalled %v", got)
	}
}

// TestUsual: how long actions take is learned from what was done, also by agents
// before this one, and not from what failed.
func TestUsual(t *testing.T) {
	did := func(kind cluster.ActionKind, result cluster.Result, took time.Duration) cluster.Outcome {
		return cluster.Outcome{Action: kind, Result: result, Began: begin, DurationMS: took.Milliseconds()}
	}
	b := NewBook("dev", 5, []cluster.Run{{Number: 1, Cluster: "dev", Actions: []cluster.Outcome{
		did(cluster.CreateVM, cluster.Done, 8*time.Second), did(cluster.CreateVM, cluster.Done, 3*time.Second), did(cluster.CreateVM, cluster.Failed, time.Hour)}}})
	feed(b, did(cluster.StartVM, cluster.Done, time.Second), did(cluster.DeleteVM, cluster.ResultInterrupted, time.Hour))
	got := b.Usual()
	if len(got) != 2 || got[cluster.CreateVM] != 8*time.Second || got[cluster.StartVM] != time.Second {
		t.Errorf("usual: %v", got)
	}
}
