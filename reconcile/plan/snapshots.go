package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// Snapshots of etcd change nothing of a cluster, so that no switch, window or budget is about
// them, and a forecast has none. One that fails holds what must not begin without one, and
// nothing else.

// freshFor is how old a verified snapshot may be that something stands on that cannot be undone.
const freshFor = time.Hour

// readWithin is how long those may be read that were there when the agent started. It gives up after ten minutes.
const readWithin = 15 * time.Minute

// planSnapshot takes a snapshot of etcd when somebody has asked for it, or when a scheduled one is
// due, of a cluster that was Ready once. While no etcd runs there is nothing to take, which others report.
func (m *planner) planSnapshot() {
	s := m.o.Snapshots
	switch {
	case !s.Enabled || !s.Requested && !m.o.Facts.WasReady():
	case s.Verified.Why != "":
		m.wait(m.waitForStore())
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

// waitForStore waits until it can be seen which snapshots there are, and is known whether the newest
// is whole.
func (m *planner) waitForStore() cluster.Wait {
	if m.o.Snapshots.Verified.Why == "" {
		return cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.SnapshotsUnknown, Within: readWithin,
			Message: "waits until the newest snapshots of etcd are read to their end, which the agent does after each start"}
	}
	return cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.SnapshotsUnknown, Within: seeWithin,
		Message: "cannot see the snapshots of etcd" + text.Colon(m.o.Snapshots.Verified.Why), Hint: "see `snapshots` in config.yaml, and whether its directory can be read"}
}

// lackSnapshot returns what a kind of work waits for that must not begin without a verified snapshot
// of etcd younger than freshFor, and plans to take that; false: there is one, or this host takes none.
func (m *planner) lackSnapshot(kind retention.Kind) (cluster.Wait, bool) {
	s := m.o.Snapshots
	age := m.o.Now.Sub(s.Verified.Value) // of one from before the clock was set back it is negative
	switch {
	case !s.Enabled || s.Verified.Known && age >= 0 && age < freshFor:
		return cluster.Wait{}, false
	case !s.Verified.Known:
		return m.waitForStore(), true
	}
	m.do(action.TakeSnapshot{Cluster: m.d.Spec.Name, For: kind})
	newest := "there is none"
	if !s.Verified.Value.IsZero() {
		newest = "the newest is of " + text.Moment(s.Verified.Value)
	}
	return cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.WaitingForSnapshot, Within: time.Hour,
		Message: fmt.Sprintf("waits for a verified snapshot of etcd that is younger than %v; %s", text.Duration(freshFor), newest),
		Hint:    "see why none can be taken; to go on without: `snapshots: {disabled: true}` in config.yaml of the host"}, true
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
