package drift

import (
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// ofVM compares the VM of a node with the inventory.
func ofVM(s cluster.Spec, n cluster.Node, vm cluster.VM) []Drift {
	return compareVM(WantHardware(s, n), n, vm)
}

// TestOfMachine: of what a machine runs only that is compared which is known on both sides;
// a version comes before all else, since it brings another config.
func TestOfMachine(t *testing.T) {
	for _, c := range []struct {
		what string
		edit func(*cluster.Desired, *cluster.Observed, *cluster.Machine)
		want cluster.Reason // "": none
	}{
		{"the same", func(*cluster.Desired, *cluster.Observed, *cluster.Machine) {}, ""},
		{"another Talos, and another config", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) {
			m.Talos, m.ConfigDigest = "v1.13.8", "old"
		}, cluster.TalosVersionDrift},
		{"a Talos that is not known", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) { m.Talos = "" }, ""},
		{"another image, and another config", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) {
			m.Schematic, m.ConfigDigest = "b", "old"
		}, cluster.SchematicDrift},
		{"an image that is not known", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) { m.Schematic = "" }, ""},
		{"before the factory has answered", func(d *cluster.Desired, _ *cluster.Observed, _ *cluster.Machine) { d.Schematic = "" }, ""},
		{"another Kubernetes, and another config", func(_ *cluster.Desired, o *cluster.Observed, m *cluster.Machine) {
			o.Nodes.Value["cp-1"] = cluster.KubeNode{Kubelet: "v1.36.0"}
			m.ConfigDigest = "old"
		}, cluster.KubernetesDrift},
		{"a Kubernetes that was seen before", func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Machine) {
			o.Nodes.Known = false
			o.Nodes.Value["cp-1"] = cluster.KubeNode{Kubelet: "v1.36.0"}
		}, ""},
		{"a Kubernetes that is not known", func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Machine) {
			o.Nodes.Value["cp-1"] = cluster.KubeNode{}
		}, ""},
		{"no Node object", func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Machine) { delete(o.Nodes.Value, "cp-1") }, ""},
		{"an older kubelet, on the way of an upgrade that has not come to it, and another config", func(d *cluster.Desired, o *cluster.Observed, m *cluster.Machine) {
			stage(d, o, "v1.35.10", "v1.35.10")
			m.ConfigDigest = "old"
		}, cluster.ConfigDrift},
		{"which it has", func(d *cluster.Desired, o *cluster.Observed, _ *cluster.Machine) { stage(d, o, "v1.35.10", "v1.35.10") }, ""},
		{"a kubelet that a config will bring", func(d *cluster.Desired, o *cluster.Observed, m *cluster.Machine) {
			stage(d, o, "v1.36.1", "v1.35.10")
			m.ConfigDigest = "old"
		}, cluster.ConfigDrift},
		{"one of a hop to another version than the inventory's", func(d *cluster.Desired, o *cluster.Observed, m *cluster.Machine) {
			stage(d, o, "v1.35.10", "v1.34.2")
			m.ConfigDigest = "old"
		}, cluster.ConfigDrift},
		{"one that a config has brought, and that does not run yet", func(d *cluster.Desired, o *cluster.Observed, _ *cluster.Machine) { stage(d, o, "v1.36.1", "v1.35.10") }, ""},
		{"a newer kubelet than on the way of an upgrade", func(d *cluster.Desired, o *cluster.Observed, m *cluster.Machine) {
			stage(d, o, "v1.35.10", "v1.36.2")
			m.ConfigDigest = "old"
		}, cluster.KubernetesDrift},
		{"the inventory's kubelet, ahead of an upgrade", func(d *cluster.Desired, o *cluster.Observed, m *cluster.Machine) {
			stage(d, o, "v1.35.10", "v1.36.1")
			m.ConfigDigest = "old"
		}, cluster.KubernetesDrift},
		{"a kubelet of an unknown version", func(d *cluster.Desired, o *cluster.Observed, _ *cluster.Machine) { stage(d, o, "v1.36.1", "v1.35") }, cluster.KubernetesDrift},
		{"another Talos, on the way of an upgrade", func(d *cluster.Desired, o *cluster.Observed, m *cluster.Machine) {
			stage(d, o, "v1.36.1", "v1.35.10")
			m.Talos, m.ConfigDigest = "v1.13.8", "old"
		}, cluster.TalosVersionDrift},
		{"another config", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) { m.ConfigDigest = "old" }, cluster.ConfigDrift},
		{"a config that was not read", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) { m.ConfigDigest = "" }, ""},
		{"a config that is not made yet", func(d *cluster.Desired, _ *cluster.Observed, _ *cluster.Machine) {
			d.Configs = map[string]cluster.Config{"cp-1": {}}
		}, ""},
	} {
		s, n := newNode()
		s.Versions = cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1"}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}, Schematic: "a", Configs: map[string]cluster.Config{"cp-1": {Digest: "new"}}}
		o := cluster.Observed{Nodes: cluster.Saw(map[string]cluster.KubeNode{"cp-1": {Kubelet: "v1.36.1"}})}
		m := cluster.Machine{Talos: "v1.13.9", Schematic: "a", ConfigDigest: "new"}
		c.edit(&d, &o, &m)
		var got cluster.Reason
		for _, dr := range OfMachine(d, o, n, m) {
			got += dr.Reason
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// stage has an upgrade give cp-1 a kubelet, and cp-1 run another one.
func stage(d *cluster.Desired, o *cluster.Observed, kubelet, runs string) {
	d.Spec.Nodes = slices.Clone(d.Spec.Nodes)
	for i := range d.Spec.Nodes {
		d.Spec.Nodes[i].Components.Kubelet = kubelet
	}
	o.Nodes.Value["cp-1"] = cluster.KubeNode{Kubelet: runs}
}

// TestStoppedTakesAll: a VM that is stopped takes at once what one that runs takes at its
// next start, or in a turn; what cannot be changed stays so.
func TestStoppedTakesAll(t *testing.T) {
	s, n := newNode()
	for _, c := range []struct {
		field            string
		edit             func(*cluster.VM)
		running, stopped How
	}{
		{"cores", func(vm *cluster.VM) { vm.Hardware.Value.Cores = 1 }, Reboot, InPlace},
		{"boot order that was deleted", func(vm *cluster.VM) { vm.Hardware.Value.Boot = "" }, NextStart, InPlace},
		{"boot order", func(vm *cluster.VM) { vm.Hardware.Value.Boot = "net0" }, NextStart, InPlace},
		{"mac", func(vm *cluster.VM) { vm.Hardware.Value.MAC = "x" }, Refuse, Refuse},
		{"disk", func(vm *cluster.VM) { vm.Hardware.Value.System.Bytes = 80 << 30 }, Refuse, Refuse},
	} {
		for power, want := range map[cluster.Power]How{cluster.PowerRunning: c.running, cluster.Stopped: c.stopped} {
			vm := cluster.VM{Tags: n.VMTags(), Power: power, Hardware: cluster.Saw(WantHardware(s, n))}
			c.edit(&vm)
			if got := ofVM(s, n, vm); len(got) != 1 || got[0].How != want {
				t.Errorf("%s of a VM that is %v: %+v", c.field, power, got)
			}
		}
	}
}

// TestNextStart: what is read when a VM starts is as it should be from then on, whatever it
// started with.
func TestNextStart(t *testing.T) {
	s, n := newNode()
	vm := cluster.VM{Tags: n.VMTags(), Power: cluster.PowerRunning, Hardware: cluster.Saw(WantHardware(s, n))}
	active := vm.Hardware.Value
	active.Boot = "net0"
	vm.Active = &active
	if got := ofVM(s, n, vm); len(got) > 0 {
		t.Errorf("%+v", got)
	}
	// A network card is changed as it runs; if it was not, it takes a start.
	active.Boot, active.Bridge = vm.Hardware.Value.Boot, "vmbr9"
	if got := ofVM(s, n, vm); len(got) != 1 || got[0].How != Reboot {
		t.Errorf("%+v", got)
	}
}

// TestLostCard: a network card that somebody removed is put back as the VM runs, whether its removal
// is pending or not, and so is the MAC that it had; that of a card that is there is not exchanged.
func TestLostCard(t *testing.T) {
	s, n := newNode()
	s.Network.VLAN, n.MAC, n.Bridge = 7, "BC:24:11:00:00:11", "vmbr1"
	card := WantHardware(s, n)
	lost, down, moved, other := card, card, card, card
	lost.Model, lost.MAC, lost.Bridge, lost.VLAN = "", "", "", 0
	down.LinkDown, moved.VLAN, other.MAC = true, 8, "BC:24:11:00:00:99"
	const pending = "network card none (pending its next start), mac none (pending its next start), bridge none (pending its next start), vlan 0 (pending its next start)"
	for _, c := range []struct {
		what      string
		next, now cluster.Hardware
		power     cluster.Power
		want      string
		how       How
		moves     bool
	}{
		{"its removal is pending", lost, card, cluster.PowerRunning, pending, InPlace, false},
		{"removed as it ran", lost, lost, cluster.PowerRunning, "network card none, mac none, bridge none, vlan 0", InPlace, false},
		{"removed as it was off", lost, lost, cluster.Stopped, "network card none, mac none, bridge none, vlan 0", InPlace, false},
		{"disconnected", down, down, cluster.PowerRunning, "link down true", InPlace, false},
		{"in another vlan", moved, moved, cluster.PowerRunning, "vlan 8", InPlace, true},
		{"a vlan is pending", moved, card, cluster.PowerRunning, "vlan 8 (pending its next start)", InPlace, false},
		{"another mac", other, other, cluster.PowerRunning, "mac BC:24:11:00:00:99", Reboot, false},
	} {
		vm := cluster.VM{Tags: n.VMTags(), Power: c.power, Hardware: cluster.Saw(c.next), Active: &c.now}
		o := cluster.Observed{Facts: cluster.Facts{Cards: map[string]string{n.Name: CardOf(card)}}}
		got := OfNodeVM(cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}}, o, n, vm)
		if DescribeHave(got) != c.want || slices.ContainsFunc(got, func(dr Drift) bool { return dr.How != c.how }) || MovesNetwork(got) != c.moves {
			t.Errorf("%s: %+v, moves %v", c.what, got, MovesNetwork(got))
		}
	}
}

