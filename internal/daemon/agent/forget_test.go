package agent_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestRemovedClusterIsForgotten: a folder that was pushed by mistake and removed
// leaves nothing behind. One of which something is left stays until it is destroyed,
// and one that comes back is managed again.
func TestRemovedClusterIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		clusters := func(want ...string) func() bool {
			return func() bool { return slices.Equal(s.Agent.Clusters(), want) }
		}
		until := func(what string, met func() bool) {
			t.Helper()
			for range 1200 {
				if met() {
					return
				}
				time.Sleep(time.Second)
			}
			t.Fatalf("not %s: %v", what, s.Agent.Clusters())
		}
		all := func(c *agent.Config) { c.Clusters = nil }
		s.Boot(all)
		s.UntilReady(20 * time.Minute)

		// One that never was valid.
		s.Push(map[string][]byte{"inventory/prod/cluster.yaml": []byte("cluster_name: prod\n")}, "begin a second cluster")
		until("seen", clusters("dev", "prod"))
		until("refused", func() bool {
			st, err := s.Agent.Status("prod")
			return err == nil && st.Reason == cluster.InventoryInvalid
		})
		s.Push(map[string][]byte{"inventory/prod/cluster.yaml": nil}, "not yet")
		until("forgotten", clusters("dev"))

		// One that runs.
		gone := map[string][]byte{"inventory/prod/README.md": []byte("the folder of clusters stays\n")}
		for name := range sz.Files() {
			gone[name] = nil
		}
		s.Push(gone, "remove dev")
		s.Until(10*time.Minute, "left", func(st cluster.Status) bool {
			return st.Reason == cluster.ClusterRemoved && strings.Contains(st.Hint, "talos-agent destroy dev")
		})
		time.Sleep(time.Hour)
		if !clusters("dev")() {
			t.Fatalf("a cluster that runs is forgotten: %v", s.Agent.Clusters())
		}
		must(s.Cluster().Destroy(nil, nil))
		until("forgotten", clusters())
		if s.left() {
			t.Error("VMs are left")
		}

		// It is back, as it was left.
		s.Push(sz.Files(), "dev again")
		until("managed again", clusters("dev"))
		s.Until(10*time.Minute, "suspended", func(st cluster.Status) bool { return st.Condition == cluster.Suspended })
		s.Halt()
	})
}
