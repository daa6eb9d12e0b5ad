package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestDeadNodesAreReplaced has machines hang: a worker and a control plane, the founder,
// get new machines, the second not before an hour has gone by; and when half of the
// cluster hangs, nothing is deleted.
func TestDeadNodesAreReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 3}
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\nreplace_dead: {worker: 15m, controlplane: 30m}\n")
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "replace what is dead")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		first := s.generations()
		time.Sleep(2 * time.Hour)

		died := time.Now()
		must(s.Lab.Talos.Kill(s.vmidOf("dev-wk-2")))
		s.Until(10*time.Minute, "named", func(st cluster.Status) bool { return waitsFor(st, "dev-wk-2", ", and gets a new machine at ") })
		if s.generations()["dev-wk-2"] != first["dev-wk-2"] {
			t.Fatal("replaced at once")
		}
		s.UntilReady(time.Hour)
		if since := time.Since(died); since < 15*time.Minute || s.generations()["dev-wk-2"] == first["dev-wk-2"] {
			t.Errorf("after %s its machine is %s, and was %s", since, s.generations()["dev-wk-2"], first["dev-wk-2"])
		}

		again := time.Now()
		must(s.Lab.Talos.Kill(s.vmidOf("dev-cp-1")))
		s.Until(50*time.Minute, "held for an hour", func(st cluster.Status) bool {
			return waitsFor(st, "dev-cp-1", "would get a new machine: the last node came at ")
		})
		s.UntilReady(2 * time.Hour)
		if since := time.Since(again); since < 45*time.Minute || s.generations()["dev-cp-1"] == first["dev-cp-1"] || len(s.members()) != 3 {
			t.Errorf("after %s its machine is %s, and was %s; members %v", since, s.generations()["dev-cp-1"], first["dev-cp-1"], s.members())
		}
		s.CheckRules(sz)

		time.Sleep(2 * time.Hour)
		now := s.generations()
		for _, name := range []string{"dev-wk-1", "dev-wk-3", "dev-cp-2"} {
			must(s.Lab.Talos.Kill(s.vmidOf(name)))
		}
		s.Until(2*time.Hour, "spared", func(st cluster.Status) bool {
			return waitsFor(st, "dev-wk-1", "3 of 6 nodes are not Ready, so that it may not be the node")
		})
		time.Sleep(3 * time.Hour)
		for name, id := range s.generations() {
			if now[name] != id {
				t.Errorf("%s was replaced while half of the cluster was dead", name)
			}
		}
		s.Halt()
	})
}

// waitsFor reports whether a node waits with such words.
func waitsFor(st cluster.Status, node, words string) bool {
	for _, w := range st.Waiting {
		if w.Subject == node && strings.Contains(w.Message, words) {
			return true
		}
	}
	return false
}

