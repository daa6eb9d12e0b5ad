package agent_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// untilRolledBack waits until a node is seen to run a version again, in service, and to stay there.
func (s *sim) untilRolledBack(name, version string) {
	s.T.Helper()
	s.Until(2*time.Hour, name+" rolled back", func(st cluster.Status) bool {
		i := slices.IndexFunc(st.Nodes, func(n cluster.NodeStatus) bool { return n.Name == name })
		stays := slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Subject == name && b.Reason == cluster.RolledBack })
		return i >= 0 && st.Nodes[i].Talos == version && st.Nodes[i].Phase == cluster.PhaseReady && stays && len(st.Running) == 0 && len(s.cordoned()) == 0
	})
}

// TestRollback: root has a worker, and then a control plane, boot the Talos of before, although the window is closed and the agent
// ends in the middle. They stay there until another commit, and no other node is upgraded meanwhile. What cannot go back is named.
func TestRollback(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 3, Workers: 2}, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		if err := s.Cluster().RollBack("dev-wk-1", "ann"); cluster.ReasonOf(err) != cluster.NothingToDo {
			t.Errorf("before any upgrade: %v", err)
		}
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		closed := closedFor(12 * time.Hour)
		push("a window", "talos_version: v1.13.9", "talos_version: v1.13.9\n"+closed)
		s.untilAppliedIn(time.Hour, "applied")
		w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1 dev-wk-2:1")
		if err := s.Cluster().RollBack("dev-wk-9", "ann"); !errors.Is(err, api.ErrUnknownNode) {
			t.Errorf("a node that there is not: %v", err)
		}
		must(s.Cluster().RollBack("dev-wk-1", "ann"))
		if err := s.Cluster().RollBack("dev-cp-2", "ann"); cluster.ReasonOf(err) != cluster.RolledBack {
			t.Errorf("two at once: %v", err)
		}
		s.Until(time.Hour, "drained", func(cluster.Status) bool { return len(s.cordoned()) > 0 })
		s.Halt()
		s.Boot()
		s.untilRolledBack("dev-wk-1", "v1.13.8")
		s.Quiet(time.Hour)
		w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:2 dev-wk-2:1")
		if err := s.Cluster().RollBack("dev-wk-1", "ann"); cluster.ReasonOf(err) != cluster.NothingToDo {
			t.Errorf("once more: %v", err)
		}
		must(s.Cluster().RollBack("dev-cp-2", "ann"))
		s.untilRolledBack("dev-cp-2", "v1.13.8")
		s.Quiet(time.Hour)
		push("the window is open", closed, "soak: 1m")
		s.untilAppliedIn(4*time.Hour, "upgraded again")
		s.wantTalos("v1.13.9")
		w.wantDown("dev-cp-1:1 dev-cp-2:3 dev-cp-3:1 dev-wk-1:3 dev-wk-2:1")
	})
}

// TestRollbackIsAskedOnce: where the answer to a rollback is lost the machine is not asked again, which could lead it forth; and where
// Talos refuses, the node is put back into service as it was.
func TestRollbackIsAskedOnce(t *testing.T) {
	t.Parallel()
	const call = "machine.MachineService/Rollback"
	sz := size{ControlPlanes: 1, Workers: 2}
	inClusterOf(t, sz, "v1.13.9", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		push("another talos", "talos_version: v1.13.9", "talos_version: v1.14.1")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		if err := s.Cluster().RollBack("dev-cp-1", "ann"); cluster.ReasonOf(err) != cluster.TalosVersionDrift {
			t.Errorf("over another etcd: %v", err)
		}
		s.Lab.World.Inject(world.Fault{System: "talos", Op: call, Nth: 1, Kind: world.Answer, Status: 2, Text: "previous UKI not found"})
		must(s.Cluster().RollBack("dev-wk-1", "ann"))
		s.Until(time.Hour, "refused", func(cluster.Status) bool { return s.Lab.World.Struck() == 1 })
		s.untilAppliedIn(time.Hour, "as it was")
		s.wantTalos("v1.14.1")
		for i, kind := range []world.FaultKind{world.LoseReply, world.LoseRequest} {
			name := sz.Name(1 + i)
			s.Lab.World.Inject(world.Fault{System: "talos", Op: call, Nth: 1, Kind: kind})
			must(s.Cluster().RollBack(name, "ann"))
			if kind == world.LoseReply {
				s.untilRolledBack(name, "v1.13.9")
				continue
			}
			before := w.count()[name]
			s.Until(2*time.Hour, "asked and rebooted", func(st cluster.Status) bool {
				return w.count()[name] == before+2 && len(s.cordoned()) == 0 && len(st.Running) == 0
			})
			notTaken := func(st cluster.Status) bool {
				return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Subject == name && b.Reason == cluster.RollbackNotTaken })
			}
			s.Until(time.Hour, "shown", notTaken)
			s.Quiet(time.Hour)
			if !notTaken(s.Status()) || w.count()[name] != before+2 {
				t.Errorf("%s was taken down %d times, and is %+v", name, w.count()[name]-before, s.Status().Blocked)
			}
		}
		sent := 0
		for _, c := range s.Lab.World.Calls() {
			if c.Op == call {
				sent++
			}
		}
		if sent > 3 {
			t.Errorf("machines were asked %d times", sent)
		}
	})
}

