package agent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestCanaryAndSoakOfKubelets: in a hop of Kubernetes the kubelet of the canary is the first, and the next one follows when the soak has
// passed, or at once by order.
func TestCanaryAndSoakOfKubelets(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	inClusterOf(t, sz, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		with := func(names ...string) func(cluster.Status) bool {
			return func(st cluster.Status) bool {
				for _, n := range st.Nodes {
					if (n.Kubernetes == "v1.36.1") != slices.Contains(names, n.Name) {
						return false
					}
				}
				return len(st.Nodes) == 3
			}
		}
		push("another kubernetes", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1\ncanary: dev-wk-2\nsoak: 30m")
		s.Until(2*time.Hour, "the canary has its kubelet", with("dev-wk-2"))
		began := time.Now()
		s.Die()
		s.Until(2*time.Hour, "the control plane has its own", with("dev-wk-2", "dev-cp-1"))
		if took := time.Since(began); took < 28*time.Minute || took > 40*time.Minute {
			s.T.Errorf("the next kubelet follows after %v", took)
		}
		began = time.Now()
		s.Until(time.Minute, "it knows the inventory", func(st cluster.Status) bool { return st.Upgrade != nil })
		must(s.Cluster().Upgrade(cluster.UpgradeOrder{Now: true, By: "ann"}))
		s.untilAppliedIn(2*time.Hour, "upgraded")
		if took := time.Since(began); took > 20*time.Minute {
			s.T.Errorf("by order it ends after %v", took)
		}
		s.wantKubernetes("v1.36.1")
		w.wantDown("")
		s.CheckRules(sz)
	})
}
