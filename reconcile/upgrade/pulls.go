package upgrade

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/upgrade/components"
)

// AwaitPulls is the wait of a node that would make the first step of a hop of Kubernetes for the nodes whose machines have not all images of
// that, which these are to pull; none: it need not wait. No node waits for one that is locked, or
// that is passed: by an order, or because it keeps a config that somebody has edited. After the
// first step each node pulls what it needs at its own.
func AwaitPulls(d cluster.Desired, o cluster.Observed, node string, isPassed func(cluster.Node) bool) (lacking []cluster.Node, w cluster.Wait) {
	asked := d.Repository()
	if !asked.IsHop(cluster.HopKubernetes) || components.HasNewer(asked.Hops[0].From, d.Spec, o) {
		return nil, w
	}
	var names []string
	for _, n := range d.Spec.Nodes {
		if mach := o.Machines[n.Name]; mach.Reach == cluster.Configured && mach.Unpulled != "" && !n.Locked && !isPassed(n) {
			lacking, names = append(lacking, n), append(names, n.Name)
		}
	}
	if len(lacking) == 0 {
		return nil, w
	}
	return lacking, cluster.Wait{Subject: node, Reason: cluster.WaitingForPull, About: asked.Hops[0].String(), Message: fmt.Sprintf("waits to be upgraded until the images of %s are on %s", asked.Hops[0], text.JoinSome(names, 5, ", "))}
}
