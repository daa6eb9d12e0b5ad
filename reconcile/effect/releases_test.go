package effect

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestSilentAPI: that no kube-apiserver answers for now takes no release away from a cluster, nor its network; a new cluster has none.
func TestSilentAPI(t *testing.T) {
	for _, installed := range []bool{true, false} {
		n := cluster.Node{Name: "cp-1", Role: cluster.ControlPlane}
		addon := cluster.Addon{Name: "cilium", Namespace: "kube-system", Ownership: cluster.Managed}
		var d cluster.Desired
		d.Spec.Nodes, d.Spec.CNI, d.Spec.Addons = []cluster.Node{n}, cluster.CNICilium, []cluster.Addon{addon}
		d.Configs = map[string]cluster.Config{"cp-1": {Digest: "c"}}
		o := cluster.Observed{
			VMs:      map[string]cluster.VM{"cp-1": {Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning}},
			Machines: map[string]cluster.Machine{"cp-1": {Reach: cluster.Configured, Stage: "booting", ConfigDigest: "c", BootID: "b"}},
			APIs:     map[string]cluster.Seen[bool]{}, Charts: map[string]cluster.Seen[cluster.Fetched]{"cilium": cluster.Saw(cluster.Fetched{Release: "r"})},
			Releases: cluster.Unseen[map[string]cluster.Release]("no kube-apiserver answers"),
		}
		if installed {
			o.Facts.Installed = []string{"kube-system/cilium"}
		}
		for range 5 {
			Settle(d, &o, true)
		}
		rel := o.Releases.Value["cilium"]
		if there := rel.Status == "deployed" && rel.Digest == "r" && rel.Managed && rel.Ready; !o.Releases.Known || there != installed {
			t.Errorf("installed %v: %v %+v", installed, o.Releases.Known, rel)
		}
		if o.Nodes.Value["cp-1"].Ready != installed {
			t.Errorf("installed %v: the node is Ready: %v", installed, o.Nodes.Value["cp-1"].Ready)
		}
	}
}
