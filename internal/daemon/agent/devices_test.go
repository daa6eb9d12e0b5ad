package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestDevicesOfHost: a node gets a device of its host in one turn, once the host's policy allows it and the host has one; before
// that the VM is not taken down for it. What is taken out of the inventory is taken from the VM.
func TestDevicesOfHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{Mappings: map[string][]string{"pci/gpu": {"pve9"}}})
		defer s.Close()
		s.Mappings = map[string][]string{device.PCIMapping: {"gpu"}}
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files, w := sz.Files(), s.watchTurns(sz)
		push := func(what, from, to string) {
			t.Helper()
			changed(t, files, "inventory/dev/nodes.yaml", from, to)
			s.Push(files, what)
		}
		blocked := func(what, words string) {
			t.Helper()
			s.Until(time.Hour, what, func(st cluster.Status) bool {
				for _, b := range st.Blocked {
					if strings.Contains(b.Message, words) {
						return true
					}
				}
				return false
			})
			s.Quiet(10 * time.Minute)
			w.wantDown("")
		}
		has := func(node string) string {
			vm, _ := s.Lab.PVE.VM(s.vmidOf(node))
			return vm.Config["hostpci0"]
		}
		const plain = "ip: 10.10.0.41, "
		push("one that is not allowed", plain, plain+"pci: [{mapping: other}], ")
		blocked("refused by the policy", `it wants the PCI mapping "other", and the host allows gpu`)
		push("one that the host does not have", "mapping: other", "mapping: gpu")
		blocked("not on the host", "which shows none of pve1")
		s.Lab.PVE.Map("pci", "gpu", "pve1")
		s.Until(time.Hour, "given", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && has("dev-wk-1") == "mapping=gpu,pcie=1"
		})
		w.wantDown("dev-wk-1:1")
		const other = "ip: 10.10.0.42, "
		push("one for another node", other, other+"pci: [{mapping: gpu}], ")
		s.Until(time.Hour, "the other has it", func(st cluster.Status) bool {
			for _, b := range st.Blocked {
				if b.Subject == "dev-wk-2" && b.Reason == cluster.HostUnsuitable && strings.Contains(b.Message, "dev-wk-1 has them already") {
					return true
				}
			}
			return false
		})
		s.Quiet(10 * time.Minute)
		w.wantDown("dev-wk-1:1")
		push("taken from the first", plain+"pci: [{mapping: gpu}], ", plain)
		s.Until(3*time.Hour, "handed over", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && has("dev-wk-1") == "" && has("dev-wk-2") == "mapping=gpu,pcie=1"
		})
		w.wantDown("dev-wk-1:2 dev-wk-2:1")
		push("a machine version that the host does not have", plain, plain+"machine: pc-q35-10.9, ")
		s.Until(time.Hour, "not on the host", func(st cluster.Status) bool {
			for _, b := range st.Blocked {
				if b.Subject == "dev-wk-1" && b.Reason == cluster.HostUnsuitable && strings.Contains(b.Message, "pc-q35-10.9, which pve1 does not have") {
					return true
				}
			}
			return false
		})
		s.Quiet(10 * time.Minute)
		w.wantDown("dev-wk-1:2 dev-wk-2:1")
		push("one that it has", "machine: pc-q35-10.9, ", "machine: pc-q35-9.2, ")
		s.Until(3*time.Hour, "given", func(st cluster.Status) bool { return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head() })
		w.wantDown("dev-wk-1:3 dev-wk-2:1")
		old, _ := s.Lab.PVE.VM(s.vmidOf("dev-wk-1"))
		push("another machine with it", "machine: pc-q35-9.2, ", "machine: pc-q35-9.2, replace: again, ")
		s.Until(3*time.Hour, "replaced", func(st cluster.Status) bool {
			vm, ok := s.Lab.PVE.VM(s.vmidOf("dev-wk-1"))
			return st.Condition == cluster.Ready && ok && vm.Config["description"] != old.Config["description"] && vm.Config["machine"] == old.Config["machine"]
		})
		s.CheckRules(sz)
		s.Halt()
	})
}
