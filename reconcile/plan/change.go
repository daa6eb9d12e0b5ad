package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/budget"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ha"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// planDrifts plans what brings a node that is there to what the inventory has: what can
// be changed as it is, then, in its turn, what takes it down.
func (m *planner) planDrifts(n cluster.Node, mach cluster.Machine) {
	vm := m.o.VMs[n.Name]
	if drift.LacksSystemDisk(vm) {
		m.blockDrift(drift.MissingSystemDisk(n, vm, vm.Carrier(n)), m.vmDrift(n, drift.FieldSystemDisk))
	}
	m.planVM(n, vm)
	m.planConfig(n, mach)
	m.planStaged(n, mach)
	m.planMeta(n)
	m.planInstaller(n)
	m.planTurn(n, mach)
}

// planMeta gives the Node object of a node, once that is Ready, the labels, taints and annotations
// of the inventory. Talos brings labels and taints, too, when its config changes; who comes
// second finds nothing to do. Those of a node that keeps another role are of that.
func (m *planner) planMeta(n cluster.Node) {
	kn, there := m.o.Nodes.Value[n.Name]
	ready := m.plan.Phases[n.Name] == cluster.PhaseReady
	if !ready && !m.waitsForReady(n) || !there || slices.Contains(m.reassigned, n.Name) {
		return
	}
	a := action.LabelNode{Node: drift.RepositoryNode(m.d, n)}
	want := a.Node.Meta()
	all := kn.EditsFor(want)
	now, edits, changes := m.permit(n, drift.OfMeta(all))
	some := func(drifts []drift.Drift) action.LabelNode {
		fields := drift.Fields(drifts)
		a := action.LabelNode{Node: a.Node}
		for _, e := range all {
			if slices.Contains(fields, e.Field()) {
				a.Edits = append(a.Edits, e)
			} else {
				a.Left = append(a.Left, e.Field())
			}
		}
		return a
	}
	if n.Locked {
		if ready && len(all) > 0 { // else it is reported as locked as a whole
			m.blockLocked(n, drift.OfMeta(all))
		}
		return
	}
	m.report(edits, changes, func(drifts []drift.Drift) action.Info { return some(drifts).Info() })
	if !ready && len(now) > 0 {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForReady, About: "node object", Message: "waits until it is Ready to change " + drift.DescribeEdits(some(now).Edits), Drift: m.describe(n, now...)})
	} else if ready && (len(now) > 0 || len(all) == 0 && !want.IsNoted(kn.Owned, n.Role)) {
		m.do(some(now))
	}
}

// waitsForReady reports whether a node that was as the inventory had it is not Ready, and is to be again: what
// differs of its Node object waits for that.
func (m *planner) waitsForReady(n cluster.Node) bool {
	again := []cluster.Phase{cluster.PhaseJoining, cluster.PhaseBooting, cluster.PhaseUnreachable, cluster.PhaseUnknown, cluster.PhaseStopped, cluster.PhasePaused, cluster.PhaseLocked}
	return slices.Contains(again, m.plan.Phases[n.Name]) && m.o.Facts.Settled[n.Name] != "" && m.o.Nodes.Known && !m.isDead(n.Name) && !drift.IsReplaced(n, m.o.VMs[n.Name], m.o.Facts)
}

// planAvailability has Proxmox VE's HA manager keep VMs of nodes in service running, and control planes on hosts of their own; without
// `ha` it takes out of HA what is there, of nodes too that have left the inventory and are kept.
func (m *planner) planAvailability() {
	nodes := m.d.Spec.Nodes
	if !m.d.Spec.Availability {
		nodes = slices.Concat(nodes, m.removed)
	}
	for _, n := range nodes {
		vm, _ := lost.VMOf(m.d, m.o, n)
		if _, taken := m.held[cluster.ClaimNode(n.Name)]; taken || m.isDead(n.Name) || drift.IsReplaced(n, vm, m.o.Facts) {
			continue
		}
		ready := m.plan.Phases[n.Name] == cluster.PhaseReady && m.o.Nodes.Value[n.Name].Turn == ""
		m.followHA(n, vm, ha.OfNode(m.d, m.o, n, vm, ready, seeWithin), "")
	}
	if b := ha.BlockApart(m.d, m.o); b.Reason != "" {
		m.block(b)
	}
	if vmids, change := ha.Apart(m.d, m.o); change {
		m.do(action.SetApart{Cluster: m.d.Spec.Name, VMs: vmids})
	}
}

