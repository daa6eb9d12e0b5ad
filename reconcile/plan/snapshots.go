package plan

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// Snapshots of etcd change nothing of a cluster, so that no switch, window or budget is about
// them, and a forecast has none. One that fails holds what must not begin without one, and
// nothing else.

// planSnapshot takes a snapshot of etcd when somebody has asked for it, or when a scheduled one is
// due, of a cluster that was Ready once. While no etcd runs there is nothing to take, which others report.
func (m *planner) planSnapshot() {
	s := m.o.Snapshots
	switch {
	case !s.Enabled || !s.Requested && !m.o.Facts.WasReady():
	case s.Verified.Why != "":
		m.wait(retention.AwaitStore(m.d.Spec.Name, s))
	case s.Requested && m.runsEtcd():
		m.do(action.TakeSnapshot{Cluster: m.d.Spec.Name, For: retention.Manual})
	case m.o.Facts.WasReady() && !s.Due.After(m.o.Now) && m.runsEtcd():
		m.do(action.TakeSnapshot{Cluster: m.d.Spec.Name, For: retention.Scheduled})
	}
}

// runsEtcd reports whether a member of etcd can be asked for a snapshot. It needs no quorum.
func (m *planner) runsEtcd() bool {
	return slices.ContainsFunc(m.d.Spec.ControlPlanes(), func(n cluster.Node) bool {
		mach := m.o.Machines[n.Name]
		return mach.Reach == cluster.Configured && mach.Services["etcd"].State == "Running"
	})
}

// lackSnapshot returns what a kind of work waits for that must not begin without a fresh snapshot
// of etcd, and plans to take that; false: there is one, or this host takes none.
func (m *planner) lackSnapshot(kind retention.Kind) (cluster.Wait, bool) {
	w, take := retention.FindLack(m.d.Spec.Name, m.o.Snapshots, m.o.Now)
	if take {
		m.do(action.TakeSnapshot{Cluster: m.d.Spec.Name, For: kind})
	}
	if w == nil {
		return cluster.Wait{}, false
	}
	return *w, true
}

// holdForSnapshot waits with the removal of a control plane until there is a snapshot of what
// etcd has, and reports whether it does. It comes before the drain, so that nothing is out of
// service when none can be taken.
//
// One whose member does not work is not waited with: it is removed to repair etcd, which must not
// depend on a disk of this host, and what it had the others have. Nor is one waited with that an
// administrator has declared lost.
func (m *planner) holdForSnapshot(n cluster.Node, verb string) bool {
	if m.forgets(n.Name) || !slices.Contains(m.etcd.Healthy, n.Name) {
		return false
	}
	w, lacks := m.lackSnapshot(retention.BeforeRemoval)
	if lacks {
		w.Subject, w.About, w.Message = n.Name, "removal", "is "+verb+": "+w.Message
		m.wait(w)
	}
	return lacks
}
