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

// TestHostsWithoutAQuorum edits a VM by hand and takes the quorum of the Proxmox VE cluster away:
// nothing is written, which is reported, and the edit is put back once the quorum is there again.
func TestHostsWithoutAQuorum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		other := sz.Host()
		other.Name = "pve2"
		s := newSim(t, sz, lab.Config{Hosts: []pve.Host{sz.Host(), other}})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.Quiet(10 * time.Minute)
		vm := s.Lab.PVE.VMs()[0]
		onboot := func() string {
			v, _ := s.Lab.PVE.VM(vm.VMID)
			return v.Config["onboot"]
		}
		want := onboot()
		s.Lab.PVE.LoseQuorum(true)
		must(s.Lab.PVE.Edit(vm.VMID, "onboot", "0"))
		s.Until(10*time.Minute, "the quorum is named", func(st cluster.Status) bool {
			for _, w := range st.Waiting {
				if strings.Contains(w.Message, "quorum") {
					return true
				}
			}
			return strings.Contains(st.Message, "quorum")
		})
		time.Sleep(time.Hour)
		if got := onboot(); got != "0" || len(s.Lab.PVE.VMs()) != 2 {
			t.Errorf("without a quorum: onboot %q, %d VMs", got, len(s.Lab.PVE.VMs()))
		}
		for _, m := range s.Lab.Talos.Machines() {
			if !m.Ready || !m.NodeReady {
				t.Errorf("%s is not ready", m.Node)
			}
		}
		s.Lab.PVE.LoseQuorum(false)
		s.Until(time.Hour, "the edit is put back", func(cluster.Status) bool { return onboot() == want })
		s.UntilReady(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}
