package agent_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// inClusterOf plays a story over a cluster that is Ready with some versions, which it may change.
func inClusterOf(t *testing.T, sz size, talos, kubernetes string, story func(s *sim, push func(what, from, to string), w *turns)) {
	t.Helper()
	inClusterWith(t, sz, lab.Config{}, talos, kubernetes, story)
}

// inClusterWith does so in a lab that is made for it.
func inClusterWith(t *testing.T, sz size, c lab.Config, talos, kubernetes string, story func(s *sim, push func(what, from, to string), w *turns)) {
	t.Helper()
	inClusterOfFiles(t, sz, c, sz.Files(), talos, kubernetes, story)
}

// inClusterOfFiles does so over a cluster with that inventory, but for its versions.
func inClusterOfFiles(t *testing.T, sz size, c lab.Config, files map[string][]byte, talos, kubernetes string, story func(s *sim, push func(what, from, to string), w *turns)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		changed(t, files, "inventory/dev/cluster.yaml", "talos_version: v1.13.9\nkubernetes_version: v1.36.1", "talos_version: "+talos+"\nkubernetes_version: "+kubernetes)
		s := newSim(t, sz, c)
		defer s.Close()
		s.Push(files, "the cluster")
		s.Boot()
		s.UntilReady(30 * time.Minute)
		w := s.watchTurns(sz)
		story(s, func(what, from, to string) {
			t.Helper()
			if from != "" {
				changed(t, files, "inventory/dev/cluster.yaml", from, to)
			}
			s.Push(files, what)
		}, w)
		s.Halt()
	})
}

// pushComment pushes a commit that changes the cluster's files, and asks for the same.
func pushComment(push func(what, from, to string), what string) {
	push(what, "cluster_name: dev\n", "# "+what+"\ncluster_name: dev\n")
}

// wantTalos checks that every machine runs a version.
func (s *sim) wantTalos(version string) {
	s.T.Helper()
	for _, n := range s.Status().Nodes {
		if n.Talos != version || n.Phase != cluster.PhaseReady {
			s.T.Errorf("%s runs %s and is %s, and %s is wanted", n.Name, n.Talos, n.Phase, version)
		}
	}
	if out := s.cordoned(); len(out) > 0 {
		s.T.Errorf("out of service: %v", out)
	}
}

// wantConsole checks what is shown of the console of a node: the end of a boot, and which Talos that was of. Where only
// that boot is shown, no other line of a boot may be there.
func (s *sim) wantConsole(node, version, end string, only bool) {
	s.T.Helper()
	tail := s.node(node).Console
	if tail == nil {
		s.T.Errorf("nothing is shown of the console of %s", node)
		return
	}
	printed := strings.Join(tail.Lines, "\n")
	if i := strings.Index(printed, "booting Talos "+version); i < 0 || !strings.Contains(printed[i:], end) || only && strings.Count(printed, "booting Talos") != 1 {
		s.T.Errorf("the console of %s:\n%s\n(%s)", node, printed, tail.Note)
	}
}

// wantNoConsole checks that nothing is shown of any console, none is open, and so many were opened since so many calls.
func (s *sim) wantNoConsole(since, opened int) {
	s.T.Helper()
	for _, n := range s.Status().Nodes {
		if n.Console != nil {
			s.T.Errorf("%s still shows what its console printed: %q", n.Name, n.Console.Lines)
		}
	}
	for _, task := range s.Lab.PVE.Tasks() {
		if task.Type == "vncproxy" && task.Exit == "" {
			s.T.Errorf("the console of %s is open", task.ID)
		}
	}
	if at := s.consolesOpened(since); len(at) != opened {
		s.T.Errorf("consoles were opened at %v, want %d", at, opened)
	}
}

// consolesOpened is when consoles were asked for since so many calls.
func (s *sim) consolesOpened(since int) (at []time.Duration) {
	for _, c := range s.Lab.World.Calls()[since:] {
		if strings.HasSuffix(c.Op, "/termproxy") {
			at = append(at, c.At)
		}
	}
	return at
}

// timesInstalled is how often machines were asked for another Talos since so many calls, by node.
func (s *sim) timesInstalled(since int) map[string]int {
	out := map[string]int{}
	for _, node := range s.orderInstalled(since) {
		out[node]++
	}
	return out
}

