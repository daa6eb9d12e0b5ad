package drift

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestRunningVersions: what a new node gets is no older than any kubelet and no newer
// than any kube-apiserver can be, and runs somewhere already.
func TestRunningVersions(t *testing.T) {
	type node struct{ talos, kubelet string }
	for name, tt := range map[string]struct {
		nodes   []node // cp-1, wk-1, wk-2
		want    node
		uniform bool
		unseen  bool
	}{
		"nothing runs":                    {unseen: true, uniform: true},
		"all alike":                       {nodes: []node{{"v1.13.9", "v1.36.1"}, {"v1.13.9", "v1.36.1"}}, want: node{"v1.13.9", "v1.36.1"}, uniform: true},
		"Kubernetes is being upgraded":    {nodes: []node{{"v1.13.9", "v1.36.10"}, {"v1.13.9", "v1.36.9"}}, want: node{"v1.13.9", "v1.36.10"}},
		"Talos is being upgraded":         {nodes: []node{{"v1.14.1", "v1.36.1"}, {"v1.13.9", "v1.36.1"}}, want: node{"v1.13.9", "v1.36.1"}},
		"both":                            {nodes: []node{{"v1.14.1", "v1.37.0"}, {"v1.13.9", "v1.36.1"}, {"v1.14.0", "v1.37.0"}}, want: node{"v1.14.0", "v1.37.0"}},
		"one has not registered":          {nodes: []node{{"v1.14.1", ""}, {"v1.13.9", "v1.36.1"}}, want: node{"v1.13.9", "v1.36.1"}, uniform: true},
		"one does not show its own Talos": {nodes: []node{{"", "v1.37.0"}, {"v1.13.9", "v1.36.1"}}, want: node{"v1.13.9", "v1.36.1"}, uniform: true},
		"it was seen before, and is not":  {nodes: []node{{"v1.13.9", "v1.36.1"}}, unseen: true, uniform: true},
		"one is silent":                   {nodes: []node{{"v1.14.1", "v1.36.1"}, {"v1.13.9", "v1.36.1"}}, want: node{"v1.13.9", "v1.36.1"}, uniform: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "cp-1"}, {Name: "wk-1"}, {Name: "wk-2"}}}}}
			o := cluster.Observed{Machines: map[string]cluster.Machine{}}
			nodes := map[string]cluster.KubeNode{}
			for i, have := range tt.nodes {
				n := d.Spec.Nodes[i]
				o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Talos: have.talos}
				nodes[n.Name] = cluster.KubeNode{Name: n.Name, Kubelet: have.kubelet}
			}
			o.Nodes = cluster.Saw(nodes)
			if strings.HasPrefix(name, "it was seen") {
				o.Nodes.Known = false
			}
			if strings.HasPrefix(name, "one is silent") {
				m := o.Machines["cp-1"]
				m.Reach = cluster.Silent
				o.Machines["cp-1"] = m
			}
			v, uniform, ok := RunningVersions(d, o)
			if got := (node{v.Talos, v.Kubernetes}); got != tt.want || uniform != tt.uniform || ok == tt.unseen {
				t.Errorf("%v, uniform %v, seen %v", got, uniform, ok)
			}
		})
	}
}

// TestUpgradeIsNamed: an upgrade that is refused names the hops, or why there are none.
func TestUpgradeIsNamed(t *testing.T) {
	n := cluster.Node{Name: "cp-1"}
	for name, tc := range map[string]struct {
		have, want cluster.Versions
		hint       string
	}{
		"two minors":      {cluster.Versions{Talos: "v1.12.4", Kubernetes: "v1.34.1"}, cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.34.1"}, "set talos_version back, or upgrade with talosctl, all nodes to one version after the other: Talos v1.12.11, then Talos v1.13.9, then Talos v1.14.1"},
		"both":            {cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1"}, cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.37.1"}, "Talos v1.14.1, then Kubernetes v1.37.1"},
		"Kubernetes":      {cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.35.1"}, cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.37.1"}, "set kubernetes_version back, or upgrade with talosctl upgrade-k8s, all nodes to one version after the other: Kubernetes v1.36.6, then Kubernetes v1.37.1"},
		"a downgrade":     {cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.36.1"}, cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1"}, "set talos_version back; there is no way to upgrade: a downgrade of Talos, from v1.14.1 to v1.13.9, is not made"},
		"not seen to run": {cluster.Versions{Talos: "v1.12.4"}, cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.34.1"}, "set talos_version back, or upgrade with talosctl"},
	} {
		mach := cluster.Machine{Reach: cluster.Configured, Talos: tc.have.Talos}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Versions: tc.want, Nodes: []cluster.Node{n}}}}
		o := cluster.Observed{Machines: map[string]cluster.Machine{n.Name: mach}, Nodes: cluster.Saw(map[string]cluster.KubeNode{n.Name: {Kubelet: tc.have.Kubernetes}})}
		drifts := OfMachine(d, o, n, mach)
		if len(drifts) != 1 {
			t.Errorf("%s: %v", name, drifts)
			continue
		}
		if b := drifts[0].Refusal(d, o, n); !strings.HasSuffix(b.Hint, tc.hint) {
			t.Errorf("%s:\n got %s\nwant %s", name, b.Hint, tc.hint)
		}
	}
}
