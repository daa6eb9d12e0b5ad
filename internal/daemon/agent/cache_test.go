package agent_test

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestCacheDeletedInUse: the cache holds nothing that cannot be fetched again, and
// may be deleted at any time.
func TestCacheDeletedInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		dir := t.TempDir() + "/cache"
		s.Boot(func(c *agent.Config) { c.CacheDir, c.Factory.CacheDir = dir, dir+"/images" })
		s.UntilReady(20 * time.Minute)
		for _, more := range []size{{ControlPlanes: 1, Workers: 1}, {ControlPlanes: 1, Workers: 2}} {
			must(os.RemoveAll(dir))
			s.Push(more.Files(), more.String())
			must(s.Agent.Reconcile("dev"))
			time.Sleep(time.Minute)
			if st := s.Status(); st.Condition == cluster.Stalled {
				t.Errorf("%s: %s", st.Condition, st.Message)
			}
			s.UntilReady(10 * time.Minute)
			s.CheckRules(more)
		}
		s.Halt()
	})
}
