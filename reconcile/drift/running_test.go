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

// TestNoWayIsNamed: a version that no upgrade leads to is refused with the reason.
func TestNoWayIsNamed(t *testing.T) {
	n := cluster.Node{Name: "cp-1"}
	d := cluster.Desired{Way: cluster.Way{NoWay: "a downgrade of Talos, from v1.14.1 to v1.13.9, is not made"}}
	for reason, want := range map[cluster.Reason]string{
		cluster.TalosVersionDrift: "set talos_version back; there is no way to upgrade: a downgrade of Talos, from v1.14.1 to v1.13.9, is not made",
		cluster.KubernetesDrift:   "set kubernetes_version back; there is no way to upgrade: a downgrade of Talos, from v1.14.1 to v1.13.9, is not made",
	} {
		if b := (Drift{Reason: reason}).Refusal(d, cluster.Observed{}, n); b.Hint != want {
			t.Errorf("%s: %s", reason, b.Hint)
		}
	}
}
