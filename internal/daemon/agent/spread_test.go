package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/pve/history"
)

// spreadFiles is the repository of a cluster whose nodes may be on three hosts.
func spreadFiles(t *testing.T, sz size) map[string][]byte {
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "  node: pve1\n", "  nodes: [pve1, pve2, pve3]\n")
	changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\nplacement: spread\n")
	return files
}

// threeHosts are pve1, pve2 and pve3.
func threeHosts(sz size) []pve.Host {
	hosts := []pve.Host{sz.Host(), sz.Host(), sz.Host()}
	hosts[1].Name, hosts[2].Name = "pve2", "pve3"
	return hosts
}

// onHosts is on which host each VM of the cluster is, by host: how many control planes and workers.
func (s *sim) onHosts() string {
	var out []string
	for _, host := range []string{"pve1", "pve2", "pve3"} {
		planes, workers := 0, 0
		for _, vm := range s.Lab.PVE.VMs() {
			switch {
			case vm.Host != host:
			case strings.HasPrefix(vm.Config["name"], "dev-cp-"):
				planes++
			default:
				workers++
			}
		}
		out = append(out, fmt.Sprintf("%d+%d", planes, workers))
	}
	return strings.Join(out, " ")
}

// TestSpreadOverHosts brings a cluster up on three hosts, the agent dying in between, scales it, and has somebody migrate
// and delete VMs: what was migrated stays, and is no drift.
func TestSpreadOverHosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 3}
		s := newSim(t, sz, lab.Config{Hosts: threeHosts(sz)})
		defer s.Close()
		s.Push(spreadFiles(t, sz), "over three hosts")
		s.Boot()
		s.Until(20*time.Minute, "a first VM is there", func(cluster.Status) bool { return len(s.Lab.PVE.VMs()) > 0 })
		s.Die()
		s.UntilReady(20 * time.Minute)
		if got := s.onHosts(); got != "1+1 1+1 1+1" {
			t.Errorf("brought up: %s", got)
		}

		sz.Workers = 5
		s.Lab.PVE.SetPressure("pve1", history.Pressure{IO: 42})
		s.Push(spreadFiles(t, sz), "two workers more")
		s.UntilReady(20 * time.Minute)
		if got := s.onHosts(); got != "1+1 1+2 1+2" {
			t.Errorf("scaled up while work waits on pve1: %s", got)
		}

		// Proxmox VE's own balancing, or a person, moves a worker: it is managed where it is.
		worker := s.vmidOf("dev-wk-1")
		from := s.hostOf("dev-wk-1")
		to := map[string]string{"pve1": "pve2", "pve2": "pve3", "pve3": "pve1"}[from]
		must(s.Lab.PVE.Migrate(worker, to))
		s.Until(10*time.Minute, "it is seen where it is", func(st cluster.Status) bool { return s.hostOf("dev-wk-1") == to })
		s.Quiet(10 * time.Minute)
		if st := s.Status(); st.Condition != cluster.Ready || strings.Contains(fmt.Sprint(st.Problems), fmt.Sprint(worker)) {
			t.Errorf("after a migration: %s, %v", st.Condition, st.Problems)
		}

		// Two control planes on one host are reported: there is another for one of them.
		must(s.Lab.PVE.Migrate(s.vmidOf("dev-cp-1"), s.hostOf("dev-cp-2")))
		shares := func(st cluster.Status) bool {
			for _, p := range st.Problems {
				if p.Field == "placement" && strings.Contains(p.Message, "dev-cp-1 and dev-cp-2 are on one host") && strings.Contains(p.Hint, "qm migrate") {
					return true
				}
			}
			return false
		}
		s.Until(10*time.Minute, "that they share a host is reported", shares)

		// A worker that is deleted is made where there are fewest.
		must(s.Lab.PVE.Remove(worker))
		s.Until(10*time.Minute, "it is seen", func(st cluster.Status) bool { return st.Condition != cluster.Ready })
		s.UntilReady(20 * time.Minute)
		if got := s.onHosts(); strings.Contains(got, "+3") || strings.Contains(got, "+0") {
			t.Errorf("made again: %s", got)
		}
		s.CheckRules(sz)
		s.Halt()
	})
}

// hostOf is the host of the VM of a node, as the status has it.
func (s *sim) hostOf(name string) string { return s.node(name).Host }
