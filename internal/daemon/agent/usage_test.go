package agent_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestUsage: what is in use is asked for when somebody wants to know it, once for all
// who ask at a time, and no pass asks for more than before.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, flavour := range []string{"9.2", "8.4"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{Flavour: flavour})
			defer s.Close()
			s.Boot()
			s.UntilReady(20 * time.Minute)
			var asked, histories atomic.Int32
			s.Lab.World.OnCall(func(c world.CallRecord) {
				s.Witness(c)
				switch c.Op {
				case "GET /nodes/{node}/rrddata":
					histories.Add(1)
				case "GET /cluster/resources":
					asked.Add(1)
				}
				if c.Mutating && c.System == "pve" {
					t.Errorf("a report sends %s", c.Op)
				}
			})
			time.Sleep(10 * time.Minute)
			if histories.Load() != 0 {
				t.Errorf("passes have asked %d times for a history", histories.Load())
			}
			asked.Store(0)
			for range 3 {
				r, err := s.Cluster().Usage(t.Context())
				if err != nil || len(r.Hosts) != 1 || len(r.VMs) != 2 {
					t.Fatalf("%+v %v", r, err)
				}
				h, vm := r.Hosts[0], r.VMs[0]
				if h.Name != "pve1" || h.Status != "online" || h.Cores == 0 || h.CPU == nil || *h.CPU != 0.03 || h.Memory == nil || h.Memory.Used == 0 || h.Disk == nil || len(h.Storages) == 0 || h.Unanswered != "" {
					t.Errorf("%s: %+v", flavour, h)
				}
				if nine := flavour == "9.2"; (h.Pressure != nil) != nine || nine && (h.Pressure.IO != 2.5 || time.Since(h.Pressure.At) > 2*time.Minute) || (vm.HostMemory != nil) != nine {
					t.Errorf("%s: %+v %+v", flavour, h.Pressure, vm)
				}
				if vm.Node != "dev-cp-1" || vm.VMID != s.vmidOf("dev-cp-1") || vm.Host != "pve1" || vm.Status != "running" || vm.CPU == nil || vm.Memory == nil || vm.Memory.Used == 0 {
					t.Errorf("%s: %+v", flavour, vm)
				}
			}
			if asked.Load() != 1 || histories.Load() != 1 {
				t.Errorf("asked %d times for the list and %d for a history", asked.Load(), histories.Load())
			}
			time.Sleep(6 * time.Second)
			if _, err := s.Cluster().Usage(t.Context()); err != nil || histories.Load() != 2 {
				t.Errorf("asked %d times for a history: %v", histories.Load(), err)
			}
			s.Halt()
		})
	}
}
