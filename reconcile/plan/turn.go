package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ha"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// What takes a node down is done in its turn, all of it in one: it is drained, changed, started again, seen Ready, and put back
// into service. How far a turn has come stands in the world: the Node object has what the node was drained for and which boot of
// its machine that was, and a VM that is stopped is changed before it is started.

// turnOf is what of a node takes it down to be changed, as far as there is room for it, and the switches let it be changed.
func (m *planner) turnOf(n cluster.Node) []drift.Drift {
	now, asked := m.turns[n.Name]
	if !asked {
		now, _, _ = m.permit(n, m.downDrifts(n))
		m.turns[n.Name] = now
	}
	return now
}

// downDrifts is what of a node takes it down to be changed, as far as there is room for it.
func (m *planner) downDrifts(n cluster.Node) []drift.Drift {
	vm, mach := m.o.VMs[n.Name], m.o.Machines[n.Name]
	if vm.Owner != cluster.Ours || mach.Reach != cluster.Configured {
		return nil
	}
	if back := upgrade.OfRollback(m.d, m.o, n); back != nil {
		return back
	}
	var out []drift.Drift
	for _, dr := range m.fitDrifts(n, drift.OfNodeVM(m.d, m.o, n, vm)) {
		if dr.How == drift.Reboot {
			out = append(out, dr)
		}
	}
	for _, dr := range drift.OfMachine(m.d.Repository(), m.o, n, mach) {
		if c := mach.Change; dr.Reason == cluster.ConfigDrift && c != nil && c.For == dr.Want && !m.lacksImages(n) && c.Reboots && c.Network == "" && drift.EndpointToCome(m.d, m.o, n) == "" && len(drift.Fixed(m.d, m.o, n)) == 0 && upgrade.SkipsEtcd(m.d, m.o, n) == "" {
			out = append(out, dr)
		}
	}
	if up, ok := drift.UpgradeOf(m.d, m.o, n); ok && (up.Reason != cluster.TalosVersionDrift || m.d.Repository().Held == "") {
		if !ladder.UsesLifecycle(mach.Talos) || m.goesAlone(up) { // its one call does nothing else
			return []drift.Drift{up}
		}
		out = append(out, up)
	}
	return append(out, m.leftEtcd(n)...)
}

// wantOf identifies what the inventory has of a node, "" while that is not known.
func (m *planner) wantOf(n cluster.Node) string {
	if _, asked := m.wants[n.Name]; !asked {
		m.wants[n.Name] = drift.WantDigest(m.d, n)
	}
	return m.wants[n.Name]
}

// turnAlone is in the place of what the inventory has, in the target of a turn that brings another Talos and passes the
// window: whatever else the inventory has is not begun with it.
const turnAlone = "alone"

// targetOfTurn is what a node is taken out of service for, as its Node object and the journal have
// it: what the inventory has of it, and each thing that it is to be given of that, as digests.
func (m *planner) targetOfTurn(n cluster.Node, drifts []drift.Drift) string {
	parts := []string{m.wantOf(n)}
	if len(drifts) == 1 && m.goesAlone(drifts[0]) {
		parts[0] = turnAlone
	}
	for _, dr := range drifts {
		parts = append(parts, drift.PartOfTurn(dr))
	}
	return strings.Join(parts, ".")
}

// describeOrigin describes drifts of a node as describe does, with who made what is undone of its VM
// or its config, or since when that is so, as far as it is known.
func (m *planner) describeOrigin(n cluster.Node, drifts []drift.Drift, describe func([]drift.Drift) string) string {
	isEdited := func(dr drift.Drift) bool { return drift.OriginOf(m.d, m.o, n, dr.Field).Edited }
	var words []string
	for rest := drifts; len(rest) > 0; {
		of, edited := rest[0].Reason, isEdited(rest[0])
		end := slices.IndexFunc(rest, func(dr drift.Drift) bool { return dr.Reason != of || isEdited(dr) != edited })
		if end < 0 {
			end = len(rest)
		}
		origin := ""
		switch {
		case !edited:
		case of == cluster.HardwareDrift:
			origin = drift.ChangedOf(m.o, n.Name, drift.Fields(rest[:end])...).String()
		case of == cluster.ConfigDrift && !rest[0].IsStaged():
			origin = drift.DescribeConfigEdit(m.o.Machines[n.Name].ConfigSince)
		}
		words, rest = append(words, describe(rest[:end])+origin), rest[end:]
	}
	return strings.Join(words, ", ")
}

