package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// isBetween reports whether some nodes are seen with a kubelet of a version, and some with another.
func (s *sim) isBetween(version string) bool {
	has := func(n cluster.NodeStatus) bool { return n.Kubernetes == version }
	nodes := s.Status().Nodes
	return slices.ContainsFunc(nodes, has) && !slices.ContainsFunc(nodes, func(n cluster.NodeStatus) bool { return n.Kubernetes == "" }) && slices.ContainsFunc(nodes, func(n cluster.NodeStatus) bool { return !has(n) })
}

// TestTalosWaitsForKubernetes: another Talos, or other extensions, that are pushed in the middle of a hop of Kubernetes wait for its end,
// also while it is stuck, and a revert of the hop leads on. The world judges that both never go at once.
func TestTalosWaitsForKubernetes(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 2}
	const oldKube, newKube = "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1"
	const oldTalos, newTalos = "talos_version: v1.13.9", "talos_version: v1.14.1"
	const extensions, fewer = "siderolabs/iscsi-tools, siderolabs/util-linux-tools", "siderolabs/iscsi-tools"
	for name, c := range map[string]struct {
		from, to string // that is pushed in the middle
		talos    string // at the end
	}{
		"another Talos":    {oldTalos, newTalos, "v1.14.1"},
		"other extensions": {extensions, fewer, "v1.13.9"},
	} {
		t.Run(name, func(t *testing.T) {
			inClusterOf(t, sz, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
				push("another kubernetes", oldKube, newKube)
				s.Until(2*time.Hour, "one kubelet has it", func(cluster.Status) bool { return s.isBetween("v1.36.1") })
				push(name, c.from, c.to)
				s.untilAppliedIn(6*time.Hour, "upgraded")
				s.wantTalos(c.talos)
				s.wantKubernetes("v1.36.1")
				w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1 dev-wk-2:1")
				s.CheckRules(sz)
			})
		})
		t.Run(name+", and Kubernetes is stuck", func(t *testing.T) {
			inClusterOf(t, sz, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
				push("another kubernetes", oldKube, newKube)
				s.Until(2*time.Hour, "one kubelet has it", func(cluster.Status) bool { return s.isBetween("v1.36.1") })
				// A registry that is closed now would keep no node back: all have the images of the hop.
				s.Lab.World.Inject(world.Fault{System: "talos", Op: "machine.MachineService/ApplyConfiguration", Subject: "dev-wk-2", Kind: world.Answer, Status: 14, Text: "it has no room"})
				before := len(s.Lab.World.Calls())
				push(name, c.from, c.to)
				time.Sleep(2 * time.Hour)
				if got := s.timesInstalled(before); len(got) > 0 || !s.isBetween("v1.36.1") {
					s.T.Errorf("asked for another Talos: %v", got)
				}
				w.wantDown("")
				push("kubernetes goes back", newKube, oldKube)
				s.Lab.World.Heal()
				s.untilAppliedIn(6*time.Hour, "upgraded")
				s.wantTalos(c.talos)
				s.wantKubernetes("v1.35.10")
				s.CheckRules(sz)
			})
		})
	}
}

// TestKubernetesWaitsForTalosToGoBack: where one push sets Talos back in the middle of its hop, and Kubernetes forward, Talos goes back
// first.
func TestKubernetesWaitsForTalosToGoBack(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 2}
	inClusterOf(t, sz, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		push("another talos", "talos_version: v1.13.9", "talos_version: v1.14.1")
		s.Until(2*time.Hour, "one is upgraded", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Nodes, func(n cluster.NodeStatus) bool { return n.Talos == "v1.14.1" && n.Phase == cluster.PhaseReady })
		})
		s.goesBack()
		push("back, and another kubernetes", "talos_version: v1.14.1\nkubernetes_version: v1.35.10", "talos_version: v1.13.9\nkubernetes_version: v1.36.1")
		s.untilAppliedIn(6*time.Hour, "there")
		s.wantTalos("v1.13.9")
		s.wantKubernetes("v1.36.1")
		s.CheckRules(sz)
	})
}

