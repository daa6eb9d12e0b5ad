package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// budget is how many nodes of a role may be unavailable at once, and which are,
// whoever caused that.
type budget struct {
	allowed     int
	unavailable []string // names of nodes
}

// allows reports whether a node may be made unavailable: one that is already
// spends nothing more.
func (b budget) allows(node string) bool {
	if slices.Contains(b.unavailable, node) {
		return len(b.unavailable) <= b.allowed
	}
	return len(b.unavailable) < b.allowed
}

// spent is the budget with one more node unavailable.
func (b budget) spent(node string) budget {
	if !slices.Contains(b.unavailable, node) {
		b.unavailable = append(slices.Clone(b.unavailable), node)
	}
	return b
}

// budgetsOf computes the budget of every role from what is seen, before any node
// is planned. A node that is not Ready, or under pressure, or cordoned by whomever, has
// spent a unit of it, and so has one on which a disruptive action is under way. One that
// is removed has from its drain on.
func budgetsOf(s cluster.Spec, phases map[string]cluster.Phase, o cluster.Observed, removed []cluster.Node) map[cluster.Role]budget {
	out := map[cluster.Role]budget{cluster.ControlPlane: {allowed: 1}, cluster.Worker: {allowed: max(1, s.MaxUnavailable)}}
	for _, n := range s.Nodes {
		kn := o.Nodes.Value[n.Name]
		if phases[n.Name] != cluster.PhaseReady || kn.Pressure != "" || kn.Cordoned || isDisrupted(o, n) {
			out[n.Role] = out[n.Role].spent(n.Name)
		}
	}
	for _, n := range removed {
		if isDisrupted(o, n) || o.Nodes.Value[n.Name].Turn != "" {
			out[n.Role] = out[n.Role].spent(n.Name)
		}
	}
	return out
}

// isDisrupted reports whether a disruptive action is under way on a node.
func isDisrupted(o cluster.Observed, n cluster.Node) bool {
	return slices.ContainsFunc(o.Running, func(r cluster.Running) bool { return r.Node == n.Name && r.Disrupts })
}

// etcd is what is seen of the cluster's etcd, for the projection of what becomes
// of it when a node is down.
type etcd struct {
	unknown  string // why it is not known, "" when it is
	voters   int
	healthy  []string // nodes whose voter is healthy
	learners []string // names of members
	agreed   cluster.Seen[bool]
	asked    int // members that name the same
}

// etcdOf reads the state of etcd out of what was observed. A voter is healthy
// only if it is the one member of a node of the inventory whose own machine
// reports it. No answer counts against it, and so does a second member of the same
// node: which of the two is alive is not known.
func etcdOf(nodes []cluster.Node, o cluster.Observed) etcd {
	if !o.Members.Known {
		return etcd{unknown: cmp.Or(o.Members.Why, "there is no answer yet")}
	}
	out := etcd{agreed: o.MembersAgree, asked: o.MembersAsked}
	for _, mem := range o.Members.Value {
		if mem.Learner {
			out.learners = append(out.learners, mem.Name)
		} else {
			out.voters++
		}
	}
	for _, n := range nodes {
		if n.Role != cluster.ControlPlane {
			continue
		}
		members := 0
		for _, mem := range o.Members.Value {
			if isMember(mem, n) {
				members++
			}
		}
		m := o.Machines[n.Name]
		if members == 1 && m.Reach == cluster.Configured && m.Services["etcd"].Healthy {
			out.healthy = append(out.healthy, n.Name)
		}
	}
	return out
}

// isMember reports whether an etcd member is a node's.
func isMember(mem cluster.Member, n cluster.Node) bool {
	return mem.Name == n.Name || mem.Address == n.IP.String()
}

// without returns why etcd does not survive a node going down, "" when it does: the
// healthy voters that are left must be a majority, no member may be a learner,
// and all members must name the same members. What is not known counts as no.
func (e etcd) without(node string) string {
	switch {
	case e.unknown != "":
		return "the members of etcd are not known: " + e.unknown
	case !e.agreed.Known:
		return "whether all members of etcd name the same members is not known" + colon(e.agreed.Why)
	case !e.agreed.Value:
		return "the members of etcd do not all name the same members"
	case len(e.learners) > 0:
		return strings.Join(e.learners, ", ") + " is still a learner of etcd"
	}
	left, majority := len(e.down(node).healthy), e.voters/2+1
	if left < majority {
		return fmt.Sprintf("with %s down %d of %d members of etcd would be healthy, and %d are needed", node, left, e.voters, majority)
	}
	return ""
}

