package leftover

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestLeftOut: only a node of ours that works, and that the agent has drained for a turn of it, goes back into service when it was taken out of the
// inventory and its machine is kept.
func TestLeftOut(t *testing.T) {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", ID: "4f1c1a52-6f3c-4f0e-9d0f-1f2a3b4c5d6e", Nodes: []cluster.Node{{Name: "stays"}}}}}
	own := func(name string) cluster.KubeNode {
		return cluster.KubeNode{Name: name, UUID: cluster.NodeUUID(d.Spec.ID, name), Turn: "t", Cordoned: true, Ready: true}
	}
	for name, c := range map[string]struct {
		node        string
		change      func(*cluster.KubeNode)
		is, adopted bool
	}{
		"it is drained":               {node: "left", is: true},
		"somebody had cordoned it":    {node: "left", change: func(kn *cluster.KubeNode) { kn.Adopted = true }, is: true, adopted: true},
		"it stays":                    {node: "stays"},
		"it has another machine":      {node: "left", change: func(kn *cluster.KubeNode) { kn.UUID = "another" }},
		"somebody else cordoned it":   {node: "left", change: func(kn *cluster.KubeNode) { kn.Turn = "" }},
		"it is drained to be removed": {node: "left", change: func(kn *cluster.KubeNode) { kn.Turn = cluster.TurnRemoval }},
		"it does not work":            {node: "left", change: func(kn *cluster.KubeNode) { kn.Ready = false }},
	} {
		kn := own(c.node)
		if c.change != nil {
			c.change(&kn)
		}
		o := cluster.Observed{Nodes: cluster.Saw(map[string]cluster.KubeNode{c.node: kn})}
		if n, adopted, is := LeftOut(d, o, c.node); is != c.is || adopted != c.adopted && is || n.Name != c.node {
			t.Errorf("%s: %t, adopted %t, %s", name, is, adopted, n.Name)
		}
	}
	if _, _, is := LeftOut(d, cluster.Observed{}, "left"); is {
		t.Error("a node that is not seen is put back into service")
	}
}

// TestAwaitResume: of a cluster that is suspended those nodes are shown that the agent has drained, and that were not cordoned before.
func TestAwaitResume(t *testing.T) {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}}}}
	o := cluster.Observed{Nodes: cluster.Saw(map[string]cluster.KubeNode{"a": {Turn: "t", Cordoned: true}, "b": {Cordoned: true}, "c": {Turn: "t", Cordoned: true, Adopted: true}, "d": {Turn: "t"}})}
	if got := AwaitResume(d, o); len(got) != 1 || got[0].Subject != "a" || got[0].Reason != cluster.SuspendedByAdmin || got[0].Hint == "" {
		t.Errorf("%+v", got)
	}
}
