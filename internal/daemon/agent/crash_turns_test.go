package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// healedWith has somebody give a worker of a Ready cluster, and then its control plane, less memory,
// with one crash on the way if there is a point for it, and returns how often the agent died.
func healedWith(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	s.Boot()
	s.UntilReady(20 * time.Minute)
	w := s.watchTurns(sz)
	pointsOf := s.armAt(p)
	edited := []string{"dev-wk-1", "dev-cp-1"}
	for _, name := range edited {
		vmid := s.vmidOf(name)
		must(s.Lab.PVE.Edit(vmid, "memory", "4096"))
		s.Until(3*time.Hour, name+" has its memory again", func(st cluster.Status) bool {
			vm, _ := s.Lab.PVE.VM(vmid)
			return vm.Config["memory"] == "8192" && len(vm.Pending) == 0 && st.Condition == cluster.Ready && len(s.cordoned()) == 0
		})
	}
	points = pointsOf()
	if t.Failed() {
		return points, s.Deaths
	}
	for _, name := range edited {
		if n := s.timesOff(name); n != 1 {
			t.Errorf("%s was switched off %d times", name, n)
		}
	}
	if n := len(w.count()); n != len(edited) {
		t.Errorf("went down: %v", w.count())
	}
	s.Quiet(10 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return points, s.Deaths
}

// TestCrashDuringAHealingTurn kills the agent at one instant in eight, with -all-crashes at every one,
// while it heals the memory of a worker and of the control plane: another one ends it, and each goes
// down once.
func TestCrashDuringAHealingTurn(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 1, Workers: 2}, 8, healedWith)
}

// heldWith gives a worker of a Ready cluster more cores, on which there is a pod that its disruption
// budget holds for two minutes, with one crash on the way if there is a point for it, and returns how
// often the agent died.
func heldWith(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	w := newWishes(sz)
	w.budget = tightest
	s.Push(w.files(sz), "a pod that stays")
	s.Boot()
	s.UntilReady(20 * time.Minute)
	turns, held := s.watchTurns(sz), s.nodeOf("stuck")
	before := len(s.Lab.World.Calls())
	pointsOf := s.armAt(p)
	files := w.files(sz)
	resize := func() {
		ip := fmt.Sprintf("10.10.0.4%s, cpu: ", strings.TrimPrefix(held, "dev-wk-"))
		changed(t, files, "inventory/dev/nodes.yaml", ip+"4", ip+"6")
	}
	resize()
	s.Push(files, "more cores")
	var since time.Time
	s.Until(time.Hour, "held", func(cluster.Status) bool {
		if since.IsZero() && slices.Contains(s.cordoned(), held) {
			since = time.Now()
		}
		return !since.IsZero() && time.Since(since) > 2*time.Minute
	})
	if s.nodeOf("stuck") != held || len(turns.count()) > 0 {
		t.Errorf("the pod was on %s and is on %s, and went down: %v", held, s.nodeOf("stuck"), turns.count())
	}
	w.budget = roomy
	files = w.files(sz)
	resize()
	s.Push(files, "it may go")
	s.UntilReady(3 * time.Hour)
	points = pointsOf()
	if t.Failed() {
		return points, s.Deaths
	}
	vm, _ := s.Lab.PVE.VM(s.vmidOf(held))
	if n := s.timesOff(held); n != 1 || vm.Config["cores"] != "6" || len(vm.Pending) > 0 || len(s.cordoned()) > 0 {
		t.Errorf("switched off %d times, %s cores, pending %v, cordoned %v", n, vm.Config["cores"], vm.Pending, s.cordoned())
	}
	if n := turns.count(); len(n) != 1 {
		t.Errorf("went down: %v", n)
	}
	for _, c := range s.Lab.World.Calls()[before:] {
		if c.Op == "DELETE /api/v1/namespaces/{namespace}/pods/{name}" {
			t.Errorf("pod %s was deleted, and not evicted", c.Subject)
		}
	}
	s.Quiet(10 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return points, s.Deaths
}

// TestCrashDuringADrainThatIsHeld kills the agent at one instant in eight, with -all-crashes at every
// one, while a disruption budget holds a drain, and when it lets go: another one ends the turn, with no
// pod deleted and the node down once.
func TestCrashDuringADrainThatIsHeld(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 1, Workers: 2}, 8, heldWith)
}