// TestUnreadIsNoDrift: of a config that cannot be read nothing is different, or missing.
func TestUnreadIsNoDrift(t *testing.T) {
	s, n := newNode()
	vm := cluster.VM{Presence: cluster.Present, Owner: cluster.Ours}
	if got := ofVM(s, n, vm); len(got) > 0 || LacksSystemDisk(vm) {
		t.Errorf("%+v", got)
	}
}

// TestDataDisks: a disk that is missing is made, unless it may be one that was detached.
func TestDataDisks(t *testing.T) {
	s, n := newNode()
	n.Disks = []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "local-lvm", Bytes: 20 << 30}}
	for _, c := range []struct {
		what string
		edit func(*cluster.VM)
		want []How
	}{
		{"there", func(*cluster.VM) {}, nil},
		{"too small", func(vm *cluster.VM) {
			vm.Hardware.Value.Data = map[string]cluster.DiskSeen{"talos-data": {Datastore: "local-lvm", Bytes: 10 << 30}}
		}, []How{Reboot}},
		{"missing", func(vm *cluster.VM) { vm.Hardware.Value.Data = nil }, []How{InPlace}},
		{"detached", func(vm *cluster.VM) {
			vm.Hardware.Value.Data = nil
			vm.Others = []cluster.Drive{{Key: "unused0", Volume: "x"}}
		}, []How{Refuse}},
	} {
		vm := cluster.VM{Tags: n.VMTags(), Power: cluster.PowerRunning, Hardware: cluster.Saw(WantHardware(s, n))}
		c.edit(&vm)
		var got []How
		for _, dr := range ofVM(s, n, vm) {
			got = append(got, dr.How)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// TestTags: tags that are missing are added, where Proxmox VE lets the agent tag.
func TestTags(t *testing.T) {
	s, n := newNode()
	vm := cluster.VM{Hardware: cluster.Saw(WantHardware(s, n))}
	if got := ofVM(s, n, vm); len(got) != 1 || got[0].Field != string(cluster.FieldTags) {
		t.Errorf("%+v", got)
	}
	vm.Untaggable = true
	if got := ofVM(s, n, vm); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

// TestRefusals: what a person reads of a drift that is not corrected, and what to do.
func TestRefusals(t *testing.T) {
	_, n := newNode()
	for _, c := range []struct {
		dr            Drift
		message, hint string
	}{
		{Drift{Reason: cluster.TalosVersionDrift, Have: "v1.13.8", Want: "v1.13.9"}, "it runs Talos v1.13.8", "set talos_version to v1.13.8, which it runs, or bring"},
		{Drift{Reason: cluster.KubernetesDrift, Have: "v1.36.0", Want: "v1.36.1"}, "it runs Kubernetes v1.36.0", "set kubernetes_version to v1.36.0, which it runs, or bring"},
		{Drift{Reason: cluster.KubernetesDrift, Have: "v1.36.2", Want: "v1.35.10"}, "its kubelet is v1.36.2, and on the way of an upgrade it would be v1.35.10", "give it the kubelet of the other nodes by hand"},
		{Drift{Field: string(cluster.FieldAddress), Have: "a", Want: "b"}, "not changed on a machine that runs", "a machine's address"},
		{Drift{Field: "system disk size", Have: text.GiB(2 << 30), Want: text.GiB(1 << 30)}, "disks are not made smaller", "write the size that it has"},
		{Drift{Field: "disk x datastore", Have: "a", Want: "b"}, "disks are not moved", "`qm disk move`"},
		{Drift{Field: "disk x", Have: "1 GiB"}, "a disk is never removed", "put it back"},
		{Drift{Field: "disk x", Want: "1 GiB"}, "volumes of the vm are detached", "`serial=x`"},
		{Drift{Field: string(cluster.FieldMAC), Have: "a", Want: "b"}, "which is not changed on a vm that is there", "undo the change in the repository"},
	} {
		// What runs is older than what the repository has.
		asked := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Versions: cluster.Versions{Kubernetes: "v1.36.1"}}}}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Versions: cluster.Versions{Kubernetes: "v1.36.0"}}}, Asked: &asked}
		if b := c.dr.Refusal(d, cluster.Observed{}, n); !strings.Contains(b.Message, c.message) || !strings.Contains(b.Hint, c.hint) {
			t.Errorf("%+v: %+v", c.dr, b)
		}
	}
}

