package upgrade

import (
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestAwaitPulls: before the first step of a hop of Kubernetes all nodes have its images; a node that is locked, that does not answer, or
// that an order passes is not waited for, nor is any once a step is made, in a hop of Talos, or on the way back.
func TestAwaitPulls(t *testing.T) {
	hop := cluster.Hop{Kind: cluster.HopKubernetes, From: "v1.35.10", To: "v1.36.1"}
	forth := cluster.Way{Hops: []cluster.Hop{hop}}
	for name, c := range map[string]struct {
		way    cluster.Way
		change func(nodes []cluster.Node, machines map[string]cluster.Machine)
		passed string
		want   []string
		words  string
	}{
		"all lack them":   {way: forth, want: []string{"cp", "wk"}, words: "waits to be upgraded until the images of Kubernetes v1.36.1 are on cp, wk"},
		"one has them":    {way: forth, change: func(_ []cluster.Node, m map[string]cluster.Machine) { m["cp"] = having(m["cp"], "", "v1.35.10") }, want: []string{"wk"}, words: "waits to be upgraded until the images of Kubernetes v1.36.1 are on wk"},
		"one is locked":   {way: forth, change: func(n []cluster.Node, _ map[string]cluster.Machine) { n[1].Locked = true }, want: []string{"cp"}, words: "waits to be upgraded until the images of Kubernetes v1.36.1 are on cp"},
		"one is silent":   {way: forth, change: func(_ []cluster.Node, m map[string]cluster.Machine) { m["wk"] = cluster.Machine{Unpulled: "x"} }, want: []string{"cp"}, words: "waits to be upgraded until the images of Kubernetes v1.36.1 are on cp"},
		"one is passed":   {way: forth, passed: "wk", want: []string{"cp"}, words: "waits to be upgraded until the images of Kubernetes v1.36.1 are on cp"},
		"a step is made":  {way: forth, change: func(_ []cluster.Node, m map[string]cluster.Machine) { m["cp"] = having(m["cp"], "x", "v1.36.1") }},
		"a hop of Talos":  {way: cluster.Way{Hops: []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}, hop}}},
		"the hop is held": {way: cluster.Way{Hops: []cluster.Hop{hop}, Held: cluster.ChangeUnapproved}},
		"there is none":   {},
		"it goes back":    {way: cluster.Way{Back: cluster.Back{Kubernetes: true}}},
	} {
		nodes := []cluster.Node{{Name: "cp", Role: cluster.ControlPlane}, {Name: "wk", Role: cluster.Worker}}
		machines := map[string]cluster.Machine{}
		for _, n := range nodes {
			machines[n.Name] = having(cluster.Machine{Reach: cluster.Configured}, "x", "v1.35.10")
		}
		if c.change != nil {
			c.change(nodes, machines)
		}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Nodes: nodes}}, Way: c.way}
		lacking, w := AwaitPulls(d, cluster.Observed{Machines: machines}, "cp", func(n cluster.Node) bool { return n.Name == c.passed })
		var got []string
		for _, n := range lacking {
			got = append(got, n.Name)
		}
		if !slices.Equal(got, c.want) || w.Message != c.words || (w.Reason == cluster.WaitingForPull) != (len(c.want) > 0) {
			t.Errorf("%s: %v, %+v", name, got, w)
		}
	}
}

// having is a machine that lacks images, and whose config has a version of Kubernetes.
func having(m cluster.Machine, unpulled, version string) cluster.Machine {
	m.Unpulled, m.Summary.Images = unpulled, cluster.Images{Kubelet: "k:v1.35.10", APIServer: "a:" + version}
	return m
}
