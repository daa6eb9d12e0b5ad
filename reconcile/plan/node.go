package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/capacity"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ha"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// planNode plans for one node: the one switch over its phase.
func (m *planner) planNode(n cluster.Node) {
	vm, mach := m.o.VMs[n.Name], m.o.Machines[n.Name]
	phase := m.plan.Phases[n.Name]
	if n.Locked && phase != cluster.PhaseReady {
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.NodeLocked, Message: fmt.Sprintf("it is %s and locked in the inventory, so it is left alone", phase),
			Hint: "remove `locked: true` from nodes.yaml"}, m.vmDrift(n))
		return
	}
	if (drift.IsReplaced(n, vm, m.o.Facts) || m.isDead(n.Name)) && phase != cluster.PhaseCreating {
		m.planReplacement(n, vm)
		return
	}
	m.blockRestored(n, vm)
	m.planUnanswered(n, vm)
	if w, late := readiness.AwaitInstallation(n, vm, m.o); late && phase != cluster.PhaseMaintenance {
		m.wait(w)
	}
	switch phase {
	case cluster.PhaseUnknown:
		if l := readiness.Lacking(n, m.o); mach.Reach == cluster.Configured && vm.Power == cluster.PowerRunning && l.Reason != "" {
			m.wait(l.Wait(n, apiWithin))
			m.planConfig(n, mach)
			return
		}
		m.wait(readiness.AwaitSeen(n, vm, mach, m.o, seeWithin))
	case cluster.PhaseAbsent:
		m.planAbsent(n)
	case cluster.PhaseForeign:
		m.blockForeign(n, vm, mach)
	case cluster.PhasePaused:
		m.planPaused(n, vm)
	case cluster.PhaseLocked:
		m.planLocked(n, vm)
	case cluster.PhaseCreating:
		m.waitForCreation(n.Name, vm, fmt.Sprintf("its vm %d is being created by a task that runs in Proxmox VE", n.VMID))
	case cluster.PhaseStopped:
		m.planStopped(n, vm)
	case cluster.PhaseBooting:
		if !m.isRunning(cluster.StartVM, n.Name) {
			m.waitForSilent(n, cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForBoot, Message: fmt.Sprintf("boots: nothing answers at %s:50000 yet%s", n.IP, readiness.LockedBy(vm)), Within: readiness.BootWithin, Hint: readiness.HintOfSilent(n, vm, m.o)})
		}
	case cluster.PhaseUnreachable:
		m.planReturn(n, vm)
		m.waitForDead(n)
	case cluster.PhaseMaintenance:
		m.planMaintenance(n)
	case cluster.PhaseLeaving:
		if !m.isRunning(cluster.DeleteVM, n.Name) {
			m.block(cluster.Block{Subject: n.Name, Reason: cluster.DeletionUnfinished, Message: fmt.Sprintf("a deletion of vm %d has begun and was not finished", n.VMID),
				Hint: fmt.Sprintf("take the word \"deleting\" out of the VM's description to keep it; or give the node another `replace` in nodes.yaml, which finishes it, and the node gets a new machine; or, when the whole cluster is to go, `talos-agent destroy %s`", m.d.Spec.Name)})
		}
	case cluster.PhaseJoining:
		if m.blockLeft(n) {
			m.planVM(n, vm) // a new `replace`, which is the way out, is compared with the mark
			return
		}
		if !m.blockLearner(n) && !m.isRunning(cluster.ApplyConfig, n.Name) {
			m.wait(readiness.Lacking(n, m.o).Wait(n, joinWithin))
		}
		m.waitForPressure(n)
		m.planDrifts(n, mach)
	case cluster.PhaseReady:
		m.waitForPressure(n)
		m.planDrifts(n, mach)
	}
}

// waitForCreation waits for the end of a creation that a task of an earlier agent
// carries out, unless that is overdue and reported already.
func (m *planner) waitForCreation(node string, vm cluster.VM, message string) {
	id := cluster.ActionID{Kind: cluster.CreateVM, Subject: node}
	if m.isRunning(id.Kind, id.Subject) || m.overdue[id] {
		return
	}
	w := cluster.Wait{Subject: node, Reason: cluster.VMCreating, Message: message, Within: action.Within(id.Kind, m.o.Usual)}
	if vm.Task != nil {
		w.Began = vm.Task.Started
	}
	m.wait(w)
}

