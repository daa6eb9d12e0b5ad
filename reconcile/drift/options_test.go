package drift

import (
	"maps"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestOptionsAreTheInventorys: an option that the inventory does not have is as a person has it, also one that a new
// VM gets otherwise; one that it has is given, of a VM that runs as Proxmox VE can.
func TestOptionsAreTheInventorys(t *testing.T) {
	cache, backup := cluster.FieldDiskOption(cluster.SystemDiskSerial, cluster.DiskCache), cluster.FieldDiskOption("talos-data", cluster.DiskBackup)
	const card cluster.VMField = "network card net1"
	on := func(bridge string) string { return "virtio=BC:24:11:00:00:99,bridge=" + bridge }
	for _, c := range []struct {
		what             string
		wants            map[cluster.VMField]string
		edit             map[cluster.VMField]string
		active           map[cluster.VMField]string // nil: nothing waits for the next start
		field            cluster.VMField            // "": none differs
		running, stopped How
		have             string
	}{
		{"none, and none edited", nil, nil, nil, "", "", "", ""},
		{"none, and one edited", nil, map[cluster.VMField]string{cache: "unsafe"}, nil, "", "", "", ""},
		{"what it has", map[cluster.VMField]string{cache: "none"}, nil, nil, "", "", "", ""},
		{"another, for its next start", map[cluster.VMField]string{cache: "writethrough"}, nil, nil, cache, Reboot, InPlace, "none"},
		{"another, at once", map[cluster.VMField]string{backup: "off"}, nil, nil, backup, InPlace, InPlace, "on"},
		{"one that waits for its next start", map[cluster.VMField]string{cache: "writethrough"}, map[cluster.VMField]string{cache: "writethrough"}, map[cluster.VMField]string{cache: "none"}, cache, Reboot, InPlace, "none"},
		{"an edit that waits for its next start", map[cluster.VMField]string{cache: "none"}, map[cluster.VMField]string{cache: "unsafe"}, map[cluster.VMField]string{cache: "none"}, cache, InPlace, InPlace, "unsafe" + pendingStart},
		{"a device that it has not", map[cluster.VMField]string{card: on("vmbr2")}, nil, nil, card, InPlace, InPlace, "none"},
		{"a device that it has", map[cluster.VMField]string{card: on("vmbr2")}, map[cluster.VMField]string{card: on("vmbr2")}, nil, "", "", "", ""},
		{"a device that waits for its next start", map[cluster.VMField]string{card: on("vmbr2")}, map[cluster.VMField]string{card: on("vmbr2")}, map[cluster.VMField]string{card: "none"}, card, Reboot, InPlace, "none"},
		{"a device that is moved", map[cluster.VMField]string{card: on("vmbr3")}, map[cluster.VMField]string{card: on("vmbr2")}, nil, card, InPlace, InPlace, on("vmbr2")},
		{"a device that is exchanged", map[cluster.VMField]string{card: on("vmbr2") + ",mtu=9000"}, map[cluster.VMField]string{card: on("vmbr2")}, nil, card, Reboot, InPlace, on("vmbr2")},
		{"a device to be removed", map[cluster.VMField]string{card: "none"}, map[cluster.VMField]string{card: on("vmbr2")}, nil, card, Reboot, InPlace, on("vmbr2")},
		{"a device that a person has put there without a mapping", map[cluster.VMField]string{"PCI device hostpci0": "mapping=gpu"}, map[cluster.VMField]string{"PCI device hostpci0": "host=0000:01:00.0"}, nil, "PCI device hostpci0", Refuse, Refuse, "host=0000:01:00.0"},
		{"one that is to be removed, and is a person's since", map[cluster.VMField]string{"PCI device hostpci0": "none"}, map[cluster.VMField]string{"PCI device hostpci0": "host=0000:01:00.0"}, nil, "", "", "", ""},
		{"a device of a person", nil, map[cluster.VMField]string{card: on("vmbr2")}, nil, "", "", "", ""},
		{"a device removed already", map[cluster.VMField]string{card: "none"}, nil, nil, "", "", "", ""},
		{"one of a disk that is not there", map[cluster.VMField]string{cluster.FieldDiskOption("talos-new", cluster.DiskCache): "none"}, nil, nil, "", "", "", ""},
	} {
		for power, how := range map[cluster.Power]How{cluster.PowerRunning: c.running, cluster.Stopped: c.stopped} {
			s, n := newNode()
			n.Disks = []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "local-lvm", Bytes: 1 << 30}}
			hw := WantHardware(s, n)
			hw.Options = listOptions(n)
			vm := cluster.VM{Tags: n.VMTags(), Power: power}
			if c.active != nil {
				active := hw
				active.Options = maps.Clone(hw.Options)
				maps.Copy(active.Options, c.active)
				vm.Active = &active
			}
			maps.Copy(hw.Options, c.edit)
			vm.Hardware, n.Options = cluster.Saw(hw), c.wants
			got := ofVM(s, n, vm)
			switch {
			case c.field == "" && len(got) == 0:
			case c.field == "" || len(got) != 1 || got[0].Field != string(c.field) || got[0].How != how || got[0].Have != c.have:
				t.Errorf("%s, power %v: %+v", c.what, power, got)
			}
		}
	}
}