// TestUpgradeOfTalos: another version is pushed, and every node is drained and rebooted for it once, after its
// installation, control planes first.
func TestUpgradeOfTalos(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 2}
	inClusterOf(t, sz, "v1.13.9", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		before := len(s.Lab.World.Calls())
		push("another talos", "talos_version: v1.13.9", "talos_version: v1.14.1")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1 dev-wk-2:1")
		for node, n := range s.timesInstalled(before) {
			if n != 1 {
				s.T.Errorf("%s got another Talos %d times", node, n)
			}
		}
		s.wantNoConsole(before, 5)
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
	})
}

// TestUpgradeOverSeveralVersions: one push leads over every version in between, each for all nodes, also where
// Talos installs on its way down.
func TestUpgradeOverSeveralVersions(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 1}
	inClusterOf(t, sz, "v1.11.6", "v1.34.3", func(s *sim, push func(what, from, to string), w *turns) {
		before := len(s.Lab.World.Calls())
		push("newer by three", "talos_version: v1.11.6", "talos_version: v1.14.1")
		s.untilAppliedIn(12*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		w.wantDown("dev-cp-1:3 dev-cp-2:3 dev-cp-3:3 dev-wk-1:3")
		for node, n := range s.timesInstalled(before) {
			if n != 3 {
				s.T.Errorf("%s got another Talos %d times", node, n)
			}
		}
	})
}

// TestUpgradeThatFails: where an installer fails, or what it installed does not start, the node runs on with the
// old version and in service, nothing else is upgraded, and it is not tried again for that commit, nor for others that do not change the
// cluster's files, also by an agent that is started again. A commit that does has it tried again, and so has an order; the version set back ends it.
func TestUpgradeThatFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		flaw   installer.Flaw
		talos  string // that runs
		reason cluster.Reason
	}{
		{"the installer fails", installer.FailsInstall, "v1.13.8", cluster.UpgradeFailed},
		{"it crashes", installer.CrashesOnBoot, "v1.13.8", cluster.UpgradeFellBack},
		{"it crashes, on its way from an old one", installer.CrashesOnBoot, "v1.12.11", cluster.UpgradeFellBack},
	} {
		t.Run(c.name, func(t *testing.T) {
			sz := size{ControlPlanes: 1, Workers: 2}
			inClusterOf(t, sz, c.talos, "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
				s.Lab.Talos.SpoilImage("v1.13.9", c.flaw)
				before := len(s.Lab.World.Calls())
				push("a bad one", "talos_version: "+c.talos, "talos_version: v1.13.9")
				s.Until(4*time.Hour, "stopped", func(st cluster.Status) bool {
					return st.Condition == cluster.Stalled && st.Reason == c.reason && len(st.Running) == 0
				})
				time.Sleep(2 * time.Hour)
				s.Until(time.Minute, "stuck since then", func(st cluster.Status) bool {
					u := st.Upgrade
					return u != nil && u.Hops[len(u.Hops)-1] == "Talos v1.13.9" && u.Upgraded == 0 && time.Since(u.StuckSince) >= 2*time.Hour
				})
				s.wantTalos(c.talos)
				if got := fmt.Sprint(s.timesInstalled(before)); got != "map[dev-cp-1:1]" {
					s.T.Errorf("got another Talos: %s", got)
				}
				if c.reason == cluster.UpgradeFellBack {
					s.wantConsole("dev-cp-1", "v1.13.9", "rebooting in 0 seconds", true)
				}
				again := func(times int) func(cluster.Status) bool {
					return func(st cluster.Status) bool {
						return st.Condition == cluster.Stalled && st.Reason == c.reason && st.Applied == st.Revision && len(st.Running) == 0 && fmt.Sprint(s.timesInstalled(before)) == fmt.Sprintf("map[dev-cp-1:%d]", times)
					}
				}
				for range 3 {
					push("docs", "", "")
					time.Sleep(2 * time.Hour)
				}
				s.Until(time.Minute, "stuck since the one that is", func(st cluster.Status) bool {
					return st.Upgrade != nil && time.Since(st.Upgrade.StuckSince) >= 8*time.Hour
				})
				s.Halt()
				s.Boot()
				time.Sleep(time.Hour)
				s.Until(time.Hour, "stopped after commits that are not about it", again(1))
				pushComment(push, "another commit")
				s.Until(4*time.Hour, "stopped again", again(2))
				must(s.Cluster().Upgrade(cluster.UpgradeOrder{Now: true, By: "ann"}))
				s.Until(4*time.Hour, "stopped once more, by order", again(3))
				time.Sleep(2 * time.Hour)
				s.Until(time.Hour, "stopped still", again(3))
				push("back", "talos_version: v1.13.9", "talos_version: "+c.talos)
				s.untilAppliedIn(time.Hour, "as before")
				s.wantTalos(c.talos)
				s.Lab.Talos.SpoilImage("v1.13.9", installer.Sound)
				push("a good one", "talos_version: "+c.talos, "talos_version: v1.13.9")
				since := len(s.Lab.World.Calls())
				s.untilAppliedIn(6*time.Hour, "upgraded")
				s.wantTalos("v1.13.9")
				s.wantNoConsole(since, 3)
			})
		})
	}
}

