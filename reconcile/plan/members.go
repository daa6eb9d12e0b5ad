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
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// blockAlarms reports what etcd holds against its members.
func (m *planner) blockAlarms() {
	if why := m.etcd.Alarms(); why != "" {
		m.block(cluster.Block{Subject: m.d.Spec.Name, Reason: cluster.EtcdAlarm, Message: why, Hint: m.etcd.AlarmHint()})
	}
}

// removeLost plans the removal of a member that has no machine, as soon as that was seen
// for long enough. It returns whether the member is one.
func (m *planner) removeLost(n cluster.Node, mem cluster.Member) bool {
	if !slices.Contains(leftover.LostMembers(m.d, m.o), mem.ID) {
		return false
	}
	w := cluster.Wait{Subject: n.Name, Reason: cluster.EtcdMemberLost, About: mem.HexID(), Message: fmt.Sprintf("its member of etcd has no machine any longer (id %s)", mem.HexID())}
	since, ok := m.o.LostSince[mem.ID]
	switch why := m.etcd.WithoutMember(mem.Name, mem.ID); {
	case why != "":
		w.Message += "; it cannot be removed: " + why
		w.Reason, w.Within, w.Hint = cluster.WaitingForQuorum, etcdWithin, fmt.Sprintf("bring the other control planes back: `talos-agent status %s` shows what they lack", m.d.Spec.Name)
		m.wait(w)
	case !ok || m.o.Now.Sub(since) < leftover.LostFor:
		w.Message += fmt.Sprintf("; it is removed when that was seen for %v", leftover.LostFor)
		w.Within = 2 * leftover.LostFor
		m.wait(w)
	default:
		if a := (action.RemoveMember{Node: n, Member: mem}); !m.holdMember(a) {
			m.do(a)
		}
	}
	return true
}

// holdMember holds the removal of a member whose node the inventory no longer has while that waits
// for approval, and reports whether it does. Those of its nodes are held as all that is done to them.
func (m *planner) holdMember(a action.RemoveMember) bool {
	i := a.Info()
	if _, stays := m.nodeNamed(i.Node); stays || !m.asksApproval() || m.forgets(i.Node) || m.o.Facts.Approved(m.d.Repository().Revision, i.Step()) {
		return false
	}
	m.blockDrift(cluster.Block{Subject: i.Node, Reason: cluster.RemovalUnapproved, About: a.Member.HexID(), Message: "it is no longer in the inventory, and that waits for approval: apply is approve; then: " + i.Text,
		Hint: "put the node back into nodes.yaml; or " + m.approveHint()}, []cluster.FieldDifference{drift.OfMember(m.o, a.Member)})
	return true
}

// awaitsRemoval reports whether a control plane without data is still a member of etcd,
// which has to leave before it can join again.
func (m *planner) awaitsRemoval(n cluster.Node) bool {
	mem, ok := quorum.MemberOf(m.o, n)
	if ok && !m.removeLost(n, mem) {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.EtcdMemberLost, Message: "its member of etcd has no machine any longer; waits until all VMs and the nodes in Kubernetes are seen, to remove it", Within: apiWithin})
	}
	return ok
}

// planOrphanMembers removes members of etcd that are no control plane of the inventory
// and have no machine, and reports the others: each counts for the quorum, be it dead or
// alive.
func (m *planner) planOrphanMembers() {
	voters := 0
	for _, mem := range m.o.Members.Value {
		if !mem.Learner {
			voters++
		}
	}
	for _, mem := range m.o.Members.Value {
		owner, sure := quorum.OwnerOf(m.o.Members.Value, mem, m.d.Spec.ControlPlanes())
		switch {
		case owner != "" && sure, m.isOrphanVM(mem.Name), slices.Contains(m.reassigned, mem.Name): // reported
			continue
		case owner != "":
			m.blockDrift(cluster.Block{Subject: owner, Reason: cluster.OrphanEtcdMember, About: mem.HexID(),
				Message: fmt.Sprintf("etcd has more than one member for it: %s at %s may be the one too many", mem.HexID(), cmp.Or(mem.Address, "no address")),
				Hint:    fmt.Sprintf("`talosctl%s etcd status` shows the id of its own member; remove the other: `talosctl%s etcd remove-member ID`", m.onNode(owner), m.onNode(owner))}, []cluster.FieldDifference{drift.OfMember(m.o, mem)})
			continue
		}
		if (!m.appliesNothing() || m.forgets(mem.Name)) && m.removeLost(cluster.Node{Name: mem.Name, Role: cluster.ControlPlane}, mem) {
			continue
		}
		message := fmt.Sprintf("etcd has a member that is no control plane of the inventory: %s at %s, id %s; %d of its %d voters must run", cmp.Or(mem.Name, "one without a name"), cmp.Or(mem.Address, "no address"), mem.HexID(), voters/2+1, voters)
		hint := fmt.Sprintf("put the node back into nodes.yaml; or, when its machine is switched off for good: %s", m.removal(mem))
		if mem.Name == "" {
			// A member has no name before it runs for the first time, and may come
			// over an address that the inventory does not have.
			m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.OrphanEtcdMember, About: mem.HexID(), Message: message, Hint: hint, Within: etcdWithin})
			continue
		}
		m.blockDrift(cluster.Block{Subject: mem.Name, Reason: cluster.OrphanEtcdMember, About: mem.HexID(), Message: message, Hint: hint}, []cluster.FieldDifference{drift.OfMember(m.o, mem)})
	}
}

// learnsWithin is how long a learner whose etcd runs may take to become a voter: Talos tries
// to make it one for ten minutes after it was added (Talos 1.13.9: source).
const learnsWithin = 15 * time.Minute

// blockLearner reports a control plane that stays a learner: only the boot that has added it
// to etcd makes it a voter (Talos 1.13.9: source), and etcd takes no other one meanwhile.
func (m *planner) blockLearner(n cluster.Node) bool {
	mem, _ := quorum.MemberOf(m.o, n)
	l, known := m.o.Learners[mem.ID]
	if !mem.Learner || !known {
		return false
	}
	why := "its machine has booted again since it joined"
	if boot := m.o.Machines[n.Name].BootID; l.Boot == "" || boot == "" || l.Boot == boot {
		if m.o.Now.Sub(l.Since) < learnsWithin {
			return false
		}
		why = "its etcd runs since " + text.Moment(l.Since)
	}
	m.block(cluster.Block{Subject: n.Name, Reason: cluster.EtcdMemberStuck, About: mem.HexID(),
		Message: fmt.Sprintf("it is a learner of etcd, and Talos does not make it a voter any longer: %s; no other control plane can join meanwhile", why),
		Hint:    "give it another `replace` in nodes.yaml: its member is removed, and it joins with a new machine"})
	return true
}

// lostHint is what to do about a control plane that founded etcd and has lost its data,
// while no member is seen.
const lostHint = "remove its member on another control plane: `talosctl etcd members` shows its id, and `talosctl etcd remove-member ID` removes it; never bring an old copy of it back"

// removal is the command that removes a member of etcd, asked of another one
// that is healthy.
func (m *planner) removal(mem cluster.Member) string {
	on := ""
	if i := slices.IndexFunc(m.etcd.Healthy, func(name string) bool { return name != mem.Name }); i >= 0 {
		on = m.onNode(m.etcd.Healthy[i])
	}
	return fmt.Sprintf("`talosctl%s etcd remove-member %s`", on, mem.HexID())
}

// onNode is the option of talosctl for a node.
func (m *planner) onNode(name string) string {
	n, ok := m.nodeNamed(name)
	if !ok {
		return ""
	}
	return " -n " + n.IP.String()
}
