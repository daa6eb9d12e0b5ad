package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// versionsPair is what a cluster runs, and what is pushed.
type versionsPair struct{ talos, kubernetes, toTalos, toKubernetes string }

// withVersions has files ask for versions.
func withVersions(t *testing.T, files map[string][]byte, from, to [2]string) {
	t.Helper()
	const form = "talos_version: %t\nkubernetes_version: %k"
	fill := func(v [2]string) string { return strings.NewReplacer("%t", v[0], "%k", v[1]).Replace(form) }
	changed(t, files, "inventory/dev/cluster.yaml", fill(from), fill(to))
}

// upgradedWith upgrades a Ready cluster, with one crash on the way if there is a point for it, and returns
// how often the agent died.
func upgradedWith(v versionsPair) func(*testing.T, size, lab.Config, *crashPoint) ([]crashPoint, int) {
	return func(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
		s := newSim(t, sz, c)
		defer s.Close()
		files, has := sz.Files(), [2]string{v.talos, v.kubernetes}
		withVersions(t, files, [2]string{"v1.13.9", "v1.36.1"}, has)
		s.Push(files, "the cluster")
		s.Boot()
		s.UntilReady(30 * time.Minute)
		w := s.watchTurns(sz)
		before := len(s.Lab.World.Calls())
		pointsOf := s.armAt(p)
		withVersions(t, files, has, [2]string{v.toTalos, v.toKubernetes})
		s.Push(files, "other versions")
		s.untilAppliedIn(6*time.Hour, "upgraded")
		if points = pointsOf(); t.Failed() {
			return points, s.Deaths
		}
		s.wantTalos(v.toTalos)
		s.wantKubernetes(v.toKubernetes)
		for i := range sz.ControlPlanes + sz.Workers {
			name, want := sz.Name(i), 0
			if v.talos != v.toTalos {
				want = 1
			}
			if n := s.timesInstalled(before)[name]; n != want && (p == nil || n != want+1) {
				t.Errorf("%s was asked for another Talos %d times", name, n)
			}
			if n := s.timesReported(name, "has Talos "+v.toTalos+" installed beside "+v.talos); n != want {
				t.Errorf("%s got another Talos %d times", name, n)
			}
			n := w.count()[name]
			if p != nil && !p.after && p.call.Subject == name && strings.HasSuffix(p.call.Op, "MachineService/Upgrade") {
				n-- // the agent died before it was sent
			}
			if n != want && (p == nil || n != want+1) { // a request that may have been lost is sent once more
				t.Errorf("%s was taken down %d times", name, n)
			}
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
		return points, s.Deaths
	}
}

// TestCrashDuringAnUpgradeOfTalos kills the agent at one instant in so many, with -all-crashes at every one,
// of an upgrade of machines that install in service, and of those that do on their way down: another one
// ends it, and every node gets the version once.
func TestCrashDuringAnUpgradeOfTalos(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]versionsPair{
		"in service":      {"v1.13.9", "v1.36.1", "v1.14.1", "v1.36.1"},
		"on its way down": {"v1.12.11", "v1.35.3", "v1.13.9", "v1.35.3"},
	} {
		t.Run(name, func(t *testing.T) { crashEverywhere(t, size{ControlPlanes: 3, Workers: 3}, 41, upgradedWith(v)) })
	}
}

// TestCrashDuringAnUpgradeOfKubernetes kills the agent at one instant in so many, with -all-crashes at every
// one, while every component of every node gets another version: another one ends it, and no node is
// taken down.
func TestCrashDuringAnUpgradeOfKubernetes(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 3, Workers: 3}, 41, upgradedWith(versionsPair{"v1.13.9", "v1.35.10", "v1.13.9", "v1.36.1"}))
}

// TestCrashBeforeManifestsFollow kills the agent when the nodes have another Talos and what Talos deploys once does not
// yet: the one that comes next has not compared it, and reports no cluster as Ready before it has.
func TestCrashBeforeManifestsFollow(t *testing.T) {
	t.Parallel()
	crashWhere(t, size{ControlPlanes: 3, Workers: 3}, func(_ int, p crashPoint) bool {
		return p.call.System == "kube" && strings.HasPrefix(p.call.Op, "PATCH") && strings.HasSuffix(p.call.Subject, "/coredns")
	}, upgradedWith(versionsPair{"v1.12.11", "v1.35.3", "v1.13.9", "v1.35.3"}))
}

// requestsOf are the calls of an upgrade that change something or take long, once for each kind.
func requestsOf(calls []world.CallRecord) (out []world.Call) {
	seen := map[world.Call]bool{}
	for _, c := range calls {
		kind := world.Call{System: c.System, Op: c.Op}
		streams := strings.HasSuffix(c.Op, "ImageService/Pull") || strings.HasSuffix(c.Op, "/Upgrade") || strings.HasSuffix(c.Op, "EtcdSnapshot") || strings.HasSuffix(c.Op, "/Events")
		if (c.Mutating || streams) && c.System != "forge" && !seen[kind] {
			seen[kind] = true
			out = append(out, kind)
		}
	}
	return out
}

