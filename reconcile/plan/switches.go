package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// SettledNodes are the nodes that are seen to have all that the inventory has of them,
// with the digest of that.
func SettledNodes(d cluster.Desired, o cluster.Observed) map[string]string {
	out := map[string]string{}
	for _, n := range d.Spec.Nodes {
		vm, mach := o.VMs[n.Name], o.Machines[n.Name]
		if readiness.Classify(n, o) != cluster.PhaseReady || !vm.Hardware.Known || mach.ConfigDigest == "" || drift.LacksSystemDisk(vm) || drift.HasOtherToken(n, vm) {
			continue
		}
		if digest := drift.SettledDigest(d, n); digest != "" && len(drift.Of(d.Repository(), o, n, mach)) == 0 {
			out[n.Name] = digest
		}
	}
	return out
}

// holdBySwitch holds an action on a node that was there as the inventory had it, where
// its cluster or the host has that such are left alone, and reports whether it does. A
// turn that was begun is ended.
func (m *planner) holdBySwitch(i action.Info) bool {
	observe, off := m.d.Spec.ObserveOnly || m.p.ObserveOnly, m.d.Spec.ApplyOff || m.p.ApplyOff
	asks := m.asksApproval() && !m.o.Facts.Approved(m.d.Repository().Revision, i.Step())
	n, isNode := m.d.Spec.Node(i.Node)
	if !isNode || m.o.Facts.Destroying() {
		return false
	}
	_, known := m.o.Facts.Settled[n.Name]
	_, joined := m.o.Nodes.Value[n.Name]
	switch {
	case i.Kind == cluster.UncordonNode, m.forgets(n.Name), m.isUnfinished(n), i.Kind == cluster.StartVM && m.isTakenDown(n):
		return false
	case !known && (!m.o.Facts.WasReady() && !m.o.Facts.Lost || m.o.VMs[n.Name].Presence == cluster.Absent || m.o.Nodes.Known && !joined && isMaking(i.Kind)):
		return false // it is made
	case i.Kind == cluster.LabelNode && i.Change == "":
		return false // it only notes what is there
	}
	edited := m.isEdited(n)
	switch {
	case edited && observe, !known && observe:
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.HealingOff, About: string(i.Kind), Message: "it is not as the inventory has it, and is left so: heal is observe; else: " + i.Text,
			Hint: "correct it by hand, or set `heal: heal`" + m.whereSwitch("heal", m.p.ObserveOnly)}, m.driftOf(n, i.Kind))
	case isMaking(i.Kind):
		return false // whatever the inventory has changed, it should run
	case !edited && off:
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.ApplyingOff, About: string(i.Kind), Message: "the inventory has changed, and apply is off; else: " + i.Text,
			Hint: "undo the change, or set `apply: auto`" + m.whereSwitch("apply", m.p.ApplyOff)}, m.driftOf(n, i.Kind))
	case !edited && asks:
		m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.ChangeUnapproved, About: string(i.Kind), Message: "the inventory has changed, and that waits for approval: apply is approve; then: " + i.Text,
			Hint: "undo the change; or " + m.approveHint()}, m.driftOf(n, i.Kind))
	default:
		return false
	}
	return true
}

// isEdited reports whether a node had what the inventory has, so that somebody else
// changed it since.
func (m *planner) isEdited(n cluster.Node) bool { return drift.IsEdited(m.d, m.o, n) }

// isMaking reports whether an action leads to a node that runs, whatever the inventory has changed.
func isMaking(kind cluster.ActionKind) bool {
	return kind == cluster.CreateVM || kind == cluster.StartVM || kind == cluster.ResumeVM || kind == cluster.ApplyConfig
}

// isUnfinished reports whether a turn of a node was begun for what the inventory has of it, and has
// not ended: it is drained for that and not taken down yet, or it was taken down for it, and is not
// Ready since, or still has to be seen with its change at the same revision. One that is drained to
// be replaced is until it need not be.
func (m *planner) isUnfinished(n cluster.Node) bool {
	turn, want := m.o.Nodes.Value[n.Name].Turn, wantOf(m.d, n)
	r, restarted := m.o.Facts.Restarts[n.Name]
	switch {
	case turn == cluster.TurnRemoval:
		return drift.IsReplaced(n, m.o.VMs[n.Name], m.o.Facts) || m.isDead(n.Name)
	case isFor(turn, want) && !(restarted && turn == r.Target):
		return true
	}
	return restarted && isFor(r.Target, want) && (m.o.Machines[n.Name].BootID == r.Boot || r.Revision == m.d.Repository().Revision || m.plan.Phases[n.Name] != cluster.PhaseReady)
}

