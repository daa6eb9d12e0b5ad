package main

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/logging"
)

func TestBringUp(t *testing.T) {
	for _, sz := range []size{{1, 0}, {1, 2}, {3, 3}} {
		t.Run(sz.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, sz, lab.Config{})
				defer s.close()
				td := newTold()
				s.log = logging.New(logging.Config{Output: io.Discard, Observe: td.take})
				s.boot()
				took := s.untilReady(20 * time.Minute)
				chain, links := s.lab.World.LongestChain()
				t.Logf("Ready after %v; longest chain %v: %s", took, chain, world.ChainText(links))
				if t.Failed() {
					return
				}
				s.quiet(15 * time.Minute)
				s.lawful(sz)
				s.toldOnce(td)
				s.halt()
			})
		})
	}
}

// toldOnce: the forge and the history hear of one stretch of work, which led to
// Ready. That a machine takes its readiness back for a moment is no news to them.
func (s *sim) toldOnce(td *told) {
	s.t.Helper()
	lapsed := false
	for _, e := range td.ring.Select(cluster.EventQuery{}) {
		lapsed = lapsed || strings.Contains(e.Message, "no longer Ready: Talos says it is not ready")
	}
	if !lapsed {
		s.t.Error("no machine took its readiness back")
	}
	for _, r := range s.agent.w.chronicle.runs("dev") {
		if r.Number != 1 || r.Result != cluster.Ready {
			s.t.Errorf("run %d, because %s: %s", r.Number, r.Cause, r.Result)
		}
	}
	var posts []string
	for _, e := range s.lab.World.Events() {
		if _, told, ok := strings.Cut(e.Text, " talos-agent/dev: "); ok && e.Subject == "forge" {
			posts = append(posts, told)
		}
	}
	if len(posts) != 2 || !strings.HasPrefix(posts[0], "pending") || !strings.HasPrefix(posts[1], "success") {
		s.t.Errorf("the forge was told %q", posts)
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
