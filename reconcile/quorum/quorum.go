// Package quorum projects what becomes of etcd when a node goes down, or its member is
// removed. What is not known counts as no.
//
// It is pure, and asked in one place for whatever disrupts a control plane, in the plan
// and once more right before.
package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Etcd is what is seen of the cluster's etcd.
type Etcd struct {
	unknown  string // why it is not known, "" when it is
	voters   int
	Healthy  []string // nodes whose voter is healthy
	down     []string // the voters that are not, by name or id
	learners []cluster.Member
	agreed   cluster.Seen[bool] // on who the members are
	asked    []string           // nodes whose members answered, and name the same
	state    cluster.Seen[cluster.Etcd]
}

// goingDown are the stages of a machine that is taken down, by a person too: its etcd is healthy
// while it is drained, up to five minutes, and then it is not (Talos 1.13.9: seen).
var goingDown = []string{"rebooting", "shutting down", "resetting", "upgrading"}

// Of reads the state of etcd out of what was observed. A voter is healthy
// only if it is the one member of a node of the inventory whose own machine
// reports it, and is not about to go down. No answer counts against it, and so does a second member of the same
// node: which of the two is alive is not known.
func Of(nodes []cluster.Node, o cluster.Observed) Etcd {
	if !o.Members.Known {
		return Etcd{unknown: cmp.Or(o.Members.Why, "there is no answer yet")}
	}
	out := Etcd{agreed: o.MembersAgree, asked: o.MembersAsked, state: o.Etcd}
	for _, mem := range o.Members.Value {
		if mem.Learner {
			out.learners = append(out.learners, mem)
		} else {
			out.voters++
		}
	}
	for _, n := range nodes {
		if n.Role != cluster.ControlPlane {
			continue
		}
		members, votes := 0, false
		for _, mem := range o.Members.Value {
			if mem.IsOf(n) {
				members, votes = members+1, !mem.Learner
			}
		}
		m := o.Machines[n.Name]
		if members == 1 && votes && m.Reach == cluster.Configured && m.Services["etcd"].Healthy && !slices.Contains(goingDown, m.Stage) {
			out.Healthy = append(out.Healthy, n.Name)
		}
	}
	for _, mem := range o.Members.Value {
		isHealthy := slices.ContainsFunc(nodes, func(n cluster.Node) bool { return mem.IsOf(n) && slices.Contains(out.Healthy, n.Name) })
		if !mem.Learner && !isHealthy {
			out.down = append(out.down, cmp.Or(mem.Name, mem.HexID()))
		}
	}
	return out
}

// WayOut is what a person can do in a cluster whose etcd forbids something.
func (e Etcd) WayOut(name string) string {
	status := fmt.Sprintf("`talos-agent status %s` shows what they lack", name)
	switch {
	case e.unknown != "", !e.agreed.Known:
		return "bring back the control planes that do not answer: " + status
	case !e.agreed.Value:
		return "compare `talosctl etcd members` of all control planes: one of them does not reach the others, or has an etcd of its own"
	case len(e.down) > 0:
		return fmt.Sprintf("bring %s back: %s; one that is lost for good: give it another `replace` in nodes.yaml, or take it out", strings.Join(e.down, ", "), status)
	case len(e.learners) > 0:
		return "it goes on when that has become a voter; " + status
	}
	return fmt.Sprintf("no member is down, and an etcd of %d can spare none: add a control plane to nodes.yaml, or take one out", e.voters)
}

// IsPair reports whether etcd has two members, which work and name each other.
func (e Etcd) IsPair() bool {
	return e.unknown == "" && e.agreed.Known && e.agreed.Value && e.voters == 2 && len(e.Healthy) == 2 && len(e.learners) == 0
}

// Without returns why etcd does not survive a node going down, "" when it does: the
// healthy voters that are left must be a majority, no member may be a learner,
// and all members must name the same members. What is not known counts as no.
func (e Etcd) Without(node string) string {
	switch {
	case e.unknown != "":
		return "the members of etcd are not known: " + e.unknown
	case !e.agreed.Known:
		return "whether all members of etcd name the same members is not known" + strings.TrimSuffix(": "+e.agreed.Why, ": ")
	case !e.agreed.Value:
		return "the members of etcd do not all name the same members"
	case len(e.learners) > 0:
		return describeLearners(e.learners)
	}
	left, majority := len(e.Down(node).Healthy), e.voters/2+1
	if left < majority {
		return fmt.Sprintf("with %s down %d of %d members of etcd would be healthy, and %d are needed", node, left, e.voters, majority)
	}
	return ""
}

