package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// holdBySwitch holds an action on a node that was there as the inventory had it, where its cluster or the host has that such are
// left alone, and reports whether it does. A turn that was begun is ended, but for what somebody has edited.
func (m *planner) holdBySwitch(i action.Info) bool {
	n, isNode := m.nodeNamed(i.Node)
	notes := i.Kind == cluster.LabelNode && i.Change == "" // only what is there
	if !isNode || m.isFree(n) || notes || i.Kind == cluster.UncordonNode || i.Kind == cluster.StartVM && m.isTakenDown(n) {
		return false
	}
	_, known := m.o.Facts.Settled[n.Name]
	_, joined := m.o.Nodes.Value[n.Name]
	if !known && m.o.Nodes.Known && !joined && i.MakesNode() {
		return false // it is made
	}
	edited, pushed := m.whoChanged(n, i.Fields)
	switch {
	case edited && m.observes():
		what, undo := "it is not as the inventory has it, and is left so", "correct it by hand"
		if known && pushed {
			what, undo = "somebody has edited its machine config, and the inventory has changed that since; to apply the change would undo the edit, and both are left so", "undo the edit on the node"
		}
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.HealingOff, About: string(i.Kind), Message: what + ": heal is observe; else: " + i.Text,
			Hint: undo + ", or set `heal: heal`" + m.whereSwitch("heal", m.p.ObserveOnly)}, m.driftOf(n, i))
	case i.MakesNode():
		return false // whatever the inventory has changed, it should run
	case pushed && m.leavesChange(i.Fields):
		b := cluster.Block{Subject: n.Name, Reason: cluster.ApplyingOff, About: string(i.Kind), Message: "the inventory has changed, and apply is off; else: " + i.Text,
			Hint: "undo the change, or set `apply: auto`" + m.whereSwitch("apply", m.p.ApplyOff)}
		if !m.appliesNothing() {
			off, _ := bounds.MissingWindow(m.d.Spec, m.p)
			b.Message, b.Hint = fmt.Sprintf("the inventory has changed, and %s; else: %s", cmp.Or(off, "upgrade is off"), i.Text), "undo the change; or "+bounds.HintOff(m.d.Spec, m.p)+m.whereSwitch("upgrade", m.p.Upgrade > m.d.Spec.Upgrade)
		}
		m.blockDrift(b, m.driftOf(n, i))
	case pushed && m.asksForChange(i.Fields) && !m.o.Facts.Approved(m.d.Repository().Revision, i.Step()):
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.ChangeUnapproved, About: string(i.Kind), Message: "the inventory has changed, and that waits for approval: " + m.approvedSwitch() + " is approve; then: " + i.Text,
			Hint: "undo the change; or " + m.approveHint()}, m.driftOf(n, i))
	default:
		return false
	}
	return true
}

// isFree reports whether the switches are not about a node: it is made, destroyed, or forgotten.
func (m *planner) isFree(n cluster.Node) bool {
	_, known := m.o.Facts.Settled[n.Name]
	return m.o.Facts.Destroying() || m.forgets(n.Name) || !known && (!m.o.Facts.WasReady() && !m.o.Facts.Lost || m.o.VMs[n.Name].Presence == cluster.Absent)
}

// observes reports whether what somebody has changed is left.
func (m *planner) observes() bool { return m.d.Spec.ObserveOnly || m.p.ObserveOnly }

// appliesNothing reports whether what the inventory has changed is left.
func (m *planner) appliesNothing() bool { return m.d.Spec.ApplyOff || m.p.ApplyOff }

// whoChanged reports whether somebody has edited one of some fields of a node, and whether the
// inventory has changed one, other than what is to be ended of a turn. Without fields it is about
// the machine as a whole. Of a node that was never seen to be as the inventory has it, it may have been either.
func (m *planner) whoChanged(n cluster.Node, fields []string) (edited, pushed bool) {
	if slices.Equal(fields, []string{string(cluster.FieldMedium)}) {
		return false, false // it belongs to making the machine
	}
	begun := m.isUnfinished(n)
	if _, known := m.o.Facts.Settled[n.Name]; !known {
		return !begun, !begun
	}
	if len(fields) == 0 {
		o := drift.OriginOf(m.d, m.o, n, drift.FieldReplace)
		return o.Edited && !begun, o.Pushed && !begun
	}
	for _, field := range fields {
		o := drift.OriginOf(m.d, m.o, n, field)
		edited, pushed = edited || o.Edited, pushed || o.Pushed && !(o.Begun && begun) && !m.isOfHop(field)
	}
	return edited, pushed
}

