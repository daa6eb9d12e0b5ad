package inventory

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/inventory/subnets"
)

// machine is a size of VM.
type machine struct {
	cores int
	ram   int // MiB
	disk  yamlschema.Size
}

// requirements are what Talos needs and recommends by its system requirements,
// and what a node gets that sets nothing. The recommended disk of 100 GiB is
// left out: it depends on what runs on a node, and small hosts do with less.
var requirements = map[cluster.Role]struct {
	name                    string
	least, wanted, standard machine
}{
	cluster.ControlPlane: {"a control plane",
		machine{2, 2048, 10 * yamlschema.GiB}, machine{4, 4096, 0}, machine{4, 4096, 40 * yamlschema.GiB}},
	cluster.Worker: {"a worker",
		machine{1, 1024, 10 * yamlschema.GiB}, machine{2, 2048, 0}, machine{4, 8192, 60 * yamlschema.GiB}},
}

// origin is where a node's value of one key comes from.
type origin struct {
	field   string // where it is written; the node itself for the built-in value
	own     bool   // the node's own
	profile bool   // the role's profile
}

// isWritten reports whether it is in the inventory.
func (o origin) isWritten() bool { return o.own || o.profile }

// origin finds where a node has a key from: its own entry, its role's profile,
// or nowhere.
func (l *loader) origin(d draft, profile, key string) origin {
	switch {
	case l.Has(d.field + "." + key):
		return origin{field: d.field + "." + key, own: true}
	case l.Has(profile + "." + key):
		return origin{field: profile + "." + key, profile: true}
	}
	return origin{field: d.field}
}

// pickValue takes the value that an origin stands for.
func pickValue[T any](o origin, own, profile, standard T) T {
	switch {
	case o.own:
		return own
	case o.profile:
		return profile
	}
	return standard
}

// mostGiB is the most memory that is more likely a number of GiB, written by
// mistake, than one of MiB.
const mostGiB = 256

// equip gives a node its hardware: its own, the role's, or the built-in. Zero is
// a value that could not be read, which is reported already.
func (l *loader) equip(n *cluster.Node, d draft) {
	need, known := requirements[d.role]
	if !known {
		return // the role is wrong and reported
	}
	role, at := l.cluster.Profiles.Worker, "profiles.worker"
	if d.role == cluster.ControlPlane {
		role, at = l.cluster.Profiles.ControlPlane, "profiles.controlplane"
	}

	from := l.origin(d, at, "cpu")
	n.Cores = pickValue(from, d.CPU, role.CPU, need.standard.cores)
	switch {
	case n.Cores == 0:
	case n.Cores < need.least.cores:
		l.Wrong(from.field, fmt.Sprintf("write %d or more", need.least.cores), "too few cores for %s: %d", need.name, n.Cores)
	case n.Cores < need.wanted.cores:
		l.Warn(from.field, fmt.Sprintf("Talos recommends %d", need.wanted.cores), "few cores for %s: %d", need.name, n.Cores)
	}

	from = l.origin(d, at, "ram")
	ram := pickValue(from, d.RAM, role.RAM, need.standard.ram)
	switch n.MemoryMiB = int64(ram); {
	case ram == 0:
	case ram <= mostGiB && ram<<10 >= need.least.ram:
		l.Wrong(from.field, fmt.Sprintf("write %d for %d GiB: the number counts MiB", ram<<10, ram), "too little memory for %s: %d MiB", need.name, ram)
	case ram < need.least.ram:
		l.Wrong(from.field, fmt.Sprintf("write %d or more; the number counts MiB", need.least.ram), "too little memory for %s: %d MiB", need.name, ram)
	case ram < need.wanted.ram:
		l.Warn(from.field, fmt.Sprintf("Talos recommends %d", need.wanted.ram), "little memory for %s: %d MiB", need.name, ram)
	}

	from = l.origin(d, at, "disk")
	bytes := pickValue(from, d.Disk, role.Disk, need.standard.disk)
	if n.DiskBytes = int64(bytes); bytes > 0 && bytes < need.least.disk {
		l.Wrong(from.field, "write "+need.least.disk.String()+" or more", "%s is too small for the system disk of %s", bytes, need.name)
	}

	from = l.origin(d, at, "cpu_type")
	n.CPUType = orDefault(pickValue(from, d.CPUType, role.CPUType, ""), "x86-64-v2-AES")
	if slices.Contains(oldProcessors, n.CPUType) {
		l.Wrong(from.field, "write x86-64-v2-AES, host, or a newer type", "Talos halts on %s: it needs x86-64-v2", n.CPUType)
	}

	l.equipProcessor(n, d, at, role)
	l.equipMemory(n, d, at, role)

	from = l.origin(d, at, "vga")
	setOption(n, from.isWritten(), cluster.FieldDisplay, pickValue(from, d.VGA, role.VGA, ""))

	from = l.origin(d, at, "nic")
	l.equipCard(n, from.field, pickValue(from, d.NIC, role.NIC, nic{}))

	from = l.origin(d, at, "nics")
	l.equipCards(n, d, from, pickValue(from, d.NICs, role.NICs, nil))

	l.equipDevices(n, d, at, role)

	from = l.origin(d, at, "disk_options")
	l.equipDisk(n, from.field, cluster.SystemDiskSerial, pickValue(from, d.DiskOptions, role.DiskOptions, diskOptions{}))

	from = l.origin(d, at, "disks")
	disks := pickValue(from, d.Disks, role.Disks, nil)
	n.Disks = l.disks(from.field, disks, n.Datastore)
	for i, dk := range disks {
		l.equipDisk(n, yamlschema.Element(from.field, i), diskSerial(dk.Name), dk.diskOptions)
	}
}