// TestTake: a forecast gives a VM the fields that it is asked for, and no others.
func TestTake(t *testing.T) {
	s, n := newNode()
	n.Disks = []cluster.Disk{{Serial: "talos-one", Bytes: 1 << 30}, {Serial: "talos-two", Bytes: 2 << 30}}
	n.Tags = []string{"web"}
	bare := cluster.VM{Unmarked: true, Hardware: cluster.Saw(cluster.Hardware{Data: map[string]cluster.DiskSeen{"talos-two": {Bytes: 1}}})}
	fields := []cluster.VMField{cluster.FieldSystemSize, cluster.FieldTags, cluster.FieldMark, cluster.FieldDisk("talos-one"), cluster.FieldDiskSize("talos-two")}
	for i, field := range fields {
		vm := bare
		Take(s, n, &vm, fields[i:i+1])
		_, one := vm.Hardware.Value.Data["talos-one"]
		for other, taken := range map[cluster.VMField]bool{
			cluster.FieldSystemSize:            vm.Hardware.Value.System.Bytes == n.DiskBytes,
			cluster.FieldTags:                  slices.Contains(vm.Tags, "web"),
			cluster.FieldMark:                  !vm.Unmarked,
			cluster.FieldDisk("talos-one"):     one,
			cluster.FieldDiskSize("talos-two"): vm.Hardware.Value.Data["talos-two"].Bytes == 2<<30,
		} {
			if taken != (other == field) {
				t.Errorf("to take %s: %s is taken: %v", field, other, taken)
			}
		}
	}
	// What a VM started with is forgotten when nothing of it differs any more.
	vm := cluster.VM{Hardware: cluster.Saw(WantHardware(s, n))}
	active := vm.Hardware.Value
	active.Cores = 1
	vm.Active = &active
	if Take(s, n, &vm, nil); vm.Active == nil {
		t.Error("its cores are not those that it started with")
	}
	active.Cores = n.Cores
	if Take(s, n, &vm, nil); vm.Active != nil {
		t.Error("nothing differs from what it started with")
	}
}