// isOfHop reports whether a field changes with the hop that the cluster makes, which is allowed, or approved, as a whole.
func (m *planner) isOfHop(field string) bool {
	asked := m.d.Repository()
	return field == drift.FieldTalos && asked.IsHop(cluster.HopTalos) || field == drift.FieldConfig && asked.IsHop(cluster.HopKubernetes)
}

// leavesChange reports whether what the inventory has changed of some fields is left.
func (m *planner) leavesChange(fields []string) bool {
	mode, _ := bounds.Upgrade(m.d.Spec, m.p)
	return m.appliesNothing() || mode == cluster.UpgradeOff && slices.Contains(fields, drift.FieldSchematic)
}

// asksForChange reports whether what the inventory has changed of some fields waits for an administrator.
func (m *planner) asksForChange(fields []string) bool {
	mode, _ := bounds.Upgrade(m.d.Spec, m.p)
	return m.asksApproval() || mode == cluster.UpgradeApproved && slices.Contains(fields, drift.FieldSchematic)
}

// approvedSwitch is the switch by which changes wait for an administrator.
func (m *planner) approvedSwitch() string {
	if m.asksApproval() {
		return "apply"
	}
	return "upgrade"
}

// permit parts what differs of a node into what may be corrected now, what somebody has edited
// and is left, and what the inventory has changed and has to wait. Where changes are approved
// those come after what is healed, so that an approval is for them alone.
func (m *planner) permit(n cluster.Node, drifts []drift.Drift) (now, edits, changes []drift.Drift) {
	if len(drifts) == 0 || m.isFree(n) {
		return drifts, nil, nil
	}
	var asked []drift.Drift
	for _, dr := range drifts {
		switch edited, pushed := m.whoChanged(n, []string{dr.Field}); {
		case edited && m.observes():
			edits = append(edits, dr)
		case pushed && m.leavesChange([]string{dr.Field}):
			changes = append(changes, dr)
		case pushed && m.asksForChange([]string{dr.Field}):
			asked = append(asked, dr)
		default:
			now = append(now, dr)
		}
	}
	if len(now) == 0 {
		return asked, edits, changes
	}
	return now, edits, append(changes, asked...)
}

// report has what is left, or has to wait, of a node reported, each with what would be done about it.
func (m *planner) report(edits, changes []drift.Drift, do func([]drift.Drift) action.Info) {
	for _, drifts := range [][]drift.Drift{edits, changes} {
		if len(drifts) > 0 {
			m.holdBySwitch(do(drifts))
		}
	}
}

// isUnfinished reports whether a turn of a node was begun for what the inventory has of it, and has not ended: it is drained for
// that and not taken down yet, or it was taken down for it, and is not Ready since, or still has to be seen with its change at
// the same revision. One that is drained to be replaced is until it need not be.
func (m *planner) isUnfinished(n cluster.Node) bool {
	turn, want := m.o.Nodes.Value[n.Name].Turn, m.wantOf(n)
	r, restarted := m.o.Facts.Restarts[n.Name]
	switch {
	case turn == cluster.TurnRemoval:
		return drift.IsReplaced(n, m.o.VMs[n.Name], m.o.Facts) || m.isDead(n.Name)
	case drift.IsForTurn(turn, want) && !(restarted && turn == r.Target):
		return true
	}
	return restarted && drift.IsForTurn(r.Target, want) && (m.o.Machines[n.Name].BootID == r.Boot || r.Revision == drift.Attempt(m.d, m.o.Facts) || m.plan.Phases[n.Name] != cluster.PhaseReady)
}

// isTakenDown reports whether the agent took a node down, for whatever that was, and the node is not
// known to have returned to service.
func (m *planner) isTakenDown(n cluster.Node) bool {
	r, restarted := m.o.Facts.Restarts[n.Name]
	kn := m.o.Nodes.Value[n.Name]
	return restarted && (!m.o.Nodes.Known || kn.Turn != "" || kn.BootID == r.Boot)
}

