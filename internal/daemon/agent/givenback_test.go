package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestCardAndAddressAreGivenBack: the MAC and the address that somebody edited on a VM are those
// of the inventory again: for its next start where nothing has to go down, else in a turn.
func TestCardAndAddressAreGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		vmid := s.vmidOf("dev-wk-1")
		config := func(key string) string { vm, _ := s.Lab.PVE.VM(vmid); return vm.Config[key] }
		healed := func(what string, key, want string) {
			t.Helper()
			s.Until(2*time.Hour, what, func(st cluster.Status) bool {
				return config(key) == want && st.Condition == cluster.Ready && len(s.cordoned()) == 0 && len(st.Running) == 0
			})
		}
		address, card := config("ipconfig0"), config("net0")
		s.putAsRoot(fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid), "ipconfig0=ip=10.10.0.99/24,gw=10.10.0.1")
		healed("its address", "ipconfig0", address)
		w.wantDown("")
		time.Sleep(2 * time.Minute) // it is seen as it is then
		mac, _, _ := strings.Cut(strings.TrimPrefix(card, "virtio="), ",")
		must(s.Lab.PVE.Edit(vmid, "net0", strings.Replace(card, mac, "BC:24:11:00:00:77", 1)))
		healed("its card", "net0", card)
		w.wantDown("dev-wk-1:1")
		s.CheckRules(sz)
		s.Halt()
	})
}
