package reconcile

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
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
		since, differs := o.DriftSince[key]
		if differs != (c.want >= 0) || differs && !since.Equal(began.Add(c.want)) {
			t.Errorf("look %d: %v %v", i, since, differs)
		}
	}
}
