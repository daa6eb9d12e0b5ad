package leftover

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// LeftOut is the Node of a name that the inventory no longer has, which was drained for a turn of it, works, and whose machine is kept: what it
// was drained for does not come. adopted: somebody had cordoned it before. One that is drained to be removed is none.
func LeftOut(d cluster.Desired, o cluster.Observed, name string) (n cluster.Node, adopted, is bool) {
	kn := o.Nodes.Value[name]
	_, stays := d.Spec.Node(name)
	is = !stays && IsOwn(d, kn) && kn.Turn != "" && kn.Turn != cluster.TurnRemoval && kn.Ready
	return cluster.Node{Name: name, UUID: cluster.NodeUUID(d.Spec.ID, name)}, kn.Adopted, is
}

// AwaitResume are the waits for the end of a suspension, of the nodes that the agent has drained and that nothing puts back into service before.
func AwaitResume(d cluster.Desired, o cluster.Observed) (out []cluster.Wait) {
	for _, n := range d.Spec.Nodes {
		if kn := o.Nodes.Value[n.Name]; kn.Turn != "" && kn.Cordoned && !kn.Adopted {
			out = append(out, cluster.Wait{Subject: n.Name, Reason: cluster.SuspendedByAdmin, About: "drained", Message: "the agent drained it before the cluster was suspended, and it stays out of service until that ends",
				Hint: fmt.Sprintf("`talos-agent resume %s` goes on with it; `kubectl uncordon %s` puts it back into service meanwhile", d.Spec.Name, n.Name)})
		}
	}
	return out
}