// equipProcessor gives a node the further options of its processor that are written.
func (l *loader) equipProcessor(n *cluster.Node, d draft, at string, role hardware) {
	from := l.origin(d, at, "cpu_flags")
	flags := slices.DeleteFunc(slices.Clone(pickValue(from, d.CPUFlags, role.CPUFlags, nil)), func(f string) bool { return f == "" }) // reported already
	slices.SortFunc(flags, func(a, b string) int { return strings.Compare(flagName(a), flagName(b)) })
	for i, flag := range flags {
		if i > 0 && flagName(flags[i-1]) == flagName(flag) {
			l.Wrong(from.field, "keep one of them", "the flag %s is there twice", flagName(flag))
		}
	}
	setOption(n, from.isWritten(), cluster.FieldCPUFlags, orDefault(strings.Join(flags, ";"), cluster.OptionNone))

	from = l.origin(d, at, "cpu_limit")
	setNumber(n, from.isWritten(), cluster.FieldCPULimit, pickValue(from, d.CPULimit, role.CPULimit, 0))
	from = l.origin(d, at, "cpu_units")
	setNumber(n, from.isWritten(), cluster.FieldCPUUnits, pickValue(from, d.CPUUnits, role.CPUUnits, 0))
	from = l.origin(d, at, "numa")
	setOption(n, from.isWritten(), cluster.FieldNUMA, encodeSwitch(pickValue(from, d.NUMA, role.NUMA, false)))
	from = l.origin(d, at, "machine")
	setOption(n, from.isWritten(), cluster.FieldMachinePin, pickValue(from, d.Machine, role.Machine, ""))
}

// flagName is the name of a flag of a processor.
func flagName(flag string) string { return strings.TrimLeft(flag, "+-") }

// equipMemory gives a node the further options of its memory that are written.
func (l *loader) equipMemory(n *cluster.Node, d draft, at string, role hardware) {
	from := l.origin(d, at, "balloon")
	switch least := pickValue(from, d.Balloon, role.Balloon, 0); {
	case least == 0:
		setOption(n, from.isWritten(), cluster.FieldBalloonMin, cluster.OptionNone)
	case int64(least) > n.MemoryMiB && n.MemoryMiB > 0:
		l.Wrong(from.field, fmt.Sprintf("write %d or less", n.MemoryMiB), "a VM with %d MiB of memory is not left %d MiB", n.MemoryMiB, least)
	default:
		setNumber(n, from.isWritten(), cluster.FieldBalloonMin, least)
	}
}

// equipCard gives a node what is written of its network card, at a field.
func (l *loader) equipCard(n *cluster.Node, at string, card nic) {
	n.NetworkCard = card.Model
	setOption(n, l.Has(at+".firewall"), cluster.FieldFirewall, encodeSwitch(card.Firewall))
	setNumber(n, l.Has(at+".mtu"), cluster.FieldMTU, card.MTU)
	l.checkMTU(at, card)
}