// followHA plans what is next for a VM in HA, and reports whether there is anything.
func (m *planner) followHA(n cluster.Node, vm cluster.VM, next ha.Next, why string) bool {
	switch {
	case next.Wait.Reason != "":
		m.wait(next.Wait)
	case next.Block.Reason != "":
		m.block(next.Block)
	case !next.Set:
		return false
	case ha.IsDisarmed(m.o):
		m.wait(ha.AwaitArmed(m.o, n.Name, "waits to "+action.SetAvailability{Node: n, VM: vm, State: next.State, Why: why}.Info().Text))
	case m.hostReachable(n.Name, vm.Carrier(n)):
		m.do(action.SetAvailability{Node: n, VM: vm, State: next.State, Why: why})
	}
	return true
}

// deleteVM deletes a VM, when nothing but HA holds that, out of which it is taken first.
func (m *planner) deleteVM(a action.DeleteVM) {
	n := cluster.Node{Name: a.VM.Node}
	m.doUnless(a, func(action.Info) bool {
		return m.followHA(n, a.VM, ha.OfDeleted(m.d, m.o, n.Name, a.VM, seeWithin), "which is deleted")
	})
}

// planVM corrects the VM of a node as it is, unless the node keeps another role, and reports what
// is not corrected. It returns whether something is to be corrected now.
func (m *planner) planVM(n cluster.Node, vm cluster.VM) bool {
	if vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Deleting || slices.Contains(m.reassigned, n.Name) {
		return false
	}
	var now []drift.Drift
	for _, dr := range drift.OfNodeVM(m.d, m.o, n, vm) {
		switch dr.How {
		case drift.InPlace, drift.NextStart:
			now = append(now, dr)
		case drift.Replace, drift.Refuse:
			b := dr.Refusal(m.d, m.o, n)
			if drift.OriginOf(m.d, m.o, n, dr.Field).Edited {
				b.Message += drift.ChangedOf(m.o, n.Name, dr.Field).String()
			}
			m.blockDrift(b, m.describe(n, dr))
		case drift.Reboot: // in the turn of the node
		}
	}
	now = m.fitDrifts(n, now)
	switch host := vm.Carrier(n); {
	case len(now) == 0:
		return false
	case n.Locked:
		m.blockLocked(n, now)
	case vm.Lock != "":
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.VMLocked, Message: fmt.Sprintf("vm %d is locked by Proxmox VE (%s)", n.VMID, vm.Lock), Within: lockWithin, Drift: m.describe(n, now...)})
	case m.hostUsable(n.Name, m.o.Hosts[host], host, m.describe(n, now...)...):
		if tokens := m.o.Facts.Replaced[n.Name]; vm.Unmarked && len(tokens) > 0 {
			n.Replace = m.o.Facts.LastToken(n.Name) // for its mark; a later one is for another machine
		}
		change := func(drifts []drift.Drift) action.ChangeVM {
			unpushed := slices.DeleteFunc(drift.Fields(drifts), func(field string) bool { return drift.OriginOf(m.d, m.o, n, field).Pushed })
			return action.ChangeVM{Node: n, Host: host, Drifts: drifts, Changed: drift.ChangedOf(m.o, n.Name, unpushed...), Moves: m.movesNetwork(n, vm, drifts), Voteless: m.isIsolated(n)}
		}
		now, edits, changes := m.permit(n, now)
		m.report(edits, changes, func(drifts []drift.Drift) action.Info { return change(drifts).Info() })
		if len(now) == 0 || m.holdBySwitch(change(now).Info()) {
			return false
		}
		m.do(change(now))
	}
	return true
}

