package proxmox

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// life brings a cluster up and tears it down again, over whatever happens.
func (s *stand) life(d cluster.Desired, image []byte) {
	var crashed atomic.Bool
	s.world.OnCrash(func(world.Call) {
		crashed.Store(true)
		s.link.Cut()
	})
	after := func() bool { return crashed.Swap(false) }
	s.drive("bring-up", func(c *Client) (bool, error) { return s.next(c, d, image) }, after).Close()
	for _, n := range d.Spec.Nodes {
		vm, ok := s.host.VM(n.VMID)
		if !ok || vm.Power != pve.Running || vm.UUID != n.UUID || vm.Disks["scsi0"].Bytes != n.DiskBytes || vm.Config["tags"] != "controlplane;dev;talos-agent" {
			s.t.Errorf("after the bring-up: %+v", vm)
		}
	}
	s.drive("tear-down", func(c *Client) (bool, error) { return s.down(c, d) }, after).Close()
	if vms := s.host.VMs(); len(vms) != 0 {
		s.t.Errorf("left after the tear-down: %+v", vms)
	}
	s.checkRules()
}

// TestEveryCallMayFail strikes every single call of a VM's life, one at a time,
// in every way a call can go wrong, and lets the agent go on: the world ends up
// as wanted, nothing is made twice, nothing foreign is touched.
func TestEveryCallMayFail(t *testing.T) {
	for _, flavour := range flavours {
		var calls []world.CallRecord
		t.Run(flavour+"/none", func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				s.life(desired(1), s.imageBytes())
				calls = s.world.Calls()
			})
		})
		t.Logf("%s: %d calls", flavour, len(calls))
		faults := []world.Fault{
			{Kind: world.LoseRequest}, {Kind: world.LoseReply}, {Kind: world.CrashBefore}, {Kind: world.CrashAfter},
			{Kind: world.Answer, Status: 596, Text: "Broken pipe"},
			{Kind: world.Answer, Status: 500, Text: "can't lock file '/var/lock/qemu-server/lock-411.conf' - got timeout"},
		}
		for _, f := range faults {
			for _, call := range calls {
				poll := strings.HasSuffix(call.Op, "/tasks/{upid}/status") && call.N > 2              // one like the other
				same := !call.Mutating && (f.Kind == world.LoseRequest || f.Kind == world.CrashAfter) // to a read, like the other one
				if poll || same || (testing.Short() || flavour != "9.2") && !call.Mutating {
					continue
				}
				f.System, f.Op, f.Subject, f.Nth = call.System, call.Op, call.Subject, call.N
				t.Run(fmt.Sprintf("%s/%s-%d/%s %s#%d", flavour, f.Kind, f.Status, call.Op, call.Subject, call.N), func(t *testing.T) {
					onStand(t, flavour, func(t *testing.T, s *stand) {
						image := s.imageBytes()
						s.world.Inject(f)
						s.life(desired(1), image)
					})
				})
			}
		}
	}
}

// TestEveryTaskMayFail lets the tasks fail and hang.
func TestEveryTaskMayFail(t *testing.T) {
	for _, op := range []string{"POST /nodes/{node}/storage/{storage}/upload", "POST /nodes/{node}/qemu", "PUT /nodes/{node}/qemu/{vmid}/resize",
		"POST /nodes/{node}/qemu/{vmid}/status/start", "POST /nodes/{node}/qemu/{vmid}/status/stop", "DELETE /nodes/{node}/qemu/{vmid}"} {
		for _, f := range []world.Fault{
			{Kind: world.FailTask, Text: "it did not work", Times: 2},
			{Kind: world.FailTask, Text: "can't lock file '/var/lock/qemu-server/lock-411.conf' - got timeout", Times: 1},
			{Kind: world.HangTask, Delay: 90e9, Times: 1},
		} {
			f.System, f.Op = "pve", op
			t.Run(fmt.Sprintf("%s %s", f.Kind, op), func(t *testing.T) {
				onStand(t, "9.2", func(t *testing.T, s *stand) {
					image := s.imageBytes()
					s.world.Inject(f)
					s.life(desired(1), image)
				})
			})
		}
	}
}
