package drift

import (
	"cmp"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// IsUpgrade reports whether a drift of the machine of a node is corrected by another Talos: the next
// version on the way to that of the inventory, an image with other extensions, or, where an upgrade was
// begun and is taken back, the version that all nodes had before.
func IsUpgrade(d cluster.Desired, o cluster.Observed, n cluster.Node, dr Drift) bool {
	return d.Repository().Schematic != "" && (dr.Reason == cluster.SchematicDrift || isOnWay(d, o, n, dr))
}

// AwaitsImage reports whether a drift of the machine of a node is corrected by another Talos as soon as the image factory has named the
// image of the inventory.
func AwaitsImage(d cluster.Desired, o cluster.Observed, n cluster.Node, dr Drift) bool {
	return d.Repository().Schematic == "" && isOnWay(d, o, n, dr)
}

// isOnWay reports whether a drift is a version of Talos from which the next hop leads, or from which the node goes back.
func isOnWay(d cluster.Desired, o cluster.Observed, n cluster.Node, dr Drift) bool {
	if dr.Reason != cluster.TalosVersionDrift {
		return false
	}
	hops := d.Repository().Hops
	if len(hops) > 0 && hops[0].Kind == cluster.HopTalos && hops[0].To == dr.Want && ladder.IsOlder(dr.Have, dr.Want) {
		return true
	}
	return isReverted(d, o, n, dr)
}

// isReverted reports whether a node goes back to the version that all nodes ran before an upgrade that
// is taken back. A control plane does so only while another one runs the older etcd still, or where both
// come with the same; and none does while another one cannot follow, which would be two minor versions ahead, or where no control
// plane can.
func isReverted(d cluster.Desired, o cluster.Observed, n cluster.Node, dr Drift) bool {
	if asked := d.Repository(); asked.NoWay != "" && !asked.Back.Talos { // it is refused as a whole
		return false
	}
	ran, _ := o.Facts.Intent(cluster.IntendConfig)
	if ran.Versions.Talos != dr.Want && ran.Previous.Talos != dr.Want || !ladder.Runs(dr.Want, ran.Versions.Kubernetes) {
		return false
	}
	cannotFollow := func(other cluster.Node) bool {
		minors, ok := ladder.MinorsApart(dr.Want, o.Machines[other.Name].Talos)
		return ok && minors > 1
	}
	talosOf := func(cp cluster.Node) string { return o.Machines[cp.Name].Talos }
	if slices.ContainsFunc(d.Spec.Nodes, cannotFollow) || HasLeftEtcd(d.Spec.ControlPlanes(), talosOf, dr.Want) {
		return false
	}
	behind := slices.ContainsFunc(d.Spec.ControlPlanes(), func(cp cluster.Node) bool {
		return cp.Name != n.Name && o.Machines[cp.Name].Talos == dr.Want
	})
	return ladder.CanRevert(dr.Have, dr.Want, n.Role == cluster.ControlPlane && !behind)
}

// HasLeftEtcd reports whether every control plane is known to run a Talos with a newer etcd than that of a version, so that none of them
// goes back to it.
func HasLeftEtcd(planes []cluster.Node, talosOf func(cluster.Node) string, version string) bool {
	stays := func(cp cluster.Node) bool { return ladder.HasNewerEtcd(talosOf(cp), version) }
	return len(planes) > 0 && !slices.ContainsFunc(planes, func(cp cluster.Node) bool { return !stays(cp) })
}

// UpgradeOf is the upgrade of Talos that the machine of a node is to get now.
func UpgradeOf(d cluster.Desired, o cluster.Observed, n cluster.Node) (Drift, bool) {
	mach := o.Machines[n.Name]
	if mach.Reach != cluster.Configured {
		return Drift{}, false
	}
	drifts := OfMachine(d.Repository(), o, n, mach)
	i := slices.IndexFunc(drifts, func(dr Drift) bool { return IsUpgrade(d, o, n, dr) })
	if i < 0 {
		return Drift{}, false
	}
	return drifts[i], true
}

// IsBetweenKubernetes reports whether nodes are to have, or to go back to, another Kubernetes than others have: a hop of it has begun.
func IsBetweenKubernetes(d cluster.Desired) bool {
	asked := d.Repository()
	if asked.Back.Kubernetes {
		return true
	}
	if len(asked.Hops) == 0 || asked.Hops[0].Kind != cluster.HopKubernetes {
		return false
	}
	return slices.ContainsFunc(asked.Spec.Nodes, func(n cluster.Node) bool {
		c := n.Components
		return slices.ContainsFunc([]string{c.APIServer, c.ControllerManager, c.Scheduler, c.Kubelet}, func(v string) bool { return ladder.IsOlder(asked.Hops[0].From, v) })
	})
}

// InstallerRun is the image that installs what a machine runs. One that reports no extensions has those of the inventory.
func InstallerRun(d cluster.Desired, mach cluster.Machine) string {
	asked := d.Repository()
	return asked.Spec.InstallerOf(cmp.Or(mach.Schematic, asked.Schematic), mach.Talos)
}

// OfWay is what the versions of a cluster differ in from those that its inventory asks for.
func OfWay(d cluster.Desired, o cluster.Observed) []cluster.FieldDifference {
	asked := d.Repository()
	var out []cluster.FieldDifference
	for _, v := range []struct {
		kind         cluster.HopKind
		field, wants string
	}{{cluster.HopTalos, FieldTalos, asked.Goal.Talos}, {cluster.HopKubernetes, fieldKubernetes, asked.Goal.Kubernetes}} {
		if i := slices.IndexFunc(asked.Hops, func(h cluster.Hop) bool { return h.Kind == v.kind }); i >= 0 {
			out = append(out, seenSince(o, d.Spec.Name, cluster.PartMachine, cluster.FieldDifference{Field: v.field, Has: asked.Hops[i].From, Wants: v.wants}))
		}
	}
	return out
}
