package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/reservations"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/reconcile/leases"
)

// leasedFiles are the files of a cluster whose workers get any address from a DHCP server.
func leasedFiles(t *testing.T, sz size) map[string][]byte {
	t.Helper()
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "network:\n", "network:\n  address_mode: dhcp-discover\n")
	for i := range sz.Workers {
		changed(t, files, "inventory/dev/nodes.yaml", fmt.Sprintf("ip: 10.10.0.%d", 41+i), fmt.Sprintf("vmid: %d", 541+i))
	}
	return files
}

// leasingLab is a lab whose DHCP server gives addresses from 10.10.0.100 on.
var leasingLab = lab.Config{Range: netip.MustParsePrefix("10.10.0.100/20")}

// lookAtLeases has the agent find addresses as the lab's DHCP server gave them, but for what change makes of them.
func lookAtLeases(s *sim, change func(map[string][]netip.Addr)) func(*agent.Config) {
	return func(c *agent.Config) {
		c.Addresses = func(context.Context, netip.Prefix, func(netip.Addr) bool) leases.Seen {
			found := s.Lab.DHCP.Addresses()
			if change != nil {
				change(found)
			}
			return leases.Seen{Addresses: found, Where: "the leases of the lab"}
		}
	}
}

// macOf is the MAC of a node, in upper case.
func macOf(node string) string {
	return cluster.NodeMAC("BC:24:11", cluster.ClusterID("sim", "dev"), node, 0)
}

// addressOf is the address that a status has of a node.
func addressOf(st cluster.Status, node string) string {
	for _, n := range st.Nodes {
		if n.Name == node {
			return n.Address
		}
	}
	return "no such node"
}

// haveAddresses waits until a cluster is Ready with its workers at these addresses.
func haveAddresses(s *sim, within time.Duration, want ...string) {
	s.T.Helper()
	s.Until(within, "workers are at "+strings.Join(want, ", "), func(st cluster.Status) bool {
		for i, ip := range want {
			if addressOf(st, fmt.Sprintf("dev-wk-%d", i+1)) != ip {
				return false
			}
		}
		return st.Condition == cluster.Ready
	})
}

// rebootAt gives machines other addresses, and boots them again at once.
func rebootAt(s *sim, at map[string]string) {
	for node, ip := range at {
		s.Lab.DHCP.Move(macOf(node), netip.MustParsePrefix(ip+"/20"))
	}
	for node := range at {
		must(s.Lab.Talos.Reboot(s.vmidOf(node)))
	}
}

// TestDiscoveredAddresses: workers without an address are found where a DHCP server put them, followed where that puts them
// later, also when two of them have each other's, and nothing else of them changes for that.
func TestDiscoveredAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		files := leasedFiles(t, sz)
		s := newSim(t, sz, leasingLab)
		defer s.Close()
		s.Push(files, "the cluster")
		s.Boot(lookAtLeases(s, nil))
		s.UntilReady(30 * time.Minute)
		first, second := addressOf(s.Status(), "dev-wk-1"), addressOf(s.Status(), "dev-wk-2")
		if !slices.Equal(slices.Sorted(slices.Values([]string{first, second})), []string{"10.10.0.100", "10.10.0.101"}) {
			t.Errorf("they are at %s and %s", first, second)
		}

		rebootAt(s, map[string]string{"dev-wk-1": "10.10.0.150"})
		haveAddresses(s, 30*time.Minute, "10.10.0.150", second)

		rebootAt(s, map[string]string{"dev-wk-1": second, "dev-wk-2": "10.10.0.150"})
		haveAddresses(s, 30*time.Minute, second, "10.10.0.150")

		s.Halt()
		s.Boot(lookAtLeases(s, nil))
		haveAddresses(s, 30*time.Minute, second, "10.10.0.150")

		withoutNode(t, files, "dev-wk-2")
		s.Push(files, "one less")
		s.UntilReady(time.Hour)
		if machines := s.Lab.Talos.Machines(); len(machines) != 2 {
			t.Errorf("there are %d machines", len(machines))
		}
		s.Halt()
	})
}

