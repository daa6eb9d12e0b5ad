package plan

import (
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
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

// planRenamed plans for a node whose VMID carries the VM of another name: the node was
// renamed, or VMIDs were exchanged.
func (m *planner) planRenamed(n cluster.Node, vm cluster.VM) {
	if other, ok := m.d.Spec.Node(vm.Node); ok {
		m.block(cluster.Block{Subject: n.Name, Reason: cluster.NodeIdentityChanged,
			Message: fmt.Sprintf("vm %d is that of %s, to which the inventory gives vm %d: a node keeps its vmid", vm.VMID, vm.Node, other.VMID), Hint: hintOfMoved})
		return
	}
	if m.takesPlace(n, vm) {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForTurn, About: "vmid", Message: fmt.Sprintf("waits until vm %d, which is that of %s, is deleted: it has its vmid", vm.VMID, vm.Node)})
		return
	}
	if drift.IsReplaced(n, vm, m.o.Facts) {
		m.block(cluster.Block{Subject: n.Name, Reason: cluster.NodeProtected, About: "replace", Message: fmt.Sprintf("it is to have the place of %s, and vm %d is kept: nodes.yaml has `protect: true`", vm.Node, vm.VMID),
			Hint: "remove `protect: true` or `replace` from the node"})
		return
	}
	m.block(cluster.Block{Subject: n.Name, Reason: cluster.NodeIdentityChanged,
		Message: fmt.Sprintf("vm %d is that of %s, which the inventory no longer has: a machine keeps its name", vm.VMID, vm.Node),
		Hint: fmt.Sprintf("name it %[1]s again in nodes.yaml; or give it another `replace` there: the machine of %[1]s is removed, with what is on its disks, and %[2]s gets a new one in its place; or give it a vmid and an ip of its own, and it is made beside %[1]s before that is removed",
			vm.Node, n.Name)})
}

// hintOfMoved is the way to give a node another VMID.
const hintOfMoved = "undo the change in nodes.yaml (its vmid follows from its ip where none is written); or give it another name, too: it is made again, and its old machine is removed, with what is on its disks"

// blockMovedAway reports a node that the inventory gives another VMID than that of its
// machine: one made there would be a second machine for it. That has the token of a time
// before, too, when it was restored from a backup, so that a token shows nothing here.
func (m *planner) blockMovedAway(n cluster.Node, vm cluster.VM) {
	m.block(cluster.Block{Subject: n.Name, Reason: cluster.NodeIdentityChanged,
		Message: fmt.Sprintf("it is vm %d, and the inventory now has vm %d: a node keeps its vmid", vm.VMID, n.VMID),
		Hint:    hintOfMoved + fmt.Sprintf("; for another ip under the vmid that it has: `vmid: %d`, and another `replace: TOKEN`, which gives it a new machine", vm.VMID)})
}

// blockRestored reports a machine that has another token of `replace` than the node, which
// had its new machine for that: it is kept, because nobody has asked for another one.
func (m *planner) blockRestored(n cluster.Node, vm cluster.VM) {
	if !drift.IsRestored(n, vm, m.o.Facts) {
		return
	}
	has, keep := "none", "take `replace` out"
	if vm.Replace != "" {
		has, keep = vm.Replace, fmt.Sprintf("write `replace: %q`", vm.Replace)
	}
	m.block(cluster.Block{Subject: n.Name, Reason: cluster.NodeIdentityChanged, About: "replace",
		Message: fmt.Sprintf("vm %d is from before its replacement, or its description was edited: its `replace` is %s, and the node had a new machine for %s; it is kept", vm.VMID, has, n.Replace),
		Hint:    keep + " at the node in nodes.yaml, and the machine stays; or give it a `replace` that it never had, and it gets a new one: what is on its disks is lost"})
}

// isKeptByName reports whether the VM of another name at the VMID of a node of the
// inventory stays: the node was renamed, and nobody has asked for a new machine. That is
// so, too, while what the node has cannot be seen.
func (m *planner) isKeptByName(vm cluster.VM) bool {
	_, stays := m.d.Spec.Node(vm.Node)
	return slices.ContainsFunc(m.d.Spec.Nodes, func(n cluster.Node) bool { return n.VMID == vm.VMID && (stays || !m.takesPlace(n, vm)) })
}

// takesPlace reports whether a node is to have a new machine in the place of one of
// another name.
func (m *planner) takesPlace(n cluster.Node, vm cluster.VM) bool {
	return !n.Locked && !n.Protect && drift.IsReplaced(n, vm, m.o.Facts)
}
