package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/capacity"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ha"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// A node that the inventory no longer has is removed step by step: it is drained, its
// member leaves etcd, its VM is deleted, and then its Node object. How far that has come
// stands in the world. While it is taken out nothing is lost that cannot be put back, and
// from the removal of its member on there is no way back.

// planRemovals plans for the nodes with VMs that the inventory no longer has.
func (m *planner) planRemovals() {
	if !m.o.Orphans.Known {
		for _, n := range m.removed { // as far as they are remembered
			if m.forgets(n.Name) {
				m.leave(n, cluster.VM{})
				continue
			}
			m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.VMsUnknown, About: "removal", Message: "is removed: cannot see which VMs belong to the cluster" + text.Colon(m.o.Orphans.Why), Within: seeWithin})
		}
		return
	}
	for _, n := range m.removed {
		vms := slices.DeleteFunc(slices.Clone(m.o.Orphans.Value), func(vm cluster.VM) bool { return vm.Node != n.Name })
		switch {
		case len(vms) == 0: // planOrphanMembers has its member
		case len(vms) > 1:
			m.blockDuplicates(n, vms)
		case leftover.IsKeptByName(m.d, m.o, vms[0]):
		default:
			m.plan.Phases[n.Name] = cluster.PhaseLeaving
			if b := m.forbidRemoval(n, vms[0]); b.Reason != "" {
				m.block(b)
			} else {
				m.leave(n, vms[0])
			}
		}
	}
}

// planReplacement plans for a node that is to have a new machine: the one that it has
// leaves as if the inventory no longer had the node, and then the VM is absent.
func (m *planner) planReplacement(n cluster.Node, vm cluster.VM) {
	switch b, own := m.forbidRemoval(n, vm), readiness.OwnEndpoint(m.d, n); {
	case n.Locked:
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.NodeLocked, About: "replace", Message: "it is to be replaced, and is locked in the inventory, so it is left alone",
			Hint: "remove `locked: true` or `replace` from the node"}, m.removalDrift(n, vm))
	case n.Protect:
		m.block(cluster.Block{Subject: n.Name, Reason: cluster.NodeProtected, About: "replace", Message: fmt.Sprintf("it is to be replaced, and vm %d is kept: nodes.yaml has `protect: true`", vm.VMID),
			Hint: "remove `protect: true` or `replace` from the node"})
	case m.d.Spec.IsOnlyPlane(n) && m.mayBeFounded():
		m.block(cluster.Block{Subject: n.Name, Reason: cluster.OnlyControlPlane, Message: "it is to be replaced, and is the only control plane: etcd would be lost with it",
			Hint: "undo `replace`; or add two control planes first"})
	case own.Reason != "" && !(m.isLostPlane(n) && readiness.OwnEndpoint(m.d.Repository(), n).Reason == ""):
		m.block(own)
	case b.Reason != "":
		m.block(b)
	default:
		m.leave(n, vm)
	}
}

// Deletions are the VMs that are to be deleted, by VMID: of nodes that the inventory no
// longer has, and of nodes that are to be replaced.
func Deletions(d cluster.Desired, o cluster.Observed) []int {
	var out []int
	for _, vm := range o.Orphans.Value {
		if _, ok := d.Spec.Node(vm.Node); !ok && !leftover.IsKeptByName(d, o, vm) {
			out = append(out, vm.VMID)
		}
	}
	dead := lost.DeadNode(d, o)
	for _, n := range d.Spec.Nodes {
		if drift.IsReplaced(n, o.VMs[n.Name], o.Facts) || lost.IsMadeAgain(o, n, dead) {
			out = append(out, n.VMID)
		}
	}
	return out
}

// blockDuplicates reports two VMs for one node that the inventory does not have.
func (m *planner) blockDuplicates(n cluster.Node, vms []cluster.VM) {
	var ids []string
	var drifts []cluster.FieldDifference
	for _, vm := range vms {
		ids, drifts = append(ids, fmt.Sprint(vm.VMID)), append(drifts, drift.OfOrphanVM(m.d, m.o, vm))
	}
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.DuplicateVM, Message: fmt.Sprintf("it is no longer in the inventory, and several VMs are it: %s; none is removed", strings.Join(ids, ", ")),
		Hint: fmt.Sprintf("remove the copies by hand, when nothing on them is needed: `qm stop VMID && qm destroy VMID --purge` on %s", vms[0].Host)}, drifts)
}

