package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestRevertBeyondTalos sets both versions back by more than Talos goes, after the upgrade has ended: that is refused as what it is, node by
// node, and nothing goes back; and the inventory is valid.
func TestRevertBeyondTalos(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.12.11", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		push("both", "talos_version: v1.12.11\nkubernetes_version: v1.35.10", "talos_version: v1.14.1\nkubernetes_version: v1.36.1")
		s.untilAppliedIn(6*time.Hour, "upgraded")
		push("back", "talos_version: v1.14.1\nkubernetes_version: v1.36.1", "talos_version: v1.12.11\nkubernetes_version: v1.35.10")
		s.Until(time.Hour, "refused", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
		if st := s.Status(); st.Reason != cluster.TalosVersionDrift || !strings.Contains(st.Hint, "a downgrade of Talos, from v1.14.1 to v1.12.11, is not made") {
			t.Errorf("%s: %s -> %s", st.Reason, st.Message, st.Hint)
		}
		s.Quiet(time.Hour)
		s.wantTalos("v1.14.1")
		s.wantKubernetes("v1.36.1")
	})
}

// TestRevertOfBothIsShown: what the plan and the status have of a way back of both begins with Kubernetes, and has Talos after it, while an
// action of it is under way, too.
func TestRevertOfBothIsShown(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.12.11", "v1.34.13", func(s *sim, push func(what, from, to string), w *turns) {
		push("both", "talos_version: v1.12.11\nkubernetes_version: v1.34.13", "talos_version: v1.13.9\nkubernetes_version: v1.35.10")
		s.untilAppliedIn(6*time.Hour, "upgraded")
		push("back", "talos_version: v1.13.9\nkubernetes_version: v1.35.10", "talos_version: v1.12.11\nkubernetes_version: v1.34.13")
		s.Until(time.Hour, "it goes back", func(st cluster.Status) bool { return st.Upgrade != nil && st.Upgrade.Back })
		for range 20 {
			st := s.Status()
			if st.Upgrade == nil || len(st.Upgrade.Hops) == 0 {
				t.Fatalf("the status has no way back: %+v, %s", st.Upgrade, st.Message)
			}
			if !strings.HasPrefix(st.Upgrade.Hops[0], "Kubernetes") {
				break
			}
			f, err := s.Cluster().Forecast(s.T.Context())
			must(err)
			if got := cluster.DescribeHops(f.Hops); got != "Kubernetes v1.34.13, then Talos v1.12.11" && got != "Talos v1.12.11" {
				t.Fatalf("the plan has the hops %q", got)
			}
			if len(f.Steps) == 0 && len(f.Waiting) == 0 && len(f.Blocked) == 0 {
				t.Fatal("the plan has nothing to do")
			}
			time.Sleep(7 * time.Second)
		}
		s.untilAppliedIn(6*time.Hour, "gone back")
		s.wantTalos("v1.12.11")
		s.wantKubernetes("v1.34.13")
	})
}
