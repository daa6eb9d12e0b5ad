package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestUpgradeFromTheOldest: one push leads from the oldest versions that there is a way from to the newest, over every version in between.
func TestUpgradeFromTheOldest(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.8.4", "v1.31.14", func(s *sim, push func(what, from, to string), w *turns) {
		push("the newest of both", "talos_version: v1.8.4\nkubernetes_version: v1.31.14", "talos_version: v1.14.1\nkubernetes_version: v1.37.1")
		s.untilAppliedIn(48*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		s.wantKubernetes("v1.37.1")
		w.wantDown("dev-cp-1:6 dev-wk-1:6")
	})
}

// TestBadImageOnTheCanary: a version that does not start is tried on the canary alone, and the control planes stay as they are.
func TestBadImageOnTheCanary(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 3, Workers: 2}, "v1.13.8", "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
		s.Lab.Talos.SpoilImage("v1.13.9", installer.CrashesOnBoot)
		before := len(s.Lab.World.Calls())
		push("a bad one", "talos_version: v1.13.8", "talos_version: v1.13.9\ncanary: dev-wk-2")
		s.Until(4*time.Hour, "stopped", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.UpgradeFellBack && st.Concerns == "dev-wk-2" && len(st.Running) == 0
		})
		time.Sleep(3 * time.Hour)
		if got := fmt.Sprint(s.timesInstalled(before)); got != "map[dev-wk-2:1]" {
			s.T.Errorf("got another Talos: %s", got)
		}
		s.wantTalos("v1.13.8")
		w.wantDown("dev-wk-2:1")
	})
}

// TestBadImageWithoutAnAnswer: where it is not known how the installation of what does not start has ended it is made once more, and
// then never again.
func TestBadImageWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 1}, "v1.13.8", "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
		s.Lab.Talos.SpoilImage("v1.13.9", installer.CrashesOnBoot)
		before := len(s.Lab.World.Calls())
		s.Lab.World.Inject(world.Fault{System: "talos", Op: "machine.LifecycleService/Upgrade", Kind: world.LoseReply, Times: 3})
		push("a bad one", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.Until(12*time.Hour, "stopped", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.UpgradeFellBack && len(st.Running) == 0
		})
		time.Sleep(6 * time.Hour)
		if got := fmt.Sprint(s.timesInstalled(before)); got != "map[dev-cp-1:2]" {
			s.T.Errorf("got another Talos: %s", got)
		}
		s.wantTalos("v1.13.8")
		if n := s.node("dev-cp-1"); n.Console == nil || !strings.Contains(strings.Join(n.Console.Lines, "\n"), "booting Talos v1.13.9") {
			s.T.Errorf("shown of its console: %+v", n.Console)
		}
	})
}
