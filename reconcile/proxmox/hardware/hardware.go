// Package hardware reads what hardware a VM has from its options in Proxmox VE, in the terms of the inventory, and which
// of its volumes are not the agent's; and it spells the options that make the VM of a node, or change it.
//
// Every string that came from an inventory passes an allow-list in alphabet.go before it is in a request.
//
// The package is pure. It must not know how Proxmox VE is asked, or what is done about what it reads.
package hardware

import (
	"cmp"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// SerialPrefix begins the serial of every disk of ours. Disks without it do not
// matter here: storage drivers of Kubernetes plug their own.
const SerialPrefix = "talos-"

// drivePattern matches the options that are drives. efidisk0, tpmstate0 and
// what is detached are not: the guest does not see them as disks.
var drivePattern = pattern.New(`^(?:ide|sata|scsi|virtio)[0-9]{1,2}$`)

// Of is a VM's hardware in the terms of the inventory. What is not set
// has the value Proxmox VE takes then.
//
// A machine type that is pinned to a version ("pc-q35-9.0") counts as its
// family ("q35"): the inventory cannot name a version, and pinning one is how a
// person keeps a guest's devices as they are over an upgrade of the host.
func Of(o pveconf.Options) cluster.Hardware {
	net := pveconf.ParseProperties(o.Get("net0", ""))
	hw := cluster.Hardware{
		CPUType:      pveconf.ParseProperties(o.Get("cpu", "kvm64")).First("cputype", ""),
		Cores:        int(max(1, pveconf.Scalar(o.Get("cores", "1")).Number()) * max(1, pveconf.Scalar(o.Get("sockets", "1")).Number())),
		MemoryMiB:    pveconf.Scalar(pveconf.ParseProperties(o.Get("memory", "512")).First("current", "")).Number(),
		Balloon:      o.Get("balloon", "1") != "0",
		Machine:      machineOf(pveconf.ParseProperties(o.Get("machine", "pc")).First("type", "")),
		BIOS:         o.Get("bios", "seabios"),
		SCSIHardware: o.Get("scsihw", "lsi"),
		Model:        net.Model(),
		MAC:          net.MAC(),
		Bridge:       net["bridge"],
		VLAN:         int(pveconf.Scalar(net["tag"]).Number()),
		LinkDown:     pveconf.Scalar(net["link_down"]).On(),
		Boot:         readBoot(o),
		Data:         map[string]cluster.DiskSeen{},
		Address:      pveconf.ParseProperties(o.Get("ipconfig0", "")).Address(),
		Agent:        pveconf.Scalar(pveconf.ParseProperties(o.Get("agent", "0")).First("enabled", "")).On(),
		OnBoot:       o["onboot"].On(),
		TPM:          readTPM(o),
		Medium:       readMedium(o),
		Options:      readOptions(o),
	}
	for key, value := range o {
		if !drivePattern.MatchString(key) || !strings.Contains(string(value), "serial="+SerialPrefix) {
			continue
		}
		d := pveconf.ParseProperties(string(value))
		store, _, _ := strings.Cut(d.First("file", ""), ":")
		seen := cluster.DiskSeen{Datastore: store, Bytes: pveconf.ParseSize(d["size"])}
		serial := d["serial"]
		switch {
		case serial == cluster.SystemDiskSerial:
			hw.System = seen
		case strings.HasPrefix(serial, SerialPrefix):
			hw.Data[serial] = seen
		default:
			continue
		}
		for _, option := range cluster.DiskOptions {
			hw.Options[cluster.FieldDiskOption(serial, option)] = readDiskOption(d, option)
		}
	}
	return hw
}

// readOptions are the further options of a VM that are not of a disk.
//
// PVE 9.2 qemu-server: without the option there is no limit of the processor, its weight is 100 (cgroup v2), and
// all memory is the minimum that the balloon leaves.
func readOptions(o pveconf.Options) map[cluster.VMField]string {
	onOff := map[bool]string{true: cluster.OptionOn, false: cluster.OptionOff}
	flags := strings.FieldsFunc(pveconf.ParseProperties(o.Get("cpu", ""))["flags"], func(r rune) bool { return r == ';' })
	slices.SortFunc(flags, func(a, b string) int { return strings.Compare(strings.TrimLeft(a, "+-"), strings.TrimLeft(b, "+-")) })
	out := map[cluster.VMField]string{
		cluster.FieldCPUFlags:   cmp.Or(strings.Join(flags, ";"), cluster.OptionNone),
		cluster.FieldCPULimit:   o.Get("cpulimit", "0"),
		cluster.FieldCPUUnits:   o.Get("cpuunits", "100"),
		cluster.FieldNUMA:       onOff[o["numa"].On()],
		cluster.FieldBalloonMin: o.Get("balloon", pveconf.ParseProperties(o.Get("memory", "512")).First("current", "")),
		cluster.FieldDisplay:    pveconf.ParseProperties(o.Get("vga", "std")).First("type", ""),
		cluster.FieldMachinePin: pveconf.ParseProperties(o.Get("machine", "pc")).First("type", ""),
	}
	if card := pveconf.ParseProperties(o.Get("net0", "")); card.Model() != "" {
		out[cluster.FieldFirewall] = onOff[pveconf.Scalar(card["firewall"]).On()]
		out[cluster.FieldMTU] = cmp.Or(card["mtu"], cluster.OptionNone)
	}
	readDevices(o, out)
	for _, field := range []cluster.VMField{cluster.FieldCPULimit, cluster.FieldBalloonMin} {
		if pveconf.Scalar(out[field]).Number() == 0 && strings.Trim(out[field], "0.") == "" {
			out[field] = cluster.OptionNone
		}
	}
	return out
}

// readDiskOption is the value of an option of a disk, in the terms of the inventory.
//
// PVE 9.2 qemu-server, Drive.pm: a disk without the option is no SSD, is not trimmed ("ignore"), has no
// thread of its own, is in backups, and has the cache mode none.
func readDiskOption(d pveconf.Properties, option cluster.DiskOption) string {
	value := pveconf.Scalar(d[string(option)])
	switch option {
	case cluster.DiskCache:
		return cmp.Or(string(value), "none")
	case cluster.DiskAIO:
		return cmp.Or(string(value), cluster.OptionDefault)
	case cluster.DiskBackup:
		if value == "" || value.On() {
			return cluster.OptionOn
		}
		return cluster.OptionOff
	}
	if value.On() {
		return cluster.OptionOn
	}
	return cluster.OptionOff
}

// readTPM returns the version of a VM's TPM, "" without one. PVE 9.2 qemu-server: v1.2 where none is written.
func readTPM(o pveconf.Options) string {
	if o["tpmstate0"] == "" {
		return ""
	}
	return cmp.Or(pveconf.ParseProperties(string(o["tpmstate0"]))["version"], "v1.2")
}

// SystemDisk is the drive the system disk is attached as, "" when it is not.
func SystemDisk(o pveconf.Options) string { return DriveOf(o, cluster.SystemDiskSerial) }

// DriveOf is the drive that carries a serial, "" when none does.
func DriveOf(o pveconf.Options, serial string) string {
	for key, value := range o {
		if drivePattern.MatchString(key) && pveconf.ParseProperties(string(value))["serial"] == serial {
			return key
		}
	}
	return ""
}

// machineOf is the family of a machine type.
func machineOf(t string) string {
	switch {
	case t == "q35", strings.HasPrefix(t, "pc-q35"):
		return "q35"
	case t == "pc", strings.HasPrefix(t, "pc-"):
		return "pc"
	}
	return t
}

// readBoot is what a VM boots from first, in the terms of the inventory, "" of none that is listed.
func readBoot(o pveconf.Options) string {
	first := o.FirstBoot()
	if system := SystemDisk(o); system != "" && first == system {
		return cluster.BootSystemDisk
	}
	return first
}

// UUIDOf is the SMBIOS UUID of a VM, in lower case; "" when it has none.
func UUIDOf(o pveconf.Options) string {
	return strings.ToLower(pveconf.ParseProperties(string(o["smbios1"]))["uuid"])
}

// ownedVolume matches the last part of the name of a volume that belongs to a
// VM: vm-410-disk-0, base-104-disk-0.qcow2, vm-410-cloudinit.
var ownedVolume = pattern.New(`^(?:vm|base|subvol)-([0-9]+)-`)

// volumePattern matches the options that hold a volume which goes with the VM.
var volumePattern = pattern.New(`^(?:(?:ide|sata|scsi|virtio|unused)[0-9]{1,3}|efidisk0|tpmstate0|vmstate)$`)

// ListOthersVolumes lists the volumes that Proxmox VE would delete with the VM and
// that are not known to be ours: everything attached that belongs to the VM's number and is
// neither a disk with a serial of ours nor what a VM has of its own, its EFI
// variables, TPM state and cloud-init drive.
func ListOthersVolumes(o pveconf.Options, vmid string) cluster.Drives {
	var out cluster.Drives
	for key, value := range o {
		if !volumePattern.MatchString(key) {
			continue
		}
		d := pveconf.ParseProperties(string(value))
		volume := d.First("file", "")
		if volume == "none" || volume == "cdrom" || volume == "" || strings.HasPrefix(d["serial"], SerialPrefix) {
			continue
		}
		last := volume[strings.LastIndexAny(volume, "/:")+1:]
		owner := ownedVolume.FindStringSubmatch(last)
		switch {
		case owner != nil && owner[1] != vmid:
			continue // another number's: Proxmox VE leaves it alone
		case owner == nil && d["media"] == "cdrom":
			continue // an image in the drive
		case key == "efidisk0", key == "tpmstate0", d["media"] == "cdrom" && strings.HasPrefix(last, "vm-"+vmid+"-cloudinit"):
			continue
		}
		out = append(out, cluster.Drive{Key: key, Volume: volume, Own: owner != nil})
	}
	slices.SortFunc(out, func(a, b cluster.Drive) int { return strings.Compare(a.Key, b.Key) })
	return out
}