// removalDrift is why the machine of a node is to be removed.
func (m *planner) removalDrift(n cluster.Node, vm cluster.VM) []cluster.FieldDifference {
	switch _, stays := m.nodeNamed(n.Name); {
	case !stays:
		return []cluster.FieldDifference{drift.OfOrphanVM(m.d, m.o, vm)}
	case m.isDead(n.Name) && !drift.IsReplaced(n, vm, m.o.Facts):
		return []cluster.FieldDifference{{Field: "machine", Has: "one that does not answer", Wants: "one that works", Since: m.o.DeadSince[n.Name].UTC()}}
	}
	return m.vmDrift(n, drift.FieldReplace)
}

// forbidRemoval returns why the machine of a node that is to lose it is kept; no Reason: it is not.
func (m *planner) forbidRemoval(n cluster.Node, vm cluster.VM) cluster.Block {
	_, stays := m.nodeNamed(n.Name)
	what, undo := "no longer in the inventory", "put the node back into nodes.yaml; or "
	if stays {
		what, undo = "to be replaced", "undo `replace`; or "
	}
	healing := m.isDead(n.Name) && !drift.IsReplaced(n, vm, m.o.Facts)
	if healing {
		what, undo = "dead and to be replaced", ""
	}
	keep := func(reason cluster.Reason, message, hint string) cluster.Block {
		return cluster.Block{Subject: n.Name, Reason: reason, About: fmt.Sprint(vm.VMID), Message: message, Hint: undo + hint, Drift: m.removalDrift(n, vm)}
	}
	approved, forgotten, refused := m.isApproved(vm), m.forgets(n.Name), bounds.OfDeletion(n.Name, vm, m.p, m.removalDrift(n, vm))
	deletions, limit, planes := len(Deletions(m.d, m.o)), m.p.RemovalLimit(), len(m.d.Spec.ControlPlanes())
	votes := quorum.HasMember(m.o, n) || !m.o.Members.Known
	if own := m.ownEndpointOfSuccessor(n); !stays && !vm.Deleting && own.Reason != "" {
		return keep(own.Reason, fmt.Sprintf("%s, which has its address, is to take its place: %s", own.Subject, own.Message), own.Hint)
	}
	switch {
	case refused.Reason != "":
		return refused
	case forgotten && !vm.Protected && !ha.IsOthers(m.d, m.o, vm):
		return cluster.Block{}
	case healing && !forgotten && m.p.ObserveOnly:
		return keep(cluster.HealingOff, "it is dead, and is left so: heal is observe", "set `heal: heal`"+m.whereSwitch("heal", true))
	case !healing && !forgotten && m.appliesNothing():
		return keep(cluster.ApplyingOff, fmt.Sprintf("it is %s, and apply is off", what), "set `apply: auto`"+m.whereSwitch("apply", m.p.ApplyOff))
	case !stays && !(vm.Deleting && approved) && votes && n.Role == cluster.ControlPlane && !m.d.Spec.AllowEven && planes%2 == 0:
		return keep(cluster.EvenControlPlanes, fmt.Sprintf("without it an even number of control planes is left (%d), which survives no more losses than %d would", planes, planes-1),
			"take another one out, or write `allow_even: true` in cluster.yaml")
	case vm.Protected:
		return keep(cluster.VMProtected, fmt.Sprintf("vm %d is kept: somebody has set Proxmox VE's Protection on it", vm.VMID), fmt.Sprintf("if it may go: `qm set %d --protection 0` on %s", vm.VMID, vm.Host))
	case ha.IsOthers(m.d, m.o, vm):
		return keep(cluster.VMManaged, fmt.Sprintf("vm %d is kept: it is managed by Proxmox VE's HA", vm.VMID), fmt.Sprintf("take it out of HA: `ha-manager remove vm:%d`", vm.VMID))
	case !approved && !stays && slices.Contains(m.o.Facts.Guarded, n.Name):
		return keep(cluster.RemovalUnapproved, "it is no longer in the inventory, which had it protected or locked", m.approveHint())
	case !approved && !healing && m.asksApproval():
		return keep(cluster.RemovalUnapproved, fmt.Sprintf("it is %s, and that waits for approval: apply is approve", what), m.approveHint())
	case !approved && deletions > limit:
		in, _ := m.o.Facts.Intent(cluster.IntendApproved)
		if len(slices.DeleteFunc(Deletions(m.d, m.o), func(vmid int) bool { return slices.Contains(in.VMs, vmid) })) <= limit {
			undo = "it goes by itself when those are removed whose removal has begun; " + undo
		}
		return keep(cluster.RemovalUnapproved, fmt.Sprintf("it is %s; the machines of %s are to be deleted, and %d may be without approval (host policy, %s: removals)", what, text.Count(deletions, "node"), limit, m.p.Line("removals")), m.approveHint())
	}
	return cluster.Block{}
}

