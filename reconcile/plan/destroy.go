package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ha"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// planDestroy plans the end of a cluster: every VM that is provably ours goes, nothing else, and the image stays. The plan is
// Destroyed when it is verified that nothing is left.
func (m *planner) planDestroy() {
	left := false
	for _, n := range m.d.Spec.Nodes {
		if m.planRemoval(n.Name, n, m.o.VMs[n.Name]) || m.isRunning(cluster.CreateVM, n.Name) || m.isRunning(cluster.DeleteVM, n.Name) {
			left = true
		}
	}
	if !m.o.Orphans.Known {
		left = true
		m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.VMsUnknown, Message: "cannot see which other VMs belong to the cluster: " + cmp.Or(m.o.Orphans.Why, "there is no answer yet"), Within: seeWithin})
	}
	for _, vm := range m.o.Orphans.Value {
		n, _ := m.nodeNamed(vm.Node) // which may have another VMID by now
		left = m.planRemoval(vm.Node, n, vm) || left
	}
	m.plan.Destroyed = !left && len(m.o.Running) == 0
	m.endDestroy(left)
}

// planRemoval plans what becomes of one VM, and reports whether something of the cluster is, or may be, left there.
func (m *planner) planRemoval(name string, n cluster.Node, vm cluster.VM) (left bool) {
	switch {
	case n.Protect || n.Locked:
		key := "protect"
		if n.Locked {
			key = "locked"
		}
		m.block(cluster.Block{Subject: name, Reason: cluster.NodeProtected, About: fmt.Sprint(vm.VMID), Message: fmt.Sprintf("vm %d is kept: nodes.yaml has `%s: true`", vm.VMID, key),
			Hint: fmt.Sprintf("remove `%s: true` from the node, push, and run destroy again", key)})
	case vm.Task != nil && vm.Task.Type == "qmcreate":
		m.waitForCreation(name, vm, fmt.Sprintf("waits until the task that creates vm %d has ended", vm.VMID))
	case vm.Presence == cluster.Absent:
		return false
	case vm.Moved:
		m.blockMoved(n, vm)
	case m.o.Facts.BootstrapSent() && leftover.MayHoldEtcd(n, vm) && !m.isCarried(n):
		m.block(cluster.Block{Subject: name, Reason: cluster.ControlPlaneUnproven, About: fmt.Sprint(vm.VMID),
			Message: fmt.Sprintf("vm %d may be the node's own, with etcd on it, and is kept%s", vm.VMID, text.Colon(vm.Why)),
			Hint: fmt.Sprintf("as root on %s look at vm %d: if it is the node's own, give it back its pool (%s) and its SMBIOS UUID (%s), or remove it, and run destroy again; if no etcd of this cluster is left: `talos-agent accept %s --bootstrap`",
				vm.Carrier(n), vm.VMID, cmp.Or(n.Pool, "none"), n.UUID, m.d.Spec.Name)})
	case vm.Presence == cluster.Present && vm.Owner == cluster.Foreign:
		return false // not ours, so nothing of this cluster is left there
	case leftover.IsUnseen(vm):
		m.wait(cluster.Wait{Subject: name, Reason: cluster.NodeUnknown, Message: "cannot see it: " + cmp.Or(vm.Why, "there is no answer yet"), Within: seeWithin})
	case vm.Lock == "create" && vm.Task == nil:
		m.block(cluster.Block{Subject: name, Reason: cluster.VMLockOrphaned, Message: fmt.Sprintf("vm %d was left locked (create) by a task that died", vm.VMID),
			Hint: readiness.HintOfLocked(vm, vm.Host)})
	case !vm.Hardware.Known:
		m.wait(cluster.Wait{Subject: name, Reason: cluster.VMConfigUnknown, Message: fmt.Sprintf("cannot see the config of vm %d: %s", vm.VMID, vm.Hardware.Why), Within: seeWithin})
	case vm.Lock != "":
		m.wait(cluster.Wait{Subject: name, Reason: cluster.VMLocked, Message: fmt.Sprintf("vm %d is locked by Proxmox VE (%s)", vm.VMID, vm.Lock), Within: lockWithin})
	case m.isConfirmed(name, vm):
		m.planDelete(name, vm)
	}
	return true
}

// isCarried reports whether the VMID of a node carries the VM of another node of this cluster, which is deleted as that.
func (m *planner) isCarried(n cluster.Node) bool {
	_, ok := m.carries(n)
	return ok
}

