package plan

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// waitForDead names when a dead node gets a new machine, and what keeps it from one.
func (m *planner) waitForDead(n cluster.Node) {
	due, ok := lost.DueAt(m.d, m.o, n)
	if !ok {
		return
	}
	since, why := m.o.Nodes.Value[n.Name].NotReadySince, ""
	if !due.After(m.o.Now) {
		why = lost.SparesDead(m.d, m.o, n)
	}
	if at := lost.BelievedAt(m.o, n); at.After(due) {
		due = at
	}
	if why == "" && !due.After(m.o.Now) && m.dead != n.Name {
		why = m.dead + " comes first"
	}
	w := cluster.Wait{Subject: n.Name, Reason: cluster.NodeDead, Message: fmt.Sprintf("has not been Ready since %s, and gets a new machine at %s", text.Moment(since), text.Moment(due))}
	if why != "" {
		w.Message = fmt.Sprintf("has not been Ready since %s, and would get a new machine: %s", text.Moment(since), why)
	}
	m.wait(w)
}

// forgets reports whether the machine of a node does not come back.
func (m *planner) forgets(node string) bool { return lost.IsForgotten(m.o, node) }

// isDead reports whether a node of the inventory is to have another machine although it
// has no new token.
func (m *planner) isDead(node string) bool {
	n, ok := m.nodeNamed(node)
	return ok && lost.IsMadeAgain(m.o, n, m.dead)
}

// forgetUnseen takes what a lost machine has left in etcd and in Kubernetes while its VM
// cannot be deleted, and reports whether that is so.
func (m *planner) forgetUnseen(n cluster.Node) bool {
	_, why := lost.VMOf(m.d, m.o, n)
	word, _ := lost.Word(m.o, n.Name)
	switch {
	case !m.forgets(n.Name), why == "":
		return false
	case !word.Unfenced:
		// Its VM was to be deleted first, which switches it off.
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.VMConfigUnknown, About: "removal", Message: "is lost, and its vm cannot be deleted now: " + why, Within: seeWithin,
			Hint: fmt.Sprintf("when its machine is off for certain, `talos-agent forget %s %s` once more removes it from etcd and Kubernetes before that", m.d.Spec.Name, n.Name)})
		return true
	}
	member, isMember := quorum.OwnMember(m.o, n)
	switch {
	case !m.o.Members.Known || !m.o.Nodes.Known:
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.EtcdMembersUnknown, About: "removal", Message: "is lost: cannot see the members of etcd and the nodes in Kubernetes" + text.Colon(m.o.Members.Why), Within: etcdWithin})
	case isMember:
		m.do(action.RemoveMember{Node: n, Member: member})
	case m.isOwnNode(n):
		m.do(action.DeleteNode{Node: n})
	default:
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.VMConfigUnknown, About: "removal",
			Message: fmt.Sprintf("is lost, and what it had in etcd and Kubernetes is removed; its vm is deleted when that is possible: %s", why),
			Hint:    "when its host does not come back either: `pvecm delnode` removes that from the Proxmox VE cluster, and its vm goes with its folder in /etc/pve/nodes"})
	}
	return true
}