// TestOptionsThatTheInventoryHad: an option that the inventory has no more becomes what a new VM gets,
// whether a node was seen to have it or was only begun to be given it; from then on it is a person's.
func TestOptionsThatTheInventoryHad(t *testing.T) {
	cache := cluster.FieldDiskOption("talos-data", cluster.DiskCache)
	differs := func(k *kept) []Drift { return OfNodeVM(k.d, k.o, k.n, k.o.VMs["wk-1"]) }
	give := func(k *kept, value string) {
		k.edit(func(h *cluster.Hardware) { h.Options = maps.Clone(h.Options); h.Options[cache] = value })
	}
	for _, seen := range []bool{true, false} {
		k := newKept()
		k.edit(func(h *cluster.Hardware) {
			h.Options = listOptions(k.n)
			h.Options[cluster.FieldNUMA], h.Options[cluster.FieldDiskOption("talos-data", cluster.DiskSSD)] = "on", "off" // a person's, all the time
		})
		k.settle(true)
		give(k, "directsync")
		if got := differs(k); len(got) > 0 {
			t.Fatalf("an edit of what the inventory never had: %+v", got)
		}
		k.push(func(n *cluster.Node) { n.Options = map[cluster.VMField]string{cache: "writethrough"} })
		k.want(t, "pushed", string(cache), "P")
		k.begin(string(cache))
		k.want(t, "begun", string(cache), "PB")
		give(k, "writethrough")
		if seen {
			k.settle(true)
			give(k, "unsafe")
			k.want(t, "edited", string(cache), "E")
			give(k, "writethrough")
		}
		k.push(func(n *cluster.Node) { n.Options = nil })
		for range 2 { // also after a look in which the node did not work
			got := differs(k)
			if len(got) != 1 || got[0].Field != string(cache) || got[0].Want != "none" || got[0].Have != "writethrough" || got[0].How != Reboot {
				t.Fatalf("seen %v: %+v", seen, got)
			}
			k.want(t, "taken out", string(cache), "P")
			k.settle(false)
		}
		vm := k.o.VMs["wk-1"]
		Take(k.d.Spec, k.n, &vm, []cluster.VMField{cache})
		k.o.VMs = map[string]cluster.VM{"wk-1": vm}
		if got := differs(k); len(got) > 0 || vm.Hardware.Value.Options[cache] != "none" {
			t.Fatalf("seen %v, as a forecast takes it: %+v, %v", seen, got, vm.Hardware.Value.Options)
		}
		k.settle(true)
		give(k, "unsafe")
		if got := differs(k); len(got) > 0 {
			t.Errorf("seen %v, a person's own again: %+v", seen, got)
		}
	}
}

// TestForecastOfDisk: a disk that is attached has the options of a new one, and those of the inventory.
func TestForecastOfDisk(t *testing.T) {
	s, n := newNode()
	ssd, cache := cluster.FieldDiskOption("talos-data", cluster.DiskSSD), cluster.FieldDiskOption("talos-data", cluster.DiskCache)
	hw := WantHardware(s, n)
	hw.Options = listOptions(n)
	hw.Options[cluster.FieldDiskOption(cluster.SystemDiskSerial, cluster.DiskCache)], hw.Options[cluster.FieldNUMA] = "unsafe", "on" // a person's
	before := len(hw.Options)
	vm := cluster.VM{Tags: n.VMTags(), Hardware: cluster.Saw(hw)}
	n.Disks = []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "local-lvm", Bytes: 1 << 30}}
	n.Options = map[cluster.VMField]string{ssd: "off"}
	hw.Options[cluster.FieldFirewall] = "on"
	Take(s, n, &vm, []cluster.VMField{cluster.FieldDisk("talos-data"), cluster.FieldModel}) // the name of which begins that of another option
	got := vm.Hardware.Value.Options
	if other := cluster.FieldDiskOption(cluster.SystemDiskSerial, cluster.DiskCache); got[other] != "unsafe" || got[cluster.FieldNUMA] != "on" || got[cluster.FieldFirewall] != "on" {
		t.Errorf("what is not taken is another: %v", got)
	}
	if got[ssd] != "off" || got[cache] != "none" || len(got) != before+len(cluster.DiskOptions) || len(ofVM(s, n, vm)) > 0 {
		t.Errorf("%v, %+v", got, ofVM(s, n, vm))
	}
	if len(hw.Options) != before {
		t.Error("a forecast changes what was seen")
	}
}