// holdByWindow holds what takes a node that runs out of service while the window of the cluster, or of the host, is closed, and
// reports whether it does. What was begun is ended, members of etcd without a machine are removed at any time, versions go back
// to what all nodes ran before, and a node that has not worked for long is changed at any time: what it has may be why.
func (m *planner) holdByWindow(i action.Info) bool {
	n, stays := m.nodeNamed(i.Node)
	begun := m.o.Nodes.Value[i.Node].Turn != "" && (!stays || m.isUnfinished(n))
	if i.Kind == cluster.RemoveMember || m.isDead(i.Node) || m.forgets(i.Node) || begun || m.o.Facts.Destroying() || m.goesBack(n, i.Fields) || slices.Contains(i.Fields, drift.FieldRollback) {
		return false
	}
	if _, alone := m.upgrades(n, i.Fields); alone && m.order().Now {
		return false
	}
	changes := i.Kind == cluster.ChangeConfig || i.Kind == cluster.ChangeVM
	joins := m.plan.Phases[i.Node] == cluster.PhaseJoining && !m.o.Facts.WasReady()
	if changes && (joins || m.isBroken(n)) || i.Kind == cluster.ChangeVM && m.isIsolated(n) || m.isRepairable(n, m.turnOf(n)) {
		return false
	}
	opens, ever := m.d.Spec.Window.OpensWith(m.p.Window, m.o.Now)
	if ever && !opens.After(m.o.Now) {
		return false
	}
	w := cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForWindow, About: string(i.Kind), Hint: readiness.HintOfStop(m.o, n, i.Kind), Drift: m.driftOf(n, i)}
	if w.Message = "waits for its window, which opens at " + text.Moment(opens); m.p.Window.Zone != nil {
		w.Hint = cmp.Or(w.Hint, "the host's policy has one, too ("+m.p.Line("window")+")")
	}
	if !ever {
		w.Message, w.Hint = "waits for a window that never opens", fmt.Sprintf("the cluster's (%s) and that of the host's policy (%s, %s) are never open together", m.d.Spec.Window, m.p.Window, m.p.Line("window"))
	}
	w.Message += ": " + i.Text
	m.wait(w)
	return true
}

// judgeMachines blocks the nodes whose machines are other ones than the inventory has: with
// another certificate authority, or in another role.
func (m *planner) judgeMachines() {
	var ours cluster.Authorities
	for _, n := range m.d.Spec.ControlPlanes() { // whose configs have all of them
		ours = m.d.Repository().Configs[n.Name].Summary.Authorities
	}
	left := slices.DeleteFunc(slices.Clone(m.removed), func(n cluster.Node) bool { _, stays := m.nodeNamed(n.Name); return stays })
	for _, n := range slices.Concat(m.d.Spec.Nodes, left) {
		mach := m.o.Machines[n.Name]
		what, which, hint := mach.Summary.Authorities.Other(ours), "its machine", "somebody has rotated it: bring the new one into secrets.sops.yaml, or rotate it back"
		vm, _ := lost.VMOf(m.d, m.o, n)
		// A node that never worked has no machine of ours at its address that somebody could have changed.
		unknown := mach.OtherAuthority && vm.Owner == cluster.Ours && vm.Power == cluster.PowerRunning && m.o.Facts.Settled[n.Name] != ""
		switch {
		case unknown:
			what, which = "Talos", fmt.Sprintf("what answers at %s, the address of its machine,", n.IP)
			hint += fmt.Sprintf("; or another machine uses %s: find that one; nothing secret was sent to it", n.IP)
		case what == "":
			what, which = mach.StagedAuthorities.Other(ours), "a config that waits for the next boot of its machine"
			hint = fmt.Sprintf("bring the new one into secrets.sops.yaml, or apply the config that it runs once more, which drops that: `talosctl -n %s get machineconfig` shows both", n.IP)
		}
		if what != "" && (mach.Reach == cluster.Configured || unknown) {
			m.rotated = append(m.rotated, n.Name)
			m.block(cluster.Block{Subject: n.Name, Reason: cluster.SecretsChanged, About: what, Hint: hint,
				Message: fmt.Sprintf("%s has another certificate authority than secrets.sops.yaml (that of %s); until they are the same no node is taken out of service, removed or given a config", which, what)})
		}
		if _, stays := m.nodeNamed(n.Name); stays && m.roleOf(n) != n.Role {
			m.reassigned = append(m.reassigned, n.Name)
			m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.FixedConfigChanged, About: "role", Message: fmt.Sprintf("it runs as a %s, and the inventory has it as a %s: a node keeps its role; until they are the same no node is taken out of service, removed or given a config", m.roleOf(n), n.Role),
				Hint: "put it back into the list of nodes.yaml in which it was; for a node of the other role, give it another name, vmid and ip: the old one is removed, and a new one is made"}, []cluster.FieldDifference{drift.OfRole(m.o, n, m.roleOf(n))})
		}
	}
}