// planAbsent plans the making of a VM.
func (m *planner) planAbsent(n cluster.Node) {
	if twin, ok := m.twin(n); ok {
		m.blockMovedAway(n, twin)
		return
	}
	mach := m.o.Machines[n.Name]
	if mach.Reach == cluster.Maintenance || mach.Reach == cluster.Configured || mach.Reach == cluster.Unexpected {
		// A VM that was deleted a moment ago is believed to answer until its connection is known to be lost.
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.AddressInUse, Message: fmt.Sprintf("its vm does not exist, but a Talos machine already answers at %s", n.IP), Within: seeWithin,
			Hint: "give the node another ip, or switch off the machine that has this one"})
		return
	}
	host := m.placeNode(n)
	h := m.o.Hosts[host]
	create := action.CreateVM{Node: n, Host: host, Image: m.d.Image, Kept: m.keptFor(n), Changed: drift.ChangedOf(m.o, n.Name, drift.FieldVM)}
	if n.Role == cluster.ControlPlane && !m.mayJoin(n) || !m.mayAdd(n) || m.holdNode(n) || !m.hostUsable(n.Name, h, host, m.vmDrift(n)...) || m.holdObject(n, create) {
		return
	}
	if len(m.crowded) > 0 {
		for _, b := range m.crowded {
			m.block(b)
		}
		return
	}
	if !m.storesUsable(n, host, h, capacity.NeedsOf(m.d.Spec, n), n.DiskUse()) || m.holdCapacity(n) {
		return
	}
	if m.d.Schematic == "" {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForFactory, Message: "waits for the image factory to name the image"})
		return
	}
	if m.isRunning(cluster.UploadImage, action.UploadImage{Image: m.d.Image, Host: host, Datastore: n.ImageDatastore}.Info().Subject) || m.copiesImage(host) {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForImage, Message: "waits for image " + m.d.Image.Name})
		return
	}
	if !h.Images.Known {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.StorageUnknown, About: n.ImageDatastore, Message: fmt.Sprintf("cannot see the images on %s: %s", n.ImageDatastore, cmp.Or(h.Images.Why, "they were not looked at yet")), Within: seeWithin})
		return
	}
	size, stored := h.Images.Value[m.d.Image.Name]
	switch pin, verified := m.o.Facts.Images[m.d.Image.Name]; {
	case !stored && !m.o.ImageCached.Known && m.o.ImageCached.Why != "":
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.ImageCacheUnknown, Message: "cannot see the image cache: " + m.o.ImageCached.Why, Within: seeWithin})
	case !stored:
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForImage, Message: "waits for image " + m.d.Image.Name})
	case verified && pin.Bytes != size:
		m.block(cluster.Block{Subject: n.Name,
			Reason: cluster.ImageMismatch, Message: fmt.Sprintf("image %s on %s has %d bytes, and had %d when it was verified", m.d.Image.Name, n.ImageDatastore, size, pin.Bytes),
			Hint: fmt.Sprintf("delete %s:%s/%s; it is downloaded and verified again", n.ImageDatastore, m.d.Image.Content(), m.d.Image.Name)})
	default:
		m.do(create)
	}
}

// mayJoin reports whether a control plane without a VM may be made: once etcd was founded, one that is still a member has to
// leave first, or its successor could never join.
func (m *planner) mayJoin(n cluster.Node) bool {
	if m.awaitsRemoval(n) {
		return false
	}
	if m.lostFounder(n) {
		m.block(cluster.Block{Subject: n.Name, Reason: cluster.EtcdMemberLost, Message: "its vm was deleted, and it founded an etcd of which no other member is seen", Hint: lostHint})
		return false
	}
	if m.awaitsMembers(n) {
		return false
	}
	if own := readiness.OwnEndpoint(m.d, n); own.Reason != "" && m.foundable() {
		m.block(own)
		return false
	}
	return true
}

// awaitsMembers waits until it is known that a control plane without data is not a member of etcd, and reports whether it does.
func (m *planner) awaitsMembers(n cluster.Node) bool {
	if !m.o.Facts.BootstrapSent() || m.o.Members.Known {
		return false
	}
	m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.EtcdMembersUnknown, Message: "waits until the members of etcd are known, to see that it is not one of them" + text.Colon(m.o.Members.Why), Within: etcdWithin})
	return true
}

