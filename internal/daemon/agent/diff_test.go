package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestDiff: a difference is what the plan is about, looked at now for root, and a few
// seconds ago for others; looking changes nothing.
func TestDiff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		must(s.Cluster().Suspend())
		s.Until(time.Minute, "suspended", func(st cluster.Status) bool { return st.Condition == cluster.Suspended })
		s.Lab.World.OnCall(func(c world.CallRecord) {
			s.Witness(c)
			if c.Mutating && c.System != "forge" {
				t.Errorf("a comparison sends %s %s", c.System, c.Op)
			}
		})
		vmid := s.vmidOf("dev-wk-1")
		vm, _ := s.Lab.PVE.VM(vmid)
		diff := func(fresh, want bool) {
			t.Helper()
			d, err := s.Cluster().Diff(t.Context(), "", fresh)
			if err != nil || d.Differs != want || len(d.Unknown) > 0 {
				t.Errorf("fresh %v: %+v, %v", fresh, d, err)
			}
			if one, err := s.Cluster().Diff(t.Context(), "dev-cp-1", fresh); err != nil || one.Differs {
				t.Errorf("of the other node: %+v, %v", one, err)
			}
		}
		diff(true, false)
		must(s.Lab.PVE.Edit(vmid, "tags", ""))
		diff(false, true) // the first of its kind
		must(s.Lab.PVE.Edit(vmid, "tags", vm.Config["tags"]))
		diff(false, true)
		diff(true, false)
		time.Sleep(11 * time.Second)
		diff(false, false)
		s.Halt()
	})
}
