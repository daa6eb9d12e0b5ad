// Package device has the devices of a VM beside its disks and its first network card: further network cards, and devices
// of the host that are passed to it. Each is one option of Proxmox VE, and written as Proxmox VE has it.
//
// The package is pure: values that the inventory, the planner and the client of Proxmox VE share. It must not know where
// they come from, or what is done about them.
package device

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// None is the value of a device that is not there.
const None = "none"

// Set are the devices of a VM, in the order of their numbers.
type Set struct {
	Cards []Card
	PCI   []PCI
	USB   []USB
}

// Card is a network card of a VM beside its first one.
type Card struct {
	Model    string // virtio, e1000, ...
	MAC      string // upper case
	Bridge   string
	VLAN     int // 0: untagged
	MTU      int // 0: what Proxmox VE takes by itself; 1: that of the bridge
	Firewall bool
	LinkDown bool // it is disconnected, which no inventory asks for
	// Address is its static address with the length of its network, which is in the machine config alone; zero: it is
	// left to that config.
	Address netip.Prefix
}

// String is a card as Proxmox VE writes it, without what the agent does not set and without what is so by itself.
func (c Card) String() string {
	out := c.Model + "=" + c.MAC + ",bridge=" + c.Bridge
	for _, p := range []struct {
		is   bool
		text string
	}{{c.Firewall, "firewall=1"}, {c.LinkDown, "link_down=1"}, {c.MTU != 0, "mtu=" + strconv.Itoa(c.MTU)}, {c.VLAN != 0, "tag=" + strconv.Itoa(c.VLAN)}} {
		if p.is {
			out += "," + p.text
		}
	}
	return out
}

// HasAddress reports whether one of the cards has an address.
func (s Set) HasAddress() bool {
	return slices.ContainsFunc(s.Cards, func(c Card) bool { return c.Address.IsValid() })
}

// PCI is a PCI device of the host. No inventory asks for one without a mapping, which only root@pam may pass to a VM.
type PCI struct {
	Mapping string // its resource mapping
	Host    string // its address, of one that is passed without a mapping
	Express bool   // the VM sees it as a device of PCI Express
	NoROM   bool   // the VM does not see its ROM
}

// String is a PCI device as Proxmox VE writes it, as that of a card is.
func (d PCI) String() string {
	out := describeSource(d.Mapping, d.Host)
	if d.Express {
		out += ",pcie=1"
	}
	if d.NoROM {
		out += ",rombar=0"
	}
	return out
}

// USB is a USB device of the host, as PCI is one.
type USB struct {
	Mapping string
	Host    string // its number or port, or "spice"
	USB3    bool
}

// String is a USB device as Proxmox VE writes it.
func (d USB) String() string {
	out := describeSource(d.Mapping, d.Host)
	if d.USB3 {
		out += ",usb3=1"
	}
	return out
}

// describeSource is where a device comes from.
func describeSource(mapping, host string) string {
	if mapping != "" {
		return "mapping=" + mapping
	}
	return rawSource + host
}

// rawSource begins a device without a mapping.
const rawSource = "host="

// IsRaw reports whether a device of the host is passed to a VM without a mapping. Only root@pam may add, change or remove one
// (PVE 9.1 qemu-server, check_hostpci_perm and check_usb_perm).
func IsRaw(value string) bool { return strings.HasPrefix(value, rawSource) }

// The kinds of what a host has for VMs beside its storages.
const (
	PCIMapping = "PCI mapping"
	USBMapping = "USB mapping"
	Machine    = "machine version" // of VMs
	BridgeMTU  = "bridge MTU"      // each as DescribeMTU has it
)

// DescribeMTU is a bridge with its MTU, as a host offers it.
func DescribeMTU(bridge string, mtu int) string { return bridge + "=" + strconv.Itoa(mtu) }

// MTUOf is the bridge and the MTU that a further network card has of its own; 0: that of the bridge, or what Proxmox VE takes.
func MTUOf(field, value string) (bridge string, mtu int) {
	if !IsCard(field) {
		return "", 0
	}
	for p := range strings.SplitSeq(value, ",") {
		if b, ok := strings.CutPrefix(p, "bridge="); ok {
			bridge = b
		}
		if text, ok := strings.CutPrefix(p, "mtu="); ok {
			mtu, _ = strconv.Atoi(text) // 0 of what is no number
		}
	}
	if mtu == sameMTU {
		mtu = 0
	}
	return bridge, mtu
}

// sameMTU stands for that of the bridge.
const sameMTU = 1

// Mapping is a resource mapping that a VM takes a device of.
type Mapping struct{ Kind, Name string }

// Path is a mapping in the paths of privileges, below /mapping/: "pci/gpu".
func (m Mapping) Path() string {
	if m.Kind == USBMapping {
		return "usb/" + m.Name
	}
	return "pci/" + m.Name
}

// MappingAt is the mapping with a path.
func MappingAt(path string) Mapping {
	if name, ok := strings.CutPrefix(path, "usb/"); ok {
		return Mapping{USBMapping, name}
	}
	return Mapping{PCIMapping, strings.TrimPrefix(path, "pci/")}
}