// twin is the VM that carries a node under a VMID that the inventory does not
// give it: one made beside it would be a second machine for one node.
func (m *planner) twin(n cluster.Node) (cluster.VM, bool) {
	i := slices.IndexFunc(m.o.Orphans.Value, func(vm cluster.VM) bool { return vm.Node == n.Name })
	if i < 0 {
		return cluster.VM{}, false
	}
	return m.o.Orphans.Value[i], true
}

// mayAdd reports whether enough is seen of what there is for one VM more.
func (m *planner) mayAdd(n cluster.Node) bool {
	switch {
	case m.o.Facts.Lost && !leftover.SeesAllVMs(m.o):
		// Later a VM that is made now would look as if it had been there before the records were lost.
		m.wait(cluster.Wait{Subject: n.Name, Within: seeWithin, Reason: cluster.VMsUnknown, Message: m.blindStart()})
		return false
	case !m.o.Orphans.Known:
		// One of them may be this node, and they count against the limits.
		m.wait(cluster.Wait{Subject: n.Name, Within: seeWithin, Reason: cluster.VMsUnknown, Message: "cannot see which other VMs belong to the cluster" + text.Colon(m.o.Orphans.Why)})
		return false
	}
	return true
}

// blindStart is why an agent without records does not begin yet, with the first thing that it cannot see.
func (m *planner) blindStart() string {
	const message = "cannot see yet whether VMs of this cluster are there already"
	if !m.o.Orphans.Known && m.o.Orphans.Why != "" {
		return message + text.Colon(m.o.Orphans.Why) // it keeps the VMs of nodes from being seen as well
	}
	for _, n := range m.d.Spec.Nodes {
		if vm := m.o.VMs[n.Name]; leftover.IsUnseen(vm) && vm.Why != "" {
			return message + ": " + n.Name + text.Colon(vm.Why)
		}
	}
	return message
}

// lostFounder reports whether a control plane that has no data (any more), and is not listed as a member of etcd, is one all the
// same: it founded it, and no other member could list it.
func (m *planner) lostFounder(n cluster.Node) bool {
	in, _ := m.o.Facts.Intent(cluster.IntendBootstrap)
	return in.Node == n.Name && !(m.o.Members.Known && len(m.o.Members.Value) > 0)
}

func (m *planner) blockForeign(n cluster.Node, vm cluster.VM, mach cluster.Machine) {
	if vm.Moved || drift.IsTakenOut(m.o, n) {
		m.blockMoved(n, vm)
		return
	}
	if other, ok := m.carries(n); ok {
		m.planRenamed(n, other)
		return
	}
	if vm.Owner == cluster.Foreign {
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.ForeignVM, Message: fmt.Sprintf("vmid %d carries a vm that is not ours%s", n.VMID, text.Colon(vm.Why)),
			Hint: "give the node another vmid in nodes.yaml, or move the other vm away; if somebody took the node's own vm out of the pool, put it back; where another host's agent made it, `clusters` in config.yaml leaves the cluster to that one"}, m.vmDrift(n))
		return
	}
	if slices.Contains(m.rotated, n.Name) {
		return // reported
	}
	m.block(cluster.Block{Subject: n.Name, Reason: cluster.UnexpectedMachine, Message: fmt.Sprintf("another machine than the one of this node's vm answers at %s%s", n.IP, text.Colon(mach.Why)),
		Hint: fmt.Sprintf("find the other machine that uses %s; nothing secret was sent to it", n.IP)})
}

// blockMoved reports the VM of a node that is in another pool: the pool of the inventory
// or that of the VM was changed. What the agent may do ends at its pool, and so may what it sees.
func (m *planner) blockMoved(n cluster.Node, vm cluster.VM) {
	where, hint := "in no pool", fmt.Sprintf("put it into the pool: `pvesh set /pools/%s --vms %d` as root on %s", n.Pool, vm.VMID, vm.Carrier(n))
	if !vm.Moved {
		where, hint = "in another pool or in none, where the agent does not see it (its own machine answers)", fmt.Sprintf("put it back: `pvesh set /pools/%s --vms %d --allow-move 1` as root on %s", n.Pool, vm.VMID, vm.Carrier(n))
	} else if vm.Pool != "" {
		where = "in pool " + vm.Pool
		hint = fmt.Sprintf("undo the change of the pool, or move it: `pvesh set /pools/%s --vms %d --allow-move 1` as root on %s", n.Pool, vm.VMID, vm.Carrier(n))
	}
	if n.Pool == "" {
		hint = fmt.Sprintf("undo the change of the pool, or take it out: `pvesh set /pools/%s --vms %d --delete 1` as root on %s", vm.Pool, vm.VMID, vm.Carrier(n))
	}
	by := ""
	if drift.OriginOf(m.d, m.o, n, drift.FieldPool).Edited {
		by = drift.ChangedOf(m.o, n.Name, drift.FieldPool).String()
	}
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.PoolDrift, About: "pool",
		Message: fmt.Sprintf("vm %d is %s, and the inventory has %s; until it is there the agent may not touch it", vm.VMID, where, cmp.Or(n.Pool, "none")) + by, Hint: hint}, m.vmDrift(n))
}

