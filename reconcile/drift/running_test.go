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

// TestNoWayIsNamed: a version that no upgrade leads to is refused with the reason, and with the versions that can be asked for instead: the one
// that runs, and the one that all nodes ran before, unless nothing leads back to that.
func TestNoWayIsNamed(t *testing.T) {
	n := cluster.Node{Name: "cp-1"}
	d := cluster.Desired{Way: cluster.Way{NoWay: "a downgrade of Talos, from v1.14.1 to v1.13.9, is not made"}}
	const noWay = "; there is no way to the one that is asked for: a downgrade of Talos, from v1.14.1 to v1.13.9, is not made"
	for name, c := range map[string]struct {
		reason                cluster.Reason
		have, previous, asked string
		want                  string
	}{
		"Talos":                     {cluster.TalosVersionDrift, "v1.14.1", "", "", "set talos_version to v1.14.1, which it runs"},
		"Kubernetes":                {cluster.KubernetesDrift, "v1.36.1", "", "", "set kubernetes_version to v1.36.1, which it runs"},
		"Talos of before":           {cluster.TalosVersionDrift, "v1.14.1", "v1.13.7", "v1.14.1", "set talos_version to v1.14.1, which it runs, or to v1.13.7, which all nodes ran before"},
		"Kubernetes of before":      {cluster.KubernetesDrift, "v1.36.1", "v1.35.4", "", "set kubernetes_version to v1.36.1, which it runs, or to v1.35.4, which all nodes ran before"},
		"before is far":             {cluster.TalosVersionDrift, "v1.14.1", "v1.12.11", "", "set talos_version to v1.14.1, which it runs"},
		"before is newer":           {cluster.TalosVersionDrift, "v1.13.9", "v1.14.1", "", "set talos_version to v1.13.9, which it runs"},
		"it is what is asked for":   {cluster.TalosVersionDrift, "v1.14.1", "v1.13.9", "", "set talos_version to v1.14.1, which it runs"},
		"it was upgraded elsewhere": {cluster.TalosVersionDrift, "v1.14.1", "v1.13.7", "v1.13.7", "set talos_version to v1.14.1, which it runs"},
	} {
		d.Goal = cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.35.9"}
		var o cluster.Observed
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendConfig, Previous: cluster.Versions{Talos: c.previous, Kubernetes: c.previous}, Asked: cluster.Versions{Talos: c.asked, Kubernetes: c.asked}})
		if b := (Drift{Reason: c.reason, Have: c.have}).Refusal(d, o, n); b.Hint != c.want+noWay {
			t.Errorf("%s: %s", name, b.Hint)
		}
	}
}