// failedTurn is a node that was taken down for a change and does not have it since; ""
// when there is none. No other node is taken down before that is settled. It is looked for once.
func (m *planner) failedTurn() string {
	if m.failed == nil {
		i := slices.IndexFunc(m.d.Spec.Nodes, func(n cluster.Node) bool { return len(m.turnOf(n)) > 0 && m.wasTaken(n, m.turnOf(n)) })
		m.failed = new(string)
		if i >= 0 {
			*m.failed = m.d.Spec.Nodes[i].Name
		}
	}
	return *m.failed
}

// wasTaken reports whether a node was taken down for all of this already, at this revision, whatever
// else it was taken down for. Older agents wrote one digest of all of that.
func (m *planner) wasTaken(n cluster.Node, drifts []drift.Drift) bool {
	r, ok := m.o.Facts.Restarts[n.Name]
	boot, parts := m.o.Machines[n.Name].BootID, strings.Split(r.Target, ".")
	ok = ok && (r.Target == drift.TargetOf(drifts) || all(drifts, func(dr drift.Drift) bool { return slices.Contains(parts, drift.PartOfTurn(dr)) }))
	return ok && r.Revision == drift.Attempt(m.d, m.o.Facts) && boot != "" && r.Boot != boot && !m.isRepeated(n, drifts)
}

// drainFor is the drain of a node with which its turn for some drifts begins.
func (m *planner) drainFor(n cluster.Node, drifts []drift.Drift) action.DrainNode {
	return action.DrainNode{Node: n, Target: m.targetOfTurn(n, drifts), For: "change " + m.describeOrigin(n, drifts, drift.DescribeChange), Fields: drift.Fields(drifts)}
}

// planTurn takes the next step of a node's turn, if it needs one.
func (m *planner) planTurn(n cluster.Node, mach cluster.Machine) {
	all, kn := m.downDrifts(n), m.o.Nodes.Value[n.Name]
	drifts, edits, changes := m.permit(n, all)
	ready := m.plan.Phases[n.Name] == cluster.PhaseReady
	drain := func(drifts []drift.Drift) action.DrainNode { return m.drainFor(n, drifts) }
	if n.Locked && len(all) > 0 {
		m.blockLocked(n, all)
		return
	}
	m.report(edits, changes, func(drifts []drift.Drift) action.Info { return drain(drifts).Info() })
	switch {
	case kn.Turn != "" && kn.Adopted && !n.Locked: // it was drained for a removal that is called off
		m.do(action.UncordonNode{Node: n, Adopted: true})
		return
	case len(drifts) == 0, m.isHeld() && kn.Turn != "":
		if kn.Turn != "" && ready && !n.Locked && !m.awaitsPurpose(n) {
			m.do(action.UncordonNode{Node: n})
		}
		return
	case m.wasTaken(n, drifts):
		if up, ok := m.upgradeIn(n, drifts); ok {
			if m.blockFellBack(n, up); ready && kn.Turn != "" {
				m.do(action.UncordonNode{Node: n}) // it works, as before
			}
			return
		}
		keeps := fmt.Sprintf("`qm pending %d` on %s, `talosctl -n %s get machineconfig`", n.VMID, m.o.VMs[n.Name].Carrier(n), n.IP)
		if slices.Contains(drift.Fields(drifts), drift.FieldEtcd) {
			keeps = fmt.Sprintf("`talosctl -n %s logs etcd`", n.IP)
		}
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.ChangeNotTaken, About: drift.TargetOf(drifts),
			Message: fmt.Sprintf("it was taken down to change %s, and has %s all the same", drift.DescribeChange(drifts), drift.DescribeHave(drifts)),
			Hint:    "see what keeps it: " + keeps + "; a commit that changes the cluster's files has it tried again"}, m.describe(n, drifts...))
		return
	}
	if m.returnsFirst(n, drifts) {
		m.do(action.UncordonNode{Node: n}) // all others are to be in service before it
		return
	}
	if ready && kn.Turn != "" && !m.isUnfinished(n) && (m.holdBySwitch(drain(drifts).Info()) || m.holdByWindow(drain(drifts).Info())) {
		m.do(action.UncordonNode{Node: n}) // what it was drained for is over, and the next change waits
		return
	}
	if m.blockFailedInstall(n, drifts) || m.holdTurn(n, kn, ready, drifts) {
		return
	}
	restart := cluster.Restart{Target: drain(drifts).Target, Boot: mach.BootID, Revision: drift.Attempt(m.d, m.o.Facts)}
	var config cluster.Config // that is staged
	hardware := false
	for _, dr := range drifts {
		if dr.Reason == cluster.ConfigDrift {
			config = m.d.Repository().Configs[n.Name]
		}
		hardware = hardware || dr.Reason == cluster.HardwareDrift
	}
	if want := m.d.Repository().Configs[n.Name]; mach.Staged != "" && config.Digest == "" {
		if staged := drift.OriginOf(m.d, m.o, n, drift.FieldStaged); mach.ConfigDigest != want.Digest || staged.Edited && m.observes() {
			m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.ConfigDrift, About: "staged", Message: fmt.Sprintf("waits to change %s: it would boot another config (%s)", drift.DescribeChange(drifts), drift.DescribeStaged(mach.StagedSince)), Drift: m.describe(n, drifts...),
				Hint: fmt.Sprintf("apply the config that it runs once more, which drops that: `talosctl -n %s get machineconfig` shows both", n.IP)})
			return
		}
		config = want // and not what somebody staged
	}
	if m.prepareUpgrade(n, kn, drifts) { // which another config must not be booted with
		return
	}
	drainable := ready || m.isDrainable(n)
	_, upgrades := m.upgradeIn(n, drifts)
	into, held := "", m.gateOf(n, kn, drifts)
	if upgrades {
		into = m.d.Repository().Spec.Versions.Talos
	}
	switch {
	case drainable && (!kn.Cordoned || kn.Turn == "" || kn.Drained != mach.BootID):
		m.drainTo(drain(drifts), held)
	case ha.Holds(m.o, m.o.VMs[n.Name]):
		m.followHA(n, m.o.VMs[n.Name], ha.Next{Set: true, State: availability.Ignored}, "which is taken down for a change")
	case upgrades && !upgrade.IsInstalled(m.d, m.o, n):
		m.doUnless(action.UpgradeTalos{Node: n, Image: m.installer(), Restart: restart, Fields: drift.Fields(drifts), From: mach.Talos, Version: into}, held)
	case upgrade.AsksRollback(m.o, drifts):
		m.do(action.RollBackTalos{Node: n, Image: drift.InstallerRun(m.d, mach), Restart: restart, Config: config, Fields: drift.Fields(drifts), From: mach.Talos, Version: drifts[0].Want, Undrained: !drainable})
	case hardware:
		m.doUnless(action.ShutDownVM{Node: n, Restart: restart, Config: config, Pulls: ready, Undrained: !drainable, Fields: drift.Fields(drifts), Into: into}, held)
	default:
		m.doUnless(action.RebootNode{Node: n, Restart: restart, Config: config, Pulls: ready, Undrained: !drainable, Fields: drift.Fields(drifts), Into: into}, held)
	}
}

