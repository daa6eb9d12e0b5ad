package plan

import (
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
)

// What a machine is, its name, VMID and address, it is from its creation on: its
// certificates, its member of etcd and its Node object follow from them. A node that gets
// another one of them needs another machine, and what is on the disks of this one is lost.
// So that is asked for with `replace`, as every other change that takes a machine.

// carries returns the VM of another node of this cluster that has the VMID of a node.
func (m *planner) carries(n cluster.Node) (cluster.VM, bool) {
	i := slices.IndexFunc(m.o.Orphans.Value, func(vm cluster.VM) bool { return vm.VMID == n.VMID && vm.Node != n.Name })
	if i < 0 {
		return cluster.VM{}, false
	}
	return m.o.Orphans.Value[i], true
}

// undoMove is the first way out for a node with another VMID.
const undoMove = "undo the change in nodes.yaml; a vmid follows from the ip where none is written"

// planRenamed plans for a node whose VMID carries the VM of another name: the node was
// renamed, or VMIDs were exchanged.
func (m *planner) planRenamed(n cluster.Node, vm cluster.VM) {
	if own, ok := m.twin(n); ok {
		m.blockMovedAway(n, own)
		return
	}
	b := cluster.Block{Subject: n.Name, Reason: cluster.NodeIdentityChanged, Message: fmt.Sprintf("vm %d is that of %s, which the inventory no longer has: a machine keeps its name", vm.VMID, vm.Node),
		Hint: fmt.Sprintf("name it %s again in nodes.yaml; or give it a vmid and an ip of its own, and it is made beside %[1]s before that is removed", vm.Node)}
	switch other, stays := m.nodeNamed(vm.Node); {
	case stays:
		b.Message = fmt.Sprintf("vm %d is that of %s, to which the inventory gives vm %d: a node keeps its vmid", vm.VMID, vm.Node, other.VMID)
		b.Hint = undoMove
	case leftover.TakesPlace(m.d, m.o, n, vm):
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForTurn, About: "vmid", Message: fmt.Sprintf("waits until vm %d, which is that of %s, is deleted: it has its vmid", vm.VMID, vm.Node)})
		return
	case n.Protect && n.Replace != "":
		b.Reason, b.About = cluster.NodeProtected, "replace"
		b.Message = fmt.Sprintf("it is to have the place of %s, and vm %d is kept: nodes.yaml has `protect: true`", vm.Node, vm.VMID)
		b.Hint = "remove `protect: true` or `replace` from the node"
	case m.d.Spec.IsOnlyPlane(n):
		b.Hint = fmt.Sprintf("name it %s again in nodes.yaml: the only control plane cannot be replaced; or add two control planes first", vm.Node)
	default:
		b.Hint += fmt.Sprintf("; or give it a `replace` that neither has had: the machine of %s is removed, with what is on its disks, and %s gets a new one in its place", vm.Node, n.Name)
	}
	m.blockDrift(b, m.vmDrift(n))
	if old, adopted, is := leftover.LeftOut(m.d, m.o, vm.Node); is {
		m.do(action.UncordonNode{Node: old, Adopted: adopted})
	}
}

// blockMovedAway reports a node that the inventory gives another VMID than that of its
// machine: one made there would be a second machine for it. That has the token of a time
// before, too, when it was restored from a backup, so that a token shows nothing here.
func (m *planner) blockMovedAway(n cluster.Node, vm cluster.VM) {
	hint := undoMove
	if _, taken := m.carries(n); !taken && m.d.Spec.IsOnlyPlane(n) {
		hint += fmt.Sprintf("; or add two control planes, and then, for another ip, write `vmid: %d`, and another `replace: TOKEN`", vm.VMID)
	} else if !taken {
		hint += fmt.Sprintf("; for a machine of another vmid, give the node another name, too: the new one is made, and that of %s is removed, with what is on its disks; for another ip only, write `vmid: %d`, and another `replace: TOKEN`", n.Name, vm.VMID)
	}
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.NodeIdentityChanged,
		Message: fmt.Sprintf("it is vm %d, and the inventory now has vm %d: a node keeps its vmid", vm.VMID, n.VMID), Hint: hint}, []cluster.FieldDifference{drift.OfOrphanVM(m.d, m.o, vm)})
}

// blockRestored reports a machine that has another token of `replace` than the node, which
// had its new machine for that: it is kept, because no other was asked for.
func (m *planner) blockRestored(n cluster.Node, vm cluster.VM) {
	if !drift.IsRestored(n, vm, m.o.Facts) {
		return
	}
	has, keep := "none", "take `replace` out"
	if vm.Replace != "" {
		has, keep = vm.Replace, fmt.Sprintf("write `replace: %q`", vm.Replace)
	}
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.NodeIdentityChanged, About: "replace",
		Message: fmt.Sprintf("vm %d was made for another `replace` (%s), and the node has had a new machine for %s before: it was restored, or the inventory was reverted; it is kept", vm.VMID, has, n.Replace),
		Hint:    keep + " at the node in nodes.yaml, and the machine stays; or give it a `replace` that it never had, and it gets a new one: what is on its disks is lost"}, m.vmDrift(n, drift.FieldReplace))
}
