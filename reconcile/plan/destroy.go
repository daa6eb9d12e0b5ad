package plan

import (
	"cmp"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// planDestroy plans the end of a cluster: every VM that is provably ours goes,
// nothing else, and the image stays. The plan is Destroyed when it is verified that
// nothing is left.
func (m *planner) planDestroy() {
	left := false
	one := func(name string, protected, locked bool, vm cluster.VM) {
		switch {
		case protected || locked:
			left = true
			key := "protect"
			if locked {
				key = "locked"
			}
			m.block(cluster.Block{Subject: name, Reason: cluster.NodeProtected, About: fmt.Sprint(vm.VMID), Message: fmt.Sprintf("vm %d is kept: nodes.yaml has `%s: true`", vm.VMID, key),
				Hint: fmt.Sprintf("remove `%s: true` from the node, push, and run destroy again", key)})
		case vm.Task != nil && vm.Task.Type == "qmcreate":
			left = true
			m.wait(cluster.Wait{Subject: name, Reason: cluster.VMCreating, Message: fmt.Sprintf("waits until the task that creates vm %d has ended", vm.VMID), Within: taskWithin})
		case vm.Presence == cluster.Absent:
		case vm.Presence == cluster.Present && vm.Owner == cluster.Foreign:
			// Not ours, so nothing of this cluster is left there.
		case vm.Presence == cluster.PresenceUnknown || vm.Owner == cluster.OwnerUnknown:
			left = true
			m.wait(cluster.Wait{Subject: name, Reason: cluster.NodeUnknown, Message: "cannot see it: " + cmp.Or(vm.Why, "there is no answer yet"), Within: seeWithin})
		case !vm.Hardware.Known:
			left = true
			m.wait(cluster.Wait{Subject: name, Reason: cluster.VMConfigUnknown, Message: fmt.Sprintf("cannot see the config of vm %d: %s", vm.VMID, vm.Hardware.Why), Within: seeWithin})
		case vm.Lock != "":
			left = true
			w := cluster.Wait{Subject: name, Reason: cluster.VMLocked, Message: fmt.Sprintf("vm %d is locked by Proxmox VE (%s)", vm.VMID, vm.Lock), Within: lockWithin}
			if vm.Lock == "create" {
				w.Within = taskWithin
				w.Hint = fmt.Sprintf("as root on %s: `qm unlock %d`", vm.Host, vm.VMID)
			}
			m.wait(w)
		default:
			left = true
			if h := m.o.Hosts[vm.Host]; !m.hostUsable(name, h, vm.Host) {
				return
			}
			m.do(DeleteVM{VM: vm})
		}
	}
	for _, n := range m.d.Spec.Nodes {
		one(n.Name, n.Protect, n.Locked, m.o.VMs[n.Name])
		if m.isRunning(cluster.CreateVM, n.Name) || m.isRunning(cluster.DeleteVM, n.Name) {
			left = true
		}
	}
	if !m.o.Orphans.Known {
		m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.VMsUnknown, Message: "cannot see which other VMs belong to the cluster: " + cmp.Or(m.o.Orphans.Why, "there is no answer yet"), Within: seeWithin})
		return
	}
	for _, vm := range m.o.Orphans.Value {
		n, _ := m.d.Spec.Node(vm.Node) // which may have another VMID by now
		one(vm.Node, n.Protect, n.Locked, vm)
	}
	m.plan.Destroyed = !left && len(m.o.Running) == 0
}