// holdTurn waits with what takes a node down, and reports whether it does.
func (m *planner) holdTurn(n cluster.Node, kn cluster.KubeNode, ready bool, drifts []drift.Drift) bool {
	change := drift.DescribeChange(drifts)
	w := cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForTurn, Drift: m.describe(n, drifts...)}
	vm := m.o.VMs[n.Name]
	_, upgrades := m.upgradeIn(n, drifts) // which waits for the end of what is installed by itself
	switch failed := m.failedTurn(); {
	case !upgrades && upgrade.MayRun(m.o, n):
		in := m.o.Facts.Installs[n.Name]
		w.Reason, w.About, w.Within = cluster.WaitingForInstaller, in.Boot, upgrade.InstallWithin
		w.Message = fmt.Sprintf("an installer of Talos may run on it, until %s at most; it waits to change %s", text.Moment(in.At.Add(upgrade.InstallWithin)), change)
	case upgrade.BootsAnother(m.d, m.o, n):
		w.Reason, w.Message, w.Within = cluster.WaitingForInstaller, "its next boot may run what was taken back; it waits to change "+change, upgrade.InstallWithin
		w.Hint = fmt.Sprintf("`apply: auto` has the agent install what it runs over that, and so has `talosctl -n %s upgrade`", n.IP)
	case !ready && !m.isRepairable(n, drifts):
		w.Reason, w.Message = cluster.WaitingForReady, fmt.Sprintf("waits until it is Ready to change %s", change)
	case failed != "" && !upgrade.IsRollback(drifts):
		w.About, w.Message = failed, fmt.Sprintf("waits to change %s, because %s was taken down and did not take its change", change, failed)
	case kn.Cordoned && kn.Turn == "":
		w.Reason, w.Message = cluster.NodeCordoned, fmt.Sprintf("somebody cordoned it; it waits to change %s", change)
		w.Hint = "`kubectl uncordon " + n.Name + "` when the agent may take it down"
	case m.o.Machines[n.Name].BootID == "":
		w.Reason, w.Message, w.Within = cluster.NodeUnknown, fmt.Sprintf("waits until its boot id can be read, to change %s", change), seeWithin
	case vm.Lock != "":
		w.Reason, w.Message, w.Within = cluster.VMLocked, fmt.Sprintf("vm %d is locked by Proxmox VE (%s)", n.VMID, vm.Lock), lockWithin
	case ha.IsKept(m.o, vm):
		w = ha.AwaitArmed(m.o, n.Name, "waits to change "+change, w.Drift...)
	case upgrade.IsBusy(vm): // whoever does not wait for it
		w.Reason, w.Message, w.Hint, w.Within = cluster.VMLocked, fmt.Sprintf("waits to change %s until vm %d is free: %s", change, n.VMID, upgrade.DescribeBusy(vm)), upgrade.HintOfBusy(n, vm), upgrade.BusyWithin(vm, lockWithin)
	case ha.IsUnseen(m.d, m.o, vm):
		w.Reason, w.Message, w.Within = cluster.HAUnknown, fmt.Sprintf("waits to change %s until it is seen what Proxmox VE's HA manager holds", change), seeWithin
	case ha.IsOthers(m.d, m.o, vm):
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.VMManaged, Message: fmt.Sprintf("vm %d is managed by Proxmox VE's HA, which would start it again while it is changed (%s)", n.VMID, change),
			Hint: fmt.Sprintf("take it out of HA: `ha-manager remove vm:%d`", n.VMID)}, w.Drift)
		return true
	default:
		if host := vm.Carrier(n); !m.hostUsable(n.Name, m.o.Hosts[host], host, w.Drift...) {
			return true
		}
		before := m.turnBefore(n)
		if before == "" || !ready || upgrade.IsRollback(drifts) { // it may be what a drain of theirs waits for
			return false
		}
		w.About, w.Message = before, fmt.Sprintf("waits to change %s until %s has had its turn", change, before)
	}
	m.wait(w)
	return true
}

