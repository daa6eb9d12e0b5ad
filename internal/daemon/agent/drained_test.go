package agent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestRenamedWhileDrained: a node that is renamed while it is drained for an upgrade goes back into service, where its machine is kept, and
// no other one is touched for that; with its name set back the upgrade goes on. While the cluster is suspended nothing is changed, and the node that
// was drained is shown.
func TestRenamedWhileDrained(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	files := sz.Files()
	inClusterOfFiles(t, sz, lab.Config{}, files, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		isDrained := func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool {
				return r.Action == cluster.DrainNode && r.Subject == "dev-wk-1"
			}) && slices.Contains(s.cordoned(), "dev-wk-1")
		}
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.Until(4*time.Hour, "drained", isDrained)
		must(s.Cluster().Suspend())
		time.Sleep(2 * time.Hour)
		s.Until(time.Hour, "suspended, and shown", func(st cluster.Status) bool {
			return st.Condition == cluster.Suspended && len(st.Running) == 0 && slices.Equal(s.cordoned(), []string{"dev-wk-1"}) &&
				slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
					return w.Subject == "dev-wk-1" && w.Reason == cluster.SuspendedByAdmin
				})
		})
		changed(t, files, "inventory/dev/nodes.yaml", "name: dev-wk-1,", "name: dev-wk-9,")
		s.Push(files, "another name")
		must(s.Cluster().Resume())
		isKept := func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Reason == cluster.NodeIdentityChanged })
		}
		s.Until(time.Hour, "in service", func(st cluster.Status) bool { return isKept(st) && len(st.Running) == 0 && len(s.cordoned()) == 0 })
		time.Sleep(3 * time.Hour)
		s.Until(time.Hour, "in service still", func(st cluster.Status) bool { return isKept(st) && len(s.cordoned()) == 0 })
		changed(t, files, "inventory/dev/nodes.yaml", "name: dev-wk-9,", "name: dev-wk-1,")
		s.Push(files, "its name")
		s.untilAppliedIn(6*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
	})
}
