package upgrade

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// IsUnderWay reports whether a cluster is to get other versions, or is not seen to have those of its inventory, or what Talos deploys
// once is still to follow them.
func IsUnderWay(d cluster.Desired, o cluster.Observed) bool {
	asked := d.Repository()
	return len(asked.Hops) > 0 || asked.Back != cluster.Back{} || len(o.Manifests.Value.Changes)+len(o.Manifests.Value.Rolling) > 0 || slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool {
		_, behind := drift.UpgradeOf(d, o, n)
		return behind
	})
}

// Order is the order in which nodes are planned: in an upgrade the leader of etcd is the last control plane.
func Order(d cluster.Desired, o cluster.Observed) []cluster.Node {
	if IsUnderWay(d, o) {
		return quorum.SortLeaderLast(d.Spec.Nodes, o)
	}
	return d.Spec.Nodes
}

// IsEnded reports whether all nodes of a cluster are seen to have the versions of its inventory, and what Talos deploys once to be
// what they render. While one does not answer that is not known.
func IsEnded(d cluster.Desired, o cluster.Observed, ran Ran) bool {
	have, known := ran.oldest()
	goal := d.Repository().Goal
	return o.Manifests.Known && known && have.Talos == goal.Talos && have.Kubernetes == goal.Kubernetes && !IsUnderWay(d, o) &&
		!slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool {
			mach := o.Machines[n.Name]
			return mach.Reach != cluster.Configured || mach.Talos == ""
		})
}