// resetCall is the request that resets a VM.
const resetCall = "POST /nodes/{node}/qemu/{vmid}/status/reset"

// timesReset is how often the VMs of nodes were reset since so many calls.
func (s *sim) timesReset(since int) (n int) {
	for _, c := range s.Lab.World.Calls()[since:] {
		if c.System == "pve" && c.Op == resetCall {
			n++
		}
	}
	return n
}

// TestUpgradeThatHangs: the VM of a node that does not come back from the reboot of its upgrade is reset once. Where that helps the
// upgrade goes on, and else nothing more is done for that commit, also by an agent that is started anew, and no other node is touched.
func TestUpgradeThatHangs(t *testing.T) {
	t.Parallel()
	for _, talos := range []string{"v1.13.8", "v1.12.11"} {
		t.Run("until it is reset, from "+talos, func(t *testing.T) {
			inClusterOf(t, size{ControlPlanes: 3, Workers: 1}, talos, "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
				s.Lab.Talos.SpoilImage("v1.13.9", installer.HangsOnReboot)
				before := len(s.Lab.World.Calls())
				push("another talos", "talos_version: "+talos, "talos_version: v1.13.9")
				s.untilAppliedIn(12*time.Hour, "upgraded")
				s.wantTalos("v1.13.9")
				if got, resets := fmt.Sprint(s.timesInstalled(before)), s.timesReset(before); got != "map[dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1]" || resets != 4 {
					s.T.Errorf("got another Talos: %s, and %d resets", got, resets)
				}
			})
		})
		t.Run("for ever, from "+talos, func(t *testing.T) {
			inClusterOf(t, size{ControlPlanes: 3, Workers: 1}, talos, "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
				s.Lab.Talos.SpoilImage("v1.13.9", installer.HangsOnBoot)
				before, leader := len(s.Lab.World.Calls()), s.leader()
				stuck := func(times int) func(cluster.Status) bool {
					return func(st cluster.Status) bool {
						return st.Condition == cluster.Stalled && st.Reason == cluster.UpgradeStuck && len(st.Running) == 0 && s.timesReset(before) == times
					}
				}
				push("another talos", "talos_version: "+talos, "talos_version: v1.13.9")
				s.Until(4*time.Hour, "stopped", stuck(1))
				for _, n := range s.Status().Nodes {
					if len(n.Blocked) > 0 {
						s.wantConsole(n.Name, "v1.13.9", "booting Talos v1.13.9", false)
					}
				}
				s.Halt()
				s.Boot()
				s.Until(time.Hour, "stopped still", stuck(1))
				time.Sleep(2 * time.Hour)
				if got, resets := s.timesInstalled(before), s.timesReset(before); len(got) != 1 || got[leader] != 0 || resets != 1 {
					s.T.Errorf("got another Talos: %v, and %d resets", got, resets)
				}
				push("docs", "", "")
				time.Sleep(2 * time.Hour)
				s.Until(time.Hour, "stopped after a commit that is not about it", stuck(1))
				pushComment(push, "another commit")
				s.Until(4*time.Hour, "stopped again", stuck(2))
				s.Lab.Talos.SpoilImage("v1.13.9", installer.Sound)
				pushComment(push, "one more")
				s.untilAppliedIn(12*time.Hour, "upgraded")
				s.wantTalos("v1.13.9")
				if got := fmt.Sprint(s.timesInstalled(before)); got != "map[dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1]" {
					s.T.Errorf("got another Talos: %s", got)
				}
			})
		})
	}
}

