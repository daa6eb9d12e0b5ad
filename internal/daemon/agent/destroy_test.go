package agent_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
)

// restore restores a backup of a node's VM under another VMID: its config is that of
// the node's own VM, with UUID, name and mark.
func (s *sim) restore(node string, vmid int) {
	s.T.Helper()
	vm, ok := s.Lab.PVE.VM(s.vmidOf(node))
	if !ok {
		s.T.Fatalf("%s has no VM", node)
	}
	config := maps.Clone(vm.Config)
	for _, key := range []string{"scsi0", "ide2", "efidisk0", "digest", "pool", "lock"} {
		delete(config, key)
	}
	must(s.Lab.PVE.CreateForeign(vmid, pve.Foreign{Pool: vm.Pool, Config: config, Running: true}))
}

// hasReason is met when something of the cluster is left for a reason, and nothing is
// deleted any longer.
func hasReason(reason cluster.Reason) func(cluster.Status) bool {
	return func(st cluster.Status) bool {
		return st.Condition == cluster.Stalled && st.Suspended && !st.Destroying && st.Reason == reason
	}
}

// isDestroyed is met when the status calls the cluster destroyed.
func isDestroyed(st cluster.Status) bool {
	return st.Condition == cluster.Suspended && !st.Destroying && len(st.Running) == 0
}

// TestDestroyKeepsARestoredCopy: a backup of a worker that was restored under another
// VMID is not deleted with the worker. A second command shows it, and deletes it.
func TestDestroyKeepsARestoredCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.restore("dev-wk-1", 999)
		s.Until(10*time.Minute, "reported", func(st cluster.Status) bool { return st.Reason == cluster.DuplicateVM })
		shown, err := s.Cluster().ForecastDestroy(t.Context(), nil)
		must(err)
		if len(shown.Steps) != 2 || len(shown.Blocked) != 1 || shown.Blocked[0].Reason != cluster.DuplicateVM {
			t.Errorf("the preview: %+v", shown)
		}
		must(s.Cluster().Destroy(nil, nil))
		s.Until(20*time.Minute, "ended", func(st cluster.Status) bool { return !st.Destroying && len(st.Running) == 0 })
		if _, ok := s.Lab.PVE.VM(999); !ok {
			t.Fatal("the copy was deleted")
		}
		s.Until(time.Minute, "reported", hasReason(cluster.DuplicateVM))
		if vms := s.Lab.PVE.VMs(); len(vms) != 1 {
			t.Errorf("left: %v", vms)
		}
		must(s.Cluster().Destroy(nil, nil))
		s.Until(20*time.Minute, "destroyed", isDestroyed)
		if s.left() {
			t.Error("the copy is left")
		}
		s.Halt()
	})
}

// TestDestroyKeepsWhatCameLater: a copy that is restored while a destruction waits for
// a backup was not shown to the administrator, and is kept.
func TestDestroyKeepsWhatCameLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		worker := s.vmidOf("dev-wk-1")
		must(s.Lab.PVE.Lock(worker, "backup"))
		must(s.Cluster().Destroy(nil, nil))
		time.Sleep(time.Hour)
		if _, ok := s.Lab.PVE.VM(worker); !ok || !s.Status().Destroying {
			t.Fatal("the destruction did not wait for the backup")
		}
		s.restore("dev-wk-1", 999)
		time.Sleep(5 * time.Minute)
		must(s.Lab.PVE.Unlock(worker))
		s.Until(20*time.Minute, "ended", func(st cluster.Status) bool { return !st.Destroying && len(st.Running) == 0 })
		if _, ok := s.Lab.PVE.VM(999); !ok {
			t.Fatal("the copy was deleted")
		}
		s.Until(time.Minute, "reported", hasReason(cluster.DuplicateVM))
		if vms := s.Lab.PVE.VMs(); len(vms) != 1 {
			t.Errorf("left: %v", vms)
		}
		s.Halt()
	})
}
