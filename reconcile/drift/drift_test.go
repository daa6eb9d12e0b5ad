package drift

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// newNode is a node as an inventory has it.
func newNode() (cluster.Spec, cluster.Node) {
	n := cluster.Node{Name: "cp-1", Role: cluster.ControlPlane, VMID: 411, IP: netip.MustParseAddr("10.10.0.11"), MAC: "BC:24:11:00:00:01",
		Bridge: "vmbr1", Datastore: "local-lvm", SCSIHardware: "virtio-scsi-single", CPUType: "x86-64-v2-AES", Cores: 4, MemoryMiB: 8192, DiskBytes: 40 << 30}
	return cluster.Spec{Network: cluster.Network{Mode: cluster.AddressStatic, CIDR: netip.MustParsePrefix("10.10.0.0/24"), Gateway: netip.MustParseAddr("10.10.0.1")}, Nodes: []cluster.Node{n}}, n
}

// TestDriftsAreComparedOnce: every field of the hardware is in the list exactly
// once, so that none drifts unseen, and a forecast takes each.
func TestDriftsAreComparedOnce(t *testing.T) {
	s, n := newNode()
	s.SecureBoot = true
	n.Options = listOptions(n) // which asks for no balloon
	others := map[cluster.VMField]string{}
	for field := range n.Options {
		others[field] = "another"
	}
	want := WantHardware(s, n)
	have := cluster.Hardware{CPUType: "host", Cores: 1, MemoryMiB: 1, Balloon: true, Machine: "pc", BIOS: "seabios", SCSIHardware: "lsi", Model: "e1000", MAC: "x", Bridge: "vmbr9", VLAN: 9, LinkDown: true, Boot: "net0",
		System: cluster.DiskSeen{Datastore: "other", Bytes: 1 << 30}, Data: map[string]cluster.DiskSeen{"talos-x": {Bytes: 1 << 30}}, Address: "x", Agent: true, Medium: "ide0", Options: others}
	vm := cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Present, Owner: cluster.Ours, Tags: n.VMTags(), Hardware: cluster.Saw(WantHardware(s, n))}
	vm.Hardware = cluster.Saw(have)
	seen := map[string]How{}
	for _, d := range ofVM(s, n, vm) {
		if _, twice := seen[d.Field]; twice || d.How == "" || d.Reason != cluster.HardwareDrift {
			t.Errorf("drift %+v", d)
		}
		seen[d.Field] = d.How
	}
	if len(seen) != len(hardwareFields)+4+len(others) || len(hardwareFields)+4 != reflect.TypeFor[cluster.Hardware]().NumField() { // two of the system disk, one disk too many, and the TPM
		t.Errorf("%d drifts of %d fields: %v", len(seen), len(hardwareFields), seen)
	}
	for _, f := range hardwareFields {
		if f.take(&have, &want); f.of(&have) != f.of(&want) {
			t.Errorf("a forecast does not take %s", f.name)
		}
	}
	if vm.Hardware = cluster.Saw(have); !maps.Equal(takeOptions(n, others, slices.Collect(maps.Keys(n.Options))), want.Options) {
		t.Error("a forecast does not take options")
	}
	vm.Hardware = cluster.Saw(want)
	if d := ofVM(s, n, vm); len(d) > 0 {
		t.Errorf("the same differs: %v", d)
	}
}

// TestIPv6IsComparedWhereItIs: the VM of a dual-stack cluster differs where it lacks the IPv6 address, or has another; without
// IPv6 in the inventory nothing of it is wanted.
func TestIPv6IsComparedWhereItIs(t *testing.T) {
	s, n := newNode()
	plain := WantHardware(s, n)
	if plain.Address != "10.10.0.11/24,gw=10.10.0.1" {
		t.Errorf("without IPv6: %s", plain.Address)
	}
	s.Network.IPv6.CIDR, n.IP6 = netip.MustParsePrefix("fd00:10:10::/64"), netip.MustParseAddr("fd00:10:10::b")
	noRoute := WantHardware(s, n)
	s.Network.IPv6.Gateway = netip.MustParseAddr("fe80::1")
	want := WantHardware(s, n)
	if noRoute.Address != plain.Address+",ip6=fd00:10:10::b/64" || want.Address != noRoute.Address+",gw6=fe80::1" {
		t.Errorf("with IPv6: %s, %s", noRoute.Address, want.Address)
	}
	for _, has := range []cluster.Hardware{plain, noRoute, want} {
		vm := cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Present, Owner: cluster.Ours, Tags: n.VMTags(), Hardware: cluster.Saw(has)}
		drifts := ofVM(s, n, vm)
		if same := has.Address == want.Address; same != (len(drifts) == 0) || !same && (drifts[0].Field != string(cluster.FieldAddress) || drifts[0].How != Refuse) {
			t.Errorf("%s: %+v", has.Address, drifts)
		}
	}
}

// TestDriftsThatWait: what waits for the next start of a VM is compared, too.
func TestDriftsThatWait(t *testing.T) {
	s, n := newNode()
	for name, c := range map[string]struct {
		next, active, want int
		how                How
		have               string
	}{
		"edited, and not started since":        {next: 2, active: 4, want: 4, how: InPlace, have: "2 (pending its next start)"},
		"written into the inventory afterward": {next: 8, active: 4, want: 8, how: Reboot, have: "4"},
		"a third value":                        {next: 2, active: 4, want: 8, how: Reboot, have: "4"},
		"the same":                             {next: 4, active: 4, want: 4},
	} {
		n.Cores = c.want
		vm := cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Present, Owner: cluster.Ours, Tags: n.VMTags(), Hardware: cluster.Saw(WantHardware(s, n))}
		vm.Power = cluster.PowerRunning
		vm.Hardware.Value.Cores = c.next
		active := vm.Hardware.Value
		active.Cores = c.active
		vm.Active = &active
		drifts := ofVM(s, n, vm)
		if c.how == "" && len(drifts) == 0 {
			continue
		}
		if len(drifts) != 1 || drifts[0].How != c.how || drifts[0].Have != c.have {
			t.Errorf("%s: %+v", name, drifts)
		}
	}
}

// TestChangeOfASchematic: of a schematic people read the first digits, and what stands in the place of one that is not known whole.
func TestChangeOfASchematic(t *testing.T) {
	const id = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
	d := Drift{Field: FieldSchematic, Have: id, Want: "the factory's answer"}
	if got := d.Change(); got != "image schematic from 376567988ad3 to the factory's answer" {
		t.Errorf("%q", got)
	}
}
