package plan

import (
	"cmp"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/budget"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// mayDisrupt reports whether an action that disrupts a node may run now, and
// waits if not. It is asked in one place for every action, whoever plans it.
func (m *planner) mayDisrupt(i action.Info) bool {
	n, stays := m.nodeNamed(i.Node)
	if !stays {
		n = m.removedNode(i.Node)
	}
	b := m.budgets[n.Role]
	if !stays {
		// Those that are not Ready were waited for, but for those that this one makes room for.
		b.Unavailable = slices.DeleteFunc(slices.Clone(b.Unavailable), func(name string) bool { return !m.isInTurn(name) })
	}
	b = m.withoutLaterTurns(b, n.Name)
	if is, _ := m.upgrades(n, i.Fields); is {
		b.Unavailable = slices.DeleteFunc(slices.Clone(b.Unavailable), func(name string) bool { return name != n.Name && m.isPassed(name) })
	}
	if i.Kind == cluster.ChangeConfig && n.Role == cluster.ControlPlane && drift.LosesEndpoint(m.d, m.o, n) {
		b.Unavailable = slices.DeleteFunc(slices.Clone(b.Unavailable), m.waitsForEndpoint)
	}
	if !b.Allows(n.Name) && !m.isDown(i, n) && !m.isRepaired(i, n) {
		w := cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForBudget, About: string(i.Kind), Drift: m.driftOf(n, i),
			Message: string(i.Kind) + ": " + b.Describe()}
		if n.Role == cluster.Worker {
			w.Hint = m.fewer
		}
		w.Hint = cmp.Or(readiness.HintOfStop(m.o, n, i.Kind), w.Hint)
		if m.o.Nodes.Value[n.Name].Turn != "" { // it is out of service meanwhile
			w.Within, w.Hint = joinWithin, "it is drained, and goes on when those are back: `talos-agent status "+m.d.Spec.Name+"` shows what they lack"
		}
		m.wait(w)
		return false
	}
	if why := m.quorumLoss(i, n, stays); why != "" {
		m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForQuorum, About: string(i.Kind), Message: string(i.Kind) + ": waits for etcd: " + why, Within: etcdWithin, Hint: cmp.Or(readiness.HintOfStop(m.o, n, i.Kind), m.etcd.WayOut(m.d.Spec.Name)), Drift: m.driftOf(n, i)})
		return false
	}
	m.budgets[n.Role] = m.budgets[n.Role].Spent(n.Name)
	m.etcd = m.etcd.Down(n.Name)
	return true
}

// removedNode is a node that the inventory does not have. One of which nothing is known counts as a control plane: etcd decides.
func (m *planner) removedNode(name string) cluster.Node {
	for _, n := range m.removed {
		if n.Name == name {
			return n
		}
	}
	return cluster.Node{Name: name, Role: cluster.ControlPlane}
}

// withoutLaterTurns is the budget of a node that is out of service for its turn: those of the others that only wait to go on with
// theirs, behind it, do not count. More may be drained than are allowed by now, and each would wait for the others.
func (m *planner) withoutLaterTurns(b budget.Budget, node string) budget.Budget {
	i := slices.Index(b.Unavailable, node)
	if i < 0 || !m.waitsInTurn(node) {
		return b
	}
	later := slices.DeleteFunc(slices.Clone(b.Unavailable[i+1:]), m.waitsInTurn)
	b.Unavailable = append(slices.Clone(b.Unavailable[:i+1]), later...)
	return b
}

// waitsInTurn reports whether a node is out of service for its turn, or for its removal, works, and nothing is done to it.
func (m *planner) waitsInTurn(name string) bool {
	kn := m.o.Nodes.Value[name]
	if _, stays := m.nodeNamed(name); stays && m.plan.Phases[name] != cluster.PhaseReady {
		return false
	}
	return kn.Turn != "" && kn.Cordoned && kn.Ready && kn.Pressure == "" && !budget.IsDisrupted(m.o, cluster.Node{Name: name})
}

// quorumLoss returns why etcd forbids an action that disrupts a node, "" when it does not.
func (m *planner) quorumLoss(i action.Info, n cluster.Node, stays bool) string {
	switch {
	case i.Kind == cluster.RemoveMember:
		return m.etcd.WithoutMember(n.Name, i.Member)
	case n.Role != cluster.ControlPlane, stays && m.isOnlyMember(n.Name):
		return ""
	case m.hasNoQuorum() && slices.Contains([]cluster.ActionKind{cluster.ChangeConfig, cluster.RebootNode, cluster.ShutDownVM}, i.Kind):
		return "" // there is none to lose
	case i.Kind == cluster.ChangeConfig && m.hasNoVote(n) && m.isRepaired(i, n), i.Kind == cluster.ChangeVM && m.isIsolated(n), i.Kind == cluster.ChangeConfig && m.isOfPair(n):
		return ""
	case i.Kind == cluster.DrainNode && (!stays || m.isDead(n.Name) || drift.IsReplaced(n, m.o.VMs[n.Name], m.o.Facts)):
		return "" // its etcd goes on; its member is removed by a step of its own
	}
	return m.etcd.Without(n.Name)
}

// isInTurn reports whether a node is out of service by the agent, or will be by this plan.
func (m *planner) isInTurn(name string) bool {
	return m.o.Nodes.Value[name].Turn != "" || budget.IsDisrupted(m.o, cluster.Node{Name: name}) ||
		slices.ContainsFunc(m.plan.Actions, func(a action.Action) bool { return a.Info().Node == name && a.Info().Disrupts })
}

// isOnlyMember reports whether a node is the only control plane and the only member of
// etcd, and healthy. Nothing keeps its etcd up while it restarts, and its data stays.
func (m *planner) isOnlyMember(node string) bool {
	return len(m.d.Spec.ControlPlanes()) == 1 && m.etcd.IsOnly(node)
}

// waitsForEndpoint reports whether a control plane works only when the others have another endpoint:
// it has no machine and cannot get one before, or has one that finds no etcd, or is lost and goes first.
func (m *planner) waitsForEndpoint(name string) bool {
	n, stays := m.nodeNamed(name)
	switch _, taken := m.carries(n); {
	case !stays:
		return !slices.Contains(m.etcd.Healthy, name)
	case n.Role != cluster.ControlPlane:
		return false
	case taken, drift.FindsNoEtcd(m.o, n), drift.IsReplaced(n, m.o.VMs[name], m.o.Facts) && m.isLostPlane(n):
		return true
	}
	return m.plan.Phases[name] == cluster.PhaseAbsent && (len(m.crowded) > 0 || len(m.lacks[name]) > 0 || readiness.OwnEndpoint(m.d, n).Reason != "")
}

// isDown reports whether nothing of a node works that an action could take out of service, so that it spends
// nothing, however many others do not work either: it is dead, its member of etcd goes without a machine that
// works, or it is to be replaced, and neither its machine nor its kubelet answers.
func (m *planner) isDown(i action.Info, n cluster.Node) bool {
	if i.Kind == cluster.RemoveMember && !slices.Contains(m.etcd.Healthy, n.Name) || m.isDead(n.Name) || m.forgets(n.Name) {
		return true
	}
	kn := m.o.Nodes.Value[n.Name]
	return i.Kind == cluster.DrainNode && drift.IsReplaced(n, m.o.VMs[n.Name], m.o.Facts) && m.plan.Phases[n.Name] == cluster.PhaseUnreachable && m.o.Nodes.Known && !kn.Ready && m.isLongerThanBoot(kn.NotReadySince)
}