// TestAddressesThatAreNotANodes: nothing is sent to a machine at an address that was another one's by the time it was asked,
// nor to what the inventory or the host has for others; the node waits, with where the agent has looked.
func TestAddressesThatAreNotANodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, leasingLab)
		defer s.Close()
		s.Push(leasedFiles(t, sz), "the cluster")
		var seen atomic.Pointer[[]netip.Addr] // what is found for dev-wk-1
		seen.Store(&[]netip.Addr{})
		s.Boot(lookAtLeases(s, func(found map[string][]netip.Addr) { found[macOf("dev-wk-1")] = *seen.Load() }))
		waits := func(words string) {
			t.Helper()
			s.Until(30*time.Minute, words, func(st cluster.Status) bool {
				return addressOf(st, "dev-wk-1") == "" && slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
					return w.Subject == "dev-wk-1" && w.Reason == cluster.WaitingForAddress && strings.Contains(w.Message, words)
				})
			})
		}
		none := "no address of " + macOf("dev-wk-1") + " that it could have is in the leases of the lab"
		waits(none)

		s.Until(30*time.Minute, "dev-wk-2 is Ready", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Nodes, func(n cluster.NodeStatus) bool { return n.Name == "dev-wk-2" && n.Phase == cluster.PhaseReady })
		})
		// The control plane's, the gateway's, one outside of the network, and what is proven to be the other worker's.
		other := netip.MustParseAddr(addressOf(s.Status(), "dev-wk-2"))
		seen.Store(&[]netip.Addr{netip.MustParseAddr("10.10.0.11"), netip.MustParseAddr("10.10.0.1"), netip.MustParseAddr("10.99.0.5"), other})
		time.Sleep(10 * time.Minute)
		waits(none)

		own := s.Lab.DHCP.Addresses()[macOf("dev-wk-1")]
		seen.Store(&own)
		s.UntilReady(30 * time.Minute)
		s.Halt()
	})
}

// TestAnotherMachineHasTheLease: where another machine answers at the address of a lease the node is looked for at its
// other addresses, and is found.
func TestAnotherMachineHasTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, leasingLab)
		defer s.Close()
		s.Push(leasedFiles(t, sz), "the cluster")
		// Both MACs lead to the address of both first, as by a file that is read while addresses change.
		both := func(found map[string][]netip.Addr) {
			a, b := found[macOf("dev-wk-1")], found[macOf("dev-wk-2")]
			found[macOf("dev-wk-1")], found[macOf("dev-wk-2")] = slices.Concat(b, a), slices.Concat(a, b)
		}
		s.Boot(lookAtLeases(s, both))
		s.UntilReady(30 * time.Minute)
		for _, node := range []string{"dev-wk-1", "dev-wk-2"} {
			if got, want := addressOf(s.Status(), node), s.Lab.DHCP.Addresses()[macOf(node)][0].String(); got != want {
				t.Errorf("%s is at %s, and looked for at %s", node, want, got)
			}
		}
		s.Halt()
	})
}

