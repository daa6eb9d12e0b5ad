package readiness

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestRunsImages: images are known to work where another node of the role is Ready with all of them.
func TestRunsImages(t *testing.T) {
	old, now := cluster.Images{APIServer: "a:1", Etcd: "e:1"}, cluster.Images{APIServer: "a:2", Etcd: "e:1"}
	for name, c := range map[string]struct {
		role   cluster.Role // of the other
		phase  cluster.Phase
		images cluster.Images // of the other
		wanted cluster.Images
		want   bool
	}{
		"Ready with them":         {cluster.ControlPlane, cluster.PhaseReady, now, now, true},
		"not Ready with them":     {cluster.ControlPlane, cluster.PhaseJoining, now, now, false},
		"of another role":         {cluster.Worker, cluster.PhaseReady, now, now, false},
		"Ready with older ones":   {cluster.ControlPlane, cluster.PhaseReady, old, now, false},
		"another etcd for a boot": {cluster.ControlPlane, cluster.PhaseReady, cluster.Images{Etcd: "e:2"}, cluster.Images{Etcd: "e:2"}, false},
	} {
		n, other := cluster.Node{Name: "a", Role: cluster.ControlPlane}, cluster.Node{Name: "b", Role: c.role}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n, other}}}}
		o := cluster.Observed{Machines: map[string]cluster.Machine{
			"a": {Summary: cluster.ConfigSummary{Images: old}}, "b": {Summary: cluster.ConfigSummary{Images: c.images}},
		}}
		phases := map[string]cluster.Phase{"a": cluster.PhaseReady, "b": c.phase}
		if got := RunsImages(d, o, phases, n, c.wanted); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