// TestUpgradeToWhatBootsSlowly: a Talos whose every boot takes longer than a machine may be silent by default has one VM reset, and what
// that boot took is known for the other nodes.
func TestUpgradeToWhatBootsSlowly(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 3}, "v1.13.8", "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
		s.Lab.Talos.SpoilImage("v1.13.9", installer.BootsSlowly)
		before := len(s.Lab.World.Calls())
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.untilAppliedIn(12*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		if resets := s.timesReset(before); resets != 1 {
			s.T.Errorf("%d resets", resets)
		}
	})
}

// TestUpgradeWithoutInstaller: an extension that the last version of the way lacks stops the upgrade before anything is done
// to a node, also while the factory does not answer, and a version that has it leads on.
func TestUpgradeWithoutInstaller(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	c := lab.Config{MissingExtensions: map[string][]string{"v1.14.1": {"siderolabs/iscsi-tools"}}}
	inClusterWith(t, sz, c, "v1.12.11", "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
		before := len(s.Lab.World.Calls())
		s.Lab.World.Inject(world.Fault{System: "factory", Kind: world.LoseRequest})
		push("one without the extension", "talos_version: v1.12.11", "talos_version: v1.14.1")
		s.Until(4*time.Hour, "the factory does not answer", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.ActionFailed
		})
		s.Lab.World.Heal()
		s.Until(4*time.Hour, "stopped", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.InstallerMissing && len(st.Running) == 0
		})
		time.Sleep(time.Hour)
		if got := fmt.Sprint(s.timesInstalled(before)); got != "map[]" {
			s.T.Errorf("got another Talos: %s", got)
		}
		w.wantDown("")
		for _, call := range s.Lab.World.Calls()[before:] {
			if strings.HasSuffix(call.Op, "/Pull") || strings.HasSuffix(call.Op, "/ImagePull") {
				s.T.Errorf("%s has pulled for it", call.Subject)
			}
		}
		s.wantTalos("v1.12.11")
		push("one that has it", "talos_version: v1.14.1", "talos_version: v1.13.9")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		w.wantDown("dev-cp-1:1 dev-wk-1:1")
	})
}

// TestUpgradeWithOtherExtensions: another schematic is an upgrade to the same version.
func TestUpgradeWithOtherExtensions(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.13.9", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		push("a switch", "cni: cilium\n", "cni: cilium\nupgrade: off\n")
		push("fewer extensions", "siderolabs/iscsi-tools, siderolabs/util-linux-tools", "siderolabs/iscsi-tools")
		s.Until(time.Hour, "held", func(st cluster.Status) bool { return st.Upgrade != nil && st.Upgrade.Held == "upgrade is off" })
		push("no switch", "cni: cilium\nupgrade: off\n", "cni: cilium\n")
		s.untilAppliedIn(2*time.Hour, "upgraded")
		w.wantDown("dev-cp-1:1 dev-wk-1:1")
		s.wantTalos("v1.13.9")
	})
}

// TestOtherExtensionsInAHop: other extensions that are pushed while the last node of a hop makes it have no node asked for them before
// that one is back in service, and no node asked twice in one boot: they come with the next hop. The world judges that.
func TestOtherExtensionsInAHop(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	inClusterOf(t, sz, "v1.12.11", "v1.34.3", func(s *sim, push func(what, from, to string), w *turns) {
		push("another talos", "talos_version: v1.12.11", "talos_version: v1.14.1")
		s.Until(2*time.Hour, "the last node makes its first hop", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool { return r.Action == cluster.UpgradeTalos && r.Subject == "dev-wk-2" })
		})
		push("fewer extensions", "siderolabs/iscsi-tools, siderolabs/util-linux-tools", "siderolabs/iscsi-tools")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		w.wantDown("dev-cp-1:2 dev-wk-1:2 dev-wk-2:2")
		s.CheckRules(sz)
	})
}