// TestOrdersAreWithdrawn: root withdraws an order before it is carried out, and what was as before it is so again; where there is none, or
// the machine was asked already, that is named.
func TestOrdersAreWithdrawn(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 1}, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		if err := s.Cluster().CancelUpgrade("ann"); cluster.ReasonOf(err) != cluster.NothingToDo {
			t.Errorf("no order about an upgrade: %v", err)
		}
		if err := s.Cluster().CancelRollback("dev-wk-9", "ann"); !errors.Is(err, api.ErrUnknownNode) {
			t.Errorf("a node that there is not: %v", err)
		}
		closed := closedFor(12 * time.Hour)
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9\n"+closed)
		waits := func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool { return w.Reason == cluster.WaitingForWindow })
		}
		s.Until(time.Hour, "waits for its window", waits)
		must(s.Cluster().Upgrade(cluster.UpgradeOrder{Now: true, By: "ann"}))
		must(s.Cluster().CancelUpgrade("bob"))
		s.Quiet(time.Hour)
		if st := s.Status(); !waits(st) || !st.Upgrade.Order.IsZero() {
			t.Errorf("the order holds: %+v", st.Upgrade)
		}
		w.wantDown("")
		push("the window is open", closed, "")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		w.wantDown("dev-cp-1:1 dev-wk-1:1")
		if err := s.Cluster().CancelRollback("dev-wk-1", "ann"); cluster.ReasonOf(err) != cluster.NothingToDo {
			t.Errorf("no order to go back: %v", err)
		}
		must(s.Cluster().RollBack("dev-wk-1", "ann"))
		s.Until(time.Hour, "drained", func(cluster.Status) bool { return len(s.cordoned()) > 0 })
		if err := s.Cluster().CancelRollback("dev-cp-1", "ann"); cluster.ReasonOf(err) != cluster.NothingToDo {
			t.Errorf("another node: %v", err)
		}
		must(s.Cluster().CancelRollback("dev-wk-1", "bob"))
		s.untilAppliedIn(time.Hour, "as it was")
		s.Quiet(time.Hour)
		s.wantTalos("v1.13.9")
		w.wantDown("dev-cp-1:1 dev-wk-1:1")
		must(s.Cluster().RollBack("dev-wk-1", "ann"))
		s.Until(time.Hour, "asked", func(cluster.Status) bool { return w.count()["dev-wk-1"] == 2 })
		if err := s.Cluster().CancelRollback("dev-wk-1", "ann"); cluster.ReasonOf(err) != cluster.RolledBack {
			t.Errorf("it was asked already: %v", err)
		}
		s.untilRolledBack("dev-wk-1", "v1.13.8")
	})
}

// TestRollbackInTheHistory: a rollback that is ordered while an upgrade goes on ends that run, and is the cause of the next one.
func TestRollbackInTheHistory(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 1}, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), _ *turns) {
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9\nsoak: 20m")
		s.Until(2*time.Hour, "the control plane upgraded", func(st cluster.Status) bool {
			return st.Nodes[0].Talos == "v1.13.9" && st.Nodes[0].Phase == cluster.PhaseReady && len(st.Running) == 0
		})
		must(s.Cluster().RollBack("dev-cp-1", "ann"))
		s.untilRolledBack("dev-cp-1", "v1.13.8")
		runs, err := s.Agent.History("dev")
		must(err)
		i := slices.IndexFunc(runs, func(r cluster.Run) bool { return strings.HasPrefix(r.Cause, "root ordered that dev-cp-1 goes back") })
		if i < 0 || i+1 == len(runs) || runs[i+1].Result != cluster.Superseded || !slices.ContainsFunc(runs[i+1].Actions, func(o cluster.Outcome) bool {
			return o.Action == cluster.UpgradeTalos || o.Action == cluster.InstallTalos
		}) {
			t.Errorf("no run was begun by the rollback, or none was ended by it: %+v", runs)
		}
	})
}