// seenInUpgrade is what an upgrade has asked, and what it was sent.
type seenInUpgrade struct {
	calls  []world.CallRecord
	events map[world.Call]int
	struck bool // the fault
}

// losing has an upgrade lose a call, its answer, or a message of one, and wants it to end all the same.
func losing(t *testing.T, v versionsPair, sz size, f world.Fault) (seen seenInUpgrade) {
	s := newSim(t, sz, lab.Config{Speed: hurry})
	defer s.Close()
	files, has := sz.Files(), [2]string{v.talos, v.kubernetes}
	withVersions(t, files, [2]string{"v1.13.9", "v1.36.1"}, has)
	s.Push(files, "the cluster")
	s.Boot()
	s.UntilReady(30 * time.Minute)
	before, sent := len(s.Lab.World.Calls()), s.Lab.World.Delivered()
	if f.Kind != "" {
		s.Lab.World.Inject(f)
	}
	withVersions(t, files, has, [2]string{v.toTalos, v.toKubernetes})
	s.Push(files, "other versions")
	s.untilAppliedIn(2*time.Hour, "upgraded")
	seen.calls, seen.events, seen.struck = s.Lab.World.Calls()[before:], s.Lab.World.Delivered(), s.Lab.World.Struck() > 0
	for c, n := range sent {
		if seen.events[c] -= n; seen.events[c] == 0 {
			delete(seen.events, c)
		}
	}
	if f.Nth == 1 && !seen.struck {
		t.Errorf("%s %s never came up", f.System, f.Op)
	}
	s.wantTalos(v.toTalos)
	s.wantKubernetes(v.toKubernetes)
	s.CheckRules(sz)
	s.Halt()
	return seen
}

// TestRequestsOfUpgradesAreLost: each kind of request of an upgrade is lost once, and each kind of answer: it ends all the
// same, on every node.
func TestRequestsOfUpgradesAreLost(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]versionsPair{
		"in service":      {"v1.13.9", "v1.36.1", "v1.14.1", "v1.36.1"},
		"on its way down": {"v1.12.11", "v1.35.3", "v1.13.9", "v1.35.3"},
		"kubernetes":      {"v1.13.9", "v1.35.10", "v1.13.9", "v1.36.1"},
	} {
		t.Run(name, func(t *testing.T) {
			sz := size{ControlPlanes: 1, Workers: 1}
			var calls []world.Call
			synctest.Test(t, func(t *testing.T) { calls = requestsOf(losing(t, v, sz, world.Fault{}).calls) })
			for _, c := range calls {
				for _, kind := range []world.FaultKind{world.LoseRequest, world.LoseReply} {
					t.Run(fmt.Sprintf("%s %s %s", kind, c.System, c.Op), func(t *testing.T) {
						t.Parallel()
						synctest.Test(t, func(t *testing.T) { losing(t, v, sz, world.Fault{System: c.System, Op: c.Op, Nth: 1, Kind: kind}) })
					})
				}
			}
		})
	}
}

// TestCrashAroundAReset kills the agent when it asks for the reset of the only node, which hangs, or loses that request or its answer: it is
// not asked for again for that commit, whatever came of it.
func TestCrashAroundAReset(t *testing.T) {
	t.Parallel()
	for kind, helps := range map[world.FaultKind]bool{world.CrashBefore: false, world.LoseRequest: false, world.LoseReply: true, world.CrashAfter: true} {
		t.Run(string(kind), func(t *testing.T) {
			inClusterOf(t, size{ControlPlanes: 1}, "v1.13.8", "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
				s.Lab.Talos.SpoilImage("v1.13.9", installer.HangsOnReboot)
				before := len(s.Lab.World.Calls())
				s.Lab.World.Inject(world.Fault{System: "pve", Op: resetCall, Nth: 1, Kind: kind})
				push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
				if !helps {
					s.Until(4*time.Hour, "stopped", func(st cluster.Status) bool {
						return st.Condition == cluster.Stalled && st.Reason == cluster.UpgradeStuck
					})
					time.Sleep(time.Hour)
					if resets := s.timesReset(before); resets != 1 {
						s.T.Errorf("%d resets", resets)
					}
					pushComment(push, "another commit")
				}
				s.untilAppliedIn(4*time.Hour, "upgraded")
				s.wantTalos("v1.13.9")
				if resets := s.timesReset(before); helps && resets != 1 || !helps && resets != 2 {
					s.T.Errorf("%d resets", resets)
				}
			})
		})
	}
}
