package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// planTwins reports VMs of this cluster that are a second machine for a node of the
// inventory.
func (m *planner) planTwins() {
	for _, vm := range m.o.Orphans.Value {
		n, ok := m.nodeNamed(vm.Node)
		_, moved := m.carries(n)
		if !ok || moved || leftover.IsKeptByName(m.d, m.o, vm) || m.plan.Phases[vm.Node] == cluster.PhaseAbsent { // reported at the node
			continue
		}
		m.blockDrift(cluster.Block{Subject: vm.Node,
			Reason: cluster.DuplicateVM, Message: fmt.Sprintf("vm %d is a second machine for it: the inventory's is vm %d", vm.VMID, n.VMID),
			Hint: fmt.Sprintf("if vm %d is the right one, write `vmid: %d` at %s in nodes.yaml; else, when nothing on it is needed, remove it by hand: `qm stop %d && qm destroy %d --purge` on %s",
				vm.VMID, vm.VMID, vm.Node, vm.VMID, vm.VMID, vm.Host)}, []cluster.FieldDifference{drift.OfOrphanVM(m.d, m.o, vm)})
	}
}

// isOrphanVM reports whether a name is that of a VM which planOrphans reports:
// its member of etcd and its Node object are part of the same story.
func (m *planner) isOrphanVM(name string) bool {
	return m.o.Orphans.Known && slices.ContainsFunc(m.o.Orphans.Value, func(vm cluster.VM) bool { return vm.Node == name })
}

// planOrphanNodes deletes the Node objects of nodes whose VMs are deleted, and reports
// those that are no node of the inventory.
func (m *planner) planOrphanNodes() {
	for _, name := range slices.Sorted(maps.Keys(m.o.Nodes.Value)) {
		if _, ok := m.nodeNamed(name); ok || m.isOrphanVM(name) {
			continue
		}
		n := cluster.Node{Name: name, UUID: cluster.NodeUUID(m.d.Spec.ID, name)}
		_, isMember := quorum.MemberOf(m.o, n)
		kn := m.o.Nodes.Value[name]
		off := m.appliesNothing() && kn.Turn != cluster.TurnRemoval // a removal that has begun is ended
		if m.isOwnNode(n) && leftover.SeesAllVMs(m.o) && !off {
			switch {
			case isMember || m.isUnderWay(name):
			case kn.Ready:
				// Or its VM is where it cannot be seen, in another pool, and runs.
				m.wait(cluster.Wait{Subject: name, Reason: cluster.OrphanNodeObject, About: "ready", Message: "no vm of it is seen, and Kubernetes still has its Node as Ready; it is deleted when its kubelet is silent", Within: silentWithin,
					Hint: fmt.Sprintf("if its machine runs: put the node back into nodes.yaml, and its vm into the pool; or drain it, switch it off, and `kubectl delete node %s`", name)})
			case kn.Turn != cluster.TurnRemoval && (!m.isLong(kn.NotReadySince) || m.o.Machines[name].Reach == cluster.Configured):
				m.wait(cluster.Wait{Subject: name, Reason: cluster.OrphanNodeObject, About: "silent", Message: "no vm of it is seen, and talos-agent has not removed it, so that its machine may run where it is not seen; its Node object is deleted when its kubelet has been silent for ten minutes", Within: silentWithin,
					Hint: fmt.Sprintf("if its machine runs: put the node back into nodes.yaml, and its vm into the pool; if it is switched off for good: `kubectl delete node %s`", name)})
			default:
				m.do(action.DeleteNode{Node: n})
			}
			continue
		}
		how := "is Ready"
		if !kn.Ready {
			how = "is NotReady" + text.Colon(kn.Why)
		}
		kn.Name = name
		m.blockDrift(cluster.Block{Subject: name, Reason: cluster.OrphanNodeObject, Message: "Kubernetes has a Node that the inventory does not; it " + how,
			Hint: fmt.Sprintf("put the node back into nodes.yaml; or, when its machine is switched off for good: `kubectl delete node %s`", name)}, []cluster.FieldDifference{drift.OfOrphanObject(m.o, kn)})
	}
}