// equipCards gives a node its further network cards.
func (l *loader) equipCards(n *cluster.Node, d draft, from origin, cards []card) {
	if len(cards) > device.MostCards {
		l.Wrong(from.field, "", "more than %d further network cards are not supported", device.MostCards)
		return
	}
	for i, c := range cards {
		at := yamlschema.Element(from.field, i)
		out := device.Card{Model: orDefault(c.Model, "virtio"), Bridge: c.Bridge, VLAN: c.VLAN, MTU: c.MTU, Firewall: c.Firewall}
		if l.spec.ID != "" && n.Name != "" {
			out.MAC = cluster.NodeMAC(l.macPrefix(), l.spec.ID, n.Name, i+1)
		}
		l.checkMTU(at, c.nic)
		if c.Address != "" {
			out.Address = l.cardAddress(d, at+".address", from.profile, c.Address)
		}
		n.Devices.Cards = append(n.Devices.Cards, out)
	}
}

// equipDevices gives a node devices of its host, and the options that its devices are.
func (l *loader) equipDevices(n *cluster.Node, d draft, at string, role hardware) {
	from := l.origin(d, at, "pci")
	pci := pickValue(from, d.PCI, role.PCI, nil)
	l.checkMappings(from.field, len(pci), device.MostPCI, func(i int) string { return pci[i].Mapping })
	for i, p := range pci {
		at := yamlschema.Element(from.field, i)
		n.Devices.PCI = append(n.Devices.PCI, device.PCI{Mapping: p.Mapping, Express: p.PCIe || !l.Has(at+".pcie"), NoROM: !p.ROMBar && l.Has(at+".rombar")})
	}
	from = l.origin(d, at, "usb")
	usb := pickValue(from, d.USB, role.USB, nil)
	l.checkMappings(from.field, len(usb), device.MostUSB, func(i int) string { return usb[i].Mapping })
	for _, u := range usb {
		n.Devices.USB = append(n.Devices.USB, device.USB{Mapping: u.Mapping, USB3: u.USB3})
	}
	for field, value := range n.Devices.Options() {
		setOption(n, true, cluster.VMField(field), value)
	}
}

// checkMappings checks a list of so many devices of a host.
func (l *loader) checkMappings(field string, count, most int, mapping func(int) string) {
	if count > most {
		l.Wrong(field, "", "more than %d of these devices are not supported", most)
	}
	for i := range count {
		for j := range i {
			if mapping(i) == mapping(j) && mapping(i) != "" {
				l.Warn(yamlschema.Element(field, i)+".mapping", "have the mapping name as many devices of the host", "%s is there twice: each takes a device of its own", mapping(i))
			}
		}
	}
}

// cardAddress is the address of a further network card of a node: in a counted row so many after the one that is written.
func (l *loader) cardAddress(d draft, field string, profile bool, text string) netip.Prefix {
	if profile {
		l.Wrong(field, "write it in "+NodesFile+", or leave it out", "all nodes of the role would have the address %s", text)
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		l.Wrong(field, "write one like "+formats["hostprefix"].Write, "%s is no address with the length of its network", yamlschema.Quote(text))
		return netip.Prefix{}
	}
	first := p
	if a, ok := subnets.After(p.Addr(), max(d.ordinal, 0)); ok {
		p = netip.PrefixFrom(a, p.Bits())
	}
	switch message := (device.Card{Address: p}).Misplaced(l.spec.Network.CIDR, map[string]netip.Prefix{"pods' network": l.spec.Network.PodCIDR, "services' network": l.spec.Network.ServiceCIDR}); {
	case !first.Contains(p.Addr()):
		l.wrongOf(d, field, "write an earlier address, a smaller count or a larger network", "%s of %s lies beyond %s", p.Addr(), d.name, first.Masked())
	case message != "":
		l.wrongOf(d, field, "choose another address", "%s", message)
	}
	return p
}

// checkMTU checks the MTU of a network card, at a field.
func (l *loader) checkMTU(at string, card nic) {
	if card.MTU > 0 && orDefault(card.Model, "virtio") != "virtio" {
		l.Wrong(at+".mtu", "write model: virtio, or remove it", "Proxmox VE gives a card of the model %s no MTU", card.Model)
	}
	if card.MTU > 1 && card.MTU < leastMTU {
		l.Wrong(at+".mtu", fmt.Sprintf("write %d or more, or 1 for that of the bridge", leastMTU), "a network with packets of %d bytes carries no IPv6", card.MTU)
	}
}