// isApproved reports whether the deletion of a VM was approved, or has begun as a removal. One that
// was begun by a command to destroy, which was withdrawn, was not.
func (m *planner) isApproved(vm cluster.VM) bool {
	in, _ := m.o.Facts.Intent(cluster.IntendApproved)
	return slices.Contains(in.VMs, vm.VMID) || vm.Node != "" && m.forgets(vm.Node)
}

// countsDeletions reports whether it is seen how many VMs are to be deleted: those that
// are not seen may be more than may go without approval.
func (m *planner) countsDeletions() bool {
	return m.o.Orphans.Known && !slices.ContainsFunc(m.d.Spec.Nodes, func(n cluster.Node) bool { return n.Replace != "" && leftover.IsUnseen(m.o.VMs[n.Name]) })
}

// leave takes the next step in the removal of a node.
func (m *planner) leave(n cluster.Node, vm cluster.VM) {
	verb, reason := "removed", "remove it"
	_, stays := m.nodeNamed(n.Name)
	if stays {
		verb, reason = "replaced", "replace it"
	}
	wait := func(reason cluster.Reason, within time.Duration, format string, args ...any) {
		w := cluster.Wait{Subject: n.Name, Reason: reason, About: "removal", Message: "is " + verb + ": " + fmt.Sprintf(format, args...), Within: within}
		if reason == cluster.WaitingForQuorum {
			w.Hint = m.etcd.WayOut(m.d.Spec.Name)
		}
		m.wait(w)
	}
	founded := m.mayBeFounded()
	member, isMember := quorum.OwnMember(m.o, n)
	kn := m.o.Nodes.Value[n.Name]
	_, watched := m.o.Machines[n.Name]
	switch {
	case m.isUnderWay(n.Name), m.forgetUnseen(n):
		return
	case !m.isApproved(vm) && !m.countsDeletions():
		wait(cluster.VMsUnknown, seeWithin, "cannot see all VMs of the cluster, to count how many are to be deleted%s", text.Colon(m.o.Orphans.Why))
		return
	case vm.Task != nil || vm.Lock != "":
		wait(cluster.VMLocked, lockWithin, "vm %d is locked by Proxmox VE (%s)", vm.VMID, cmp.Or(vm.Lock, "a task runs on it"))
		return
	case ha.IsUnseen(m.d, m.o, vm), ha.IsKept(m.o, vm):
		m.wait(ha.AwaitRemoval(m.o, n.Name, verb, seeWithin))
		return
	case !vm.Hardware.Known:
		wait(cluster.VMConfigUnknown, seeWithin, "cannot see the config of vm %d: %s", vm.VMID, vm.Hardware.Why)
		return
	case vm.Deleting && !isMember && (m.o.Members.Known || m.isWorker(n)):
	case founded && !m.o.Members.Known:
		wait(cluster.EtcdMembersUnknown, etcdWithin, "waits until the members of etcd are known, to see whether it is one%s", text.Colon(m.o.Members.Why))
		return
	case founded && !m.o.Nodes.Known:
		wait(cluster.NodesUnknown, apiWithin, "cannot see the nodes in Kubernetes%s", text.Colon(m.o.Nodes.Why))
		return
	case founded && n.IP.IsValid() && !watched:
		wait(cluster.NodeUnknown, seeWithin, "it is not known yet whether it answers")
		return
	case isMember && !m.forgets(n.Name) && m.holdEndpoint(n, kn, verb):
		return
	case isMember && m.etcd.WithoutMember(n.Name, member.ID) != "":
		wait(cluster.WaitingForQuorum, etcdWithin, "waits for etcd: %s", m.etcd.WithoutMember(n.Name, member.ID))
		return
	case !m.forgets(n.Name) && !vm.Deleting && m.holdSuccessor(n, vm, verb):
		return
	case !m.forgets(n.Name) && m.holdRemoval(n, kn, isMember, verb):
		return
	case isMember && m.holdForSnapshot(n, verb):
		return
	case m.isOwnNode(n) && kn.BootID != "" && !leftover.IsDrained(kn):
		m.drainTo(action.DrainNode{Node: n, Target: cluster.TurnRemoval, For: reason, How: cluster.Drain{Adopt: true}}, nil)
		return
	case len(vm.Others) > 0: // those of a storage driver are detached by the drain
		m.block(cluster.Block{Subject: n.Name, Reason: cluster.ForeignVolumes, About: fmt.Sprint(vm.VMID), Message: fmt.Sprintf("vm %d is kept: volumes that are not known to be ours would be deleted with it: %s", vm.VMID, vm.Others),
			Hint: "detach them and move them to another vm, or remove them, if they are not needed"})
		return
	case isMember:
		m.do(action.RemoveMember{Node: n, Member: member, Answers: m.o.Machines[n.Name].Reach == cluster.Configured})
		return
	}
	if m.hostReachable(n.Name, vm.Host) {
		m.deleteVM(action.DeleteVM{VM: vm, Node: n, Votes: founded && !m.isWorker(n), Drained: m.isOwnNode(n) && kn.BootID != "" && !vm.Deleting})
	}
}

