package upgrade

import (
	"cmp"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/upgrade/components"
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

// WaitForManifests is the wait of a cluster for what Talos deploys once, without a reason where there is none: within is how
// long it may take to be compared. What was changed has as long as talosctl gives it, and a minute for each node, of which a
// DaemonSet takes one after the other. While nodes are to go back to older versions there is none: what the newer ones render is
// applied no more, and what the older ones do is known when all have them.
func WaitForManifests(d cluster.Desired, o cluster.Observed, within time.Duration) cluster.Wait {
	if isGoingBack(d, o) {
		return cluster.Wait{}
	}
	reason, why := AwaitsManifests(d, o)
	w := cluster.Wait{Subject: d.Spec.Name, Reason: reason, Message: why}
	switch reason {
	case cluster.ManifestsUnknown:
		w.Within, w.Hint = within, "its control planes have to answer, and to render the same: one that runs another version or was edited by hand is shown by `talos-agent status "+d.Spec.Name+"`"
	case cluster.ManifestsRolling:
		w.Within = 5*time.Minute + time.Duration(len(d.Spec.Nodes))*time.Minute
		w.Hint = "`kubectl -n kube-system get pods,events` shows what the pods lack that do not start"
	}
	return w
}

// isGoingBack reports whether versions are set back that a node has still. One that is locked keeps them.
func isGoingBack(d cluster.Desired, o cluster.Observed) bool {
	asked := d.Repository()
	unlocked := asked.Spec
	unlocked.Nodes = slices.DeleteFunc(slices.Clone(asked.Spec.Nodes), func(n cluster.Node) bool { return n.Locked })
	return asked.Back.Talos && hasNewerTalos(asked.Spec.Versions.Talos, unlocked, Seen{Observed: o}) ||
		asked.Back.Kubernetes && components.HasNewer(asked.Spec.Versions.Kubernetes, unlocked, o)
}

// Deletes reports whether what Talos deploys once is to lose objects, of which an addon may take the place.
func Deletes(o cluster.Observed) bool {
	return slices.ContainsFunc(o.Manifests.Value.Changes, func(c cluster.ObjectChange) bool { return c.Deleted })
}

// AddWay adds the way of a cluster to other versions to its forecast: the hops that are made, or are to be approved, and that what its
// control planes render of what Talos deploys once is not known before.
func AddWay(f *cluster.Forecast, d cluster.Desired, o cluster.Observed) {
	asked := d.Repository()
	switch {
	case asked.Held == cluster.ChangeUnapproved:
		f.Changes = append(f.Changes, cluster.ApprovableHops(asked.Hops))
	case asked.Held != "":
		return
	case !o.Facts.Destroying():
		f.Hops = append(waysBack(asked), asked.Hops...)
	}
	if len(f.Hops) > 0 && f.Hops[0].Kind == cluster.HopKubernetes {
		f.Notes = append(f.Notes, "of Kubernetes the steps are shown that are known now: what follows is worked out from what runs after them, one component after the other")
	}
	if asked.Back != (cluster.Back{}) {
		f.Notes = append(f.Notes, "what goes back waits for no window, and for no approval that `upgrade` asks for; what Talos deploys once is held against what the control planes render when all nodes have the older versions, and what differs is shown and applied")
	}
	if len(asked.Hops) > 0 {
		f.Notes = append(f.Notes, "after each hop what Talos deploys once is held against what the control planes render then, and what differs is shown and applied")
	}
}

// KeepWay has the approval of a forecast keep that of the way to other versions that is made: its steps are shown with the others.
func KeepWay(f *cluster.Forecast, d cluster.Desired) {
	if asked := d.Repository(); asked.Held == "" && len(asked.Hops) > 0 {
		f.Changes = append(f.Changes, cluster.ApprovableHops(asked.Hops))
	}
}

// WentBack reports whether all nodes have returned to older versions of Talos or Kubernetes that they ran before, and have no others since.
func WentBack(d cluster.Desired, o cluster.Observed) bool {
	in, _ := o.Facts.Intent(cluster.IntendConfig)
	goal := d.Repository().Goal
	return in.Versions.Talos == goal.Talos && in.Versions.Kubernetes == goal.Kubernetes &&
		(ladder.IsOlder(goal.Talos, in.Previous.Talos) || ladder.IsOlder(goal.Kubernetes, in.Previous.Kubernetes))
}

// AwaitsManifests is why what Talos deploys once keeps the next hop from its beginning, "" : it does not. What is
// unknown without a reason was not looked at, because a node is on its way.
func AwaitsManifests(d cluster.Desired, o cluster.Observed) (reason cluster.Reason, why string) {
	m := o.Manifests
	switch {
	case IsMixed(d, o), !m.Known && m.Why == "", m.Known && len(m.Value.Changes)+len(m.Value.Rolling) == 0:
		return "", ""
	case m.Known && len(m.Value.Changes) == 0:
		return cluster.ManifestsRolling, "what Talos has deployed is not rolled out yet: " + text.JoinSome(m.Value.Rolling, 3, "; ")
	case !m.Known:
		return cluster.ManifestsUnknown, "whether what Talos has deployed is as its control planes render it is not known: " + m.Why
	}
	var all []string
	for _, c := range m.Value.Changes {
		all = append(all, c.String())
	}
	return cluster.ManifestsOutdated, "what Talos has deployed is not as its control planes render it: " + text.JoinSome(all, 3, "; ")
}
