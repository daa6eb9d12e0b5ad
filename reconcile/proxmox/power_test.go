package proxmox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
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

// TestReset: a VM of ours that runs boots again, once for each call, also where the answer is lost; one that is locked, paused, off,
// managed by HA, in the hands of a task, or another's, is not reset, and that is known.
func TestReset(t *testing.T) {
	const call = "POST /nodes/{node}/qemu/{vmid}/status/reset"
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d, ctx := desired(1), context.Background()
		c := s.made(d)
		defer c.Close()
		n := d.Spec.Nodes[0]
		resets := func() (n int) {
			for _, r := range s.world.Calls() {
				if r.Op == call {
					n++
				}
			}
			return n
		}
		refused := func(what, why string) {
			t.Helper()
			c.forget(n.VMID)
			before := resets()
			if err := c.Reset(ctx, d, n, nil); !errors.Is(err, cluster.ErrNotBegun) || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v", what, err)
			}
			if resets() != before {
				t.Errorf("%s: it was asked for", what)
			}
		}
		s.must(c.Start(ctx, d, n, nil))
		s.must(c.Reset(ctx, d, n, nil))
		if vm := observe(c, d).VMs[n.Name]; vm.Power != cluster.PowerRunning || resets() != 1 {
			t.Errorf("%v after %d resets", vm.Power, resets())
		}
		s.must(s.host.Lock(n.VMID, "backup"))
		refused("locked", "locked (backup)")
		s.must(s.host.Unlock(n.VMID))
		s.must(s.host.Suspend(n.VMID))
		refused("paused", "off or paused")
		s.must(s.host.Stop(n.VMID))
		refused("off", "off or paused")
		s.must(c.Start(ctx, d, n, nil))
		s.must(s.host.Edit(n.VMID, "smbios1", "uuid=00000000-0000-4000-8000-000000000001"))
		refused("another's", "is not ours")
		s.must(s.host.Edit(n.VMID, "smbios1", "uuid="+n.UUID))
		s.host.Manage(fmt.Sprintf("vm:%d", n.VMID))
		refused("managed", "managed by Proxmox VE's HA")
		s.host.Manage()
		s.world.Inject(world.Fault{System: "pve", Op: call, Kind: world.LoseReply, Times: 1})
		if err := c.Reset(ctx, d, n, nil); err == nil || errors.Is(err, cluster.ErrNotBegun) || resets() != 2 {
			t.Errorf("without an answer: %v, after %d resets", err, resets())
		}
	})
}