// roleOf is as what a node runs: as its machine shows it, and while that does not answer, as its
// member of etcd and its Node object do. What else is not known is as the inventory has it.
func (m *planner) roleOf(n cluster.Node) cluster.Role {
	mach, kn, ph := m.o.Machines[n.Name], m.o.Nodes.Value[n.Name], m.plan.Phases[n.Name]
	votes := slices.ContainsFunc(m.o.Members.Value, func(mem cluster.Member) bool { return mem.Name == n.Name })
	switch {
	case mach.Reach == cluster.Configured && mach.Summary.Role != "":
		return mach.Summary.Role
	case ph != cluster.PhaseAbsent && ph != cluster.PhaseMaintenance && (votes || kn.ControlPlane && leftover.IsOwn(m.d, kn)):
		return cluster.ControlPlane
	case ph == cluster.PhaseUnreachable && m.o.Facts.Settled[n.Name] != "" && leftover.IsOwn(m.d, kn): // later than it got its label
		return cluster.Worker
	}
	return n.Role
}

// holdByMachines holds what takes a node down, away, or gives it a config, while a machine
// has another authority, or another role, so that it is not known how many votes are left. It
// reports whether it does. What an administrator has decided is done.
func (m *planner) holdByMachines(i action.Info) bool {
	configures := i.Kind == cluster.ApplyConfig || i.Kind == cluster.ChangeConfig || i.Kind == cluster.DropConfig
	if !m.isHeld() || !i.Disrupts && !i.Destructive && !configures || m.o.Facts.Destroying() || m.forgets(i.Node) {
		return false
	}
	if len(m.rotated) > 0 {
		m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.SecretsChanged, About: string(i.Kind), Message: fmt.Sprintf("waits until %s has the certificate authorities of secrets.sops.yaml: %s", strings.Join(m.rotated, ", "), i.Text), Drift: m.driftOfAction(i)})
		return true
	}
	m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.FixedConfigChanged, About: string(i.Kind), Message: fmt.Sprintf("waits until the inventory has %s in its role again: %s", strings.Join(m.reassigned, ", "), i.Text), Drift: m.driftOfAction(i)})
	return true
}

// isHeld reports whether a machine is another one than the inventory has.
func (m *planner) isHeld() bool { return len(m.rotated)+len(m.reassigned) > 0 }

// asksApproval reports whether changes of the inventory wait for an administrator.
func (m *planner) asksApproval() bool { return m.d.Spec.ApplyApproved || m.p.ApplyApproved }

// approveHint is how an administrator approves.
func (m *planner) approveHint() string {
	return fmt.Sprintf("`talos-agent plan %s` shows what would be done, with its digest; approve it: `talos-agent approve %s DIGEST`", m.d.Spec.Name, m.d.Spec.Name)
}

// awaitsApproval reports whether a plan waits for an administrator.
func awaitsApproval(p Plan) bool {
	return slices.ContainsFunc(p.Blocked, func(b cluster.Block) bool {
		return b.Reason == cluster.RemovalUnapproved || b.Reason == cluster.ChangeUnapproved
	})
}

// whereSwitch names the file that a switch is in.
func (m *planner) whereSwitch(field string, byHost bool) string {
	if byHost {
		return fmt.Sprintf(" in the host's policy (%s)", m.p.Line(field))
	}
	return " in cluster.yaml"
}