// TestRevertThatIsNotPossible: versions that are set back to what Talos does not go back to move nothing, also not Kubernetes that could,
// and that is shown at once.
func TestRevertThatIsNotPossible(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	inClusterOf(t, sz, "v1.11.6", "v1.33.13", func(s *sim, push func(what, from, to string), w *turns) {
		const old, other = "talos_version: v1.11.6\nkubernetes_version: v1.33.13", "talos_version: v1.14.1\nkubernetes_version: v1.35.10"
		push("both", old, other)
		s.Until(12*time.Hour, "in the middle of a hop to 1.34 or 1.35", func(st cluster.Status) bool {
			return st.Nodes[0].Talos == "v1.14.1" && slices.ContainsFunc(st.Nodes, func(n cluster.NodeStatus) bool { return strings.HasPrefix(n.Kubernetes, "v1.34.") }) && st.Nodes[2].Kubernetes == "v1.33.13"
		})
		push("back", other, old)
		refused := func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && strings.Contains(st.Message+st.Hint, "a downgrade of Talos")
		}
		s.Until(10*time.Minute, "refused", func(st cluster.Status) bool { return refused(st) && len(st.Running) == 0 })
		time.Sleep(2 * time.Minute) // what was begun before ends: a kubelet that has its config restarts by itself
		began, kubelets := len(s.Lab.World.Calls()), fmt.Sprint(s.Status().Nodes[1].Kubernetes, s.Status().Nodes[2].Kubernetes)
		f, err := s.Cluster().Forecast(s.T.Context())
		must(err)
		if len(f.Blocked) == 0 || len(f.Steps) > 0 {
			s.T.Errorf("plan: %+v, %+v", f.Blocked, f.Steps)
		}
		time.Sleep(time.Hour)
		for _, c := range s.Lab.World.Calls()[began:] {
			if strings.HasSuffix(c.Op, "/ApplyConfiguration") {
				s.T.Errorf("%s gets another config", c.Subject)
			}
		}
		if now := fmt.Sprint(s.Status().Nodes[1].Kubernetes, s.Status().Nodes[2].Kubernetes); now != kubelets || !refused(s.Status()) {
			s.T.Errorf("kubelets: %s, and now %s", kubelets, now)
		}
		push("forward again", old, other)
		s.untilAppliedIn(12*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		s.wantKubernetes("v1.35.10")
	})
}

// TestRevertOverAnotherEtcd: a revert of both moves nothing where the control planes have a newer etcd than that of the Talos of before:
// neither Kubernetes nor a worker goes back alone. Kubernetes alone goes back all the same, with that etcd.
func TestRevertOverAnotherEtcd(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 1}, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		const old, other = "talos_version: v1.13.9\nkubernetes_version: v1.35.10", "talos_version: v1.14.1\nkubernetes_version: v1.36.1"
		push("both", old, other)
		s.untilAppliedIn(12*time.Hour, "upgraded")
		push("back", other, old)
		s.Until(10*time.Minute, "refused", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && strings.Contains(st.Message+st.Hint, "the older etcd does not read its data") && st.Upgrade != nil && st.Upgrade.NoWay != ""
		})
		time.Sleep(2 * time.Minute) // in which machines are asked what the config would take
		began := len(s.Lab.World.Calls())
		time.Sleep(time.Hour)
		for _, c := range s.Lab.World.Calls()[began:] {
			if strings.HasSuffix(c.Op, "/ApplyConfiguration") || strings.HasSuffix(c.Op, "/Upgrade") {
				s.T.Errorf("%s: %s", c.Subject, c.Op)
			}
		}
		s.wantTalos("v1.14.1")
		s.wantKubernetes("v1.36.1")
		s.goesBack()
		push("Kubernetes alone", old, "talos_version: v1.14.1\nkubernetes_version: v1.35.10")
		s.untilAppliedIn(12*time.Hour, "back")
		s.wantTalos("v1.14.1")
		s.wantKubernetes("v1.35.10")
		w.wantDown("dev-cp-1:1 dev-wk-1:1")
	})
}

// TestLockedBehindInKubernetes: a worker that is locked in the inventory keeps its Kubernetes, and is named for that, with the Talos that
// waits for it. Unlocked, it gets both.
func TestLockedBehindInKubernetes(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	files := sz.Files()
	inClusterOfFiles(t, sz, lab.Config{}, files, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		const nodes, open, locked = "inventory/dev/nodes.yaml", "name: dev-wk-2,", "name: dev-wk-2, locked: true,"
		changed(t, files, nodes, open, locked)
		blocks := func(words string) func(cluster.Status) bool {
			return func(st cluster.Status) bool {
				return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool {
					return b.Subject == "dev-wk-2" && b.Reason == cluster.NodeLocked && b.Message == "it is not given Kubernetes v1.36.1, because it is locked in the inventory"+words
				})
			}
		}
		push("another kubernetes, and a lock", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Until(4*time.Hour, "the others have it", blocks(""))
		if a, b := s.node("dev-wk-1").Kubernetes, s.node("dev-wk-2").Kubernetes; a != "v1.36.1" || b != "v1.35.10" {
			s.T.Errorf("the kubelets are %s and %s", a, b)
		}
		push("another talos", "talos_version: v1.13.9", "talos_version: v1.14.1")
		s.Until(time.Hour, "named", blocks(", and Talos v1.14.1 waits for it"))
		time.Sleep(time.Hour)
		w.wantDown("")
		changed(t, files, nodes, locked, open)
		push("unlocked", "", "")
		s.untilAppliedIn(12*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		s.wantKubernetes("v1.36.1")
	})
}
