package upgrade

import (
	"fmt"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// JudgeRollback returns the command that has the machine of a node boot the Talos that it ran before, or why it must not: it
// has to answer, to run what was installed last, and to have run before what it can go back to, with its Kubernetes and beside
// the other nodes.
func JudgeRollback(d cluster.Desired, o cluster.Observed, n cluster.Node) (command cluster.Intent, refused cluster.Block) {
	mach, to := o.Machines[n.Name], o.Facts.Earlier[n.Name]
	in, pending := InstallOf(o, n)
	before, asked := o.Facts.Intent(cluster.IntendRollback)
	refuse := func(reason cluster.Reason, hint, message string) (cluster.Intent, cluster.Block) {
		return cluster.Intent{}, cluster.Block{Subject: n.Name, Reason: reason, Message: message, Hint: hint}
	}
	switch {
	case o.Facts.Suspended(), o.Facts.Destroying():
		return refuse(cluster.SuspendedByAdmin, "`talos-agent resume "+d.Spec.Name+"`", "nothing of the cluster is changed")
	case asked:
		return refuse(cluster.RolledBack, "`talos-agent status "+d.Spec.Name+"` shows how far it is; a commit that changes the cluster's files ends it", fmt.Sprintf("a rollback of %s was ordered, and one node goes back at a time", before.Node))
	case drift.IsBetweenKubernetes(d):
		return refuse(cluster.WaitingForHop, "`talos-agent upgrade "+d.Spec.Name+"` shows how far the hop is: order it again after that; or set kubernetes_version back and push", "a hop of Kubernetes is under way, and no other Talos comes to a node meanwhile")
	case n.Locked:
		return refuse(cluster.NodeLocked, "take `locked` out of nodes.yaml", "it is locked")
	case mach.Reach != cluster.Configured || mach.BootID == "" || mach.Talos == "":
		return refuse(cluster.NodeUnknown, fmt.Sprintf("`talos-agent console %s %s` shows why it does not come up; `talos-agent forget` has it re-created", d.Spec.Name, n.Name), "its machine does not answer, and only Talos itself can go back")
	case pending && in.Failed == "":
		return refuse(cluster.WaitingForTurn, "`talos-agent status "+d.Spec.Name+"` shows what it waits for; a push takes it back", "what was installed on it last has not booted yet")
	case to == "":
		return refuse(cluster.NothingToDo, fmt.Sprintf("`talosctl -n %s rollback` boots whatever its other slot has", n.IP), "the agent does not know what its other slot has: it has not upgraded it, an installation on it has not ended well, it was rolled back, or the journal was lost")
	}
	command = cluster.Intent{Kind: cluster.IntendRollback, Node: n.Name, Target: mach.BootID, Versions: cluster.Versions{Talos: to}, Revision: drift.Attempt(d, o.Facts)}
	return command, judgeGoingBack(d, o, n, to)
}

// judgeGoingBack is why a node must not go back to a version of Talos: its etcd has to read the data, its Kubernetes has to run
// there, and no other node may be two minor versions ahead. Of nodes that are not seen it is what all are to have now.
func judgeGoingBack(d cluster.Desired, o cluster.Observed, n cluster.Node, to string) cluster.Block {
	mach, asked := o.Machines[n.Name], d.Repository().Spec.Versions
	refuse := func(reason cluster.Reason, hint, message string) cluster.Block {
		return cluster.Block{Subject: n.Name, Reason: reason, Message: message, Hint: hint}
	}
	for _, kubernetes := range []string{o.Nodes.Value[n.Name].Kubelet, asked.Kubernetes} {
		if kubernetes != "" && !ladder.Runs(to, kubernetes) {
			return refuse(cluster.KubernetesDrift, "set kubernetes_version back first", fmt.Sprintf("Kubernetes %s does not run on Talos %s, which it ran before", kubernetes, to))
		}
	}
	isAhead := func(version string) bool {
		minors, known := ladder.MinorsApart(to, version)
		return known && minors > 1
	}
	if isAhead(asked.Talos) || slices.ContainsFunc(d.Spec.Nodes, func(other cluster.Node) bool { return isAhead(o.Machines[other.Name].Talos) }) {
		hint := "set talos_version back and push: the others go back first"
		if !leadsBack(d, o, to) {
			hint = hintOfEtcd(d, o, to)
		}
		return refuse(cluster.TalosVersionDrift, hint, fmt.Sprintf("another node would be two minor versions ahead of Talos %s, which it ran before", to))
	}
	sharesEtcd := slices.ContainsFunc(d.Spec.ControlPlanes(), func(cp cluster.Node) bool {
		return cp.Name != n.Name && ladder.ShareEtcd(o.Machines[cp.Name].Talos, to)
	})
	if to != mach.Talos && !ladder.CanRevert(mach.Talos, to, n.Role == cluster.ControlPlane && !sharesEtcd) {
		return refuse(cluster.TalosVersionDrift, hintOfEtcd(d, o, to), fmt.Sprintf("it runs Talos %s and ran %s before, whose etcd does not read the data of the newer one, or which is too far back", mach.Talos, to))
	}
	return cluster.Block{}
}

// leadsBack reports whether a push of an older version of Talos takes the cluster back to it: not where every control plane runs a newer
// etcd, with which nothing goes back.
func leadsBack(d cluster.Desired, o cluster.Observed, to string) bool {
	return !drift.HasLeftEtcd(d.Spec.ControlPlanes(), func(cp cluster.Node) string { return o.Machines[cp.Name].Talos }, to)
}

// hintOfEtcd is what to do about a node that does not go back to a version of Talos alone.
func hintOfEtcd(d cluster.Desired, o cluster.Observed, to string) string {
	const replaced = "`replace` of nodes.yaml has its machine re-created"
	if leadsBack(d, o, to) {
		return "set talos_version back and push, where all can go back; " + replaced
	}
	return "push what works with the newer Talos, or a newer version; talos_version set back is refused as well, because all control planes have the newer etcd; " + replaced + " with the newer one"
}

// FollowRollback returns the command of a rollback as it stands with what is seen now, and whether it has ended: the machine has
// booted for it, another revision is in force, or the node was removed, or it must not be carried out any more, for what is
// refused then. One that was not asked yet, of a machine that has booted by itself, is for that boot.
func FollowRollback(d cluster.Desired, o cluster.Observed, in cluster.Intent) (now cluster.Intent, ended bool, refused cluster.Block) {
	n, stays := d.Spec.Node(in.Node)
	mach := o.Machines[in.Node]
	answers := mach.Reach == cluster.Configured && mach.BootID != "" && mach.Talos != ""
	switch booted := answers && mach.BootID != in.Target; {
	case !stays || in.Revision != drift.Attempt(d, o.Facts), booted && in.Done:
		return in, true, refused
	case in.Done || !answers:
		return in, false, refused
	case o.Facts.Earlier[in.Node] != in.Versions.Talos:
		return in, true, cluster.Block{Subject: in.Node, Reason: cluster.RolledBack, Message: "another Talos was installed on it since", Hint: hintOfEtcd(d, o, in.Versions.Talos)}
	case booted:
		in.Target = mach.BootID
	}
	refused = judgeGoingBack(d, o, n, in.Versions.Talos)
	return in, refused.Reason != "", refused
}

// RollsBack reports whether a node is to be rolled back, or is.
func RollsBack(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	in, ok := o.Facts.Intent(cluster.IntendRollback)
	return ok && in.Node == n.Name && in.Revision == drift.Attempt(d, o.Facts)
}

// OfRollback is that the machine of a node is to boot what it ran before.
func OfRollback(d cluster.Desired, o cluster.Observed, n cluster.Node) []drift.Drift {
	in, ok := o.Facts.Intent(cluster.IntendRollback)
	mach := o.Machines[n.Name]
	if !ok || in.Node != n.Name || mach.BootID != in.Target || in.Revision != drift.Attempt(d, o.Facts) {
		return nil
	}
	return []drift.Drift{{Reason: cluster.RolledBack, Field: drift.FieldRollback, Want: in.Versions.Talos, Have: mach.Talos, How: drift.Reboot}}
}

// IsRollback reports whether some drifts are of OfRollback.
func IsRollback(drifts []drift.Drift) bool {
	return len(drifts) == 1 && drifts[0].Field == drift.FieldRollback
}

// AsksRollback reports whether a machine is to be asked for that: once, for a second request may lead to what it runs now. One that
// was asked and still runs is rebooted.
func AsksRollback(o cluster.Observed, drifts []drift.Drift) bool {
	in, _ := o.Facts.Intent(cluster.IntendRollback)
	return IsRollback(drifts) && !in.Done
}

// isNotTaken reports whether the machine of a node was asked, at this revision, to boot what it ran before, and runs the same all
// the same: the other one did not start, or the request did not arrive.
func isNotTaken(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	in, mach := o.Facts.Installs[n.Name], o.Machines[n.Name]
	return in.Back && in.Revision == drift.Attempt(d, o.Facts) && hasBootedSince(mach, in) && runsImage(d, mach, in.Image)
}

// BlockRollbacks reports the nodes that were rolled back and run the same all the same. They are not asked again.
func BlockRollbacks(d cluster.Desired, o cluster.Observed) (out []cluster.Block) {
	for _, n := range d.Spec.Nodes {
		if in := o.Facts.Installs[n.Name]; isNotTaken(d, o, n) {
			back := ""
			if before := drift.GoesBackTo(d.Repository(), o, "talos_version", in.Version()); before != "" {
				back = "talos_version set back to " + before + " and pushed has that installed; "
			}
			out = append(out, cluster.Block{Subject: n.Name, Reason: cluster.RollbackNotTaken, About: in.Version(),
				Message: fmt.Sprintf("it was rebooted into the Talos that it ran before, %s, and runs %s still, or again: the older one did not start, or the machine was not asked", in.Failed, in.Version()),
				Hint:    "`talos-agent status " + d.Spec.Name + "` shows what it printed meanwhile; " + back + "a commit that changes the cluster's files ends this"})
		}
	}
	return out
}

// NoteEarlier notes in f what machines ran before what is seen to run on them now, of those that run what was installed last. One
// that went back does not go forth again, and one that is deleted has nothing.
func NoteEarlier(f *cluster.Facts, d cluster.Desired, o cluster.Observed) {
	earlier := maps.Clone(f.Earlier)
	if earlier == nil {
		earlier = map[string]string{}
	}
	for node, in := range f.Installs {
		switch mach := o.Machines[node]; {
		case mach.Reach != cluster.Configured || mach.BootID == "" || mach.BootID == in.Boot || mach.Talos == "" || mach.Schematic == "":
		case in.Back:
			delete(earlier, node)
		case in.From != "" && in.Image == drift.InstallerRun(d, mach):
			earlier[node] = in.From
		}
	}
	maps.DeleteFunc(earlier, func(node, _ string) bool {
		_, stays := d.Spec.Node(node)
		return !stays || o.VMs[node].Presence == cluster.Absent
	})
	f.Earlier = earlier
}

// DescribeStop puts it into words for the other nodes.
func DescribeStop(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	switch {
	case isNotTaken(d, o, n):
		return "the rollback of " + n.Name + " did not take effect"
	case o.Facts.Installs[n.Name].Back:
		return n.Name + " was rolled back"
	}
	return "the installation on " + n.Name + " failed"
}

// DescribeFailed puts into words why a node does not get what it is to have, at this revision: its installer has failed, or it was
// rolled back; "" : neither.
func DescribeFailed(d cluster.Desired, o cluster.Observed, n cluster.Node) (reason cluster.Reason, message, hint string) {
	failed, to := FailedInstall(d, o, n), d.Repository().Spec.Versions.Talos
	switch {
	case failed == "":
		return "", "", ""
	case isNotTaken(d, o, n):
		return cluster.RolledBack, fmt.Sprintf("it runs Talos %s, and was to go back to what it ran before, %s", o.Facts.Installs[n.Name].Version(), failed), "a commit that changes the cluster's files has it upgraded again"
	case o.Facts.Installs[n.Name].Back:
		hint = "a commit that changes the cluster's files has it upgraded again"
		if leadsBack(d, o, o.Machines[n.Name].Talos) {
			hint += ", and talos_version or talos.schematic set back has the others follow it"
		}
		return cluster.RolledBack, fmt.Sprintf("it ran Talos %s, and went back to what it ran before, %s", o.Facts.Installs[n.Name].Version(), failed), hint
	}
	return cluster.UpgradeFailed, fmt.Sprintf("the installer of Talos %s failed, and it runs on as it was: %s", to, failed),
		"see what the installer has printed; " + RetriedBy(d) + ", and talos_version or talos.schematic set back ends it"
}