// TestHowOfOption: what takes a VM down to be changed, and what does not (see howOfOption).
func TestHowOfOption(t *testing.T) {
	for _, c := range []struct {
		field     cluster.VMField
		now, want string
		how       How
	}{
		{cluster.FieldCPULimit, "none", "2", InPlace}, {cluster.FieldCPUUnits, "100", "50", InPlace}, {cluster.FieldFirewall, "off", "on", InPlace},
		{cluster.FieldBalloonMin, "1024", "2048", InPlace}, {cluster.FieldBalloonMin, "none", "2048", Reboot}, {cluster.FieldBalloonMin, "2048", "none", Reboot},
		{cluster.FieldCPUFlags, "none", "+aes", Reboot}, {cluster.FieldNUMA, "off", "on", Reboot}, {cluster.FieldMTU, "none", "9000", Reboot},
		{cluster.FieldMachinePin, "q35", "pc-q35-9.2", Reboot}, {cluster.FieldDisplay, "std", "none", Reboot},
		{"PCI device hostpci0", "none", "mapping=gpu", Reboot}, {"PCI device hostpci0", "host=0000:01:00.0", "mapping=gpu", Refuse}, {"USB device usb0", "mapping=a", "none", Reboot},
		{"network card net1", "none", "virtio=BC:24:11:00:00:99,bridge=vmbr2", InPlace}, {"cpu flags", "host=x", "none", Reboot},
		{"disk talos-data backup", "on", "off", InPlace}, {"disk talos-data cache", "writeback", "unsafe", Reboot}, {"system disk aio", "default", "native", Reboot},
	} {
		if got := howOfOption(c.field, c.now, c.want); got != c.how {
			t.Errorf("%s from %s to %s: %s", c.field, c.now, c.want, got)
		}
	}
}

// TestOptionsBesideAnOlderRecord: what older agents kept of a node has no fields, and no option of it is taken back.
func TestOptionsBesideAnOlderRecord(t *testing.T) {
	k := newKept()
	k.o.Facts.Settled = map[string]string{"wk-1": "0123456789abcdef0"}
	k.edit(func(h *cluster.Hardware) { h.Options = listOptions(k.n); h.Options[cluster.FieldNUMA] = "on" })
	if got := OfNodeVM(k.d, k.o, k.n, k.o.VMs["wk-1"]); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

// TestCardIsAddedAsItRuns: a VM without a network card gets one as it runs; another model takes it down, and one
// that waits for its next start does, too.
func TestCardIsAddedAsItRuns(t *testing.T) {
	for _, c := range []struct {
		next, active string
		how          How
	}{{"", "", InPlace}, {"e1000", "", InPlace}, {"virtio", "", Reboot}, {"e1000", "e1000", Reboot}} {
		s, n := newNode()
		hw := WantHardware(s, n)
		hw.Model = c.next
		active := hw
		active.Model = c.active
		got := ofVM(s, n, cluster.VM{Tags: n.VMTags(), Power: cluster.PowerRunning, Hardware: cluster.Saw(hw), Active: &active})
		if len(got) != 1 || got[0].Field != string(cluster.FieldModel) || got[0].How != c.how {
			t.Errorf("%+v: %+v", c, got)
		}
		hw, n.Cores = WantHardware(s, n), n.Cores+1
		hw.Model = c.active
		if got := ofVM(s, n, cluster.VM{Tags: n.VMTags(), Power: cluster.PowerRunning, Hardware: cluster.Saw(hw)}); len(got) != 2 || got[0].Field != string(cluster.FieldCores) || got[0].How != Reboot {
			t.Errorf("%+v, and cores: %+v", c, got)
		}
	}
}
