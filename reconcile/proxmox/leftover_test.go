package proxmox

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// TestLeftOverVolumes: the worker of a creation is killed. A plain qm destroy
// leaves the volumes that its config did not name yet, and the next creation names
// the one it stumbles over; the command of the hint leaves none.
func TestLeftOverVolumes(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	for _, tc := range []struct {
		name   string
		remove func(*stand) error
		left   string
	}{
		{"plain", func(s *stand) error { return s.host.Remove(n.VMID) }, "volume local-lvm:vm-411-cloudinit is left over from an earlier vm 411, or from an attempt to make it: "},
		{"all", func(s *stand) error { return s.host.RemoveAll(n.VMID) }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				s.image()
				c := s.client()
				defer c.Close()
				// Until the cloud-init drive is made, which comes first, and the image
				// is being copied.
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				if err := c.Create(ctx, d, n, testHost, d.Image, nil); err == nil {
					t.Fatal("the creation was not interrupted")
				}
				tasks := s.host.Tasks()
				s.must(s.host.KillTask(tasks[len(tasks)-1].UPID))
				why := observe(c, d).VMs[n.Name].Why
				if !strings.Contains(why, "`qm unlock 411 && qm destroy 411 --destroy-unreferenced-disks 1`") {
					t.Errorf("left locked: %s", why)
				}
				s.must(s.host.Unlock(n.VMID))
				s.must(tc.remove(s))
				err := c.Create(context.Background(), d, n, testHost, d.Image, nil)
				if tc.left == "" {
					s.must(err)
					return
				}
				if err == nil || !strings.Contains(err.Error(), tc.left) || !strings.Contains(fault.HintOf(err), "`pvesm free local-lvm:vm-411-cloudinit`") {
					t.Errorf("got %v -> %s", err, fault.HintOf(err))
				}
			})
		})
	}
}

// TestNameLeftOver: the words of other storages, and of other troubles.
func TestNameLeftOver(t *testing.T) {
	n := desired(1).Spec.Nodes[0]
	n.Datastore, n.CloudInitDatastore = "tank", "local"
	for exit, want := range map[string]string{
		"unable to create VM 411 - disk image '/var/lib/vz/images/411/vm-411-cloudinit.qcow2' already exists":                   "local:411/vm-411-cloudinit.qcow2",
		"unable to create VM 411 - zfs error: cannot create 'tank/vm-411-disk-0': dataset already exists":                       "tank:vm-411-disk-0",
		"unable to create VM 411 - lvcreate 'pve/vm-412-cloudinit' error:   Logical Volume \"vm-412-cloudinit\" already exists": "",
		"unable to create VM 411 - VM 411 already exists on node 'pve1'":                                                        "",
	} {
		err := nameLeftOver(&TaskError{Type: "qmcreate", Exit: exit}, "pve1", n)
		if got := strings.Contains(err.Error(), "is left over"); got != (want != "") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", exit, err)
		}
	}
}
