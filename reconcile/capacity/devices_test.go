package capacity

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
)

const (
	gpu    = "mapping=gpu,pcie=1"
	pciAt0 = cluster.VMField("PCI device hostpci0")
)

// asks is a node with devices by field.
func asks(name string, vmid int, options map[cluster.VMField]string) cluster.Node {
	n := node(name, vmid, 1, 1)
	n.Options, n.Placement.Pin, n.Bridge = options, "pve1", "vmbr1"
	return n
}

// TestLackOptions: a VM is made where the host has as many devices of each mapping as it and its neighbours want.
func TestLackOptions(t *testing.T) {
	one := map[cluster.VMField]string{pciAt0: gpu}
	for _, c := range []struct {
		what   string
		offers map[string]cluster.Seen[[]string]
		others []map[cluster.VMField]string // of nodes that are made
		wants  map[cluster.VMField]string
		lacks  []string
	}{
		{what: "nothing is wanted"},
		{what: "a network card is none", wants: map[cluster.VMField]string{"network card net1": "virtio=BC:24:11:00:00:99,bridge=vmbr2", "cpu units": "50"}},
		{what: "there is one", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"x", "gpu"})}, wants: one},
		{what: "nothing has looked", wants: one, lacks: []string{"is not seen yet"}},
		{what: "it cannot be seen", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Unseen[[]string]("no answer")}, wants: one, lacks: []string{"cannot see which ones pve1 has: no answer"}},
		{what: "there is none", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"x"})}, wants: one, lacks: []string{"shows none of pve1; Proxmox VE would not start it"}},
		{what: "of another kind", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"gpu"}), device.USBMapping: cluster.Saw([]string{})}, wants: map[cluster.VMField]string{"USB device usb0": "mapping=gpu"}, lacks: []string{"the USB mapping gpu"}},
		{what: "another node has it", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"gpu"})}, others: []map[cluster.VMField]string{one}, wants: one, lacks: []string{"it wants 1 of the 1 devices that pve1 has of the PCI mapping gpu, and wk-1 has them already"}},
		{what: "another node has another", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"gpu"})}, others: []map[cluster.VMField]string{{pciAt0: "mapping=gpu2"}}, wants: one},
		{what: "there are two", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"gpu", "gpu"})}, others: []map[cluster.VMField]string{one}, wants: one},
		{what: "it wants two", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"gpu"})}, wants: map[cluster.VMField]string{pciAt0: gpu, "PCI device hostpci1": gpu}, lacks: []string{"it wants 2 devices of the PCI mapping gpu, and pve1 has 1"}},
		{what: "the newest machine type", wants: map[cluster.VMField]string{cluster.FieldMachinePin: "q35"}},
		{what: "a machine version that is there", offers: map[string]cluster.Seen[[]string]{device.Machine: cluster.Saw([]string{"pc-q35-9.1", "pc-q35-9.2"})}, wants: map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2"}},
		{what: "QEMU's own", offers: map[string]cluster.Seen[[]string]{device.Machine: cluster.Saw([]string{"pc-q35-9.2+pve1", "pc-q35-9.2"})}, wants: map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2+pve0"}},
		{what: "Proxmox VE's first", offers: map[string]cluster.Seen[[]string]{device.Machine: cluster.Saw([]string{"pc-q35-9.2+pve1", "pc-q35-9.2"})}, wants: map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2+pve1"}},
		{what: "a later one", offers: map[string]cluster.Seen[[]string]{device.Machine: cluster.Saw([]string{"pc-q35-9.2+pve1", "pc-q35-9.2"})}, wants: map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2+pve2"}, lacks: []string{"it wants the machine version pc-q35-9.2+pve2, which pve1 does not have"}},
		{what: "one that is not", offers: map[string]cluster.Seen[[]string]{device.Machine: cluster.Saw([]string{"pc-q35-9.1"})}, wants: map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2"}, lacks: []string{"it wants the machine version pc-q35-9.2, which pve1 does not have"}},
		{what: "one that cannot be seen", offers: map[string]cluster.Seen[[]string]{device.Machine: cluster.Unseen[[]string]("no answer")}, wants: map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2"}, lacks: []string{"cannot see whether pve1 has it: no answer"}},
		{what: "one that is not seen yet", wants: map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2"}, lacks: []string{"is not seen yet"}},
		{what: "an MTU of the first card", offers: map[string]cluster.Seen[[]string]{device.BridgeMTU: cluster.Saw([]string{"vmbr10=1500", "vmbr1=9000", "vmbr2=1500"})}, wants: map[cluster.VMField]string{cluster.FieldMTU: "9000"}},
		{what: "too large a one", offers: map[string]cluster.Seen[[]string]{device.BridgeMTU: cluster.Saw([]string{"vmbr10=1500", "vmbr1=9000", "vmbr2=1500"})}, wants: map[cluster.VMField]string{cluster.FieldMTU: "9001"}, lacks: []string{"it wants an MTU of 9001 on vmbr1, and the bridge has 9000 on pve1"}},
		{what: "none", wants: map[cluster.VMField]string{cluster.FieldMTU: "none"}},
		{what: "that of the bridge", wants: map[cluster.VMField]string{cluster.FieldMTU: "1", "network card net1": "virtio=BC:24:11:00:00:99,bridge=vmbr2,mtu=1"}},
		{what: "of another card", offers: map[string]cluster.Seen[[]string]{device.BridgeMTU: cluster.Saw([]string{"vmbr10=1500", "vmbr1=9000", "vmbr2=1500"})}, wants: map[cluster.VMField]string{"network card net1": "virtio=BC:24:11:00:00:99,bridge=vmbr2,mtu=1501"}, lacks: []string{"it wants an MTU of 1501 on vmbr2, and the bridge has 1500"}},
		{what: "of another card, that fits", offers: map[string]cluster.Seen[[]string]{device.BridgeMTU: cluster.Saw([]string{"vmbr10=1500", "vmbr1=9000", "vmbr2=1500"})}, wants: map[cluster.VMField]string{"network card net1": "virtio=BC:24:11:00:00:99,bridge=vmbr2,mtu=1500,tag=5"}},
		{what: "of a bridge that is not shown", offers: map[string]cluster.Seen[[]string]{device.BridgeMTU: cluster.Saw([]string{"vmbr10=1500", "vmbr1=9000", "vmbr2=1500"})}, wants: map[cluster.VMField]string{"network card net1": "virtio=BC:24:11:00:00:99,bridge=vmbr3,mtu=9000"}},
		{what: "of bridges that cannot be seen", offers: map[string]cluster.Seen[[]string]{device.BridgeMTU: cluster.Unseen[[]string]("no answer")}, wants: map[cluster.VMField]string{cluster.FieldMTU: "9000"}, lacks: []string{"cannot be seen: no answer"}},
		{what: "of bridges that are not seen yet", wants: map[cluster.VMField]string{cluster.FieldMTU: "9000"}, lacks: []string{"is not seen yet"}},
		{what: "several are lacking", offers: map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{}), device.USBMapping: cluster.Saw([]string{})}, wants: map[cluster.VMField]string{pciAt0: gpu, "USB device usb0": "mapping=dongle"}, lacks: []string{"gpu", "dongle"}},
	} {
		h := host("pve1", true, false, nil)
		h.Offers = c.offers
		o := cluster.Observed{Hosts: map[string]cluster.Host{"pve1": h}, VMs: map[string]cluster.VM{}}
		n := asks("new", 599, c.wants)
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}}}}
		for i, options := range c.others {
			d.Spec.Nodes = append(d.Spec.Nodes, asks(fmt.Sprintf("wk-%d", i+1), 501+i, options))
		}
		l := NewLedger(d, o, cluster.Policy{}, func(n cluster.Node) bool { return n.Name != "new" }, never)
		got := l.LackOptions(n, "pve1", n.Options)
		wrong := len(got) != len(c.lacks)
		for i, b := range got {
			wrong = wrong || b.Subject != "new" || b.Reason != cluster.HostUnsuitable || b.Hint == "" || !strings.Contains(b.Message, c.lacks[i])
		}
		if wrong {
			t.Errorf("%s: %+v", c.what, got)
		}
		if lacks := l.TakeVM(n, "pve1"); len(lacks) != len(c.lacks) {
			t.Errorf("%s: taken, it lacks %+v", c.what, lacks)
		}
	}
}