// isWorker reports whether a node that leaves is seen to be a worker: while neither etcd nor
// Kubernetes answers, a control plane looks like one.
func (m *planner) isWorker(n cluster.Node) bool {
	kn := m.o.Nodes.Value[n.Name]
	return n.Role == cluster.Worker && m.o.Nodes.Known && m.isOwnNode(n) && !kn.ControlPlane
}

// holdSuccessor waits with the removal of a machine in whose place another is made until that can
// be, and reports whether it does: the old one is not deleted for one that there is no room for, or
// nothing to make it from. An image that is not known to be on the host is downloaded first.
func (m *planner) holdSuccessor(n cluster.Node, vm cluster.VM, verb string) bool {
	i := slices.IndexFunc(m.d.Spec.Nodes, func(s cluster.Node) bool { return s.Name == n.Name || s.VMID == vm.VMID })
	if i < 0 {
		return false
	}
	next := m.d.Spec.Nodes[i]
	host := m.placeNode(next)
	h := m.o.Hosts[host]
	unusable := func(h string) bool { return !m.hostReachable(n.Name, h, m.removalDrift(n, vm)...) } // where a control plane is made rather than beside another one
	if m.holdNode(next) || !m.hostUsable(n.Name, h, host, m.removalDrift(n, vm)...) || next.Role == cluster.ControlPlane && slices.ContainsFunc(next.Placement.Among, unusable) || !m.storesUsable(next, host, h, capacity.NeedsOf(m.d.Spec, next), next.DiskUse()) {
		return true
	}
	lacks := m.ledger.LackSuccessor(next, host, vm)
	for _, b := range lacks {
		b.Message = fmt.Sprintf("is %s, and its machine is kept, because a new one cannot be made: %s", verb, b.Message)
		m.blockDrift(b, m.removalDrift(n, vm))
	}
	if len(lacks) > 0 {
		return true
	}
	_, stored := h.Images.Value[m.d.Image.Name]
	cached := m.o.ImageCached
	wait := func(reason cluster.Reason, within time.Duration, format string, args ...any) bool {
		m.wait(cluster.Wait{Subject: n.Name, Reason: reason, About: "removal", Message: "is " + verb + ": " + fmt.Sprintf(format, args...), Within: within})
		return true
	}
	switch {
	case m.d.Schematic == "":
		return wait(cluster.WaitingForImage, 0, "the schematic of its image is registered first")
	case stored, cached.Known && cached.Value:
		return false
	case !cached.Known:
		return wait(cluster.ImageCacheUnknown, seeWithin, "it is not known whether the image of its new machine is there%s", text.Colon(cached.Why))
	}
	m.do(action.DownloadImage{Image: m.d.Image})
	return wait(cluster.WaitingForImage, 0, "image %s is downloaded first, from which its new machine is made", m.d.Image.Name)
}