// TestUpgradeTakenBack: a revert in the middle leads back, outside of the window, and no control plane goes back over another etcd
// once all have left the older one.
func TestUpgradeTakenBack(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 2}
	inClusterOf(t, sz, "v1.13.9", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		push("another talos", "talos_version: v1.13.9", "talos_version: v1.14.1")
		s.Until(2*time.Hour, "one is upgraded", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Nodes, func(n cluster.NodeStatus) bool { return n.Talos == "v1.14.1" && n.Phase == cluster.PhaseReady })
		})
		s.goesBack()
		push("and back", "talos_version: v1.14.1", "talos_version: v1.13.9\n"+closedFor(12*time.Hour))
		s.untilAppliedIn(4*time.Hour, "back")
		s.wantTalos("v1.13.9")
		s.CheckRules(sz)
	})
}

// TestAnswersOfUpgradesAreLost: whatever answer of an upgrade is lost, every node ends with the version, and gets it once.
func TestAnswersOfUpgradesAreLost(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"v1.12.11", "v1.13.8"} {
		t.Run(from, func(t *testing.T) {
			sz := size{ControlPlanes: 1, Workers: 1}
			inClusterOf(t, sz, from, "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
				service := "machine.MachineService/Upgrade"
				if from == "v1.13.8" {
					service = "machine.LifecycleService/Upgrade"
				}
				s.Lab.World.Inject(world.Fault{System: "talos", Op: service, Kind: world.LoseReply})
				before := len(s.Lab.World.Calls())
				push("another talos", "talos_version: "+from, "talos_version: v1.13.9")
				s.untilAppliedIn(4*time.Hour, "upgraded")
				s.wantTalos("v1.13.9")
				if got := fmt.Sprint(s.timesInstalled(before)); got != "map[dev-cp-1:1 dev-wk-1:1]" {
					s.T.Errorf("got another Talos: %s", got)
				}
			})
		})
	}
}

// wantKubernetes checks that every node runs a version of Kubernetes, and every component of the control planes does.
func (s *sim) wantKubernetes(version string) {
	s.T.Helper()
	for _, n := range s.Status().Nodes {
		if n.Kubernetes != version || n.Phase != cluster.PhaseReady {
			s.T.Errorf("%s runs %s and is %s, and %s is wanted", n.Name, n.Kubernetes, n.Phase, version)
		}
	}
	for _, p := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "kube-system") {
		for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			if !strings.HasPrefix(p.GetName(), name+"-") {
				continue
			}
			containers, _, _ := unstructured.NestedSlice(p.Object, "spec", "containers")
			if image := fmt.Sprint(containers[0].(map[string]any)["image"]); !strings.HasSuffix(image, ":"+version) {
				s.T.Errorf("%s is %s, and %s is wanted", p.GetName(), image, version)
			}
		}
	}
}

// TestUpgradeOfKubernetes: another version is pushed, and every component of every node gets it, without a reboot and
// without a kubelet that is newer than a kube-apiserver.
func TestUpgradeOfKubernetes(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 2}
	inClusterOf(t, sz, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		push("another kubernetes", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantKubernetes("v1.36.1")
		w.wantDown("")
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
	})
}

// TestUpgradeOfBoth: one push leads over every version of both, Talos first wherever it can be.
func TestUpgradeOfBoth(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.11.6", "v1.33.13", func(s *sim, push func(what, from, to string), w *turns) {
		push("both", "talos_version: v1.11.6\nkubernetes_version: v1.33.13", "talos_version: v1.14.1\nkubernetes_version: v1.36.1")
		s.untilAppliedIn(24*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		s.wantKubernetes("v1.36.1")
		w.wantDown("dev-cp-1:3 dev-wk-1:3")
	})
}

// TestKubernetesTakenBack: a revert in the middle leads back, also where every component of some nodes has the newer
// version already, and outside of the window.
func TestKubernetesTakenBack(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	inClusterOf(t, sz, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		push("another kubernetes", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Until(2*time.Hour, "a worker has it", func(st cluster.Status) bool {
			return st.Nodes[1].Kubernetes == "v1.36.1" && st.Nodes[1].Phase == cluster.PhaseReady
		})
		push("and back", "kubernetes_version: v1.36.1", "kubernetes_version: v1.35.10\n"+closedFor(12*time.Hour))
		s.untilAppliedIn(4*time.Hour, "back")
		s.wantKubernetes("v1.35.10")
		w.wantDown("")
		s.CheckRules(sz)
	})
}

