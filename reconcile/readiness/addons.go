package readiness

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// JudgedSince is since when an upgrade of a release has had the nodes that it needs to become ready,
// false when it has not: pods of a node that is down, or in its turn, are not ready
// whatever the upgrade was. A node that answers, and is not Ready, may be so because of it.
func JudgedSince(d cluster.Desired, o cluster.Observed, phases map[string]cluster.Phase, rel cluster.Release) (time.Time, bool) {
	since := rel.Tried
	for _, n := range d.Spec.Nodes {
		kn, phase := o.Nodes.Value[n.Name], phases[n.Name]
		if kn.Turn != "" || kn.Name == "" || phase != cluster.PhaseReady && phase != cluster.PhaseJoining {
			return since, false
		}
		if kn.ReadySince.After(since) {
			since = kn.ReadySince
		}
	}
	return since, true
}

// MayHaveFlannel reports whether a new addon may meet Flannel in a cluster whose inventory is
// without: none is installed then, for any of them may be a container network. While it is not
// known, Cilium waits.
func MayHaveFlannel(d cluster.Desired, o cluster.Observed, a cluster.Addon) bool {
	if d.Repository().Spec.CNI == cluster.CNIFlannel {
		return false
	}
	seen := map[string]bool{}
	for _, n := range d.Spec.ControlPlanes() {
		seen[o.Machines[n.Name].Summary.Flannel] = true
	}
	return seen["yes"] || !seen["no"] && a.Name == string(cluster.CNICilium) && o.Facts.WasReady()
}

// UnmetDependency names the first addon that must be ready before this one.
func UnmetDependency(d cluster.Desired, o cluster.Observed, a cluster.Addon) string {
	for _, name := range d.Spec.Dependencies(a) {
		if rel, ok := o.Releases.Value[name]; !ok || !rel.Ready {
			return name
		}
	}
	return ""
}

// LacksAddon reports whether an addon that the agent keeps is not seen to be there and ready.
func LacksAddon(o cluster.Observed, a cluster.Addon) bool {
	rel := o.Releases.Value[a.Name]
	return a.Ownership == cluster.Managed && (!o.Releases.Known || rel.Status != "deployed" || !rel.Ready)
}
