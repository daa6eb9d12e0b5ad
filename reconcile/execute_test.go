package reconcile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
)

func TestBackoffAfter(t *testing.T) {
	refused := errors.New("connection refused")
	for _, c := range []struct {
		err    error
		failed int
		want   time.Duration
	}{
		{refused, 1, time.Second},
		{refused, 4, 8 * time.Second},
		{refused, 9, 256 * time.Second},
		{refused, 10, 5 * time.Minute},
		{refused, 1000, 5 * time.Minute},
		{fmt.Errorf("dev-wk-1: %w", cluster.ErrUndrained), 1, 5 * time.Minute},
		{fmt.Errorf("dev-wk-1: %w", cluster.ErrUncordoned), 1, 5 * time.Minute},
	} {
		if got := backoffAfter(c.err, c.failed); got != c.want {
			t.Errorf("after %d failures (%v): %s, want %s", c.failed, c.err, got, c.want)
		}
	}
}

// TestWriterThatGoesOn: a controller, or a kubelet, that takes back at once what the agent
// sets on a Node object makes neither of them write without end. It is reported, and
// somebody who edits once in a while is not taken for one.
func TestWriterThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.spec.Nodes[0].Annotations = map[string]string{"example.org/rack": "7"}
		name := f.spec.Nodes[0].Name
		again, seen := false, 0
		f.during = func(*cluster.Observed) { // it is as it was set for a pass or two
			if _, there := f.metas[name]; !again || !there {
				seen = 0
			} else if seen++; seen > 2 {
				delete(f.metas, name)
			}
		}
		a := start(t, f, journaltest.NewFiles())
		labels := func() (n int) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, d := range f.done {
				if d == "label "+name {
					n++
				}
			}
			return n
		}
		until(t, a, cluster.Ready)
		for range 5 {
			time.Sleep(11 * time.Minute)
			before := labels()
			f.set(func() { delete(f.metas, name) })
			a.Look()
			time.Sleep(2 * time.Second)
			if labels() != before+1 {
				t.Errorf("an edit now and then was undone %d times", labels()-before)
			}
		}
		before := labels()
		f.set(func() { again = true })
		time.Sleep(2 * time.Hour)
		if n := labels() - before; n < 10 || n > 50 {
			t.Errorf("a writer that goes on was undone %d times in two hours", n)
		}
		if s := a.Status(); s.Condition != cluster.Stalled || !strings.Contains(s.Message, "times in a row") {
			t.Errorf("it is %s: %s", s.Condition, s.Message)
		}
		since := a.Status().Since
		for range 3600 { // while it is as it was set, that is no news
			time.Sleep(time.Second)
			if s := a.Status(); s.Condition != cluster.Stalled || !s.Since.Equal(since) {
				t.Fatalf("it is %s since %v, not %v: %s", s.Condition, s.Since, since, s.Message)
			}
		}
		f.set(func() { again = false })
		until(t, a, cluster.Ready)
		a.stop()
	})
}

// TestBootstrapIsSentToTheNodeThatWasChosen: whatever is planned, etcd is founded on the
// node that was intended before, and not once more when it was founded.
func TestBootstrapIsSentToTheNodeThatWasChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(2, 0)
		chosen, other := f.spec.Nodes[0], f.spec.Nodes[1]
		reborn, renamed := chosen, chosen
		renamed.Name = "cp-9"
		reborn.UUID = cluster.NodeUUID(f.spec.ID, "another")
		for _, c := range []struct {
			what     string
			intended bool
			done     bool
			node     cluster.Node
			sent     bool
		}{
			{"nothing was intended", false, false, chosen, true},
			{"it was intended, and the agent ended before it knew of an answer", true, false, chosen, true},
			{"another node was intended", true, false, other, false},
			{"a machine of that name was intended that is deleted", true, false, reborn, false},
			{"the node of that machine has another name", true, false, renamed, false},
			{"it was founded", true, true, chosen, false},
		} {
			j, err := journal.Open(journaltest.NewFiles(), "dev", f.spec.ID)
			if err != nil {
				t.Fatal(err)
			}
			if c.intended {
				if err := j.Update(func(facts *cluster.Facts) {
					facts.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: chosen.Name, UUID: chosen.UUID, Done: c.done})
				}); err != nil {
					t.Fatal(err)
				}
			}
			f.founded = 0
			r := &Reconciler{c: Config{Cluster: "dev", Machines: fakeMachines{f}, Journal: j}}
			err = r.execute(t.Context(), cluster.Desired{}, action.Bootstrap{Node: c.node}, nil)
			if (err == nil) != c.sent || (f.founded == 1) != c.sent {
				t.Errorf("%s: founded %d times: %v", c.what, f.founded, err)
			}
			if in := intentOf(j.Facts(), cluster.IntendBootstrap); in.Node != chosen.Name || in.UUID != chosen.UUID || in.Done != c.done {
				t.Errorf("%s: the intent is %+v", c.what, in)
			}
		}
	})
}
