package agent_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestNodesBesideARefusedChange: while a change of what runs is refused, a node that
// is added and one whose VM was deleted by hand get what the others have: over a
// restart too, with the config read from the history of the repository.
func TestNodesBesideARefusedChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][2]string{
		"an older Talos":      {"talos_version: v1.13.9", "talos_version: v1.13.8"},
		"an older Kubernetes": {"kubernetes_version: v1.36.1", "kubernetes_version: v1.36.0"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, size{ControlPlanes: 1, Workers: 2}, lab.Config{})
				defer s.Close()
				s.Boot()
				s.UntilReady(20 * time.Minute)
				more := size{ControlPlanes: 1, Workers: 3}
				files := more.Files()
				cluster := files["inventory/dev/cluster.yaml"]
				files["inventory/dev/cluster.yaml"] = bytes.Replace(cluster, []byte(change[0]), []byte(change[1]), 1)
				s.Push(files, "what runs is not changed")
				s.untilAllRefused("dev-wk-3")

				vmid := s.vmidOf("dev-wk-2")
				s.Halt()
				must(s.Lab.PVE.Stop(vmid))
				must(s.Lab.PVE.Remove(vmid))
				s.Boot()
				s.untilAllRefused("dev-wk-2")

				files["inventory/dev/cluster.yaml"] = cluster
				s.Push(files, "back to what runs")
				s.UntilReady(20 * time.Minute)
				s.CheckRules(more)
				s.Halt()
			})
		})
	}
}

// untilAllRefused waits until a node is there, Ready and as different from the
// repository as all others.
func (s *sim) untilAllRefused(name string) {
	s.T.Helper()
	s.Until(20*time.Minute, "refused as one", func(st cluster.Status) bool {
		for _, n := range st.Nodes {
			if n.Phase != cluster.PhaseReady || n.Talos != "v1.13.9" || n.Kubernetes != "v1.36.1" || len(n.Blocked) != 1 || !strings.HasSuffix(string(n.Blocked[0].Reason), "Drift") {
				return false
			}
		}
		return len(st.Nodes) == 4
	})
	for _, p := range s.Status().Passes {
		for _, text := range p.Started {
			if strings.HasPrefix(text, "create vm") && strings.Contains(text, name) && !strings.Contains(text, "which the cluster runs") {
				s.T.Errorf("the plan does not say what %s gets: %s", name, text)
			}
		}
	}
}

func (s *sim) vmidOf(name string) int {
	for _, n := range s.Status().Nodes {
		if n.Name == name {
			return n.VMID
		}
	}
	s.T.Fatalf("there is no node %s", name)
	return 0
}