// movesNetwork reports whether a change takes a machine to another network, where it may run.
// One in maintenance mode has no config, and serves nothing.
func (m *planner) movesNetwork(n cluster.Node, vm cluster.VM, drifts []drift.Drift) bool {
	return vm.Power != cluster.Stopped && m.o.Machines[n.Name].Reach != cluster.Maintenance && m.mayBeFounded() && drift.MovesNetwork(drifts)
}

// blockLocked reports a node that differs and may not be touched.
func (m *planner) blockLocked(n cluster.Node, drifts []drift.Drift) {
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.NodeLocked, About: "drift", Message: fmt.Sprintf("it has %s, and is locked in the inventory, so it is left alone", m.describeOrigin(n, drifts, drift.DescribeHave)),
		Hint: "remove `locked: true` from nodes.yaml"}, m.describe(n, drifts...))
}

// blockDrift blocks with what differs and is left so.
func (m *planner) blockDrift(b cluster.Block, drifts []cluster.FieldDifference) {
	b.Drift = drifts
	m.block(b)
}

// describe is some drifts of a node, for a block.
func (m *planner) describe(n cluster.Node, drifts ...drift.Drift) []cluster.FieldDifference {
	return drift.Describe(m.d, m.o, n, drifts)
}

// vmDrift is what differs of the VM of a node, or the one field of that which is named.
func (m *planner) vmDrift(n cluster.Node, fields ...string) []cluster.FieldDifference {
	return slices.DeleteFunc(drift.OfNode(m.d, m.o, n, cluster.PartVM), func(f cluster.FieldDifference) bool {
		return len(fields) > 0 && !slices.Contains(fields, f.Field)
	})
}

// driftOfAction is what an action would correct of its node, if it is one of the inventory.
func (m *planner) driftOfAction(i action.Info) []cluster.FieldDifference {
	n, stays := m.nodeNamed(i.Node)
	if !stays {
		return nil
	}
	return m.driftOf(n, i)
}

// driftOf is what an action on a node would correct.
func (m *planner) driftOf(n cluster.Node, i action.Info) []cluster.FieldDifference {
	switch i.Kind {
	case cluster.CreateVM, cluster.DeleteVM:
		return m.vmDrift(n)
	case cluster.StartVM, cluster.ResumeVM:
		return m.vmDrift(n, drift.FieldPower)
	case cluster.ApplyConfig:
		return drift.OfNode(m.d, m.o, n, cluster.PartMachine)
	}
	if len(i.Fields) == 0 {
		i.Fields = []string{drift.FieldReplace}
	}
	var out []cluster.FieldDifference
	for _, part := range []cluster.Part{cluster.PartVM, cluster.PartMachine, cluster.PartObject} {
		for _, f := range drift.OfNode(m.d, m.o, n, part) {
			if slices.Contains(i.Fields, f.Field) {
				out = append(out, f)
			}
		}
	}
	return out
}