// describeLearners is why nothing else may happen to an etcd that some members join.
func describeLearners(learners []cluster.Member) string {
	var names []string
	for _, mem := range learners {
		names = append(names, mem.Describe())
	}
	return strings.Join(names, ", ") + " is still a learner of etcd"
}

// WithoutMember returns why the member of a node, with that id, cannot be removed from
// etcd, "" when it can: a majority must be healthy to decide on it, and one of those that
// stay afterwards; none of those that were asked may name other members, and no other one
// may be joining. (etcd 3.6 itself refuses only what would lose the quorum at once, and not
// the removal of a healthy one: seen.) What is not known counts as no, and a member that
// did not answer as down: that its machine is, is seen up to 15 s later.
func (e Etcd) WithoutMember(node string, id uint64) string {
	e = e.answering()
	majority := e.voters/2 + 1
	learners := slices.DeleteFunc(slices.Clone(e.learners), func(mem cluster.Member) bool { return mem.ID == id })
	switch {
	case e.unknown != "":
		return "the members of etcd are not known: " + e.unknown
	case e.agreed.Known && !e.agreed.Value:
		return "the members of etcd do not all name the same members"
	case len(learners) > 0:
		return describeLearners(learners)
	case len(e.asked) < majority:
		return fmt.Sprintf("%d of %d members of etcd were asked, and %d have to agree", len(e.asked), e.voters, majority)
	case len(e.Healthy) < majority:
		return fmt.Sprintf("%d of %d members of etcd are healthy, and %d are needed to remove one", len(e.Healthy), e.voters, majority)
	}
	left, after := len(e.Down(node).Healthy), e.voters-1
	if left < after/2+1 { // never 0
		return fmt.Sprintf("without %s %d of %d members of etcd would be healthy, and %d are needed", node, left, after, after/2+1)
	}
	return ""
}

// answering is the etcd in which only those are healthy that have answered.
func (e Etcd) answering() Etcd {
	e.Healthy = slices.DeleteFunc(slices.Clone(e.Healthy), func(name string) bool { return !slices.Contains(e.asked, name) })
	return e
}

// DescribeRemoval is what becomes of etcd without a member, for people.
func (e Etcd) DescribeRemoval(node string) string {
	e = e.answering()
	left, after := len(e.Down(node).Healthy), e.voters-1
	return fmt.Sprintf("%d of %d members are healthy; without that of %s %d of %d, and %d are needed", len(e.Healthy), e.voters, node, left, after, after/2+1)
}

// Spares reports whether etcd has its quorum without a node, whatever that does. Who is healthy
// answers, so that this holds while the node itself cannot be asked.
func (e Etcd) Spares(node string) bool {
	return e.unknown == "" && len(e.Down(node).Healthy) > e.voters/2
}

// Down is the etcd with a node down, so that the next one is judged after it.
func (e Etcd) Down(node string) Etcd {
	if slices.Contains(e.Healthy, node) {
		e.down = append(slices.Clone(e.down), node)
	}
	e.Healthy = slices.DeleteFunc(slices.Clone(e.Healthy), func(name string) bool { return name == node })
	return e
}

// IsOnly reports whether a node's member is the only one, and healthy.
func (e Etcd) IsOnly(node string) bool {
	return e.unknown == "" && e.agreed.Known && e.agreed.Value && e.voters == 1 && len(e.learners) == 0 && slices.Equal(e.Healthy, []string{node})
}

// Keeps returns why the VM of a node that leaves is kept for the sake of etcd, "" when it is not: its
// member has left.
func Keeps(members cluster.Seen[[]cluster.Member], n cluster.Node) string {
	switch {
	case !members.Known:
		return "the members of etcd are not known: " + cmp.Or(members.Why, "there is no answer yet")
	case slices.ContainsFunc(members.Value, func(mem cluster.Member) bool { return cmp.Or(mem.Name, n.Name) == n.Name && mem.IsOf(n) }):
		return "its member is still in etcd"
	}
	return ""
}