// Mappings are those that the devices of a VM take, one for each device.
func (s Set) Mappings() []Mapping {
	var out []Mapping
	for _, d := range s.PCI {
		out = append(out, Mapping{PCIMapping, d.Mapping})
	}
	for _, d := range s.USB {
		out = append(out, Mapping{USBMapping, d.Mapping})
	}
	return out
}

// MappingOf is the mapping that a device of the host takes; zero of another one.
func MappingOf(field, value string) Mapping {
	name, ok := strings.CutPrefix(value, "mapping=")
	name, _, _ = strings.Cut(name, ",")
	switch key := KeyOf(field); {
	case ok && strings.HasPrefix(key, pciDevices.key):
		return Mapping{PCIMapping, name}
	case ok && strings.HasPrefix(key, usbDevices.key):
		return Mapping{USBMapping, name}
	}
	return Mapping{}
}

// kind is a kind of devices.
type kind struct {
	words string // for people
	key   string // the option of Proxmox VE, without its number
	first int    // its first number
	most  int    // how many there may be
}

var (
	cards      = kind{"network card", "net", 1, 7}
	pciDevices = kind{"PCI device", "hostpci", 0, 8}
	usbDevices = kind{"USB device", "usb", 0, 5}
	kinds      = []kind{cards, pciDevices, usbDevices}
)

// How many devices of a kind a VM may have.
var (
	MostCards = cards.most
	MostPCI   = pciDevices.most
	MostUSB   = usbDevices.most
)

// field names a device of a VM, for people: "network card net1".
func (k kind) field(i int) string { return k.words + " " + k.key + strconv.Itoa(k.first+i) }

// Options are the devices by field, each as Proxmox VE writes it.
func (s Set) Options() map[string]string {
	out := map[string]string{}
	for i, c := range s.Cards {
		out[cards.field(i)] = c.String()
	}
	for i, d := range s.PCI {
		out[pciDevices.field(i)] = d.String()
	}
	for i, d := range s.USB {
		out[usbDevices.field(i)] = d.String()
	}
	return out
}

// Fields are all devices that a VM may have.
func Fields() []string {
	var out []string
	for _, k := range kinds {
		for i := range k.most {
			out = append(out, k.field(i))
		}
	}
	return out
}

// KeyOf is the option of Proxmox VE that a field is, "" of one that is no device.
func KeyOf(field string) string {
	for _, k := range kinds {
		if number, ok := strings.CutPrefix(field, k.words+" "+k.key); ok && k.has(number) {
			return k.key + number
		}
	}
	return ""
}

// FieldOf is the field of an option of Proxmox VE, "" of one that is no device here.
func FieldOf(key string) string {
	for _, k := range kinds {
		if number, ok := strings.CutPrefix(key, k.key); ok && k.has(number) {
			return k.words + " " + key
		}
	}
	return ""
}

// has reports whether a device of this kind may have a number.
func (k kind) has(number string) bool {
	n, err := strconv.Atoi(number)
	return err == nil && strconv.Itoa(n) == number && n >= k.first && n < k.first+k.most
}

// IsCard reports whether a field is a network card.
func IsCard(field string) bool { return strings.HasPrefix(KeyOf(field), cards.key) }

// TakesLive reports whether a device of a VM that runs can become what it should be without a stop.
//
// PVE 9.2 qemu-server, vmconfig_hotplug_pending and vmconfig_update_net: a network card can be added, moved to another
// bridge or VLAN, filtered and connected. One that is removed, or becomes another, is taken from a guest that uses it. A device
// of the host is not added before the VM stops, or not by every guest.
func TakesLive(field, now, want string) bool {
	if !IsCard(field) || want == None {
		return false
	}
	return now == None || slices.Equal(pick(now), pick(want))
}

// pick are the properties of a network card that a running VM cannot have changed: its model with its MAC, and its MTU.
func pick(card string) []string {
	var out []string
	for i, p := range strings.Split(card, ",") {
		if i == 0 || strings.HasPrefix(p, "mtu=") {
			out = append(out, p)
		}
	}
	return out
}

// Misplaced is why the address of a card cannot be a machine's beside the network in which the nodes have their own, and
// others by their names; "" where it can.
func (c Card) Misplaced(nodes netip.Prefix, others map[string]netip.Prefix) string {
	a := c.Address.Addr()
	switch {
	case a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsLoopback():
		return fmt.Sprintf("%s cannot be the address of a machine", a)
	case nodes.IsValid() && nodes.Overlaps(c.Address):
		return fmt.Sprintf("%s overlaps the nodes' network %s: a node has one link in it", c.Address.Masked(), nodes)
	case c.Address.Bits() < a.BitLen()-1 && a == c.Address.Masked().Addr():
		return fmt.Sprintf("%s is the address of the network itself", a)
	case c.Address.Bits() < a.BitLen()-1 && !c.Address.Contains(a.Next()):
		return fmt.Sprintf("%s is the broadcast address of %s", a, c.Address.Masked())
	}
	names := make([]string, 0, len(others))
	for name := range others {
		names = append(names, name)
	}
	slices.SortFunc(names, cmp.Compare)
	for _, name := range names {
		if p := others[name]; p.IsValid() && p.Overlaps(c.Address) {
			return fmt.Sprintf("%s overlaps the %s %s", c.Address.Masked(), name, p)
		}
	}
	return ""
}
