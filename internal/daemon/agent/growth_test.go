package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestDiskThatDoesNotFit: a node is not drained for a disk that its storage has no room for,
// and has its other changes. When the inventory asks for less, that disk grows.
func TestDiskThatDoesNotFit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "10.10.0.41, cpu: 4, ram: 8192, disk: 60G", "10.10.0.41, cpu: 4, ram: 8192, disk: 50000G")
		changed(t, files, "inventory/dev/nodes.yaml", "10.10.0.42, cpu: 4, ram: 8192, disk: 60G", "10.10.0.42, cpu: 6, ram: 8192, disk: 50000G")
		s.Push(files, "large disks")
		short := func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.StorageShort && st.Revision.Commit() == s.Head()
		}
		s.Until(time.Hour, "stalled", short)
		time.Sleep(time.Hour)
		w.wantDown("dev-wk-2:1")
		if got := s.cordoned(); len(got) > 0 {
			t.Errorf("cordoned: %v", got)
		}
		changed(t, files, "inventory/dev/nodes.yaml", "10.10.0.41, cpu: 4, ram: 8192, disk: 50000G", "10.10.0.41, cpu: 4, ram: 8192, disk: 100G")
		changed(t, files, "inventory/dev/nodes.yaml", "10.10.0.42, cpu: 6, ram: 8192, disk: 50000G", "10.10.0.42, cpu: 6, ram: 8192, disk: 60G")
		s.Push(files, "smaller ones")
		s.UntilReady(time.Hour)
		w.wantDown("dev-wk-1:1 dev-wk-2:1")
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}