// TestAddressesThatAreWrittenOrTakenOut: a worker that runs keeps its address whatever becomes of its ip in the inventory, which
// is reported with what to do, until it gets a new machine.
func TestAddressesThatAreWrittenOrTakenOut(t *testing.T) {
	t.Parallel()
	for _, story := range []struct{ name, from, to string }{
		{"taken out", "ip: 10.10.0.41", "vmid: 541"},
		{"written", "vmid: 541", "vmid: 541, ip: 10.10.0.41"},
	} {
		t.Run(story.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sz := size{ControlPlanes: 1, Workers: 2}
				files := sz.Files()
				changed(t, files, "inventory/dev/cluster.yaml", "network:\n", "network:\n  address_mode: dhcp-discover\n")
				if story.name == "written" {
					changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.41", story.from)
				} else {
					changed(t, files, "inventory/dev/nodes.yaml", story.from, "vmid: 541, "+story.from)
				}
				s := newSim(t, sz, leasingLab)
				defer s.Close()
				s.Push(files, "the cluster")
				s.Boot(lookAtLeases(s, func(found map[string][]netip.Addr) {
					for _, m := range s.Lab.Talos.Machines() { // as the table of neighbours has them
						if m.VMID == 541 && m.Address.IsValid() {
							found[macOf("dev-wk-1")] = []netip.Addr{m.Address}
						}
					}
				}))
				s.UntilReady(30 * time.Minute)
				boot := s.bootOf("dev-wk-1")
				at := addressOf(s.Status(), "dev-wk-1")
				if story.name == "written" {
					changed(t, files, "inventory/dev/nodes.yaml", story.from, story.to)
				} else {
					changed(t, files, "inventory/dev/nodes.yaml", "vmid: 541, "+story.from, story.to)
				}
				s.Push(files, story.name)
				s.Until(time.Hour, "it is reported", func(st cluster.Status) bool {
					return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool {
						return b.Subject == "dev-wk-1" && strings.Contains(b.Hint, "replace")
					})
				})
				time.Sleep(time.Hour)
				for _, m := range s.Lab.Talos.Machines() {
					if m.VMID == 541 && (m.Address.String() != at || m.BootID != boot) {
						t.Errorf("it was at %s, and is at %s (boot %s, %s)", at, m.Address, boot, m.BootID)
					}
				}
				changed(t, files, "inventory/dev/nodes.yaml", story.to, story.to+", replace: again")
				s.Push(files, "a new machine")
				s.UntilReady(2 * time.Hour)
				for _, m := range s.Lab.Talos.Machines() {
					if want := map[string]string{"written": "10.10.0.41", "taken out": "10.10.0.100"}[story.name]; m.VMID == 541 && m.Address.String() != want {
						t.Errorf("the new machine is at %s, want %s", m.Address, want)
					}
				}
				s.Halt()
			})
		})
	}
}

// TestReservationsBesideLeases: in a cluster whose workers may be without an address, those nodes that have one get their
// reservation, where no gateway has them static, and no other does, also not while it leaves.
func TestReservationsBesideLeases(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "network:\n", "network:\n  address_mode: dhcp-discover\n")
		changed(t, files, "inventory/dev/cluster.yaml", "  gateway: 10.10.0.1\n", "")
		changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.42", "vmid: 542")
		c := reservingLab(map[string]string{"dev-cp-1": "10.10.0.11", "dev-wk-1": "10.10.0.41"})
		c.Range = leasingLab.Range
		s := newSim(t, sz, c)
		defer s.Close()
		s.Push(files, "the cluster")
		s.Boot(lookAtLeases(s, nil), func(c *agent.Config) { c.Reservations = reservations.New(dir, "sim") })
		s.UntilReady(30 * time.Minute)
		all := []string{reservation("dev-cp-1", "10.10.0.11"), reservation("dev-wk-1", "10.10.0.41")}
		if got := listReservations(t, dir); !slices.Equal(got, all) || addressOf(s.Status(), "dev-wk-2") != "10.10.0.100" {
			t.Errorf("there are %q, and the one without is at %s", got, addressOf(s.Status(), "dev-wk-2"))
		}
		withoutNode(t, files, "dev-wk-2")
		s.Push(files, "one less")
		s.Until(30*time.Minute, "it is leaving", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Nodes, func(n cluster.NodeStatus) bool { return n.Name == "dev-wk-2" && len(n.Running) > 0 })
		})
		time.Sleep(time.Minute)
		if got := listReservations(t, dir); !slices.Equal(got, all) {
			t.Errorf("while it leaves: %q", got)
		}
		s.UntilReady(time.Hour)
		if got := listReservations(t, dir); !slices.Equal(got, all) {
			t.Errorf("at last: %q", got)
		}
		s.Halt()
	})
}
