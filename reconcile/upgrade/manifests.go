package upgrade

import (
	"cmp"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// IsMixed reports whether the nodes are on their way through a hop: not all run the same Talos, or the same kubelet.
// Their control planes may render different manifests meanwhile, which are applied when the last node has
// arrived. One that is locked stays behind, and is no reason to wait.
func IsMixed(d cluster.Desired, o cluster.Observed) bool {
	var talos, kubelet string
	for _, n := range d.Spec.Nodes {
		if n.Locked {
			continue
		}
		t, k := o.Machines[n.Name].Talos, o.Nodes.Value[n.Name].Kubelet
		if talos != "" && t != "" && t != talos || kubelet != "" && k != "" && k != kubelet {
			return true
		}
		talos, kubelet = cmp.Or(talos, t), cmp.Or(kubelet, k)
	}
	return false
}

// AwaitsManifests is why what Talos deploys once keeps the next hop from its beginning, "" : it does not. What is
// unknown without a reason was not looked at, because a node is on its way.
func AwaitsManifests(d cluster.Desired, o cluster.Observed) (reason cluster.Reason, why string) {
	m := o.Manifests
	switch {
	case IsMixed(d, o), !m.Known && m.Why == "", m.Known && len(m.Value.Changes) == 0:
		return "", ""
	case !m.Known:
		return cluster.ManifestsUnknown, "whether what Talos has deployed is as its control planes render it is not known: " + m.Why
	}
	var all []string
	for _, c := range m.Value.Changes {
		all = append(all, c.String())
	}
	return cluster.ManifestsOutdated, "what Talos has deployed is not as its control planes render it: " + text.JoinSome(all, 3, "; ")
}
