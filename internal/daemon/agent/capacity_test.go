package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
)

// blockFor is the block of a status with a reason; "" : there is none.
func blockFor(st cluster.Status, subject string, reason cluster.Reason) string {
	for _, b := range st.Blocked {
		if b.Subject == subject && b.Reason == reason {
			return b.Message
		}
	}
	return ""
}

// TestClusterLargerThanItsHost: two workers of 2 TiB of memory, and of 10 TiB of disk,
// do not come onto a host of 1 TiB and a storage of 16 TiB. Nothing of the cluster is
// made, which is shown with the numbers; a smaller one is.
func TestClusterLargerThanItsHost(t *testing.T) {
	t.Parallel()
	const small, large = "cpu: 4, ram: 8192, disk: 60G", "cpu: 4, ram: 2097152, disk: 10T"
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		host := sz.Host()
		host.MemoryBytes = 1 << 40
		host.Storages[1].TotalBytes = 16 << 40
		s := newSim(t, sz, lab.Config{Hosts: []pve.Host{host}})
		defer s.Close()
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", small, large)
		s.Push(files, "two large workers")
		s.Boot()
		st := cluster.Status{}
		s.Until(5*time.Minute, "Stalled", func(now cluster.Status) bool {
			st = now
			return st.Condition == cluster.Stalled
		})
		for subject, want := range map[string]string{
			"dev-wk-1": "it needs 2048 GiB of memory: pve1 has 1024 GiB, of which 2 GiB are reserved and 8 GiB are promised to 1 VM",
			"dev-wk-2": "it needs 2048 GiB of memory: pve1 has 1024 GiB, of which 2 GiB are reserved and 8 GiB are promised to 1 VM",
		} {
			if got := blockFor(st, subject, cluster.HostMemoryShort); got != want {
				t.Errorf("%s: %q, want %q", subject, got, want)
			}
		}
		if st.Reason != cluster.HostMemoryShort || !strings.Contains(st.Hint, "give it less ram") || waitFor(st, "dev-cp-1", cluster.WaitingForCapacity) == "" {
			t.Errorf("%s: %s -> %s", st.Reason, st.Message, st.Hint)
		}
		s.Quiet(time.Hour)
		if vms := s.Lab.PVE.VMs(); len(vms) != 0 {
			t.Errorf("%d VMs are there", len(vms))
		}

		// The memory fits, and one of the disks does not.
		files = sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", small, "cpu: 4, ram: 8192, disk: 10T")
		s.Push(files, "two large disks")
		s.Until(5*time.Minute, "Stalled for its disks", func(st cluster.Status) bool {
			return blockFor(st, "dev-wk-2", cluster.StorageShort) == "it needs 10240 GiB on local-lvm: storage local-lvm on pve1 has 16384 GiB, of which 10280 GiB are promised to 2 VMs"
		})
		if vms := s.Lab.PVE.VMs(); len(vms) != 0 {
			t.Errorf("%d VMs are there", len(vms))
		}

		s.Push(sz.Files(), "as much as there is")
		s.UntilReady(30 * time.Minute)

		// A worker more than there is room for: the cluster stays as it is.
		files = sz.Files()
		files["inventory/dev/nodes.yaml"] = append(files["inventory/dev/nodes.yaml"], "  - {name: dev-wk-3, ip: 10.10.0.43, cpu: 4, ram: 1048576, disk: 60G}\n"...)
		s.Push(files, "one more")
		s.Until(5*time.Minute, "Stalled for one more", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && blockFor(st, "dev-wk-3", cluster.HostMemoryShort) == "it needs 1024 GiB of memory: pve1 has 1024 GiB, of which 2 GiB are reserved and 24 GiB are promised to 3 VMs"
		})
		s.CheckRules(sz)
		s.Halt()
	})
}
