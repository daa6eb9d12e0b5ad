package agent_test

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestOptionsOfVMs: what the inventory has of the options of a VM is given to one that is there, at once where Proxmox VE can
// and else in one turn; a person's edit of it is taken back, and one of what the inventory never had is not.
// What is taken out again becomes what a new VM has.
func TestOptionsOfVMs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files := sz.Files()
		const plain = "ip: 10.10.0.41, "
		written := plain
		push := func(what, options string) {
			t.Helper()
			changed(t, files, "inventory/dev/nodes.yaml", written, plain+options)
			written = plain + options
			s.Push(files, what)
			s.Until(3*time.Hour, what, func(st cluster.Status) bool { return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head() })
		}
		config := func(node string) map[string]string {
			t.Helper()
			vm, _ := s.Lab.PVE.VM(s.vmidOf(node))
			if len(vm.Pending) > 0 {
				t.Errorf("%s: pending %v", node, vm.Pending)
			}
			return vm.Config
		}
		want := func(what string, words map[string]string) {
			t.Helper()
			has := config("dev-wk-1")
			for key, word := range words {
				if !strings.Contains(has[key], word) {
					t.Errorf("%s: %s is %q, and has no %q", what, key, has[key], word)
				}
			}
		}
		edit := func(node, key, value string) {
			t.Helper()
			if err := s.Lab.PVE.Edit(s.vmidOf(node), key, value); err != nil {
				t.Fatal(err)
			}
		}
		before, w := config("dev-wk-1"), s.watchTurns(sz)
		push("at once", "cpu_units: 50, cpu_limit: 3, nic: {firewall: true}, nics: [{bridge: vmbr0, address: 10.20.0.41/24}], disk_options: {backup: false}, ")
		w.wantDown("")
		want("at once", map[string]string{"cpuunits": "50", "cpulimit": "3", "net0": "firewall=1", "scsi0": "backup=0", "net1": "bridge=vmbr0"})
		push("in a turn", "cpu_units: 50, cpu_limit: 3, cpu_flags: [+aes], numa: true, nic: {firewall: true}, nics: [{bridge: vmbr1, mtu: 1400, address: 10.20.0.42/24}], disk_options: {backup: false, cache: writethrough, ssd: false}, ")
		w.wantDown("dev-wk-1:1")
		want("in a turn", map[string]string{"cpu": "flags=+aes", "numa": "1", "scsi0": "cache=writethrough", "net1": "bridge=vmbr1,mtu=1400"})
		edit("dev-wk-1", "cpuunits", "10")
		edit("dev-wk-2", "cpuunits", "10")
		s.Until(time.Hour, "the edit is taken back", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && config("dev-wk-1")["cpuunits"] == "50"
		})
		s.Quiet(10 * time.Minute)
		if has := config("dev-wk-2")["cpuunits"]; has != "10" {
			t.Errorf("an edit of what the inventory does not have was taken back: %s", has)
		}
		push("taken out", "")
		w.wantDown("dev-wk-1:2")
		before["cpuunits"], before["cpulimit"] = "100", "0" // which is what they were without a word
		after := config("dev-wk-1")
		maps.DeleteFunc(before, func(key, value string) bool { return after[key] == value })
		delete(before, "digest")
		if len(before) > 0 {
			t.Errorf("it was %v, and is %v", before, after)
		}
		if has := after["net1"]; has != "" {
			t.Errorf("a network card that is taken out is there: %s", has)
		}
		edit("dev-wk-1", "cpuunits", "20")
		s.Quiet(10 * time.Minute)
		want("a person's own again", map[string]string{"cpuunits": "20"})
		s.CheckRules(sz)
		s.Halt()
	})
}