// TestIsReplaced: a machine is another one's only if it is there, ours, and was made for
// another token.
func TestIsReplaced(t *testing.T) {
	for _, c := range []struct {
		what string
		edit func(*cluster.Node, *cluster.VM)
		want bool
	}{
		{"another token", func(*cluster.Node, *cluster.VM) {}, true},
		{"no token", func(n *cluster.Node, _ *cluster.VM) { n.Replace = "" }, false},
		{"the same token", func(_ *cluster.Node, vm *cluster.VM) { vm.Replace = "two" }, false},
		{"not seen", func(_ *cluster.Node, vm *cluster.VM) { vm.Presence = cluster.PresenceUnknown }, false},
		{"foreign", func(_ *cluster.Node, vm *cluster.VM) { vm.Owner = cluster.Foreign }, false},
		{"without the mark that has the token", func(_ *cluster.Node, vm *cluster.VM) { vm.Unmarked = true }, false},
	} {
		n := cluster.Node{Name: "wk-1", Replace: "two"}
		vm := cluster.VM{Presence: cluster.Present, Owner: cluster.Ours, Replace: "one"}
		c.edit(&n, &vm)
		for done, f := range map[bool]cluster.Facts{false: {Replaced: map[string][]string{"wk-1": {"one"}}}, true: {Replaced: map[string][]string{"wk-1": {"two", "one"}}}} {
			if got := IsReplaced(n, vm, f); got != (c.want && !done) {
				t.Errorf("%s, done %v: %v", c.what, done, got)
			}
			if got := IsRestored(n, vm, f); got != (c.want && done) {
				t.Errorf("%s, done %v: restored %v", c.what, done, got)
			}
		}
	}
}

