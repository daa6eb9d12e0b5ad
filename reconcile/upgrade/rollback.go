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
		return refuse(cluster.RolledBack, "`talos-agent status "+d.Spec.Name+"` shows how far it is", before.Node+" is rolled back already")
	case mach.Reach != cluster.Configured || mach.BootID == "" || mach.Talos == "":
		return refuse(cluster.NodeUnknown, fmt.Sprintf("`talos-agent console %s %s` shows why it does not come up; `talos-agent forget` has it re-created", d.Spec.Name, n.Name), "its machine does not answer, and only Talos itself can go back")
	case pending && in.Failed == "":
		return refuse(cluster.WaitingForTurn, "set talos_version back and push: it is not rebooted into it then", "what was installed on it last has not booted yet")
	case to == "":
		return refuse(cluster.NothingToAccept, fmt.Sprintf("`talosctl -n %s rollback` boots whatever its other slot has", n.IP), "the agent does not know what it ran before: it has upgraded it to nothing since, or its journal is lost")
	}
	behind := slices.ContainsFunc(d.Spec.ControlPlanes(), func(cp cluster.Node) bool {
		order, known := ladder.Compare(o.Machines[cp.Name].Talos, mach.Talos)
		return cp.Name != n.Name && known && order < 0
	})
	ahead := func(other cluster.Node) bool {
		minors, known := ladder.MinorsApart(to, o.Machines[other.Name].Talos)
		return known && minors > 1
	}
	for _, kubernetes := range []string{o.Nodes.Value[n.Name].Kubelet, d.Repository().Spec.Versions.Kubernetes} {
		if kubernetes != "" && !ladder.Runs(to, kubernetes) {
			return refuse(cluster.KubernetesDrift, "set kubernetes_version back first", fmt.Sprintf("Kubernetes %s does not run on Talos %s, which it ran before", kubernetes, to))
		}
	}
	if slices.ContainsFunc(d.Spec.Nodes, ahead) {
		return refuse(cluster.TalosVersionDrift, "set talos_version back and push: the others go back first", fmt.Sprintf("another node would be two minor versions ahead of Talos %s, which it ran before", to))
	}
	if to != mach.Talos && !ladder.CanRevert(mach.Talos, to, n.Role == cluster.ControlPlane && !behind) {
		return refuse(cluster.TalosVersionDrift, "`talos-agent forget`, or `replace` of nodes.yaml, has its machine re-created", fmt.Sprintf("it runs Talos %s and ran %s before, which does not read what the newer etcd has written, or is too far back", mach.Talos, to))
	}
	return cluster.Intent{Kind: cluster.IntendRollback, Node: n.Name, Target: mach.BootID, Versions: cluster.Versions{Talos: to}, Revision: d.Repository().Revision}, cluster.Block{}
}

// OfRollback is that the machine of a node is to boot what it ran before.
func OfRollback(d cluster.Desired, o cluster.Observed, n cluster.Node) []drift.Drift {
	in, ok := o.Facts.Intent(cluster.IntendRollback)
	mach := o.Machines[n.Name]
	if !ok || in.Node != n.Name || mach.BootID != in.Target || in.Revision != d.Repository().Revision {
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

// RollbackEnded reports whether the command of a rollback has ended: the machine was seen in another boot, another
// revision is in force, or the node was removed.
func RollbackEnded(d cluster.Desired, o cluster.Observed, in cluster.Intent) bool {
	_, stays := d.Spec.Node(in.Node)
	mach := o.Machines[in.Node]
	booted := mach.Reach == cluster.Configured && mach.BootID != "" && mach.BootID != in.Target
	return !stays || in.Revision != d.Repository().Revision || booted
}

// NoteEarlier notes in f what machines ran before what is seen to run on them now: installed are those that run what was
// installed last. A machine that went back does not go forth again, and one that is deleted has none.
func NoteEarlier(f *cluster.Facts, d cluster.Desired, o cluster.Observed, installed []string) {
	earlier := maps.Clone(f.Earlier)
	if earlier == nil {
		earlier = map[string]string{}
	}
	for _, node := range installed {
		if in := f.Installs[node]; in.From != "" && !in.Back {
			earlier[node] = in.From
		}
	}
	maps.DeleteFunc(earlier, func(node, _ string) bool {
		_, stays := d.Spec.Node(node)
		return !stays || f.Installs[node].Back || o.VMs[node].Presence == cluster.Absent
	})
	f.Earlier = earlier
}

// DescribeStop puts it into words for the other nodes.
func DescribeStop(o cluster.Observed, n cluster.Node) string {
	if o.Facts.Installs[n.Name].Back {
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
	case o.Facts.Installs[n.Name].Back:
		return cluster.RolledBack, fmt.Sprintf("it ran Talos %s, and went back to what it ran before, %s", to, failed),
			"a push has it upgraded again, and talos_version or talos.schematic set back has the others follow it"
	}
	return cluster.UpgradeFailed, fmt.Sprintf("the installer of Talos %s failed, and it runs on as it was: %s", to, failed),
		"see what the installer has printed; a push has it tried again, and talos_version or talos.schematic set back ends it"
}
