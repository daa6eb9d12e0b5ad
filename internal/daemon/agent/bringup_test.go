package agent_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestBringUp(t *testing.T) {
	t.Parallel()
	for _, sz := range []size{{ControlPlanes: 1, Workers: 0}, {ControlPlanes: 1, Workers: 2}, {ControlPlanes: 3, Workers: 3}} {
		t.Run(sz.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, sz, lab.Config{})
				defer s.Close()
				var lapsed atomic.Bool
				s.Boot(func(c *agent.Config) {
					c.OnStatus = func(st cluster.Status) {
						if slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool { return w.Reason == cluster.TalosNotReady }) {
							lapsed.Store(true)
						}
					}
				})
				took := s.UntilReady(20 * time.Minute)
				chain, links := s.Lab.World.LongestChain()
				t.Logf("Ready after %v; longest chain %v: %s", took, chain, world.ChainText(links))
				if t.Failed() {
					return
				}
				s.Quiet(15 * time.Minute)
				s.CheckRules(sz)
				runs, err := s.Agent.History("dev")
				must(err)
				s.Halt()
				s.reportedOnce(lapsed.Load(), runs)
			})
		})
	}
}

// reportedOnce: the forge and the history hear of one stretch of work, which led to
// Ready. That a machine takes its readiness back for a moment is no news to them.
func (s *sim) reportedOnce(lapsed bool, runs []cluster.Run) {
	s.T.Helper()
	if !lapsed {
		s.T.Error("no machine took its readiness back")
	}
	for _, r := range runs {
		if r.Number != 1 || r.Result != cluster.Ready {
			s.T.Errorf("run %d, because %s: %s", r.Number, r.Cause, r.Result)
		}
	}
	var posts []string
	for _, e := range s.Lab.World.Events() {
		if _, told, ok := strings.Cut(e.Text, " talos-agent/dev: "); ok && e.Subject == "forge" {
			posts = append(posts, told)
		}
	}
	if len(posts) != 2 || !strings.HasPrefix(posts[0], "pending") || !strings.HasPrefix(posts[1], "success") {
		s.T.Errorf("the forge was told %q", posts)
	}
}

// TestTriggerRightAfterAPoll pushes just after the repository was read and has
// the agent look: it must not be answered with what was read before.
func TestTriggerRightAfterAPoll(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		must(s.Agent.Reconcile("dev"))
		time.Sleep(100 * time.Millisecond)
		more := size{ControlPlanes: 1, Workers: 2}
		s.Push(more.Files(), "one worker more")
		must(s.Agent.Reconcile("dev"))
		s.Until(5*time.Second, "at the pushed revision", func(st cluster.Status) bool { return st.Revision.Commit() == s.Head() })
		s.UntilReady(10 * time.Minute)
		s.CheckRules(more)
		s.Halt()
	})
}
