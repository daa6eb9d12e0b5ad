package agent_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestHealingUnderMistakes: neither a typo nor a clash in another cluster's folder
// keeps a stopped worker from being started, also after a restart.
func TestHealingUnderMistakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		good := s.Status().Applied
		clash := map[string][]byte{}
		for name, file := range sz.Files() {
			clash[strings.Replace(name, "/dev/", "/prod/", 1)] = bytes.Replace(file, []byte("cluster_name: dev"), []byte("cluster_name: prod"), 1)
		}
		for _, mistake := range []struct {
			what  string
			files map[string][]byte
		}{
			{"is that of", clash},
			{"cpuu", map[string][]byte{"inventory/dev/nodes.yaml": []byte("controlplane:\n  - {name: dev-cp-1, ip: 10.10.0.11, cpuu: 4, ram: 8192, disk: 40G}\nworkers: []\n")}},
		} {
			s.Push(mistake.files, "a mistake")
			must(s.Agent.Reconcile("dev"))
			for range 2 {
				s.Until(2*time.Minute, "refused", func(st cluster.Status) bool { return st.Reason == cluster.InventoryInvalid })
				must(s.Lab.PVE.Stop(541))
				s.Until(10*time.Minute, "healed", func(st cluster.Status) bool {
					return st.Condition == cluster.Stalled && strings.Contains(st.Message, mistake.what) && st.Applied == good && st.Revision.Commit() == s.Head() &&
						strings.HasSuffix(st.Message, good.Short()+" stays in force: all nodes are Ready") && isRunning(s, 541)
				})
				s.Halt()
				s.Boot()
			}
			s.CheckRules(sz)
		}

		// A cluster that was removed is left alone, also by an agent that cannot fetch.
		gone := map[string][]byte{"inventory/prod/README.md": []byte("the folder of clusters stays\n")}
		for name := range sz.Files() {
			gone[name] = nil
		}
		s.Push(gone, "remove dev")
		must(s.Agent.Reconcile("dev"))
		s.Until(2*time.Minute, "removed", func(st cluster.Status) bool { return strings.Contains(st.Message, "no longer in the repository") })
		must(s.Lab.PVE.Stop(541))
		for range 2 {
			time.Sleep(10 * time.Minute)
			if st := s.Status(); isRunning(s, 541) || st.Condition != cluster.Stalled || strings.Contains(st.Message, "in force") {
				t.Errorf("running: %v, %s", isRunning(s, 541), st.Message)
			}
			s.Lab.World.Inject(world.Fault{System: "git", Kind: world.Answer, Status: 503, Text: "down"})
			s.Halt()
			s.Boot()
		}
		s.Halt()
	})
}

func isRunning(s *sim, vmid int) bool {
	vm, ok := s.Lab.PVE.VM(vmid)
	return ok && vm.Power == pve.Running
}
