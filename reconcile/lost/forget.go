package lost

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// A node whose machine does not come back, by an administrator's word, is removed or made
// again at once: nothing is waited for but what keeps etcd whole. Where it was shown that its
// VM cannot be deleted yet, because its host is down, that does not hold up its member and
// its Node object; its pods start elsewhere then, whatever the machine does.

// forgetWithin is how long an administrator's word is acted on: nothing is deleted on the
// strength of one that was given long ago.
const forgetWithin = 24 * time.Hour

// Word is an administrator's word about a node, if there is one.
func Word(o cluster.Observed, node string) (cluster.Forgotten, bool) {
	i := slices.IndexFunc(o.Facts.Forgotten, func(n cluster.Forgotten) bool { return n.Node == node })
	if i < 0 {
		return cluster.Forgotten{}, false
	}
	return o.Facts.Forgotten[i], true
}

// IsForgotten reports whether the machine of a node does not come back, by an
// administrator's word of the last day. A machine that may answer is believed before it.
func IsForgotten(o cluster.Observed, node string) bool {
	word, ok := Word(o, node)
	return ok && o.Now.Sub(word.At) < forgetWithin && !answers(o, node)
}

// IsMadeAgain reports whether a node of the inventory is to have another machine although
// it has no new token: it is dead, or an administrator has taken its machine for lost.
func IsMadeAgain(o cluster.Observed, n cluster.Node, dead string) bool {
	vm := o.VMs[n.Name]
	return n.Name == dead || IsForgotten(o, n.Name) && vm.Presence != cluster.Absent && vm.Owner != cluster.Foreign
}

// answers reports whether a node may be at work: it answers, or Kubernetes hears from it,
// or that cannot be seen.
func answers(o cluster.Observed, node string) bool {
	return o.Machines[node].Reach != cluster.Silent || !o.Nodes.Known || o.Nodes.Value[node].Ready
}

// RefuseForget returns why the machine of a node is not taken for lost; no Reason: it may be.
func RefuseForget(d cluster.Desired, o cluster.Observed, n cluster.Node) cluster.Block {
	refuse := func(reason cluster.Reason, message, hint string) cluster.Block {
		return cluster.Block{Subject: n.Name, Reason: reason, Message: message, Hint: hint}
	}
	_, stays := d.Spec.Node(n.Name)
	member, isMember := quorum.OwnMember(o, n)
	etcd := leftover.EtcdOf(d, o).WithoutMember(n.Name, member.ID)
	switch vm := o.VMs[n.Name]; {
	case o.Facts.Destroying():
		return refuse(cluster.Destroying, "the cluster is being destroyed", fmt.Sprintf("`talos-agent status %s` shows how far that is", d.Spec.Name))
	case o.Facts.Suspended():
		return refuse(cluster.SuspendedByAdmin, "the cluster is suspended", fmt.Sprintf("`talos-agent resume %s`, and then again", d.Spec.Name))
	case stays && vm.Presence == cluster.Absent:
		return refuse(cluster.NothingToAccept, "it has no vm, and is made again by itself", fmt.Sprintf("`talos-agent status %s` shows what that waits for", d.Spec.Name))
	case stays && vm.Owner == cluster.Foreign:
		return refuse(cluster.NothingToAccept, fmt.Sprintf("vm %d is not its machine", n.VMID), "move that vm to another VMID, or give the node another one; then it is made")
	case o.Machines[n.Name].Reach == cluster.Configured || o.Machines[n.Name].Reach == cluster.Maintenance || o.Nodes.Known && o.Nodes.Value[n.Name].Ready:
		return refuse(cluster.NotConfirmed, "its machine answers", "take it out of nodes.yaml to remove it, or give it a new `replace` token to have it made again: it is drained then")
	case answers(o, n.Name):
		return refuse(cluster.NodeUnknown, "it is not known whether it answers", fmt.Sprintf("`talos-agent status %s` shows what cannot be seen", d.Spec.Name))
	case stays && d.Spec.IsOnlyPlane(n):
		return refuse(cluster.OnlyControlPlane, "it is the only control plane: etcd would be lost with it", "bring it back: restore its vm from a backup, or look at its console")
	case isMember && etcd != "":
		return refuse(cluster.WaitingForQuorum, "its member cannot be removed from etcd: "+etcd, "bring the other control planes back first")
	}
	return cluster.Block{}
}

