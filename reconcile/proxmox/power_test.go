package proxmox

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestResume: a VM that somebody paused goes on; one that QEMU has halted, or that is off, or
// another's, is left as it is.
func TestResume(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d, ctx := desired(1), context.Background()
		c := s.made(d)
		defer c.Close()
		n := d.Spec.Nodes[0]
		s.must(c.Start(ctx, d, n, nil))
		s.must(c.Resume(ctx, d, n, nil)) // it runs
		s.must(s.host.Suspend(n.VMID))
		c.forget(n.VMID)
		if vm := observe(c, d).VMs[n.Name]; vm.Power != cluster.Paused || vm.Halted != "" {
			t.Errorf("paused by somebody: %v, %q", vm.Power, vm.Halted)
		}
		if err := c.ShutDown(ctx, d, n, nil); err == nil || !strings.Contains(err.Error(), "VM is paused") {
			t.Errorf("shut down: %v", err)
		}
		s.must(c.Resume(ctx, d, n, nil))
		if vm := observe(c, d).VMs[n.Name]; vm.Power != cluster.PowerRunning {
			t.Errorf("resumed: %v", vm.Power)
		}
		s.must(s.host.Pause(n.VMID, true))
		c.forget(n.VMID)
		if vm := observe(c, d).VMs[n.Name]; vm.Power != cluster.Paused || vm.Halted != "io-error" {
			t.Errorf("halted by its storage: %v, %q", vm.Power, vm.Halted)
		}
		s.calls()
		if err := c.Resume(ctx, d, n, nil); err == nil || !strings.Contains(err.Error(), "is paused") {
			t.Errorf("halted by its storage: %v", err)
		}
		s.must(s.host.Pause(n.VMID, false))
		s.must(s.host.Suspend(n.VMID))
		s.must(s.host.Edit(n.VMID, "smbios1", "uuid=00000000-0000-4000-8000-000000000001"))
		if err := c.Resume(ctx, d, n, nil); !errors.As(err, new(*notOurs)) {
			t.Errorf("another's: %v", err)
		}
		s.must(s.host.Edit(n.VMID, "smbios1", "uuid="+n.UUID))
		s.must(s.host.Stop(n.VMID))
		if err := c.Resume(ctx, d, n, nil); err == nil || !strings.Contains(err.Error(), "stopped by now") {
			t.Errorf("off: %v", err)
		}
		for _, r := range s.world.Calls() {
			if r.Mutating {
				t.Errorf("%+v", r)
			}
		}
	})
}
