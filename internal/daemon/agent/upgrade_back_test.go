package agent_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestBothTakenBack: a revert of a push of both leads back, Kubernetes first and over no other etcd, in the middle of the
// hop of Kubernetes and after all of it, also where Talos installs on its way down.
func TestBothTakenBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from, to string // versions of Kubernetes
		middle   bool
	}{
		"in the middle": {from: "v1.34.3", to: "v1.35.3", middle: true},
		"after it":      {from: "v1.34.3", to: "v1.35.3"},
		"after it, to what only the older Talos runs": {from: "v1.30.14", to: "v1.31.14"},
	} {
		t.Run(name, func(t *testing.T) {
			inClusterOf(t, size{ControlPlanes: 1, Workers: 2}, "v1.12.11", c.from, func(s *sim, push func(what, from, to string), w *turns) {
				old, other := "talos_version: v1.12.11\nkubernetes_version: "+c.from, "talos_version: v1.13.9\nkubernetes_version: "+c.to
				push("both", old, other)
				if c.middle {
					s.Until(4*time.Hour, "one worker has the other kubernetes", func(cluster.Status) bool {
						return s.node("dev-wk-1").Kubernetes == c.to && s.node("dev-wk-2").Kubernetes == c.from
					})
				} else {
					s.untilAppliedIn(4*time.Hour, "upgraded")
				}
				s.wantTalosOf("v1.13.9")
				s.goesBack()
				push("and back", other, old)
				s.Until(time.Hour, "shown", func(st cluster.Status) bool { return st.Upgrade != nil && st.Upgrade.Back })
				s.untilAppliedIn(12*time.Hour, "back")
				s.wantTalos("v1.12.11")
				s.wantKubernetes(c.from)
				w.wantDown("dev-cp-1:2 dev-wk-1:2 dev-wk-2:2")
				s.CheckRules(size{ControlPlanes: 1, Workers: 2})
			})
		})
	}
}

// goesBack notes that what is pushed next are the versions of before.
func (s *sim) goesBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = true
}

// wantTalosOf checks that every machine runs a version, in service or not.
func (s *sim) wantTalosOf(version string) {
	s.T.Helper()
	for _, n := range s.Status().Nodes {
		if n.Talos != version {
			s.T.Errorf("%s runs %s, and %s is wanted", n.Name, n.Talos, version)
		}
	}
}

// TestTakenBackBeforeItsBoot: what was installed on a node that is held in its drain is not booted when it is taken back, nor by
// somebody who boots the node: what it runs is installed over it.
func TestTakenBackBeforeItsBoot(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 2}, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		node := s.holdPod()
		before := len(s.Lab.World.Calls())
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9\ncanary: "+node)
		s.Until(time.Hour, "held in its drain", func(st cluster.Status) bool { return isDrained(st, node) })
		s.goesBack()
		push("and back", "talos_version: v1.13.9\ncanary: "+node, "talos_version: v1.13.8")
		s.untilAppliedIn(time.Hour, "as before")
		s.wantTalos("v1.13.8")
		w.wantDown("")
		must(s.Lab.Talos.Reboot(s.vmidOf(node)))
		s.kubectl(stuckAPI, "DELETE", stuckBudget+"/stuck", "")
		time.Sleep(30 * time.Minute)
		s.untilAppliedIn(time.Hour, "as before")
		s.wantTalos("v1.13.8")
		w.wantDown("")
		if got := fmt.Sprint(s.timesInstalled(before)); got != "map["+node+":2]" {
			s.T.Errorf("asked for another Talos: %s", got)
		}
		s.CheckRules(size{ControlPlanes: 1, Workers: 2})
	})
}

// TestSwitchedOffInItsReboot: a VM that somebody switches off while its node reboots for its turn is started at once, and not when the
// machine has had its time.
func TestSwitchedOffInItsReboot(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	inClusterOf(t, sz, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.Until(time.Hour, "a worker reboots", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool {
				return r.Action == cluster.RebootNode && r.Subject == "dev-wk-1" && time.Since(r.Since) > 2*time.Second
			})
		})
		began := time.Now()
		must(s.Lab.PVE.Stop(s.vmidOf("dev-wk-1")))
		s.Until(time.Hour, "started again", func(st cluster.Status) bool {
			return time.Since(began) > time.Second && isRunning(s, s.vmidOf("dev-wk-1"))
		})
		if took := time.Since(began); took > 2*time.Minute {
			s.T.Errorf("it was off for %s", took)
		}
		s.untilAppliedIn(2*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		s.CheckRules(sz)
	})
}