// holdObject deletes the Node object that the machine of a node has left, before another is
// made, and reports whether it does or waits for that.
func (m *planner) holdObject(n cluster.Node, next action.CreateVM) bool {
	left, w := leftover.ObjectOf(m.d, m.o, n)
	switch {
	case !left:
		return false
	case m.o.Nodes.Value[n.Name].Turn != cluster.TurnRemoval && m.holdBySwitch(next.Info()):
	case w.Reason != "":
		w.Within = silentWithin
		m.wait(w)
	default:
		m.do(action.DeleteNode{Node: n})
	}
	return true
}

// blockLeft reports a control plane that came back into the inventory, or is no longer to
// be replaced, when its member had left etcd, and one whose member somebody has removed while its
// machine runs: with the data that it has it cannot join again (Talos 1.13.9: seen).
func (m *planner) blockLeft(n cluster.Node) bool {
	word, _ := lost.Word(m.o, n.Name)
	begun := word.Left || m.isOwnNode(n) && m.o.Nodes.Value[n.Name].Turn == cluster.TurnRemoval
	if _, isMember := quorum.MemberOf(m.o, n); isMember || n.Role != cluster.ControlPlane || !m.o.Members.Known || !begun && !leftover.IsEvicted(m.o, n.Name) || m.isUnderWay(n.Name) || m.o.Machines[n.Name].Services["etcd"].State == "Preparing" {
		return false // or it joins, with no data
	}
	what, or := "its removal had begun, and its member has left etcd", "; or take it out again, to end its removal"
	if !begun {
		what, or = "somebody has removed its member from etcd, and its machine runs", ""
	}
	m.block(cluster.Block{Subject: n.Name, Reason: cluster.EtcdMemberLost, About: "removal", Message: what + ": with the data that it has it cannot join again",
		Hint: "give it another `replace` in nodes.yaml, which gives it a new machine" + or})
	return true
}

// isUnderWay reports whether a step in the removal of a node is.
func (m *planner) isUnderWay(node string) bool {
	return slices.ContainsFunc([]cluster.ActionKind{cluster.DrainNode, cluster.RemoveMember, cluster.DeleteVM, cluster.DeleteNode}, func(kind cluster.ActionKind) bool { return m.isRunning(kind, node) })
}

// isOwnNode reports whether the Node object with the name of a node is of its VM.
func (m *planner) isOwnNode(n cluster.Node) bool {
	return leftover.IsOwn(m.d, m.o.Nodes.Value[n.Name])
}