// planConfig gives a node that runs the config that the inventory has, where that takes no reboot.
func (m *planner) planConfig(n cluster.Node, mach cluster.Machine) {
	if mach.Reach != cluster.Configured {
		return
	}
	for _, dr := range drift.OfWholeMachine(m.d, m.o, n, mach) {
		if drift.IsUpgrade(m.d, m.o, n, dr) {
			continue // in the turn of the node, unless the hops are held as a whole
		}
		if w, awaits := upgrade.AwaitKnown(m.d, m.o, n, dr, apiWithin); awaits {
			w.Drift = m.describe(n, dr)
			m.wait(w)
			continue
		}
		if isOther := slices.Contains(m.rotated, n.Name) || slices.Contains(m.reassigned, n.Name); dr.Reason != cluster.ConfigDrift || dr.How == drift.Refuse && !isOther {
			m.blockDrift(dr.Refusal(m.d, m.o, n), m.describe(n, dr))
			continue
		}
		fixed := drift.Fixed(m.d, m.o, n)
		switch c := mach.Change; {
		case slices.Contains(m.rotated, n.Name), slices.Contains(m.reassigned, n.Name): // reported
		case len(fixed) > 0:
			m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.FixedConfigChanged, Message: "a cluster that lives keeps what it was made with: " + strings.Join(fixed, ", "),
				Hint: "undo the change in the inventory or in the patch; another network, or another cni, needs another cluster"}, m.describe(n, dr))
		case upgrade.SkipsEtcd(m.d, m.o, n) != "":
			m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.EtcdTooOld, Message: upgrade.SkipsEtcd(m.d, m.o, n), Hint: "name an etcd of 3.5.26 or newer in 3.5 first, and reboot each control plane"}, m.describe(n, dr))
		case n.Locked:
			m.blockLocked(n, []drift.Drift{dr})
		case c == nil || c.For != dr.Want:
			m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.ConfigDrift, Message: "its machine config differs from the repository's; it is asked what the change takes", Within: seeWithin, Drift: m.describe(n, dr)})
		case c.Refused != "":
			m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.ConfigRefused, Message: "it does not take the machine config of the repository: " + c.Refused,
				Hint: "correct the setting in the inventory or in a patch; `talos-agent validate` in a clone of the repository checks what is not about this node"}, m.describe(n, dr))
		case drift.EndpointToCome(m.d, m.o, n) != "":
			m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForEndpoint, Within: joinWithin, Drift: m.describe(n, dr), Hint: "it goes on by itself then; or write another endpoint, or another vip, under network in cluster.yaml",
				Message: "its machine config is changed when " + drift.EndpointToCome(m.d, m.o, n)})
		case m.lacksImages(n):
			m.do(action.PullImages{Node: n, Images: c.Lacks})
		case !c.Reboots, c.Network != "":
			m.changeConfig(n)
		}
	}
}

// planStaged drops what waits for the next boot of a node that runs the inventory's config.
func (m *planner) planStaged(n cluster.Node, mach cluster.Machine) {
	staged := drift.OfStaged(m.d.Repository(), n, mach)
	switch {
	case len(staged) == 0, mach.Reach != cluster.Configured, slices.Contains(m.rotated, n.Name), slices.Contains(m.reassigned, n.Name): // or reported
	case n.Locked:
		m.blockLocked(n, staged)
	default:
		m.do(action.DropConfig{Node: n, Config: m.d.Repository().Configs[n.Name], Since: mach.StagedSince})
	}
}

// lacksImages reports whether the machine of a node that is Ready pulls images before it is
// given its config, or is taken down for that.
func (m *planner) lacksImages(n cluster.Node) bool {
	c := m.o.Machines[n.Name].Change
	return c != nil && c.Lacks != "" && m.plan.Phases[n.Name] == cluster.PhaseReady
}

// changeConfig gives a running node its config at once, or what of one that takes a reboot is about
// the network: first to one node, and to the others when that has been Ready with it for a while.
func (m *planner) changeConfig(n cluster.Node) {
	c := m.o.Machines[n.Name].Change
	a := action.ChangeConfig{Node: n, Config: m.d.Repository().Configs[n.Name], Asks: c != nil && c.Assumed, Pulls: m.plan.Phases[n.Name] == cluster.PhaseReady}
	a.Target, a.Voteless = m.configs(), m.hasNoQuorum() || m.hasNoVote(n) && m.isRepaired(a.Info(), n)
	a.OfPair = m.isOfPair(n)
	o := drift.OriginOf(m.d, m.o, n, drift.FieldConfig)
	if c != nil && c.Network != "" {
		a.Network, a.Pulls = c.Network, false // the images are pulled before the reboot
	}
	if o.EditedOnly() {
		a.Edited, a.Since = true, m.o.Machines[n.Name].ConfigSince
	}
	was := m.o.Machines[n.Name].Summary
	a.Components, a.Only = drift.ComponentsOf(was.Images, a.Config.Summary.Images), drift.OnlyComponents(was, a.Config.Summary)
	a.Idle = c != nil && !c.Reboots && was.RunsAs(a.Config.Summary)
	a.Proven = c != nil && !c.Reboots && was.OnlyImages(a.Config.Summary) && readiness.RunsImages(m.d, m.o, m.plan.Phases, n, a.Config.Summary.Images)
	if m.keepsConfig(n) || a.Idle {
		m.do(a) // it is held, or changes nothing that runs, and waits for no other
		return
	}
	var held func(action.Info) bool
	if m.d.Repository().IsHop(cluster.HopKubernetes) { // also where nothing of the node stops
		_, failed := m.backoffs[a.Info().ID()] // it was begun, and nothing of it need have been given
		if drifts := m.driftOf(n, a.Info()); m.holdIf(m.supply.Wait(n.Name, drifts)) || !failed && m.holdIf(budget.AwaitWatch(m.o, n, drifts)) || m.holdByGate(n, drifts) || m.holdHopForEtcd(n, drifts, false) || m.holdByWindow(a.Info()) || m.holdForPulls(n, drifts) {
			return
		}
		held = m.holdByJob
	}
	if a.Proven {
		m.doUnless(a, held)
		return
	}
	in, ok := m.o.Facts.Intent(cluster.IntendCanary)
	first, there := m.nodeNamed(in.Node)
	chosen := ok && in.Target == a.Target && there
	void := chosen && m.provesNothing(first, in.At)
	switch {
	case !chosen || void || m.keepsConfig(first):
		if canary := m.chooseCanary(void || m.lacksAPI()); canary != n.Name {
			m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForCanary, About: canary, Message: fmt.Sprintf("its machine config is changed after that of %s, which is the first", canary), Drift: m.driftOf(n, a.Info())})
			return
		}
		a.First = true
	case first.Name != n.Name && !m.isProven(first, in.At) && !m.isHopeless(first, in.At):
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForCanary, About: first.Name, Message: fmt.Sprintf("its machine config is changed when %s has been Ready with its own for %v", first.Name, action.WatchedFor), Drift: m.driftOf(n, a.Info())})
		return
	}
	m.doUnless(a, held)
}

