package plan

import (
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// SeesAllVMs reports whether it is known which VMs of the cluster there are, and
// whose they are.
func SeesAllVMs(o cluster.Observed) bool {
	for _, vm := range o.VMs {
		if vm.Presence == cluster.PresenceUnknown || vm.Presence == cluster.Present && vm.Owner == cluster.OwnerUnknown {
			return false
		}
	}
	return o.Orphans.Known
}

// planOrphans reports VMs of this cluster that the inventory no longer names.
func (m *planner) planOrphans() {
	if !m.o.Orphans.Known {
		return
	}
	for _, vm := range m.o.Orphans.Value {
		i := slices.IndexFunc(m.d.Spec.Nodes, func(n cluster.Node) bool { return n.Name == vm.Node })
		switch {
		case i >= 0 && m.plan.Phases[vm.Node] == cluster.PhaseAbsent:
			continue // reported at the node
		case i >= 0:
			m.block(cluster.Block{Subject: vm.Node,
				Reason: cluster.DuplicateVM, Message: fmt.Sprintf("vm %d is a second machine for it: the inventory's is vm %d", vm.VMID, m.d.Spec.Nodes[i].VMID),
				Hint: fmt.Sprintf("if vm %d is the right one, write `vmid: %d` at %s in nodes.yaml; else, when nothing on it is needed, remove it by hand: `qm stop %d && qm destroy %d --purge` on %s",
					vm.VMID, vm.VMID, vm.Node, vm.VMID, vm.VMID, vm.Host)})
			continue
		}
		m.block(cluster.Block{Subject: vm.Node,
			Reason: cluster.OrphanVM, Message: fmt.Sprintf("vm %d (%s) belongs to this cluster but is no longer in the inventory; removing nodes is not supported yet", vm.VMID, vm.Node),
			Hint: fmt.Sprintf("put the node back into nodes.yaml; a worker can be removed by hand: `kubectl drain %s`, `kubectl delete node %s`, and on %s `qm stop %d && qm destroy %d --purge`",
				vm.Node, vm.Node, vm.Host, vm.VMID, vm.VMID)})
	}
}
