package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestAgentIsolatedFromItsNodes: a change of the network of all nodes waits for its window, and the
// agent does not reach them meanwhile, for seconds or for longer. They work, and none is moved.
func TestAgentIsolatedFromItsNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files, now := sz.Files(), time.Now().UTC()
		window := fmt.Sprintf("window: {from: %q, to: %q}\n", now.Add(2*time.Hour).Format("15:04"), now.Add(4*time.Hour).Format("15:04"))
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", window+"cni: cilium\n")
		changed(t, files, "inventory/dev/cluster.yaml", "network:\n", "network:\n  vlan: 7\n")
		s.Push(files, "another network, in the window")
		moved := func() (names []string) {
			for _, n := range s.Status().Nodes {
				if vm, _ := s.Lab.PVE.VM(s.vmidOf(n.Name)); strings.Contains(vm.Config["net0"], "tag=7") {
					names = append(names, n.Name)
				}
			}
			return names
		}
		s.Until(10*time.Minute, "it waits", func(st cluster.Status) bool { return waitFor(st, "dev-wk-1", cluster.WaitingForWindow) != "" })
		net := s.Lab.World.Net.(*world.Memory)
		reach := func(dark bool) {
			for _, ip := range []string{"10.10.0.11", "10.10.0.12", "10.10.0.13", "10.10.0.41", "10.10.0.42"} {
				net.Darken(ip, dark)
			}
		}
		for _, outage := range []time.Duration{20 * time.Second, 20 * time.Minute} {
			reach(true)
			time.Sleep(outage)
			if names := moved(); len(names) > 0 {
				t.Fatalf("%v after it was isolated, and with the window closed, it moved %v", outage, names)
			}
			reach(false)
			s.Until(20*time.Minute, "it waits again", func(st cluster.Status) bool {
				return waitFor(st, "dev-wk-1", cluster.WaitingForWindow) != "" && st.Nodes[0].Phase == cluster.PhaseReady
			})
		}
		time.Sleep(time.Until(now.Add(2*time.Hour - time.Minute)))
		began, most := map[string]time.Time{}, 0
		s.Until(2*time.Hour, "all are moved in the window", func(cluster.Status) bool {
			n := 0
			for _, name := range moved() {
				if _, known := began[name]; !known {
					began[name] = time.Now()
				}
				if strings.Contains(name, "-cp-") && time.Since(began[name]) < 50*time.Second {
					n++
				}
			}
			most = max(most, n)
			return len(began) == 5
		})
		if most != 1 {
			t.Errorf("%d control planes were moved within a minute", most)
		}
	})
}

// TestWithdrawnDestructionOfAControlPlane: a destruction was begun and withdrawn, and has left its
// mark on one control plane, which runs. It is replaced while etcd can do without it, and not
// because the agent does not see the members of etcd for a moment.
func TestWithdrawnDestructionOfAControlPlane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		const marked = "dev-cp-2"
		vmid := s.vmidOf(marked)
		protect := func(value string) {
			for _, n := range s.Status().Nodes {
				if n.Name != marked {
					must(s.Lab.PVE.Edit(s.vmidOf(n.Name), "protection", value))
				}
			}
		}
		protect("1")
		var faults []world.Fault
		for i := range 50 {
			faults = append(faults, world.Fault{Op: "POST /nodes/{node}/qemu/{vmid}/status/stop", Kind: world.Answer, Status: 500, Text: "can't stop", Nth: i + 1})
		}
		s.Lab.World.Inject(faults...)
		must(s.Cluster().Destroy(nil, nil))
		s.Until(10*time.Minute, "it is marked", func(cluster.Status) bool {
			vm, _ := s.Lab.PVE.VM(vmid)
			return strings.Contains(vm.Config["description"], `"deleting":true`)
		})
		must(s.Cluster().Resume())
		s.Lab.World.Heal()
		protect("0")
		s.Until(10*time.Minute, "it is reported", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Subject == marked && b.Reason == cluster.DeletionUnfinished })
		})
		net := s.Lab.World.Net.(*world.Memory)
		net.Darken("10.10.0.11", true)
		time.Sleep(time.Minute)
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", marked+", ", marked+", replace: again, ")
		s.Push(files, "replace it")
		s.Until(time.Hour, "etcd needs it", func(st cluster.Status) bool { return waitFor(st, marked, cluster.WaitingForQuorum) != "" })
		first := s.generations()[marked]
		for _, ip := range []string{"10.10.0.12", "10.10.0.13"} {
			net.Darken(ip, true)
		}
		s.Until(time.Hour, "etcd is not seen", func(st cluster.Status) bool { return waitFor(st, marked, cluster.EtcdMembersUnknown) != "" })
		time.Sleep(10 * time.Minute)
		if vm, there := s.Lab.PVE.VM(vmid); !there || vm.Power != "running" {
			t.Fatalf("its vm is stopped or deleted, and etcd has lost its majority: %v %s", there, vm.Power)
		}
		for _, ip := range []string{"10.10.0.11", "10.10.0.12", "10.10.0.13"} {
			net.Darken(ip, false)
		}
		s.Until(2*time.Hour, "it is replaced", func(st cluster.Status) bool {
			return s.generations()[marked] != first && st.Condition == cluster.Ready
		})
	})
}
