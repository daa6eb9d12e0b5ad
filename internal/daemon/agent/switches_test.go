package agent_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestSwitchesOfTheNewestPush: a switch, or a window, is in force as soon as it is read, also when
// the same push has another machine config, which the nodes do not run yet.
func TestSwitchesOfTheNewestPush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		push := func(round int, more string) {
			t.Helper()
			files := sz.Files()
			changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", more+"cni: cilium\npatches: {all: [patches/all.yaml]}\n")
			files["inventory/dev/patches/all.yaml"] = fmt.Appendf(nil, "machine: {env: {ROUND: \"%d\"}}\n", round)
			s.Push(files, fmt.Sprint(round, more))
		}
		held := func(node string, reason cluster.Reason, want string) {
			t.Helper()
			s.Until(10*time.Minute, string(reason), func(st cluster.Status) bool {
				return st.Revision.Commit() == s.Head() && (waitFor(st, node, reason) != "" || st.Reason == reason)
			})
			time.Sleep(30 * time.Minute)
			w.wantDown(want)
		}
		push(1, "apply: approve\n")
		held("dev-cp-1", cluster.ChangeUnapproved, "")
		now := time.Now().UTC()
		push(1, fmt.Sprintf("window: {from: %q, to: %q}\n", now.Add(12*time.Hour).Format("15:04"), now.Add(13*time.Hour).Format("15:04")))
		held("dev-cp-1", cluster.WaitingForWindow, "")
		push(1, "")
		s.UntilReady(2 * time.Hour)
		w.wantDown("dev-cp-1:1 dev-wk-1:1 dev-wk-2:1")

		// What the nodes run came with another switch.
		push(1, "apply: off\n")
		s.UntilReady(20 * time.Minute)
		push(2, "apply: off\n")
		held("dev-cp-1", cluster.ApplyingOff, "dev-cp-1:1 dev-wk-1:1 dev-wk-2:1")
		push(2, "")
		s.UntilReady(2 * time.Hour)
		w.wantDown("dev-cp-1:2 dev-wk-1:2 dev-wk-2:2")
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestNewNodesUnderTheSwitches: a new node is made, and gets its first machine config, under any
// of the switches by which nodes that are there are left alone.
func TestNewNodesUnderTheSwitches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		sz := size{ControlPlanes: 1, Workers: 1}
		for _, of := range []string{"apply: off\n", "apply: approve\n", "heal: observe\n"} {
			sz.Workers++
			files := sz.Files()
			changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", of+"cni: cilium\n")
			s.Push(files, "a worker more, under "+of)
			s.UntilReady(30 * time.Minute)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}