// TestPausedIsNotDead: a VM that stands still, as when its storage is full, is named as
// such, which no list of Proxmox VE shows, and is not replaced however long it lasts.
func TestPausedIsNotDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 3}
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\nreplace_dead: {worker: 15m}\n")
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "replace what is dead")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		time.Sleep(2 * time.Hour)
		vmid := s.vmidOf("dev-wk-1")
		before, _ := s.Lab.PVE.VM(vmid)
		must(s.Lab.PVE.Pause(vmid, true))
		s.Until(time.Minute, "named", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.VMPaused
		})
		time.Sleep(3 * time.Hour)
		if after, ok := s.Lab.PVE.VM(vmid); !ok || after.Config["vmgenid"] != before.Config["vmgenid"] {
			t.Error("it was replaced")
		}
		must(s.Lab.PVE.Pause(vmid, false))
		s.UntilReady(20 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestPausedBySomebodyGoesOn: a VM that somebody paused is resumed, with who it was in the log;
// where healing is off it is left, and reported.
func TestPausedBySomebodyGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		for _, name := range []string{"dev-wk-1", "dev-cp-2"} {
			time.Sleep(2 * time.Minute) // it is seen as it is then
			must(s.Lab.PVE.Suspend(s.vmidOf(name)))
			s.Until(5*time.Minute, name+" is seen to be paused", func(st cluster.Status) bool { return st.Condition != cluster.Ready })
			s.UntilReady(20 * time.Minute)
			var started []string
			for _, p := range s.Status().Passes {
				started = append(started, p.Started...)
			}
			want := fmt.Sprintf("resume vm %d (%s) (qmpause by root@pam at ", s.vmidOf(name), name)
			if !strings.Contains(fmt.Sprint(started), want) {
				t.Errorf("%s is not shown: %q", want, started)
			}
		}
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "heal: observe\ncni: cilium")
		s.Push(files, "observe")
		s.untilApplied("observe")
		s.UntilReady(20 * time.Minute)
		must(s.Lab.PVE.Suspend(s.vmidOf("dev-wk-1")))
		s.Until(5*time.Minute, "left as it is", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool {
				return b.Subject == "dev-wk-1" && b.Reason == cluster.HealingOff && strings.Contains(b.Message, "resume vm")
			})
		})
		s.Push(sz.Files(), "heal")
		s.UntilReady(20 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// hungWith has a worker hang, and then a control plane, with a setting of the cluster, and does
// something until each has another machine, with one crash on the way if there is a point for it.
// It returns how often the agent died.
func hungWith(t *testing.T, sz size, c lab.Config, p *crashPoint, setting string, do func(s *sim, g *guard, node string)) (points []crashPoint, deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\n"+setting)
	s.Push(files, "what becomes of nodes that hang")
	s.Boot()
	s.UntilReady(20 * time.Minute)
	g, w := newGuard(s, sz), newWishes(sz)
	w.replaceDead = strings.Contains(setting, "replace_dead")
	g.orderNext(w.order(sz))
	g.named(s.Head())
	g.noteReady(s.Head())
	g.look()
	s.Lab.World.OnCall(func(c world.CallRecord) { s.Witness(c); s.judgeRemoval(c); g.lookAgain(); g.watch(c) })
	first, vmids := s.generations(), map[string]int{"dev-wk-1": s.vmidOf("dev-wk-1"), "dev-cp-1": s.vmidOf("dev-cp-1")}
	pointsOf := s.armAt(p)
	for _, name := range []string{"dev-wk-1", "dev-cp-1"} {
		g.touch(name)
		must(s.Lab.Talos.Kill(vmids[name]))
		s.untilReplaced(name, first[name], func() { do(s, g, name) })
		s.UntilReady(time.Hour)
	}
	points = pointsOf()
	return points, s.endReplaced(sz, first, "dev-wk-1", "dev-cp-1")
}

// untilReplaced waits, for hours, until a node has another machine than that, and does something
// every ten seconds, starting the agent again when it died.
func (s *sim) untilReplaced(node, machine string, do func()) {
	s.T.Helper()
	for began := time.Now(); time.Since(began) < 3*time.Hour; time.Sleep(10 * time.Second) {
		s.Until(time.Second, "alive", func(cluster.Status) bool { return !s.IsDead() })
		if now := s.generations()[node]; now != "" && now != machine {
			return
		}
		do()
	}
	s.T.Errorf("%s has no other machine after hours\n%s", node, s.Story(30))
}

// endReplaced ends a life in which some nodes, and no others, got new machines, and returns how
// often the agent died.
func (s *sim) endReplaced(sz size, first map[string]string, nodes ...string) (deaths int) {
	s.T.Helper()
	if s.T.Failed() {
		return s.Deaths
	}
	for name, now := range s.generations() {
		if replaced := now != first[name]; replaced != slices.Contains(nodes, name) {
			s.T.Errorf("%s is replaced: %v", name, replaced)
		}
	}
	if got := s.members(); len(got) != sz.ControlPlanes || len(s.nodeObjects()) != sz.ControlPlanes+sz.Workers || len(s.cordoned()) > 0 {
		s.T.Errorf("members of etcd %s, nodes %s, cordoned %s", got, s.nodeObjects(), s.cordoned())
	}
	s.Quiet(10 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return s.Deaths
}

// TestCrashDuringADeadReplacement kills the agent at one instant in thirty, with -all-crashes at
// every one, while a worker and a control plane that are dead get new machines: another one ends it.
func TestCrashDuringADeadReplacement(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 3, Workers: 2}, 30, func(t *testing.T, sz size, c lab.Config, p *crashPoint) ([]crashPoint, int) {
		return hungWith(t, sz, c, p, "replace_dead: {worker: 10m, controlplane: 10m}\n", func(*sim, *guard, string) {})
	})
}