// TestTakenBackInADeath: an agent dies in an installation, which goes on, and the upgrade is taken back before the next one looks.
// The cluster is not Ready as long as the next boot of that machine may run what was taken back, and what it runs is installed over it.
func TestTakenBackInADeath(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	inClusterOf(t, sz, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		before := len(s.Lab.World.Calls())
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.Until(time.Hour, "installs", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool { return r.Action == cluster.InstallTalos })
		})
		s.Die()
		s.goesBack()
		push("and back", "talos_version: v1.13.9", "talos_version: v1.13.8")
		s.Until(time.Hour, "waits for what was begun", func(st cluster.Status) bool {
			return st.Condition == cluster.Reconciling && slices.ContainsFunc(st.Nodes, func(n cluster.NodeStatus) bool {
				return strings.Contains(n.WaitsFor, "so that its next boot may run that")
			})
		})
		began := time.Now()
		s.untilAppliedIn(time.Hour, "as before")
		if waited := time.Since(began); waited < 10*time.Minute {
			s.T.Errorf("Ready after %s, while the installer may have run", waited)
		}
		s.wantTalos("v1.13.8")
		w.wantDown("")
		if got := s.timesInstalled(before); len(got) != 1 || slices.ContainsFunc(slices.Collect(maps.Values(got)), func(n int) bool { return n != 2 }) {
			s.T.Errorf("asked for another Talos: %v", got)
		}
		s.CheckRules(sz)
	})
}

// TestComponentIsWatchedOverARestart: the only control plane is watched for a minute after each component of Kubernetes that it is
// given, also where the agent ends meanwhile.
func TestComponentIsWatchedOverARestart(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 1}, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), _ *turns) {
		isGiven := func(component string) func(cluster.Status) bool {
			return func(st cluster.Status) bool {
				return slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool {
					return r.Action == cluster.ChangeConfig && r.Subject == "dev-cp-1" && strings.Contains(r.Waits, "watched")
				}) && strings.Contains(fmt.Sprint(st.Waiting), component+" is not yet the one of its config")
			}
		}
		push("another kubernetes", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Until(time.Hour, "has the second component", isGiven("kube-controller-manager"))
		given := time.Now()
		s.Die()
		s.Until(time.Minute, "waits to be given the third one", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
				return strings.Contains(w.Message, "before it is given the next component")
			})
		})
		s.Until(time.Hour, "has the third component", isGiven("kube-apiserver"))
		if between := time.Since(given); between < 55*time.Second {
			s.T.Errorf("the third component came %s after the second", between)
		}
		s.untilAppliedIn(time.Hour, "upgraded")
		s.wantKubernetes("v1.36.1")
	})
}

// TestComponentThatIsNotGiven: a component that the only control plane could not be given is tried again as soon as any action is, and
// nothing is watched meanwhile.
func TestComponentThatIsNotGiven(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 1}, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), _ *turns) {
		push("another kubernetes", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Until(time.Hour, "pulls the first component", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool { return r.Action == cluster.PullImages && r.Subject == "dev-cp-1" })
		})
		s.Lab.World.Inject(world.Fault{System: "talos", Op: "machine.MachineService/ApplyConfiguration", Subject: "dev-cp-1", Kind: world.Answer, Status: 14, Text: "it has no room", Times: 2})
		began := time.Now()
		isWatched := false
		s.Until(time.Hour, "has it", func(st cluster.Status) bool {
			isWatched = isWatched || strings.Contains(fmt.Sprint(st.Waiting), "before it is given the next component")
			return strings.Contains(fmt.Sprint(st.Waiting), "kube-apiserver is not yet the one of its config")
		})
		if took := time.Since(began); took > 30*time.Second || isWatched {
			s.T.Errorf("it has it after %s; watched meanwhile: %v", took, isWatched)
		}
	})
}