// leastMTU is the least MTU of a network that carries IPv6 (RFC 8200), as Talos and the container networks expect.
const leastMTU = 1280

// setNumber gives a node a further option of its VM that is a number, where it is written. 0 is one that could
// not be read.
func setNumber(n *cluster.Node, written bool, field cluster.VMField, number int) {
	if number != 0 {
		setOption(n, written, field, strconv.Itoa(number))
	}
}

// equipDisk gives a node the options of one of its disks that are written, at a field.
func (l *loader) equipDisk(n *cluster.Node, at, serial string, o diskOptions) {
	for option, value := range map[cluster.DiskOption]string{
		cluster.DiskSSD: encodeSwitch(o.SSD), cluster.DiskDiscard: encodeSwitch(o.Discard), cluster.DiskIOThread: encodeSwitch(o.IOThread),
		cluster.DiskCache: o.Cache, cluster.DiskAIO: o.AIO, cluster.DiskBackup: encodeSwitch(o.Backup),
	} {
		setOption(n, l.Has(at+"."+string(option)), cluster.FieldDiskOption(serial, option), value)
	}
	if o.IOThread && n.SCSIHardware != cluster.SingleController {
		l.Wrong(at+".iothread", "write proxmox.scsihw: "+cluster.SingleController+", or remove it", "a disk on %s has no thread of its own", n.SCSIHardware)
	}
	cached := o.Cache == "writeback" || o.Cache == "unsafe"
	if cached && n.Role == cluster.ControlPlane && serial == cluster.SystemDiskSerial {
		l.Wrong(at+".cache", "write none, directsync or writethrough", "with the cache mode %s etcd may lose what it has written when the host fails", o.Cache)
	}
	if o.AIO == "native" && (cached || o.Cache == "writethrough") {
		l.Wrong(at+".aio", "write io_uring or threads, or a cache of none or directsync", "a VM with aio native and the cache mode %s does not start", o.Cache)
	}
}

// setOption gives a node a further option of its VM where it is written. "" is a value that could not
// be read, which is reported already.
func setOption(n *cluster.Node, written bool, field cluster.VMField, value string) {
	if !written || value == "" {
		return
	}
	if n.Options == nil {
		n.Options = map[cluster.VMField]string{}
	}
	n.Options[field] = value
}

func encodeSwitch(on bool) string {
	if on {
		return cluster.OptionOn
	}
	return cluster.OptionOff
}

// diskSerial is the serial of the disk with a name.
func diskSerial(name string) string { return "talos-" + name }

// oldProcessors are the types of Proxmox VE that lack SSE4.2 and with it
// x86-64-v2.
var oldProcessors = []string{"486", "athlon", "Conroe", "core2duo", "coreduo", "kvm32", "kvm64", "Opteron_G1", "Opteron_G2", "Opteron_G3",
	"Penryn", "pentium", "pentium2", "pentium3", "phenom", "qemu32", "qemu64"}

// maxDisks is how many disks fit on the SCSI bus beside the system disk.
const maxDisks = 30

// disks completes the extra disks of a node.
func (l *loader) disks(field string, disks []disk, datastore string) []cluster.Disk {
	if len(disks) > maxDisks {
		l.Wrong(field, "", "more than %d disks do not fit into a VM", maxDisks)
	}
	var out []cluster.Disk
	for i, d := range disks {
		at := yamlschema.Element(field, i)
		serial := diskSerial(d.Name)
		switch {
		case d.Name == "":
			continue
		case serial == cluster.SystemDiskSerial:
			l.Wrong(at+".name", "choose another name", "%s is the name of the system disk", yamlschema.Quote(d.Name))
		case slices.ContainsFunc(out, func(o cluster.Disk) bool { return o.Name == d.Name }):
			l.Wrong(at+".name", "disks of a node need names of their own", "%s is the name of another disk", yamlschema.Quote(d.Name))
		}
		out = append(out, cluster.Disk{Name: d.Name, Bytes: int64(d.Size), Datastore: orDefault(d.Datastore, datastore), Serial: serial})
	}
	return out
}
