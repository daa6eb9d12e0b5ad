package upgrade

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/upgrade/components"
)

// Talos, its extensions and Kubernetes are never changed at once: what the nodes are in the middle of is ended, or taken
// back, before another kind is begun.

// findWay is ladder.Find, but that a hop of Kubernetes which some nodes have made is the first, where it can be made by what all
// nodes run of Talos: to what is asked for, or, where that needs another Talos, to the newest that a node has.
func (s Seen) findWay(have, goal cluster.Versions, spec cluster.Spec) ([]cluster.Hop, error) {
	if components.HasNewer(have.Kubernetes, spec, s.Observed) {
		for _, to := range []string{goal.Kubernetes, components.Newest(spec, s.Observed)} {
			first, err := ladder.Find(have, cluster.Versions{Talos: have.Talos, Kubernetes: to})
			if err != nil || len(first) == 0 {
				continue
			}
			if rest, err := ladder.Find(cluster.Versions{Talos: have.Talos, Kubernetes: first[0].To}, goal); err == nil {
				return append(first[:1:1], rest...), nil
			}
		}
	}
	return ladder.Find(have, goal)
}

// awaitTalos is why a hop of Kubernetes is not begun before Talos is the same on all nodes, with the same extensions; "" : it is. One that
// is locked stays behind.
func (s Seen) awaitTalos(have, goal cluster.Versions, back bool, spec cluster.Spec) string {
	if back {
		return "Talos goes back to " + goal.Talos + " first"
	}
	name, schematic := "", ""
	for _, n := range spec.Nodes {
		mach := s.Observed.Machines[n.Name]
		switch {
		case n.Locked:
			continue
		case s.isNewer(n, have.Talos):
			return fmt.Sprintf("%s runs a newer Talos than %s, which others run", n.Name, have.Talos)
		case mach.Reach != cluster.Configured || mach.Schematic == "":
			continue
		case schematic != "" && mach.Schematic != schematic:
			return fmt.Sprintf("%s and %s do not run the same extensions of Talos", name, n.Name)
		case HasUnbooted(s.Observed, n):
			return n.Name + " has another Talos installed, which it does not run yet"
		}
		name, schematic = n.Name, mach.Schematic
	}
	return ""
}

// isNewer reports whether a node is known to run a newer Talos than some version.
func (s Seen) isNewer(n cluster.Node, than string) bool {
	return ladder.IsOlder(than, s.Observed.Machines[n.Name].Talos) || ladder.IsOlder(than, s.Ran[n.Name].Talos)
}

// isTalosFirst reports whether Talos, which some nodes are to go back to and others run still, does so before Kubernetes: no
// component is on its way back, and all that run work with it.
func (s Seen) isTalosFirst(have, goal cluster.Versions, spec cluster.Spec) bool {
	return have.Talos == goal.Talos && !components.HasNewer(have.Kubernetes, spec, s.Observed) && ladder.Runs(goal.Talos, have.Kubernetes)
}

// refuseBack is why a cluster whose Kubernetes could go back is not taken back at all, because its Talos cannot; "" : it is. kept is
// whether all nodes ran the Talos that is asked for before.
func (s Seen) refuseBack(have, goal cluster.Versions, kept bool, spec cluster.Spec) string {
	if !ladder.IsOlder(goal.Talos, have.Talos) {
		return ""
	}
	if !kept {
		return fmt.Sprintf("a downgrade of Talos, from %s to %s, is not made: it goes back to what all nodes ran before their last hop, and by one minor version at most", have.Talos, goal.Talos)
	}
	for _, n := range spec.Nodes {
		if minors, ok := ladder.MinorsApart(goal.Talos, s.Observed.Machines[n.Name].Talos); ok && minors > 1 {
			return fmt.Sprintf("%s runs Talos %s, and goes back by one minor version at most, not to %s", n.Name, s.Observed.Machines[n.Name].Talos, goal.Talos)
		}
	}
	return ""
}

// findLeftEtcd is why Talos, which all nodes ran before, does not go back to a version: no control plane can; "" : one may. What one that
// does not answer ran last counts.
func (s Seen) findLeftEtcd(talos string, spec cluster.Spec) string {
	newest := ""
	talosOf := func(cp cluster.Node) string {
		has := cmp.Or(s.Observed.Machines[cp.Name].Talos, s.Ran[cp.Name].Talos)
		if newest == "" || ladder.IsOlder(newest, has) {
			newest = has
		}
		return has
	}
	if !drift.HasLeftEtcd(spec.ControlPlanes(), talosOf, talos) {
		return ""
	}
	return fmt.Sprintf("Talos does not go back to %s, because all control planes have the etcd of a newer one, up to %s, and the older etcd does not read its data", talos, newest)
}

// waitForKubernetes is the wait of a cluster whose nodes are to get other extensions for a hop of Kubernetes that is under way, without a
// reason where there is none.
func waitForKubernetes(d cluster.Desired, o cluster.Observed) cluster.Wait {
	asked := d.Repository()
	i := slices.IndexFunc(asked.Spec.Nodes, func(n cluster.Node) bool {
		mach := o.Machines[n.Name]
		return mach.Reach == cluster.Configured && mach.Schematic != "" && asked.Schematic != "" && mach.Schematic != asked.Schematic
	})
	if i < 0 || !drift.IsBetweenKubernetes(d) {
		return cluster.Wait{}
	}
	return cluster.Wait{Subject: d.Spec.Name, Reason: cluster.WaitingForHop, About: drift.FieldSchematic,
		Message: fmt.Sprintf("the other extensions of Talos, which %s lacks, wait until all nodes have Kubernetes %s", asked.Spec.Nodes[i].Name, asked.Spec.Versions.Kubernetes)}
}