// isConfirmed reports whether a VM of ours is one of those that the command to destroy is for. One that came since, as from a
// backup, has the same UUID, name and mark; it is reported instead.
func (m *planner) isConfirmed(name string, vm cluster.VM) bool {
	in, _ := m.o.Facts.Intent(cluster.IntendDestroy)
	listed := len(in.VMs) == 0 || slices.Contains(in.VMs, vm.VMID) // an older agent wrote no list
	about := fmt.Sprint(vm.VMID)
	other, seen := leftover.FindTwin(m.o, vm)
	if n, ok := m.nodeNamed(vm.Node); ok && !listed && n.VMID != vm.VMID && other == 0 {
		other = n.VMID
	}
	switch {
	case other != 0:
		m.block(cluster.Block{Subject: name, Reason: cluster.DuplicateVM, About: about, Message: fmt.Sprintf("vm %d is kept: it is a second machine for %s, beside vm %d", vm.VMID, vm.Node, other),
			Hint: fmt.Sprintf("look at what is on it; if it may go, run destroy again when vm %d is deleted, or remove it by hand: `qm stop %d && qm destroy %d --purge` on %s", other, vm.VMID, vm.VMID, vm.Host)})
	case !seen:
		m.wait(cluster.Wait{Subject: name, Reason: cluster.NodeUnknown, About: about, Message: fmt.Sprintf("cannot see whether vm %d is a second machine for %s", vm.VMID, vm.Node), Within: seeWithin})
	case !listed:
		m.block(cluster.Block{Subject: name, Reason: cluster.VMNotShown, About: about, Message: fmt.Sprintf("vm %d is kept: it was not among what destroy showed when it was confirmed", vm.VMID),
			Hint: fmt.Sprintf("look at what it is; if it may go: `talos-agent destroy %s`, which shows it", m.d.Spec.Name)})
	default:
		return true
	}
	return false
}

// A destruction is given up after so many failures of one deletion in a row, which is some minutes, and at the latest after
// destroyWithin: nothing is deleted on the strength of a command that is forgotten.
const (
	destroyTries  = 8
	destroyWithin = 24 * time.Hour
)

// planDelete plans the deletion of a VM of ours, unless something about it forbids that.
func (m *planner) planDelete(name string, vm cluster.VM) {
	about := fmt.Sprint(vm.VMID)
	in, _ := m.o.Facts.Intent(cluster.IntendDestroy)
	b, failed := m.backoffs[cluster.ActionID{Kind: cluster.DeleteVM, Subject: name}]
	switch {
	case vm.Protected && !slices.Contains(in.Despite, vm.VMID):
		m.block(cluster.Block{Subject: name, Reason: cluster.VMProtected, About: about, Message: fmt.Sprintf("vm %d is kept: somebody has set Proxmox VE's Protection on it", vm.VMID),
			Hint: fmt.Sprintf("if it may go: `talos-agent destroy %s --despite-protection %d`", m.d.Spec.Name, vm.VMID)})
	case len(vm.Others) > 0:
		hint := "detach them and move them to another vm, or remove them, if they are not needed; then run destroy again"
		if drift.LacksSystemDisk(vm) {
			n, _ := m.nodeNamed(vm.Node)
			hint = "if one is the system disk: " + drift.MissingSystemDisk(n, vm, vm.Carrier(n)).Hint + "; otherwise " + hint
		}
		m.block(cluster.Block{Subject: name, Reason: cluster.ForeignVolumes, About: about, Message: fmt.Sprintf("vm %d is kept: volumes that are not known to be ours would be deleted with it: %s", vm.VMID, vm.Others), Hint: hint})
	case ha.IsOthers(m.d, m.o, vm):
		m.block(cluster.Block{Subject: name, Reason: cluster.VMManaged, About: about, Message: fmt.Sprintf("vm %d is kept: it is managed by Proxmox VE's HA", vm.VMID),
			Hint: fmt.Sprintf("take it out of HA: `ha-manager remove vm:%d`; then run destroy again", vm.VMID)})
	case m.destroyExpired():
		m.block(cluster.Block{Subject: name, Reason: cluster.DestroyExpired, About: about, Message: fmt.Sprintf("vm %d is kept: the command to destroy the cluster is older than a day", vm.VMID),
			Hint: fmt.Sprintf("if it still holds: `talos-agent destroy %s`", m.d.Spec.Name)})
	case failed && b.Failed >= destroyTries && !m.isRunning(cluster.DeleteVM, name):
		m.block(cluster.Block{Subject: name, Reason: cluster.ActionFailed, About: string(b.Kind), Message: fmt.Sprintf("vm %d is left: %d tries to delete it failed: %s", vm.VMID, b.Failed, b.Error), Hint: b.Hint})
	default:
		if m.hostReachable(name, vm.Host) {
			m.deleteVM(action.DeleteVM{VM: vm})
		}
	}
}

// destroyExpired reports whether the command to destroy is too old to delete anything.
func (m *planner) destroyExpired() bool {
	in, _ := m.o.Facts.Intent(cluster.IntendDestroy)
	return !in.At.IsZero() && m.o.Now.Sub(in.At) > destroyWithin
}

// endDestroy ends a destruction that has deleted what it could, so that what is
// left is not deleted some day because nothing keeps it any more.
func (m *planner) endDestroy(left bool) {
	p := &m.plan
	if !left || len(p.Actions) > 0 || len(m.o.Running) > 0 {
		return
	}
	if len(p.Waiting) > 0 && !m.destroyExpired() {
		return
	}
	p.Left = slices.Clone(p.Blocked)
	for _, w := range p.Waiting {
		p.Left = append(p.Left, cluster.Block{Subject: w.Subject, Reason: w.Reason, About: w.About, Message: w.Message, Hint: w.Hint})
	}
}
