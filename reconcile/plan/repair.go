package plan

import (
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// What keeps a cluster or a node from working may be the config that it runs, and then the
// next one may be what it needs. Here is where that gets more than one that works would, and
// nothing here goes by what is not known, or was so for a moment only.

// repairAfter is how long what does not work has not, before its config is taken to be why.
const repairAfter = 10 * time.Minute

// outage is since when no kube-apiserver of the cluster answers: every control plane is reached,
// and is not ready. ok is false while that is not so, or not known. A cluster that never was
// Ready may have control planes that are not there yet.
func (m *planner) outage() (since time.Time, ok bool) {
	if m.o.Nodes.Known {
		return time.Time{}, false
	}
	for _, cp := range m.d.Spec.ControlPlanes() {
		switch mach := m.o.Machines[cp.Name]; {
		case mach.Reach != cluster.Configured && !m.o.Facts.WasReady():
		case mach.Reach != cluster.Configured, mach.Ready, mach.Since.IsZero():
			return time.Time{}, false
		default:
			if ok = true; mach.Since.After(since) {
				since = mach.Since
			}
		}
	}
	return since, ok
}

// lacksAPI reports whether no kube-apiserver of the cluster answers, and not only while one
// restarts.
func (m *planner) lacksAPI() bool {
	since, ok := m.outage()
	return ok && m.o.Now.Sub(since) >= silentWithin
}

// provesNothing reports whether a worker had its config first since then, no kube-apiserver
// answered so that it could be seen to do well with it, and a control plane may be next.
func (m *planner) provesNothing(first cluster.Node, at time.Time) bool {
	since, _ := m.outage()
	if first.Role != cluster.Worker || !m.lacksAPI() || !since.Before(at.Add(action.WatchedFor)) {
		return false
	}
	next, _ := m.nodeNamed(m.chooseCanary(true))
	return next.Role == cluster.ControlPlane
}

// isHopeless reports whether a control plane had its config first since then, while no
// kube-apiserver answered, and none does for long afterwards: it may need what the others are to
// get, such as a quorum, and there is no service to lose.
func (m *planner) isHopeless(first cluster.Node, at time.Time) bool {
	since, _ := m.outage()
	return first.Role == cluster.ControlPlane && m.lacksAPI() && since.Before(at) && m.o.Now.Sub(at) >= repairAfter && !m.isRunning(cluster.ChangeConfig, first.Name)
}

// isBroken reports whether a machine answers, and its node has not been Ready for long. Without a
// kube-apiserver that is known of a control plane only.
func (m *planner) isBroken(n cluster.Node) bool {
	if m.plan.Phases[n.Name] != cluster.PhaseJoining {
		return false
	}
	if !m.o.Nodes.Known {
		since, ok := m.outage()
		return ok && n.Role == cluster.ControlPlane && m.isLong(since)
	}
	mach, kn := m.o.Machines[n.Name], m.o.Nodes.Value[n.Name]
	return m.isLong(mach.Since) && !mach.Ready || m.isLong(kn.NotReadySince) && !kn.Ready
}

// isRepairable reports whether a node that has not been Ready for long may have its turn all the
// same, for another config, for the Talos from before, or because nothing else starts its etcd.
func (m *planner) isRepairable(n cluster.Node, drifts []drift.Drift) bool {
	return m.plan.Phases[n.Name] != cluster.PhaseReady && upgrade.IsRollback(drifts) || m.isBroken(n) && slices.ContainsFunc(drifts, func(dr drift.Drift) bool {
		return dr.Reason == cluster.ConfigDrift || dr.Field == drift.FieldEtcd || m.isBack(dr)
	})
}

// leftEtcd is that the etcd of a control plane is stopped, once a person has had the time to restart its
// machine: nothing else starts it again. It has no vote that could be lost.
func (m *planner) leftEtcd(n cluster.Node) []drift.Drift {
	if mach := m.o.Machines[n.Name]; mach.Ready || !m.isLong(mach.Since) {
		return nil
	}
	return drift.OfEtcd(m.o, n)
}

// isIsolated reports whether the network that a VM is on is what its node needs corrected, because it
// is seen not to work: its machine has not answered for longer than a boot takes, Kubernetes has
// called it NotReady for as long, and etcd has its quorum without it. While no control plane is
// seen to work, a change that somebody else has made may be why, and is taken back on one of them.
func (m *planner) isIsolated(n cluster.Node) bool {
	mach, kn := m.o.Machines[n.Name], m.o.Nodes.Value[n.Name]
	switch {
	case mach.Reach != cluster.Silent, !m.isLongerThanBoot(mach.Since):
		return false
	case !m.o.Nodes.Known:
		return n.Role == cluster.ControlPlane && (m.isMovedByOthers(n) || !m.o.Facts.WasReady()) && m.mayMoveBlindly(n)
	}
	return !kn.Ready && (kn.Name == "" || m.isLongerThanBoot(kn.NotReadySince)) && (n.Role != cluster.ControlPlane || m.etcd.Spares(n.Name))
}

// isMovedByOthers reports whether somebody else has brought a VM to another network.
func (m *planner) isMovedByOthers(n cluster.Node) bool {
	return slices.ContainsFunc(drift.OfNodeVM(m.d, m.o, n, m.o.VMs[n.Name]), func(dr drift.Drift) bool {
		return dr.IsNetwork() && drift.OriginOf(m.d, m.o, n, dr.Field).Edited
	})
}

// mayMoveBlindly reports whether no control plane is seen to work, and has not been for longer than
// a boot takes, and the one that was moved last answers, or has had its time: where it does not, it
// may be the agent that is isolated.
func (m *planner) mayMoveBlindly(n cluster.Node) bool {
	in, ok := m.o.Facts.Intent(cluster.IntendWatch)
	last := m.o.Machines[in.Node].Reach
	if ok && in.Node != n.Name && last != cluster.Configured && last != cluster.Maintenance && m.o.Now.Sub(in.At) < repairAfter {
		return false
	}
	return all(m.d.Spec.ControlPlanes(), func(cp cluster.Node) bool {
		mach := m.o.Machines[cp.Name]
		return mach.Reach != cluster.ReachUnknown && !mach.Ready && m.isLongerThanBoot(mach.Since)
	})
}

func (m *planner) isLongerThanBoot(since time.Time) bool {
	return !since.IsZero() && m.o.Now.Sub(since) >= readiness.BootWithin
}

// isLong reports whether something is so for long enough to be taken for what stays so.
func (m *planner) isLong(since time.Time) bool {
	return !since.IsZero() && m.o.Now.Sub(since) >= repairAfter
}

// isDrainable reports whether a node that is not Ready is drained before its machine goes down.
// Without a kube-apiserver it cannot be. One that has not joined has no pods; neither has one
// that Kubernetes has called not Ready for long, and whose kubelet has not reported since it booted.
func (m *planner) isDrainable(n cluster.Node) bool {
	kn, boot := m.o.Nodes.Value[n.Name], m.o.Machines[n.Name].BootID
	idle := kn.BootID != "" && kn.BootID != boot && !kn.Ready && m.isLong(kn.NotReadySince)
	return m.o.Nodes.Known && kn.Name != "" && !idle
}

// isRepaired reports whether an action gives a node that does not work another config, its etcd or its
// network back. It spends nothing of the budget, however many others do not work either, as long as
// they get theirs one at a time, and each has had its time to come up.
func (m *planner) isRepaired(i action.Info, n cluster.Node) bool {
	repairs := false
	switch i.Kind {
	case cluster.ChangeVM:
		repairs = m.isIsolated(n) || m.isBroken(n)
	case cluster.ChangeConfig:
		repairs = m.plan.Phases[n.Name] == cluster.PhaseJoining
	case cluster.DrainNode, cluster.RebootNode, cluster.ShutDownVM:
		repairs = m.isRepairable(n, m.turnOf(n))
	}
	return repairs && !slices.ContainsFunc(slices.Concat(m.d.Spec.Nodes, m.removed), func(other cluster.Node) bool {
		r, restarted := m.o.Facts.Restarts[other.Name]
		comesUp := restarted && r.Revision == drift.Attempt(m.d, m.o.Facts) && m.plan.Phases[other.Name] != cluster.PhaseReady && m.o.Now.Sub(r.At) < repairAfter
		return other.Role == n.Role && other.Name != n.Name && (m.isInTurn(other.Name) || comesUp)
	})
}

// hasNoVote reports whether etcd does not work on a node while no kube-apiserver answers, without
// which there is no quorum.
func (m *planner) hasNoVote(n cluster.Node) bool {
	return !m.o.Machines[n.Name].Services["etcd"].Healthy && m.lacksAPI()
}

// hasNoQuorum reports whether etcd works on no control plane of a cluster that never was Ready, and
// has not for long: there is no quorum that one could lose.
func (m *planner) hasNoQuorum() bool {
	since, ok := m.outage()
	return ok && !m.o.Facts.WasReady() && m.isLong(since) &&
		all(m.d.Spec.ControlPlanes(), func(cp cluster.Node) bool { return !m.o.Machines[cp.Name].Services["etcd"].Healthy })
}