// TestQuoteValue: of a long value its beginning is shown, in whole letters, and none is not
// an empty one.
func TestQuoteValue(t *testing.T) {
	long := strings.Repeat("a", maxShown-1) + "é" + "b"
	for _, c := range []struct {
		value *string
		want  string
	}{
		{nil, ""},
		{new(""), `""`},
		{new(":NoSchedule"), `"NoSchedule"`},
		{new(strings.Repeat("a", maxShown)), `"` + strings.Repeat("a", maxShown) + `"`},
		{new(long), `"` + strings.Repeat("a", maxShown-1) + `"... (66 bytes, sha256 `},
		{new(strings.Repeat("\x80", 70)), `""... (70 bytes, sha256 `}, // no letters at all
	} {
		if got := quoteValue(c.value); got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestRepositoryNode: a node is as the repository has it, where that has it.
func TestRepositoryNode(t *testing.T) {
	runs := cluster.Node{Name: "cp-1", Cores: 4}
	asked := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "cp-1", Cores: 8}}}}}
	if got := RepositoryNode(cluster.Desired{Asked: &asked}, runs); got.Cores != 8 {
		t.Errorf("%+v", got)
	}
	if got := RepositoryNode(cluster.Desired{Asked: &cluster.Desired{}}, runs); got.Cores != 4 {
		t.Errorf("%+v", got)
	}
}

// TestDescribeEdits: who set a value is named where that is known.
func TestDescribeEdits(t *testing.T) {
	value := "b"
	e := cluster.MetaEdit{Kind: cluster.MetaLabel, Key: "zone", Want: &value}
	if got := DescribeEdits([]cluster.MetaEdit{e}); strings.Contains(got, "set by") {
		t.Error(got)
	}
	e.By.Manager = "kubectl"
	if got := DescribeEdits([]cluster.MetaEdit{e}); !strings.HasSuffix(got, "(set by kubectl)") {
		t.Error(got)
	}
}

// TestCountConfigs: what a node runs is counted where it is seen, and known what it should.
func TestCountConfigs(t *testing.T) {
	for _, c := range []struct {
		what        string
		edit        func(*cluster.Desired, *cluster.Machine)
		same, other int
	}{
		{"the same", func(*cluster.Desired, *cluster.Machine) {}, 1, 0},
		{"another", func(_ *cluster.Desired, m *cluster.Machine) { m.ConfigDigest = "old" }, 0, 1},
		{"the same, and another waits", func(_ *cluster.Desired, m *cluster.Machine) { m.Staged = "theirs" }, 1, 0},
		{"not read", func(_ *cluster.Desired, m *cluster.Machine) { m.ConfigDigest = "" }, 0, 0},
		{"silent", func(_ *cluster.Desired, m *cluster.Machine) { m.Reach = cluster.Silent }, 0, 0},
		{"not made yet", func(d *cluster.Desired, _ *cluster.Machine) { d.Configs = nil }, 0, 0},
	} {
		s, _ := newNode()
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}, Configs: map[string]cluster.Config{"cp-1": {Digest: "new"}}}
		m := cluster.Machine{Reach: cluster.Configured, ConfigDigest: "new"}
		c.edit(&d, &m)
		same, other := CountConfigs(d, cluster.Observed{Machines: map[string]cluster.Machine{"cp-1": m}})
		if same != c.same || other != c.other {
			t.Errorf("%s: %d are the same, %d are not", c.what, same, other)
		}
	}
}