// configs identifies the configs that the inventory has. It is computed once.
func (m *planner) configs() string {
	if m.target == "" {
		m.target = drift.TargetOfConfigs(m.d)
	}
	return m.target
}

// isProven reports whether a node that has had a new config since then does well with it, or with
// what of it takes no reboot.
func (m *planner) isProven(n cluster.Node, since time.Time) bool {
	mach := m.o.Machines[n.Name]
	c := mach.Change
	rest := c != nil && c.For == m.d.Repository().Configs[n.Name].Digest && c.Reboots && c.Network == "" && c.Refused == ""
	return m.plan.Phases[n.Name] == cluster.PhaseReady && (rest || len(drift.OfMachine(m.d.Repository(), m.o, n, mach)) == 0) &&
		m.o.Now.Sub(since) >= action.WatchedFor && !m.isRunning(cluster.ChangeConfig, n.Name)
}

// chooseCanary is the node whose running config is changed first: a worker, because the
// cluster can do without, unless no kube-apiserver answers by which it could be seen to do well;
// and no machine that boots, which may be for ever, where there is another of its role. None is that
// is to have another machine, nor one that waits for its endpoint: it is not given a config.
func (m *planner) chooseCanary(planesFirst bool) string {
	rankOf := map[cluster.Role]int{cluster.Worker: 2, cluster.ControlPlane: 1}
	if planesFirst {
		rankOf[cluster.ControlPlane] = 6
	}
	chosen, best := "", 0
	for _, n := range m.d.Spec.Nodes {
		mach, c, rank := m.o.Machines[n.Name], m.o.Machines[n.Name].Change, rankOf[n.Role]
		if n.Locked || drift.IsReplaced(n, m.o.VMs[n.Name], m.o.Facts) || mach.Reach != cluster.Configured || c == nil || c.Reboots && c.Network == "" || c.Refused != "" || mach.ConfigDigest == c.For || c.For != m.d.Repository().Configs[n.Name].Digest || len(drift.Fixed(m.d, m.o, n)) > 0 || m.keepsConfig(n) || drift.EndpointToCome(m.d, m.o, n) != "" {
			continue
		}
		if mach.Stage != "booting" {
			rank += 3
		}
		if rank > best {
			chosen, best = n.Name, rank
		}
	}
	return chosen
}

// keepsConfig reports whether a node keeps a machine config that somebody has edited.
func (m *planner) keepsConfig(n cluster.Node) bool {
	return m.observes() && drift.OriginOf(m.d, m.o, n, drift.FieldConfig).Edited
}