// withoutMember returns why a member cannot be removed from etcd, "" when it can: a
// majority must be healthy to decide on it, and one of those that stay afterwards; none of
// those that were asked may name other members, nobody may be joining. (etcd 3.6 itself
// refuses only what would lose the quorum at once, and not the removal of a healthy one:
// seen.) What is not known counts as no.
func (e etcd) withoutMember(node string) string {
	majority := e.voters/2 + 1
	learners := slices.DeleteFunc(slices.Clone(e.learners), func(name string) bool { return name == node })
	switch {
	case e.unknown != "":
		return "the members of etcd are not known: " + e.unknown
	case e.agreed.Known && !e.agreed.Value:
		return "the members of etcd do not all name the same members"
	case len(learners) > 0:
		return strings.Join(learners, ", ") + " is still a learner of etcd"
	case e.asked < majority:
		return fmt.Sprintf("%d of %d members of etcd were asked, and %d have to agree", e.asked, e.voters, majority)
	case len(e.healthy) < majority:
		return fmt.Sprintf("%d of %d members of etcd are healthy, and %d are needed to remove one", len(e.healthy), e.voters, majority)
	}
	left, after := len(e.down(node).healthy), e.voters-1
	if left < after/2+1 || left == 0 {
		return fmt.Sprintf("without %s %d of %d members of etcd would be healthy, and %d are needed", node, left, after, after/2+1)
	}
	return ""
}

// down is the etcd with a node down, so that the next one is judged after it.
func (e etcd) down(node string) etcd {
	e.healthy = slices.DeleteFunc(slices.Clone(e.healthy), func(name string) bool { return name == node })
	return e
}

// mayDisrupt reports whether an action that disrupts a node may run now, and
// waits if not. It is asked in one place for every action, whoever plans it.
func (m *planner) mayDisrupt(i Info) bool {
	n, stays := m.d.Spec.Node(i.Node)
	if j := slices.IndexFunc(m.removed, func(n cluster.Node) bool { return n.Name == i.Node }); !stays && j >= 0 {
		n = m.removed[j]
	} else if !stays {
		n = cluster.Node{Name: i.Node, Role: cluster.ControlPlane} // etcd decides
	}
	b := m.budgets[n.Role]
	if !stays {
		// Those that are not Ready were waited for, but for those that this one makes
		// room for.
		b.unavailable = slices.DeleteFunc(slices.Clone(b.unavailable), func(name string) bool { return !m.isInTurn(name) })
	}
	if !b.allows(n.Name) {
		m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForBudget, About: string(i.Kind),
			Message: fmt.Sprintf("%s: waits until fewer than %d nodes like it are unavailable: %s", i.Kind, b.allowed, strings.Join(b.unavailable, ", "))})
		return false
	}
	if why := m.quorumLoss(i, n, stays); why != "" {
		m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForQuorum, About: string(i.Kind), Message: string(i.Kind) + ": waits for etcd: " + why})
		return false
	}
	m.budgets[n.Role] = m.budgets[n.Role].spent(n.Name)
	m.etcd = m.etcd.down(n.Name)
	return true
}

// quorumLoss returns why etcd forbids an action that disrupts a node, "" when it does not.
func (m *planner) quorumLoss(i Info, n cluster.Node, stays bool) string {
	switch {
	case i.Kind == cluster.RemoveMember:
		return m.etcd.withoutMember(n.Name)
	case n.Role != cluster.ControlPlane, stays && m.isOnlyMember(n.Name), !stays && i.Kind == cluster.DrainNode:
		return "" // a drain alone leaves its etcd as it is
	}
	return m.etcd.without(n.Name)
}

// isInTurn reports whether a node is out of service by the agent, or will be by this
// plan.
func (m *planner) isInTurn(name string) bool {
	return m.o.Nodes.Value[name].Turn != "" || isDisrupted(m.o, cluster.Node{Name: name}) ||
		slices.ContainsFunc(m.plan.Actions, func(a Action) bool { return a.Info().Node == name && a.Info().Disrupts })
}

// isOnlyMember reports whether a node is the only control plane and the only member of
// etcd, and healthy. Nothing keeps its etcd up while it restarts, and its data stays.
func (m *planner) isOnlyMember(node string) bool {
	e := m.etcd
	return len(m.d.Spec.ControlPlanes()) == 1 && e.unknown == "" && e.agreed.Known && e.agreed.Value && e.voters == 1 && len(e.learners) == 0 && slices.Equal(e.healthy, []string{node})
}
