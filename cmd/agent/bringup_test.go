package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestBringUp(t *testing.T) {
	for _, sz := range []size{{1, 2}, {3, 3}} {
		t.Run(sz.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, sz, lab.Config{})
				defer s.close()
				s.boot()
				took := s.untilReady(20 * time.Minute)
				chain, links := s.lab.World.LongestChain()
				t.Logf("Ready after %v; longest chain %v: %s", took, chain, world.ChainText(links))
				if t.Failed() {
					return
				}
				s.quiet(15 * time.Minute)
				s.lawful(sz)
				s.halt()
			})
		})
	}
}

// TestTriggerRightAfterAPoll pushes just after the repository was read and has
// the agent look: it must not be answered with what was read before.
func TestTriggerRightAfterAPoll(t *testing.T) {
	sz := size{1, 1}
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, sz, lab.Config{})
		defer s.close()
		s.boot()
		s.untilReady(20 * time.Minute)
		must(s.agent.Reconcile("dev"))
		time.Sleep(100 * time.Millisecond)
		more := size{1, 2}
		s.push(more.files(), "one worker more")
		must(s.agent.Reconcile("dev"))
		s.until(5*time.Second, "at the pushed revision", func(st cluster.Status) bool { return st.Revision.Commit() == s.head() })
		s.untilReady(10 * time.Minute)
		s.lawful(more)
		s.halt()
	})
}