// isTakenDown reports whether the agent took a node down, for whatever that was, and the node is not
// known to have returned to service.
func (m *planner) isTakenDown(n cluster.Node) bool {
	r, restarted := m.o.Facts.Restarts[n.Name]
	kn := m.o.Nodes.Value[n.Name]
	return restarted && (!m.o.Nodes.Known || kn.Turn != "" || kn.BootID == r.Boot)
}

// holdByWindow holds what takes a node that runs out of service while the window of the
// cluster, or of the host, is closed, and reports whether it does. What was begun is
// ended, members of etcd without a machine are removed at any time, and a node that has not worked
// for long is changed at any time: what it has may be why.
func (m *planner) holdByWindow(i action.Info) bool {
	n, stays := m.d.Spec.Node(i.Node)
	begun := m.o.Nodes.Value[i.Node].Turn != "" && (!stays || m.isUnfinished(n))
	if i.Kind == cluster.RemoveMember || m.isDead(i.Node) || m.forgets(i.Node) || begun || m.o.Facts.Destroying() {
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
	w := cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForWindow, About: string(i.Kind)}
	if w.Message = "waits for its window, which opens at " + text.Moment(opens); m.p.Window.Zone != nil {
		w.Hint = "the host's policy has one, too (" + m.p.Line("window") + ")"
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
	left := slices.DeleteFunc(slices.Clone(m.removed), func(n cluster.Node) bool { _, stays := m.d.Spec.Node(n.Name); return stays })
	for _, n := range slices.Concat(m.d.Spec.Nodes, left) {
		mach := m.o.Machines[n.Name]
		what, which, hint := mach.Summary.Authorities.Other(ours), "its machine", "somebody has rotated it: bring the new one into secrets.sops.yaml, or rotate it back"
		if what == "" {
			what, which = mach.StagedAuthorities.Other(ours), "a config that waits for the next boot of its machine"
			hint = fmt.Sprintf("bring the new one into secrets.sops.yaml, or apply the config that it runs once more, which drops that: `talosctl -n %s get machineconfig` shows both", n.IP)
		}
		if what != "" && mach.Reach == cluster.Configured {
			m.rotated = append(m.rotated, n.Name)
			m.block(cluster.Block{Subject: n.Name, Reason: cluster.SecretsChanged, About: what, Hint: hint,
				Message: fmt.Sprintf("%s has another certificate authority than secrets.sops.yaml (that of %s); until they are the same no node is taken out of service, removed or given a config", which, what)})
		}
		if _, stays := m.d.Spec.Node(n.Name); stays && m.roleOf(n) != n.Role {
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
	case ph != cluster.PhaseAbsent && ph != cluster.PhaseMaintenance && (votes || kn.ControlPlane && isOwn(m.d, kn)):
		return cluster.ControlPlane
	case ph == cluster.PhaseUnreachable && m.o.Facts.Settled[n.Name] != "" && isOwn(m.d, kn): // later than it got its label
		return cluster.Worker
	}
	return n.Role
}

// holdByMachines holds what takes a node down, away, or changes its config, while a machine
// has another authority, or another role, so that it is not known how many votes are left. It
// reports whether it does. What an administrator has decided is done.
func (m *planner) holdByMachines(i action.Info) bool {
	if !m.isHeld() || !i.Disrupts && !i.Destructive && i.Kind != cluster.ChangeConfig && i.Kind != cluster.DropConfig || m.o.Facts.Destroying() || m.forgets(i.Node) {
		return false
	}
	if len(m.rotated) > 0 {
		m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.SecretsChanged, About: string(i.Kind), Message: fmt.Sprintf("waits until %s has the certificate authorities of secrets.sops.yaml: %s", strings.Join(m.rotated, ", "), i.Text)})
		return true
	}
	m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.FixedConfigChanged, About: string(i.Kind), Message: fmt.Sprintf("waits until the inventory has %s in its role again: %s", strings.Join(m.reassigned, ", "), i.Text)})
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