// OwnerOf returns whose member of etcd one is, "" when no control plane's. A
// control plane may seem to have several, and then that is its own which has both
// its name and its address; sure is false for the others, and for all where none
// or several have both.
func OwnerOf(members []cluster.Member, mem cluster.Member, planes []cluster.Node) (owner string, sure bool) {
	i := slices.IndexFunc(planes, func(n cluster.Node) bool { return mem.IsOf(n) })
	if i < 0 {
		return "", false
	}
	n, candidates, exact := planes[i], 0, 0
	isExact := func(mem cluster.Member) bool { return mem.Name == n.Name && mem.Address == n.IP.String() }
	for _, other := range members {
		if other.IsOf(n) {
			candidates++
		}
		if isExact(other) {
			exact++
		}
	}
	return n.Name, candidates == 1 || exact == 1 && isExact(mem)
}

// OwnMember is the member of etcd that the machine of a node is: the one with its name,
// or one at its address that has no name yet. Its address may be another's by now.
func OwnMember(o cluster.Observed, n cluster.Node) (cluster.Member, bool) {
	return findMember(o, func(mem cluster.Member) bool { return cmp.Or(mem.Name, n.Name) == n.Name && mem.IsOf(n) })
}

// MemberOf is the member of etcd of a node, or the one at its address.
func MemberOf(o cluster.Observed, n cluster.Node) (cluster.Member, bool) {
	return findMember(o, func(mem cluster.Member) bool { return mem.IsOf(n) })
}

func findMember(o cluster.Observed, is func(cluster.Member) bool) (cluster.Member, bool) {
	i := slices.IndexFunc(o.Members.Value, is)
	if i < 0 {
		return cluster.Member{}, false
	}
	return o.Members.Value[i], true
}

// HasMember reports whether the machine of a node is a member of etcd.
func HasMember(o cluster.Observed, n cluster.Node) bool {
	_, ok := OwnMember(o, n)
	return ok
}

// Alarms are what etcd holds against its members, in one line; "" : nothing that is known.
func (e Etcd) Alarms() string {
	switch alarms := e.state.Value.Alarms; len(alarms) {
	case 0:
		return ""
	case 1:
		return "etcd has the alarm " + alarms[0]
	default:
		return "etcd has the alarms " + strings.Join(alarms, " and ")
	}
}

// AlarmHint is what is to be done about the alarms of an etcd.
func (e Etcd) AlarmHint() string {
	if slices.Contains(e.state.Value.Alarms, "CORRUPT") {
		return "`talosctl etcd alarm list` names a member that has other data than the others: give its node another `replace` in nodes.yaml, then `talosctl etcd alarm disarm`"
	}
	return "its database is full, and it writes nothing: `talosctl -n IP etcd defrag` for one control plane after the other, then `talosctl etcd alarm disarm`; `quota-backend-bytes` in cluster.etcd.extraArgs has it take more"
}

// Alarmed returns why nothing may be begun that etcd has to be sound for, "" when it may: it has an alarm. What
// is not known counts as one.
func (e Etcd) Alarmed() string {
	switch {
	case e.unknown != "":
		return "the members of etcd are not known: " + e.unknown
	case !e.state.Known:
		return "whether etcd has an alarm is not known" + strings.TrimSuffix(": "+e.state.Why, ": ")
	}
	return e.Alarms()
}

// SortLeaderLast returns nodes in their order, but the one whose member leads etcd as the last control plane: each other leader
// is another election, in which nothing is written.
func SortLeaderLast(nodes []cluster.Node, o cluster.Observed) []cluster.Node {
	leader, last := -1, -1
	for i, n := range nodes {
		if n.Role == cluster.ControlPlane {
			last = i
		}
		if mem, ok := MemberOf(o, n); ok && mem.ID == o.Etcd.Value.Leader {
			leader = i
		}
	}
	if leader < 0 || leader >= last {
		return nodes
	}
	out := slices.Clone(nodes)
	copy(out[leader:last], nodes[leader+1:last+1])
	out[last] = nodes[leader]
	return out
}