// holdRemoval waits with the removal of a node that works while nodes that stay do not,
// and reports whether it does: what takes its place comes first. A node that has not
// come and cannot come yet, because of room that the removal would make, is not waited
// for.
func (m *planner) holdRemoval(n cluster.Node, kn cluster.KubeNode, isMember bool, verb string) bool {
	if !kn.Ready && !isMember || kn.Turn == cluster.TurnRemoval {
		return false // nothing that works is lost, or it was decided
	}
	var missing []string
	for _, other := range m.d.Spec.Nodes {
		if other.Name != n.Name && other.Role == n.Role && m.plan.Phases[other.Name] != cluster.PhaseReady && (m.canCome(other, n) || isMember && bounds.StaysOverLimits(m.d, m.p, m.o.Orphans.Value, n.Name)) {
			missing = append(missing, fmt.Sprintf("%s is %s", other.Name, m.plan.Phases[other.Name]))
		}
	}
	if len(missing) == 0 {
		return false
	}
	m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForBudget, About: "removal",
		Message: "is " + verb + ": waits until the nodes like it that stay are Ready: " + strings.Join(missing, ", ")})
	return true
}

// holdEndpoint waits with the removal of a control plane until no node that stays reaches the
// Kubernetes API at its address, and reports whether it does. What it keeps from another config by
// being unavailable itself is not waited for.
func (m *planner) holdEndpoint(n cluster.Node, kn cluster.KubeNode, verb string) bool {
	old, within := drift.AtEndpoint(m.d, m.o, n), readyWithin
	if kn.Turn == cluster.TurnRemoval || !slices.Contains(m.etcd.Healthy, n.Name) {
		old = slices.DeleteFunc(old, func(name string) bool { other, _ := m.nodeNamed(name); return other.Role == cluster.ControlPlane })
	}
	if len(old) == 0 || m.isLostPlane(n) { // nothing answers there either way
		return false
	}
	if m.anyWaits(old, cluster.WaitingForWindow) {
		within = 0
	}
	m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForEndpoint, About: "removal", Within: within,
		Message: fmt.Sprintf("is %s: waits until no other node may reach the Kubernetes API at its address: %s", verb, strings.Join(old, ", ")),
		Hint:    fmt.Sprintf("they get the endpoint %s with their machine config: `talos-agent status %s` shows what keeps them from it; a node that is lost: take it out of nodes.yaml", m.d.Repository().Spec.Network.Endpoint, m.d.Spec.Name)})
	return true
}

// anyWaits reports whether one of some nodes waits for one of some reasons.
func (m *planner) anyWaits(names []string, reasons ...cluster.Reason) bool {
	return slices.ContainsFunc(m.plan.Waiting, func(w cluster.Wait) bool {
		return slices.Contains(names, w.Subject) && slices.Contains(reasons, w.Reason)
	})
}

// isOfPair reports whether a control plane gets another endpoint although etcd, which has two
// members that work, can spare neither: what it has leads to a machine that goes, or to none, so
// that there is no better time.
func (m *planner) isOfPair(n cluster.Node) bool {
	return n.Role == cluster.ControlPlane && m.etcd.IsPair() && drift.LosesEndpoint(m.d, m.o, n)
}

// canCome reports whether a node of the inventory that is not Ready may become so before
// another one is removed.
func (m *planner) canCome(n, removed cluster.Node) bool {
	if _, taken := m.carries(n); taken { // it has the vmid of a machine that is there
		return false
	}
	if m.plan.Phases[n.Name] != cluster.PhaseAbsent {
		return true
	}
	return len(m.crowded) == 0 && n.IP != removed.IP && len(m.lacks[n.Name]) == 0 &&
		!slices.ContainsFunc(m.plan.Blocked, func(b cluster.Block) bool { return b.Subject == n.Name })
}

// isLostPlane reports whether neither the etcd nor the machine of a control plane is seen to work, so
// that nothing that works is lost with it.
func (m *planner) isLostPlane(n cluster.Node) bool {
	return m.o.Members.Known && !slices.Contains(m.etcd.Healthy, n.Name) && m.plan.Phases[n.Name] == cluster.PhaseUnreachable
}

// ownEndpointOfSuccessor is why a control plane of the inventory that has the address of one that
// leaves could not be made after it; no Reason: there is none, or it could.
func (m *planner) ownEndpointOfSuccessor(n cluster.Node) cluster.Block {
	for _, cp := range m.d.Spec.ControlPlanes() {
		if cp.Name != n.Name && cp.IP == n.IP {
			return readiness.OwnEndpoint(m.d, cp)
		}
	}
	return cluster.Block{}
}