// turnBefore is a control plane that has its turn before a worker; "" when there is none. A node with another Talos
// installed waits for none that has not begun: that one waits for this.
func (m *planner) turnBefore(n cluster.Node) string {
	awaited := func(name string) bool { return m.o.Nodes.Value[name].Turn == "" && m.isPending(n) }
	if canary, before := m.canaryBefore(n); before && (canary == "" || !awaited(canary)) {
		return canary
	}
	if n.Role == cluster.ControlPlane {
		return ""
	}
	for _, cp := range m.d.Spec.ControlPlanes() {
		if m.isPassed(cp.Name) || awaited(cp.Name) || m.plan.Phases[cp.Name] != cluster.PhaseReady && m.goesBack(n, drift.Fields(m.turnOf(n))) {
			continue // who knows when
		}
		if !cp.Locked && (len(m.turnOf(cp)) > 0 && m.o.Machines[cp.Name].Stage != "booting" || m.o.Nodes.Value[cp.Name].Turn != "" || m.isRunning(cluster.PullImages, cp.Name) || m.isPlanned(cluster.PullImages, cp.Name)) {
			return cp.Name
		}
	}
	return ""
}

// drainTo drains a node. The pods of an only node have nowhere to go.
func (m *planner) drainTo(a action.DrainNode, held func(action.Info) bool) {
	how, rule := bounds.Drain(m.d.Spec, m.p)
	if m.forgets(a.Node.Name) {
		how.Delete, rule = true, ""
	}
	how.Adopt, how.Stay = a.How.Adopt, len(m.d.Spec.Nodes) == 1
	if a.How = how; rule != "" {
		a.For += "; " + rule
	}
	m.doUnless(a, held)
}

// EndedTurns lists the nodes that have what they were taken down for, so that the next time is another. What there is no room for
// they were not taken down for, nor what the switches leave.
func EndedTurns(d cluster.Desired, o cluster.Observed, p cluster.Policy) []string {
	m := newPlanner(d, o, p)
	m.judgeCapacity()
	var out []string
	for _, n := range d.Spec.Nodes {
		machine := slices.DeleteFunc(drift.OfMachine(d.Repository(), o, n, o.Machines[n.Name]), func(dr drift.Drift) bool { return dr.Reason == cluster.ConfigDrift && m.keepsConfig(n) })
		same := o.VMs[n.Name].Hardware.Known && o.Machines[n.Name].ConfigDigest != "" && len(m.turnOf(n))+len(machine) == 0
		if _, ok := o.Facts.Restarts[n.Name]; ok && same && m.plan.Phases[n.Name] == cluster.PhaseReady {
			out = append(out, n.Name)
		}
	}
	return out
}

// EtcdWithout returns why the etcd of a cluster does not survive a node going down, ""
// when it does: the question of the planner, to be asked once more right before.
func EtcdWithout(d cluster.Desired, o cluster.Observed, node string) string {
	m := newPlanner(d, o, cluster.Policy{})
	if m.isOnlyMember(node) || m.hasNoQuorum() {
		return ""
	}
	return m.etcd.Without(node)
}