func (m *planner) planLocked(n cluster.Node, vm cluster.VM) {
	switch {
	case vm.Lock == "create" || vm.Lock == "clone":
		m.block(cluster.Block{Subject: n.Name, Reason: cluster.VMLockOrphaned, Message: fmt.Sprintf("vm %d was left locked (%s) by a task that died", n.VMID, vm.Lock),
			Hint: readiness.HintOfLocked(vm, vm.Carrier(n)) + "; it is made again then"})
	default:
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.VMLocked, Message: fmt.Sprintf("vm %d is locked by Proxmox VE (%s)", n.VMID, vm.Lock), Within: lockWithin, Drift: m.vmDrift(n)})
	}
}

// planPaused lets a VM go on that somebody paused. One that QEMU has halted, as when a
// storage is full, would be halted again: a person has to see to that first.
func (m *planner) planPaused(n cluster.Node, vm cluster.VM) {
	host := vm.Carrier(n)
	switch {
	case vm.Lock != "" || vm.Task != nil: // as a backup that pauses it meanwhile
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.VMLocked, Message: fmt.Sprintf("vm %d is paused, and %s", n.VMID, cmp.Or(strings.TrimPrefix(readiness.LockedBy(vm), "; "), "a task runs on it")), Within: lockWithin, Drift: m.vmDrift(n, drift.FieldPower)})
	case vm.Halted != "" || vm.Managed:
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.VMPaused, Message: fmt.Sprintf("vm %d is paused%s", n.VMID, text.Colon(cmp.Or(vm.Halted, "managed by Proxmox VE's HA"))),
			Hint: fmt.Sprintf("`qm resume %d` on %s, after looking why: a full storage pauses VMs too", n.VMID, host)}, m.vmDrift(n, drift.FieldPower))
	case m.hostUsable(n.Name, m.o.Hosts[host], host, m.vmDrift(n)...):
		m.do(action.ResumeVM{Node: n, Changed: drift.ChangedOf(m.o, n.Name, drift.FieldPower)})
	}
}

// planStopped finishes a VM whose creation was interrupted, then starts it.
func (m *planner) planStopped(n cluster.Node, vm cluster.VM) {
	if host := vm.Carrier(n); !m.hostUsable(n.Name, m.o.Hosts[host], host, m.vmDrift(n)...) {
		return
	}
	if !vm.Hardware.Known {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.VMConfigUnknown, Message: fmt.Sprintf("cannot see the config of vm %d: %s", n.VMID, vm.Hardware.Why), Within: seeWithin})
		return
	}
	if drift.LacksSystemDisk(vm) {
		m.blockDrift(drift.MissingSystemDisk(n, vm, vm.Carrier(n)), m.vmDrift(n, drift.FieldSystemDisk))
		m.planVM(n, vm)
		return
	}
	if drift.IsUnmade(vm) {
		m.do(action.CreateVM{Node: n, Host: vm.Carrier(n), Image: m.d.Image, Finish: true})
		return
	}
	if m.planVM(n, vm) {
		return // it is started as the inventory has it
	}
	start := action.StartVM{Node: n, Changed: drift.ChangedOf(m.o, n.Name, drift.FieldPower)}
	if vm.Managed && ha.Restart(m.o, vm) {
		if !m.holdBySwitch(start.Info()) {
			m.followHA(n, vm, ha.Next{Set: true, State: availability.Started}, "which is stopped"+start.Changed.String())
		}
		return
	}
	if vm.Managed {
		m.wait(ha.AwaitStart(m.o, n, vm, seeWithin, m.vmDrift(n, drift.FieldPower)...))
		return
	}
	m.do(start)
}

