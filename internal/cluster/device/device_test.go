package device

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

const mac = "BC:24:11:00:00:12"

// TestCard: a card is written as Proxmox VE has it, in its order.
func TestCard(t *testing.T) {
	base := Card{Model: "virtio", MAC: mac, Bridge: "vmbr2"}
	for _, c := range []struct {
		edit func(*Card)
		want string
	}{
		{func(*Card) {}, ""},
		{func(c *Card) { c.Address = netip.MustParsePrefix("10.20.0.1/24") }, ""},
		{func(c *Card) { c.VLAN = 30 }, ",tag=30"},
		{func(c *Card) { c.MTU = 1 }, ",mtu=1"},
		{func(c *Card) { c.Firewall = true }, ",firewall=1"},
		{func(c *Card) { c.LinkDown = true }, ",link_down=1"},
		{func(c *Card) { c.VLAN, c.MTU, c.Firewall, c.LinkDown = 30, 9000, true, true }, ",firewall=1,link_down=1,mtu=9000,tag=30"},
	} {
		card := base
		c.edit(&card)
		if got, want := card.String(), "virtio="+mac+",bridge=vmbr2"+c.want; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFields: each device has one field and one option of Proxmox VE, and nothing else has.
func TestFields(t *testing.T) {
	fields := Fields()
	keys := map[string]bool{}
	for _, f := range fields {
		key := KeyOf(f)
		if key == "" || keys[key] || FieldOf(key) != f {
			t.Errorf("%s: %q, and back %q", f, key, FieldOf(key))
		}
		keys[key] = true
	}
	if want := "hostpci0 hostpci1 hostpci2 hostpci3 hostpci4 hostpci5 hostpci6 hostpci7 net1 net2 net3 net4 net5 net6 net7 usb0 usb1 usb2 usb3 usb4"; strings.Join(slices.Sorted(maps.Keys(keys)), " ") != want {
		t.Errorf("%v", keys)
	}
	for _, key := range []string{"net0", "net8", "net01", "net", "netx", "net-1", "scsi1", "ipconfig1", "hostpci8", "hostpci", "usb5", "usb00", ""} {
		if got := FieldOf(key); got != "" {
			t.Errorf("%s is %q", key, got)
		}
	}
	for _, field := range []string{"network card", "network card net0", "network card net8", "network card firewall", "mtu", "net1", ""} {
		if got := KeyOf(field); got != "" || IsCard(field) {
			t.Errorf("%s is %q", field, got)
		}
	}
	if !IsCard("network card net1") {
		t.Error("net1 is no card")
	}
}

// TestOptions: what is written is there, by its number.
func TestOptions(t *testing.T) {
	s := Set{Cards: []Card{{Model: "virtio", MAC: mac, Bridge: "vmbr2"}, {Model: "e1000", MAC: mac, Bridge: "vmbr3"}},
		PCI: []PCI{{Mapping: "gpu", Express: true}, {Mapping: "gpu", NoROM: true}}, USB: []USB{{Mapping: "dongle"}, {Mapping: "key", USB3: true}}}
	want := map[string]string{"PCI device hostpci0": "mapping=gpu,pcie=1", "PCI device hostpci1": "mapping=gpu,rombar=0", "USB device usb0": "mapping=dongle", "USB device usb1": "mapping=key,usb3=1",
		"network card net1": "virtio=" + mac + ",bridge=vmbr2", "network card net2": "e1000=" + mac + ",bridge=vmbr3"}
	if got := s.Options(); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if s.HasAddress() {
		t.Error("an address that is not there")
	}
	if s.Cards[1].Address = netip.MustParsePrefix("10.20.0.1/24"); !s.HasAddress() {
		t.Error("no address")
	}
}

// TestTakesLive: a card is added and moved while the VM runs; one that is removed, or becomes another, takes a stop.
func TestTakesLive(t *testing.T) {
	const field, card = "network card net1", "virtio=" + mac + ",bridge=vmbr2"
	for _, c := range []struct {
		field, now, want string
		live             bool
	}{
		{field, None, card, true},
		{field, card, card + ",tag=30", true},
		{field, card, strings.Replace(card, "vmbr2", "vmbr3", 1) + ",firewall=1", true},
		{field, card + ",link_down=1", card, true},
		{field, card, None, false},
		{field, card, card + ",mtu=9000", false},
		{field, card + ",mtu=9000", card, false},
		{field, card, strings.Replace(card, "virtio", "e1000", 1), false},
		{field, card, strings.Replace(card, ":12", ":13", 1), false},
		{"mtu", None, "9000", false},
		{"PCI device hostpci0", None, "mapping=gpu", false},
		{"USB device usb0", None, "mapping=dongle", false},
	} {
		if got := TakesLive(c.field, c.now, c.want); got != c.live {
			t.Errorf("%s from %s to %s: %v", c.field, c.now, c.want, got)
		}
	}
}

// TestMisplaced: an address of a card is one that a machine can have, in a network of its own.
func TestMisplaced(t *testing.T) {
	others := map[string]netip.Prefix{"pods' network": netip.MustParsePrefix("10.244.0.0/16"), "services' network": {}}
	nodes := netip.MustParsePrefix("10.10.0.0/24")
	for address, want := range map[string]string{
		"10.20.0.1/24": "", "10.20.0.254/24": "", "10.20.0.1/31": "", "10.20.0.0/31": "", "10.20.0.7/32": "", "10.20.0.0/32": "",
		"10.20.0.0/24": "the network itself", "10.20.0.255/24": "broadcast", "10.10.0.7/24": "the nodes' network", "10.0.0.7/8": "the nodes' network",
		"10.244.1.1/24": "the pods' network 10.244.0.0/16", "127.0.0.1/8": "cannot be", "0.0.0.0/8": "cannot be", "224.0.0.1/24": "cannot be", "169.254.1.1/16": "cannot be",
	} {
		got := Card{Address: netip.MustParsePrefix(address)}.Misplaced(nodes, others)
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	if got := (Card{Address: netip.MustParsePrefix("10.10.0.7/24")}).Misplaced(netip.Prefix{}, nil); got != "" {
		t.Errorf("without a network of the nodes: %s", got)
	}
}

// TestMappings: of which mapping a device is, by its field; a network card, or a device without one, is of none.
func TestMappings(t *testing.T) {
	s := Set{Cards: []Card{{Model: "virtio"}}, PCI: []PCI{{Mapping: "gpu", Express: true, NoROM: true}, {Mapping: "gpu"}}, USB: []USB{{Mapping: "dongle", USB3: true}}}
	want := []Mapping{{PCIMapping, "gpu"}, {PCIMapping, "gpu"}, {USBMapping, "dongle"}}
	if got := s.Mappings(); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	var paths []string
	for _, m := range want {
		paths = append(paths, m.Path())
		if at := MappingAt(m.Path()); at != m {
			t.Errorf("%s: %v", m.Path(), at)
		}
	}
	if got := strings.Join(paths, " "); got != "pci/gpu pci/gpu usb/dongle" {
		t.Error(got)
	}
	for _, c := range []struct {
		field, value string
		want         Mapping
		raw          bool
	}{
		{"PCI device hostpci1", s.PCI[0].String(), Mapping{PCIMapping, "gpu"}, false},
		{"USB device usb0", s.USB[0].String(), Mapping{USBMapping, "dongle"}, false},
		{"USB device usb0", USB{Mapping: "dongle"}.String(), Mapping{USBMapping, "dongle"}, false},
		{"PCI device hostpci1", PCI{Host: "0000:01:00.0", Express: true}.String(), Mapping{}, true},
		{"USB device usb0", USB{Host: "spice"}.String(), Mapping{}, true},
		{"PCI device hostpci1", None, Mapping{}, false},
		{"network card net1", "mapping=gpu", Mapping{}, false},
		{"cpu units", "mapping=gpu", Mapping{}, false},
	} {
		if got := MappingOf(c.field, c.value); got != c.want || IsRaw(c.value) != c.raw {
			t.Errorf("%s %s: %v", c.field, c.value, got)
		}
	}
}

// TestMTUOf: the MTU of a card is its own, unless it is that of its bridge.
func TestMTUOf(t *testing.T) {
	for _, c := range []struct {
		field, value, bridge string
		mtu                  int
	}{
		{"network card net1", "virtio=" + mac + ",bridge=vmbr2,mtu=9000,tag=3", "vmbr2", 9000},
		{"network card net1", "virtio=" + mac + ",bridge=vmbr2", "vmbr2", 0},
		{"network card net1", "virtio=" + mac + ",bridge=vmbr2,mtu=1", "vmbr2", 0},
		{"network card net1", None, "", 0},
		{"PCI device hostpci0", "mapping=gpu,mtu=9", "", 0},
		{"mtu", "mtu=9000", "", 0},
	} {
		if bridge, mtu := MTUOf(c.field, c.value); bridge != c.bridge || mtu != c.mtu {
			t.Errorf("%s %s: %s %d", c.field, c.value, bridge, mtu)
		}
	}
	if got := DescribeMTU("vmbr2", 9000); got != "vmbr2=9000" {
		t.Error(got)
	}
}