// closedFor is a window in cluster.yaml that opens in so long, for an hour.
func closedFor(d time.Duration) string {
	opens := time.Now().UTC().Add(d)
	return fmt.Sprintf("window: {from: %q, to: %q}", opens.Format("15:04"), opens.Add(time.Hour).Format("15:04"))
}

// TestUpgradeByOrder: an upgrade that waits for its window begins when root orders it, goes on after a restart of the
// agent, and the order is gone with its end. A node that there is not, an upgrade that there is not, and a switch
// are named.
func TestUpgradeByOrder(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.13.9", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		now := cluster.UpgradeOrder{Now: true, By: "ann"}
		if err := s.Cluster().Upgrade(now); cluster.ReasonOf(err) != cluster.NothingToDo {
			t.Errorf("without an upgrade: %v", err)
		}
		push("another talos", "talos_version: v1.13.9", "talos_version: v1.14.1\nupgrade: approve\n"+closedFor(12*time.Hour))
		s.Until(time.Hour, "held", func(st cluster.Status) bool { return st.Upgrade != nil && st.Upgrade.Held != "" })
		if err := s.Cluster().Upgrade(now); cluster.ReasonOf(err) != cluster.ChangeUnapproved {
			t.Errorf("against a switch: %v", err)
		}
		push("by itself", "upgrade: approve\n", "")
		s.Until(time.Hour, "waits for its window", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool { return w.Reason == cluster.WaitingForWindow })
		})
		if err := s.Cluster().Upgrade(cluster.UpgradeOrder{Despite: []string{"wk-9"}}); !errors.Is(err, api.ErrUnknownNode) {
			t.Errorf("despite a node that there is not: %v", err)
		}
		must(s.Cluster().Upgrade(now))
		s.Until(time.Hour, "begun", func(st cluster.Status) bool {
			return st.Upgrade != nil && st.Upgrade.Order.By == "ann" && slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool { return r.Action == cluster.DrainNode })
		})
		s.Halt()
		s.Boot()
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		w.wantDown("dev-cp-1:1 dev-wk-1:1")
		push("another one", "talos_version: v1.14.1", "talos_version: v1.14.0")
		time.Sleep(5 * time.Minute)
		if u := s.Status().Upgrade; u != nil && !u.Order.IsZero() {
			t.Errorf("the order is still there: %+v", u)
		}
	})
}

// TestUpgradeIsApproved: what is shown of an upgrade that waits for approval, of what was pushed and before it is, is what is done
// after it.
func TestUpgradeIsApproved(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.13.9", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		push("another talos", "talos_version: v1.13.9", "talos_version: v1.14.1\nupgrade: approve")
		s.Until(time.Hour, "held", func(st cluster.Status) bool { return st.Upgrade != nil && st.Upgrade.Held != "" })
		s.Quiet(time.Hour)
		f, err := s.Cluster().Forecast(s.T.Context())
		must(err)
		var drained []string
		for _, step := range f.Steps {
			if step.Action == cluster.DrainNode {
				drained = append(drained, step.Subject)
			}
		}
		slices.Sort(drained)
		if !f.Unapproved || !slices.Equal(drained, []string{"dev-cp-1", "dev-wk-1"}) || len(f.Blocked) > 0 {
			t.Errorf("unapproved: %t, drained are %v; %+v", f.Unapproved, drained, f.Blocked)
		}
		w.wantDown("")
		must(s.Cluster().Approve(f.Digest[:12]))
		s.Until(4*time.Hour, "upgraded, and what Talos deploys waits", func(st cluster.Status) bool {
			return st.Reason == cluster.ChangeUnapproved && st.Upgrade == nil
		})
		f, err = s.Cluster().Forecast(s.T.Context())
		must(err)
		must(s.Cluster().Approve(f.Digest[:12]))
		s.untilAppliedIn(time.Hour, "applied")
		s.wantTalos("v1.14.1")
		w.wantDown("dev-cp-1:1 dev-wk-1:1")
	})
}

