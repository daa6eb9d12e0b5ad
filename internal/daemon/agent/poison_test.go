package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestCommitThatCannotBeFetched: a file that is far too large is an invalid revision where
// the server cannot leave it out, whose clusters are healed as before, also after a restart;
// a server that can has it as if it were not there. No history is rewritten for it.
func TestCommitThatCannotBeFetched(t *testing.T) {
	t.Parallel()
	for _, filters := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			sz := size{ControlPlanes: 1, Workers: 1}
			s := newSim(t, sz, lab.Config{})
			defer s.Close()
			s.Lab.Repo.AllowFilter(filters)
			s.Boot()
			s.UntilReady(20 * time.Minute)
			good := s.Status().Applied
			s.Push(map[string][]byte{"big": make([]byte, 33<<20)}, "a large file")
			must(s.Agent.Reconcile("dev"))
			if filters {
				s.Until(2*time.Minute, "applied", func(st cluster.Status) bool {
					return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head()
				})
				s.CheckRules(sz)
				return
			}
			for range 2 {
				s.Until(2*time.Minute, "refused", func(st cluster.Status) bool {
					return st.Reason == cluster.InventoryInvalid && st.Revision.Commit() == s.Head()
				})
				must(s.Lab.PVE.Stop(541))
				s.Until(10*time.Minute, "healed", func(st cluster.Status) bool {
					return st.Condition == cluster.Stalled && strings.Contains(st.Message, "an object unpacks to more than 32 MiB") && st.Applied == good &&
						strings.HasSuffix(st.Message, good.Short()+" stays in force: all nodes are Ready") && isRunning(s, 541)
				})
				s.Halt()
				s.Boot()
			}
			s.Push(map[string][]byte{"big": nil}, "remove it")
			must(s.Agent.Reconcile("dev"))
			s.Until(2*time.Minute, "refused", func(st cluster.Status) bool {
				return st.Reason == cluster.InventoryInvalid && st.Revision.Commit() == s.Head() && strings.Contains(st.Message, "uploadpack.allowFilter true")
			})
			s.Lab.Repo.AllowFilter(true)
			must(s.Agent.Reconcile("dev"))
			s.Until(2*time.Minute, "applied", func(st cluster.Status) bool {
				return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head()
			})
			s.CheckRules(sz)
		})
	}
}