func (m *planner) planMaintenance(n cluster.Node) {
	if m.holdNode(n) {
		return
	}
	cfg, ok := m.d.Configs[n.Name]
	switch isPlane, own := n.Role == cluster.ControlPlane, readiness.OwnEndpoint(m.d, n); {
	case !ok:
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForFactory, Message: "waits for the image factory, whose schematic id its config names"})
	case m.bootsOtherwise(n): // reported
	case isPlane && m.awaitsRemoval(n):
	case isPlane && m.lostFounder(n):
		m.block(cluster.Block{Subject: n.Name, Reason: cluster.EtcdMemberLost, Message: "it has lost its config and data, and it founded an etcd of which no other member is seen", Hint: lostHint})
	case isPlane && m.awaitsMembers(n):
	case own.Reason != "" && m.foundable():
		m.block(own)
	case isPlane && m.joinsBefore(n) != "":
		other := m.joinsBefore(n)
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForMembership, About: other, Message: fmt.Sprintf("gets its config when %s has joined etcd: one at a time", other), Within: joinWithin})
	default:
		m.do(action.ApplyConfig{Node: n, Config: cfg, Kept: m.keptFor(n)})
		if w, late := readiness.AwaitInstallation(n, m.o.VMs[n.Name], m.o); late { // one that waits for its config has installed nothing
			m.wait(w)
		}
	}
}

// bootsOtherwise reports a machine without a config that has booted by Secure Boot and should not have, or the other way
// round: it is given none, nor the secrets in it.
func (m *planner) bootsOtherwise(n cluster.Node) bool {
	dr, differs := drift.OfSecureBoot(m.d, m.o.Machines[n.Name])
	if differs {
		m.blockDrift(dr.Refusal(m.d, m.o, n), m.describe(n, dr))
	}
	return differs
}

// joinsBefore is another control plane that joins the etcd of a cluster that worked, "" when none
// does. etcd takes one new member at a time, and two that join wait for each other; one that takes
// longer than it should is not waited for. In a new cluster all join as they come up.
func (m *planner) joinsBefore(n cluster.Node) string {
	if !m.o.Facts.WasReady() {
		return ""
	}
	for _, cp := range m.d.Spec.ControlPlanes() {
		vm, mach := m.o.VMs[cp.Name], m.o.Machines[cp.Name]
		joins := vm.Power == cluster.PowerRunning && (mach.Reach == cluster.Configured || mach.Reach == cluster.Silent) && m.o.Now.Sub(mach.Since) < joinWithin &&
			!slices.ContainsFunc(m.o.Members.Value, func(mem cluster.Member) bool { return mem.IsOf(cp) && !mem.Learner })
		if cp.Name != n.Name && (joins || m.isRunning(cluster.ApplyConfig, cp.Name) || m.isPlanned(cluster.ApplyConfig, cp.Name)) {
			return cp.Name
		}
	}
	return ""
}

// planUnanswered corrects the VM of a node whose machine cannot be asked: what somebody
// changed by hand is often why. What would take the machine down waits until it works.
func (m *planner) planUnanswered(n cluster.Node, vm cluster.VM) {
	switch m.plan.Phases[n.Name] {
	case cluster.PhaseUnknown, cluster.PhaseForeign, cluster.PhasePaused, cluster.PhaseLocked, cluster.PhaseBooting, cluster.PhaseUnreachable, cluster.PhaseMaintenance:
	default:
		return
	}
	if vm.Owner != cluster.Ours || vm.Deleting || drift.IsUnmade(vm) {
		return
	}
	if drift.LacksSystemDisk(vm) {
		m.blockDrift(drift.MissingSystemDisk(n, vm, vm.Carrier(n)), m.vmDrift(n, drift.FieldSystemDisk))
	}
	m.planVM(n, vm)
	var down []drift.Drift // what would take it down
	for _, dr := range m.fitDrifts(n, drift.OfNodeVM(m.d, m.o, n, vm)) {
		if dr.How == drift.Reboot {
			down = append(down, dr)
		}
	}
	later, edits, changes := m.permit(n, down)
	m.report(edits, changes, func(drifts []drift.Drift) action.Info { return m.drainFor(n, drifts).Info() })
	if len(later) > 0 {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForReady, Message: fmt.Sprintf("vm %d has %s; waits until it is Ready to change %s", n.VMID, drift.DescribeHave(later), drift.DescribeChange(later)), Drift: m.describe(n, later...),
			Hint: fmt.Sprintf("if that keeps it from working: `qm shutdown %d` on %s; a vm that is stopped is changed at once", n.VMID, vm.Carrier(n))})
	}
}