// TestDevicesOfVMs: what a VM has counts, and not what its node is to have.
func TestDevicesOfVMs(t *testing.T) {
	h := host("pve1", true, false, nil)
	h.Offers = map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"gpu"})}
	n, other := asks("new", 599, map[cluster.VMField]string{pciAt0: gpu}), asks("wk-1", 501, map[cluster.VMField]string{pciAt0: gpu})
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n, other}}}}
	for _, c := range []struct {
		at    string
		has   cluster.Seen[cluster.Hardware]
		lacks bool
	}{
		{"pve1", cluster.Saw(cluster.Hardware{}), false},
		{"pve1", cluster.Saw(cluster.Hardware{Options: n.Options}), true},
		{"pve2", cluster.Saw(cluster.Hardware{Options: n.Options}), false},
		{"pve1", cluster.Unseen[cluster.Hardware]("no answer"), true},
	} {
		o := cluster.Observed{Hosts: map[string]cluster.Host{"pve1": h}, VMs: map[string]cluster.VM{"wk-1": {Host: c.at, Hardware: c.has}}}
		l := NewLedger(d, o, cluster.Policy{}, func(n cluster.Node) bool { return n.Name != "new" }, never)
		if got := l.LackOptions(n, "pve1", n.Options); (len(got) > 0) != c.lacks {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	devices, fields := NewOptions(cluster.Node{Options: map[cluster.VMField]string{cluster.FieldMachinePin: "q35", pciAt0: gpu, "USB device usb0": "mapping=dongle", "numa": "on", "network card net1": "virtio=BC:24:11:00:00:99,bridge=vmbr2", "network card net2": "virtio=BC:24:11:00:00:99,bridge=vmbr2,mtu=9000"}},
		cluster.Hardware{Options: map[cluster.VMField]string{"USB device usb0": "mapping=dongle", cluster.FieldMachinePin: "pc-q35-9.2"}})
	if len(devices) != 3 || devices[pciAt0] != gpu || devices[cluster.FieldMachinePin] != "q35" || strings.Join(fields, ",") != "PCI device hostpci0,machine version,network card net2" {
		t.Errorf("%v, %v", devices, fields)
	}
}

// TestSecondDevice: a VM that has a device of a mapping gets another one where its host has one more.
func TestSecondDevice(t *testing.T) {
	const pciAt1 = cluster.VMField("PCI device hostpci1")
	for _, c := range []struct {
		what  string
		has   map[cluster.VMField]string
		wants map[cluster.VMField]string
		of    int
		lacks string
	}{
		{what: "a second one", has: map[cluster.VMField]string{pciAt0: gpu}, wants: map[cluster.VMField]string{pciAt0: gpu, pciAt1: gpu}, of: 2},
		{what: "of one", has: map[cluster.VMField]string{pciAt0: gpu}, wants: map[cluster.VMField]string{pciAt0: gpu, pciAt1: gpu}, of: 1, lacks: "it wants 2 devices of the PCI mapping gpu, and pve1 has 1"},
		{what: "the same one elsewhere", has: map[cluster.VMField]string{pciAt0: gpu}, wants: map[cluster.VMField]string{pciAt1: gpu}, of: 1},
		{what: "the same one otherwise", has: map[cluster.VMField]string{pciAt0: gpu}, wants: map[cluster.VMField]string{pciAt0: "mapping=gpu"}, of: 1},
		{what: "one of another mapping", has: map[cluster.VMField]string{pciAt0: "mapping=x"}, wants: map[cluster.VMField]string{pciAt0: "mapping=x", pciAt1: gpu}, of: 1},
	} {
		h := host("pve1", true, false, nil)
		h.Offers = map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw(slices.Repeat([]string{"gpu"}, c.of))}
		n := asks("wk-1", 501, c.wants)
		vm := cluster.VM{Host: "pve1", Hardware: cluster.Saw(cluster.Hardware{Options: c.has})}
		o := cluster.Observed{Hosts: map[string]cluster.Host{"pve1": h}, VMs: map[string]cluster.VM{"wk-1": vm}}
		l := NewLedger(cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}}}}, o, cluster.Policy{}, func(cluster.Node) bool { return true }, never)
		options, _ := NewOptions(n, vm.Hardware.Value)
		got := l.LackOptions(n, "pve1", options)
		if (len(got) > 0) != (c.lacks != "") || len(got) > 0 && !strings.Contains(got[0].Message, c.lacks) {
			t.Errorf("%s: %+v", c.what, got)
		}
	}
}