// StillForgotten are those of some nodes whose machines do not come back of which anything
// is left, or of that word.
func StillForgotten(all []cluster.Forgotten, d cluster.Desired, o cluster.Observed) (out []cluster.Forgotten) {
	for _, n := range all {
		if left, goesOn := endForgotten(n, d, o); goesOn {
			out = append(out, left)
		}
	}
	return out
}

// endForgotten is what is left of an administrator's word that a machine does not come
// back: it is over when the VM is deleted, and void when the machine answers, or a day has
// passed, before its member has left etcd. What has happened to a member is kept until
// there is another machine.
func endForgotten(in cluster.Forgotten, d cluster.Desired, o cluster.Observed) (left cluster.Forgotten, goesOn bool) {
	n, stays := d.Spec.Node(in.Node)
	if !stays {
		n.Name = in.Node
	}
	removed := slices.ContainsFunc(leftover.RemovedNodes(d, o), func(n cluster.Node) bool { return n.Name == in.Node })
	answers := o.Machines[in.Node].Reach == cluster.Configured || o.Nodes.Known && o.Nodes.Value[in.Node].Ready
	switch {
	case stays && o.VMs[in.Node].Presence == cluster.Absent, !stays && !removed && leftover.SeesAllVMs(o):
		return in, false
	case answers && (!in.Left || o.Members.Known && quorum.HasMember(o, n)), !in.Left && o.Now.Sub(in.At) >= forgetWithin:
		return in, false
	}
	return in, true
}

// ConsequencesOfForget is what it means to take the machine of a node for lost, a sentence
// each.
func ConsequencesOfForget(d cluster.Desired, o cluster.Observed, n cluster.Node) []string {
	vm, why := VMOf(d, o, n)
	out := []string{n.Name + " does not answer, and Kubernetes does not have it as Ready"}
	if kn := o.Nodes.Value[n.Name]; !kn.NotReadySince.IsZero() {
		out[0] = fmt.Sprintf("%s does not answer, and has not been Ready since %s", n.Name, text.Moment(kn.NotReadySince))
	}
	if quorum.HasMember(o, n) {
		out = append(out, "etcd: "+leftover.EtcdOf(d, o).DescribeRemoval(n.Name))
	}
	if why == "" {
		out = append(out, fmt.Sprintf("vm %d on %s is deleted with its disks, and what is on them", vm.VMID, vm.Host))
	} else {
		out = append(out, fmt.Sprintf("its vm is deleted when that is possible (%s); if its machine still runs, its pods run twice from now on: be sure that it is off", why))
	}
	if _, stays := d.Spec.Node(n.Name); stays {
		return append(out, "the inventory has it: it gets a new machine once its vm is deleted")
	}
	return append(out, "the inventory does not have it: it is removed")
}

// VMOf is the VM of a node, and why it cannot be deleted now, "" when it can.
func VMOf(d cluster.Desired, o cluster.Observed, n cluster.Node) (vm cluster.VM, why string) {
	vm = o.VMs[n.Name]
	if _, stays := d.Spec.Node(n.Name); !stays {
		vm = cluster.VM{}
		for _, orphan := range o.Orphans.Value {
			if orphan.Node == n.Name {
				vm = orphan
			}
		}
	}
	h := o.Hosts[vm.Host]
	switch {
	case !vm.Hardware.Known:
		return vm, "it cannot be seen" + text.Colon(cmp.Or(vm.Hardware.Why, vm.Why))
	case !h.Known:
		return vm, fmt.Sprintf("host %s cannot be seen%s", vm.Host, text.Colon(h.Why))
	}
	return vm, ""
}

// ForgetsUnfenced reports whether what the machine of a node has left would be removed
// before its VM, which cannot be seen.
func ForgetsUnfenced(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	_, why := VMOf(d, o, n)
	return why != ""
}
