package plan

import (
	"maps"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/lost"
)

// TestLearners: since when a member is a learner is known from the first look at it, while
// its etcd runs; it ends when it votes, and not while the members are not seen.
func TestLearners(t *testing.T) {
	w := newWorld(3, 0)
	look := func(members cluster.Seen[[]cluster.Member], state, boot string) map[uint64]cluster.Learner {
		w.o.Now = w.o.Now.Add(time.Minute)
		w.o.Members = members
		w.o.Machines["cp-2"] = cluster.Machine{Reach: cluster.Configured, BootID: boot, Services: map[string]cluster.Service{"etcd": {State: state}}}
		w.o.Learners = lost.Learners(w.d, w.o, w.o.Learners)
		return w.o.Learners
	}
	member := func(learner bool) cluster.Seen[[]cluster.Member] {
		return cluster.Saw([]cluster.Member{{ID: 1, Name: "cp-1", Address: "10.10.0.11"}, {ID: 2, Address: "10.10.0.12", Learner: learner}, {ID: 3, Name: "other", Address: "10.10.9.9", Learner: learner}})
	}
	unknown := cluster.Unseen[[]cluster.Member]("timeout")
	must := func(what string, got map[uint64]cluster.Learner, since time.Time, boot string) {
		t.Helper()
		if want := (cluster.Learner{Since: since, Boot: boot}); got[2] != want || len(got) != 2 {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	before := look(unknown, "Running", "one")
	if len(before) != 0 {
		t.Errorf("nothing is seen: %+v", before)
	}
	must("it is added", look(member(true), "Preparing", ""), w.o.Now, "")
	must("it runs", look(member(true), "Running", "one"), w.o.Now.Add(-time.Minute), "one")
	since := w.o.Now.Add(-time.Minute)
	kept := maps.Clone(w.o.Learners)
	must("it is not seen", look(unknown, "Running", "one"), since, "one")
	if !maps.Equal(kept, w.o.Learners) {
		t.Errorf("%+v, and %+v before", w.o.Learners, kept)
	}
	must("it boots again", look(member(true), "Waiting", "two"), w.o.Now, "one")
	if now := look(member(false), "Running", "two"); len(now) != 0 {
		t.Errorf("it votes: %+v", now)
	}
}
