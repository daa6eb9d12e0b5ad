package reconcile

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/journal"
)

// TestSinceWhenItDiffers: since when something differs is kept while it cannot be looked at, and
// ends when it is seen to be right.
func TestSinceWhenItDiffers(t *testing.T) {
	r := &Reconciler{memo: newMemo(), trigger: make(chan struct{}, 1)}
	r.exec = newExecutor(r)
	var d cluster.Desired
	began := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	key := cluster.DriftKey{Subject: "0000000000000007", Part: cluster.PartMember, Field: "etcd member 0000000000000007"}
	orphan := cluster.Saw([]cluster.Member{{ID: 7, Name: "ghost"}})
	for i, c := range []struct {
		members cluster.Seen[[]cluster.Member]
		want    time.Duration // after the first look; negative: it does not differ
	}{{orphan, 0}, {orphan, 0}, {cluster.Unseen[[]cluster.Member]("no answer"), 0}, {orphan, 0}, {cluster.Saw([]cluster.Member{}), -1}, {orphan, 5 * time.Minute}} {
		o := cluster.Observed{Now: began.Add(time.Duration(i) * time.Minute), Members: c.members}
		r.learnWatched(&d, &o)
		note, differs := o.DriftNotes[key]
		if differs != (c.want >= 0) || differs && !note.Since.Equal(began.Add(c.want)) {
			t.Errorf("look %d: %v %v", i, note, differs)
		}
	}
}

// TestSinceOverARestart: since when something differs, and who made it so, outlives the agent, and
// is written down once; until when all was seen is written when it ends, and counts once.
func TestSinceOverARestart(t *testing.T) {
	_, r, files, d := newSteps(t)
	n := d.Spec.Nodes[3]
	d.Spec.Nodes = d.Spec.Nodes[3:]
	d.Configs = map[string]cluster.Config{n.Name: {Digest: "one"}}
	keptOf(t, r, d, n)
	key := cluster.DriftKey{Subject: n.Name, Part: cluster.PartVM, Field: "cores"}
	began := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	look := func(after time.Duration, cores int, by ...cluster.Task) cluster.DriftNote {
		t.Helper()
		o := worker(d, n)
		o.Now, o.Facts = began.Add(after), r.c.Journal.Facts()
		vm := o.VMs[n.Name]
		vm.Hardware.Value.Cores, vm.ChangedBy, vm.ConfigAge = cores, by, 30*time.Second
		if len(by) > 0 {
			vm.ChangedAfter = by[0].Started.Add(-time.Minute)
		}
		o.VMs[n.Name] = vm
		r.learnWatched(&d, &o)
		must(r.learnFacts(d, &o))
		return o.DriftNotes[key]
	}
	restart := func() {
		t.Helper()
		j, err := journal.Open(files, "dev", r.c.ID)
		must(err)
		r.c.Journal = j
		r, err = New(r.c)
		must(err)
	}
	by := cluster.Task{UPID: "UPID:x:", Type: "qmconfig", User: "a@pam", Started: began.Add(time.Minute)}
	look(0, n.Cores)
	if look(time.Minute, n.Cores+1); len(r.c.Journal.Facts().Drifts) > 0 {
		t.Error("what differs of a cluster that was never Ready is written")
	}
	if r.noteLooked(); !r.c.Journal.Facts().Looked.IsZero() {
		t.Error("until when it was looked at is written of a cluster that was never Ready")
	}
	look(90*time.Second, n.Cores)
	must(r.c.Journal.Update(func(f *cluster.Facts) { f.Intend(cluster.Intent{Kind: cluster.SeenReady}) }))
	first := look(2*time.Minute, n.Cores+1, by)
	if first.By == "" || !first.Since.Equal(by.Started) {
		t.Fatalf("%+v", first)
	}
	steps := files.Steps
	for i := range 5 {
		if got := look(time.Duration(3+i)*time.Minute, n.Cores+1, by); got != first {
			t.Errorf("%+v, want %+v", got, first)
		}
	}
	if files.Steps != steps {
		t.Error("what was written is written again")
	}
	restart() // a crash
	if got := look(time.Hour, n.Cores+1); got != first || !r.c.Journal.Facts().Looked.IsZero() {
		t.Errorf("after a crash: %+v, want %+v", got, first)
	}
	r.noteLooked()
	if got, want := r.c.Journal.Facts().Looked, began.Add(time.Hour-30*time.Second); !got.Equal(want) {
		t.Errorf("all was seen until %v, want %v", got, want)
	}
	restart()
	o := worker(d, n)
	o.VMs[n.Name], o.Now, o.Facts = unseenVM, began.Add(2*time.Hour), r.c.Journal.Facts()
	r.learnWatched(&d, &o)
	must(r.learnFacts(d, &o))
	if r.c.Journal.Facts().Looked.IsZero() || o.DriftNotes[key] != first {
		t.Errorf("a look that saw nothing: %v, %+v", r.c.Journal.Facts().Looked, o.DriftNotes[key])
	}
	if got := look(3*time.Hour, n.Cores+1); got != first || !r.c.Journal.Facts().Looked.IsZero() {
		t.Errorf("the first look that saw all: %+v, and until %v", got, r.c.Journal.Facts().Looked)
	}
	if look(4*time.Hour, n.Cores); len(r.c.Journal.Facts().Drifts) > 0 {
		t.Error("what does not differ any more stays")
	}
	look(5*time.Hour, n.Cores+1)
	if must(r.c.Journal.Update(forgetFounding)); len(r.c.Journal.Facts().Drifts) > 0 {
		t.Error("something differs of a cluster of which nothing is left")
	}
}

// TestSeenUntil: what cannot be looked at may have changed.
func TestSeenUntil(t *testing.T) {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "a"}, {Name: "b"}}}}}
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	read := func(age time.Duration) cluster.VM {
		return cluster.VM{Presence: cluster.Present, Owner: cluster.Ours, Hardware: cluster.Saw(cluster.Hardware{}), ConfigAge: age}
	}
	foreign := cluster.VM{Presence: cluster.Present, Owner: cluster.Foreign}
	unowned := cluster.VM{Presence: cluster.Present}
	for what, c := range map[string]struct {
		a, b cluster.VM
		want time.Time
	}{
		"the oldest counts":    {read(time.Minute), read(time.Hour), now.Add(-time.Hour)},
		"one is not there":     {read(time.Minute), noVM, now.Add(-time.Minute)},
		"one is somebody's":    {read(time.Minute), foreign, now.Add(-time.Minute)},
		"one is not seen":      {read(time.Minute), unseenVM, time.Time{}},
		"its config is unread": {read(time.Minute), ourVM, time.Time{}},
		"whose it is is open":  {unowned, noVM, time.Time{}},
	} {
		if got := seenUntil(d, cluster.Observed{Now: now, VMs: map[string]cluster.VM{"a": c.a, "b": c.b}}); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}
