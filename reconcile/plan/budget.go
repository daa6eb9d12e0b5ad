package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Budget is how many nodes of a role may be unavailable at once, and how many
// are, whoever caused that.
type Budget struct {
	Allowed     int
	Unavailable []string // names of nodes, in inventory order
}

// Left is how many more nodes may become unavailable.
func (b Budget) Left() int { return max(0, b.Allowed-len(b.Unavailable)) }

// allows reports whether a node may be made unavailable: one that is already
// spends nothing more.
func (b Budget) allows(node string) bool {
	return b.Left() > 0 || slices.Contains(b.Unavailable, node) && len(b.Unavailable) <= b.Allowed
}

// budgetsOf computes the budget of every role from what is seen, before any node
// is planned. A node that is not Ready has spent a unit of it.
func budgetsOf(s cluster.Spec, phases map[string]cluster.Phase) map[cluster.Role]Budget {
	out := map[cluster.Role]Budget{
		cluster.ControlPlane: {Allowed: 1},
		cluster.Worker:       {Allowed: 1},
	}
	for _, n := range s.Nodes {
		if phases[n.Name] != cluster.PhaseReady {
			b := out[n.Role]
			b.Unavailable = append(b.Unavailable, n.Name)
			out[n.Role] = b
		}
	}
	return out
}

// etcd is what is seen of the cluster's etcd, for the projection of what becomes
// of it when a member is down.
type etcd struct {
	unknown   string   // why it is not known, "" when it is
	voters    []string // names of members
	learners  []string
	unhealthy []string // of the voters
	agreed    cluster.Seen[bool]
}

// etcdOf reads the state of etcd out of what was observed. A voter is healthy
// only if it is a node of the inventory whose own machine reports it: silence counts
// against it.
func etcdOf(s cluster.Spec, o cluster.Observed) etcd {
	if !o.Members.Known {
		return etcd{unknown: orElse(o.Members.Why, "there is no answer yet")}
	}
	out := etcd{agreed: o.MembersAgree}
	for _, mem := range o.Members.Value {
		if mem.Learner {
			out.learners = append(out.learners, mem.Name)
			continue
		}
		name, healthy := mem.Name, false
		for _, n := range s.ControlPlanes() {
			if isMember(mem, n) {
				name = n.Name
				m := o.Machines[n.Name]
				healthy = m.Reach == cluster.Configured && m.Services["etcd"].Healthy
			}
		}
		out.voters = append(out.voters, name)
		if !healthy {
			out.unhealthy = append(out.unhealthy, name)
		}
	}
	return out
}

// isMember reports whether an etcd member is a node's.
func isMember(mem cluster.Member, n cluster.Node) bool {
	return mem.Name == n.Name || mem.Address == n.IP.String()
}

// without says why etcd does not survive a node going down, "" when it does: the
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
	down := len(e.unhealthy)
	if slices.Contains(e.voters, node) && !slices.Contains(e.unhealthy, node) {
		down++
	}
	if majority := len(e.voters)/2 + 1; len(e.voters)-down < majority {
		return fmt.Sprintf("with %s down %d of %d members of etcd would be healthy, and %d are needed", node, len(e.voters)-down, len(e.voters), majority)
	}
	return ""
}

// mayDisrupt reports whether an action that disrupts a node may run now, and
// waits if not. It is asked in one place for every action, whoever plans it.
func (m *planner) mayDisrupt(i Info) bool {
	n, ok := m.d.Spec.Node(i.Node)
	if !ok {
		// A node that the inventory no longer names is bound by what its role was,
		// which nothing here knows: etcd decides.
		n = cluster.Node{Name: i.Node, Role: cluster.ControlPlane}
	}
	if b := m.budgets[n.Role]; ok && !b.allows(n.Name) {
		m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForBudget, About: string(i.Kind),
			Message: fmt.Sprintf("%s: waits until fewer than %d nodes like it are unavailable: %s", i.Kind, b.Allowed, strings.Join(b.Unavailable, ", "))})
		return false
	}
	if n.Role == cluster.ControlPlane {
		if why := m.etcd.without(n.Name); why != "" {
			m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForQuorum, About: string(i.Kind), Message: string(i.Kind) + ": waits for etcd: " + why})
			return false
		}
	}
	if b := m.budgets[n.Role]; ok && !slices.Contains(b.Unavailable, n.Name) {
		b.Unavailable = append(slices.Clone(b.Unavailable), n.Name)
		m.budgets[n.Role] = b
	}
	m.etcd = m.etcd.down(n.Name)
	return true
}

// down is the etcd with a member down, so that the next one is judged after it.
func (e etcd) down(node string) etcd {
	if slices.Contains(e.voters, node) && !slices.Contains(e.unhealthy, node) {
		e.unhealthy = append(slices.Clone(e.unhealthy), node)
	}
	return e
}