// TestApprovalLastsOverHops: a way of several hops is approved once. What Talos deploys is approved after each, with the plan of what is left
// of the way, and that does not take back what was approved of it.
func TestApprovalLastsOverHops(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.12.8", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		push("another talos", "talos_version: v1.12.8", "talos_version: v1.14.1\nupgrade: approve")
		approvals := 0
		approve := func() {
			f, err := s.Cluster().Forecast(s.T.Context())
			must(err)
			must(s.Cluster().Approve(f.Digest[:12]))
			approvals++
		}
		s.Until(time.Hour, "held", func(st cluster.Status) bool { return st.Upgrade != nil && st.Upgrade.Held != "" })
		approve()
		for s.Status().Condition != cluster.Ready {
			s.Until(4*time.Hour, "a hop is made", func(st cluster.Status) bool {
				return st.Reason == cluster.ChangeUnapproved || st.Condition == cluster.Ready && st.Upgrade == nil
			})
			switch st := s.Status(); {
			case st.Upgrade != nil && st.Upgrade.Held != "":
				t.Fatalf("after %d approvals the way waits again: %s", approvals, st.Message)
			case st.Reason == cluster.ChangeUnapproved:
				approve()
				s.Until(time.Hour, "it is applied", func(st cluster.Status) bool { return st.Reason != cluster.ChangeUnapproved })
			}
		}
		s.wantTalos("v1.14.1")
		if w.wantDown("dev-cp-1:3 dev-wk-1:3"); approvals < 3 {
			t.Errorf("%d approvals: nothing of what Talos deploys was to be approved", approvals)
		}
	})
}

// TestWindowClosesBetweenNodes: a window that closes while nodes are upgraded holds the next one, and takes none out of service; the
// rest follows when it is open.
func TestWindowClosesBetweenNodes(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 5}
	inClusterOf(t, sz, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		closes := time.Now().UTC().Truncate(time.Minute).Add(4 * time.Minute)
		window := fmt.Sprintf("window: {from: %q, to: %q}", closes.Add(-time.Hour).Format("15:04"), closes.Format("15:04"))
		push("another talos, in a window", "talos_version: v1.13.8", "talos_version: v1.13.9\n"+window)
		s.Until(time.Hour, "the window is closed, and nodes wait for it", func(st cluster.Status) bool {
			waits := func(w cluster.WaitStatus) bool { return w.Reason == cluster.WaitingForWindow }
			return time.Now().After(closes) && slices.ContainsFunc(st.Waiting, waits) && len(st.Running) == 0 && len(s.cordoned()) == 0
		})
		upgraded := func() (n int) {
			for _, node := range s.Status().Nodes {
				if node.Talos == "v1.13.9" {
					n++
				}
			}
			return n
		}
		held := upgraded()
		if held == 0 || held == 6 {
			s.T.Fatalf("%d of 6 nodes are upgraded when the window closes: it is not in the middle", held)
		}
		time.Sleep(30 * time.Minute)
		if now := upgraded(); now != held || len(s.cordoned()) > 0 {
			s.T.Errorf("%d nodes were upgraded when the window closed, and %d are now; out of service: %v", held, now, s.cordoned())
		}
		push("at any time", window, "")
		s.untilAppliedIn(2*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		w.wantDown("dev-cp-1:1 dev-wk-1:1 dev-wk-2:1 dev-wk-3:1 dev-wk-4:1 dev-wk-5:1")
	})
}

// TestPhaseOfANodeThatReboots: a node that the agent reboots is shown as Ready neither while nothing answers there nor in what
// the cluster is doing, however short that is, and its phase is of since then.
func TestPhaseOfANodeThatReboots(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 1}, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), _ *turns) {
		const node, lag = "dev-wk-1", time.Second
		push("another Talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		var down time.Time
		s.Until(30*time.Minute, "it is upgraded", func(st cluster.Status) bool {
			n := st.Nodes[1]
			i := slices.IndexFunc(st.Running, func(r cluster.RunningStatus) bool {
				return r.Action == cluster.RebootNode && r.Subject == node && strings.Contains(r.Waits, "nothing answers")
			})
			if i < 0 {
				return st.Condition == cluster.Ready && n.Talos == "v1.13.9"
			}
			if down.IsZero() {
				down = time.Now()
			}
			if time.Since(down) > lag && (n.Phase == cluster.PhaseReady || n.Since.Before(down.Add(-5*time.Second)) || !strings.HasPrefix(st.Message, "1 of 2 nodes Ready")) {
				t.Errorf("%v after it went down %s is %s since %v, and the cluster: %s", time.Since(down), node, n.Phase, n.Since, st.Message)
			}
			return false
		})
		if down.IsZero() {
			t.Error("it was not seen to be down")
		}
	})
}