// TestTakeOptions: a device that one node is to get is none for the next, and is not given twice to the one that gets it.
func TestTakeOptions(t *testing.T) {
	one, none := map[cluster.VMField]string{pciAt0: gpu}, map[cluster.VMField]string{}
	for _, c := range []struct {
		what          string
		has, wants    map[cluster.VMField]string // of the first
		of            int
		first, second string // what each lacks
	}{
		{what: "one for two", has: none, wants: one, of: 1, second: "wants 1 of the 1 devices that pve1 has of the PCI mapping gpu, and wk-1 gets them already"},
		{what: "two for two", has: none, wants: one, of: 2},
		{what: "one that it has", has: one, wants: one, of: 1, second: "and wk-1 has them already"},
		{what: "one that it has, of two", has: one, wants: one, of: 2},
		{what: "one that it loses", has: one, wants: none, of: 1, second: "and wk-1 has them already"},
		{what: "one more than there are", has: none, wants: map[cluster.VMField]string{pciAt0: gpu, "PCI device hostpci1": gpu}, of: 1, first: "wants 2 devices"},
		{what: "all of two", has: one, wants: map[cluster.VMField]string{pciAt0: gpu, "PCI device hostpci1": gpu}, of: 2, second: "and wk-1 gets them already"},
		{what: "two of three", has: one, wants: map[cluster.VMField]string{pciAt0: gpu, "PCI device hostpci1": gpu}, of: 3},
	} {
		h := host("pve1", true, false, nil)
		h.Offers = map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw(slices.Repeat([]string{"gpu"}, c.of))}
		first, second, third := asks("wk-1", 501, c.wants), asks("wk-2", 502, one), asks("wk-3", 503, one)
		vms := map[string]cluster.VM{"wk-1": {Host: "pve1", Hardware: cluster.Saw(cluster.Hardware{Options: c.has})}, "wk-2": {Host: "pve1", Hardware: cluster.Saw(cluster.Hardware{})}}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{first, second, third}}}}
		l := NewLedger(d, cluster.Observed{Hosts: map[string]cluster.Host{"pve1": h}, VMs: vms}, cluster.Policy{}, func(n cluster.Node) bool { return n.Name != "wk-3" }, never)
		for _, of := range []struct {
			n     cluster.Node
			lacks string
		}{{first, c.first}, {second, c.second}} {
			options, _ := NewOptions(of.n, vms[of.n.Name].Hardware.Value)
			got := l.TakeOptions(of.n, "pve1", options)
			if (len(got) > 0) != (of.lacks != "") || len(got) > 0 && !strings.Contains(got[0].Message, of.lacks) {
				t.Errorf("%s: %s: %+v", c.what, of.n.Name, got)
			}
		}
		// The one that is made after them, or in the place of a machine, finds none left either.
		if made, next := l.TakeVM(third, "pve1"), l.LackSuccessor(third, "pve1", cluster.VM{VMID: 503}); len(made) != 1 || len(next) != 1 {
			t.Errorf("%s: wk-3: %+v, %+v", c.what, made, next)
		} else if c.second != "" && !strings.Contains(made[0].Message, "and wk-1 ") {
			t.Errorf("%s: wk-3 is refused for another: %s", c.what, made[0].Message)
		}
	}
}
