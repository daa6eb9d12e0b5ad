package proxmox

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// serialPrefix begins the serial of every disk of ours. Disks without it do not
// matter here: storage drivers of Kubernetes plug their own.
const serialPrefix = "talos-"

// drivePattern matches the options that are drives. efidisk0, tpmstate0 and
// what is detached are not: the guest does not see them as disks.
var drivePattern = regexp.MustCompile(`^(?:ide|sata|scsi|virtio)[0-9]{1,2}$`)

// hardwareOf is a VM's hardware in the terms of the inventory. What is not set
// has the value Proxmox VE takes then.
//
// A machine type that is pinned to a version ("pc-q35-9.0") counts as its
// family ("q35"): the inventory cannot name a version, and pinning one is how a
// person keeps a guest's devices as they are over an upgrade of the host.
func hardwareOf(o options) cluster.Hardware {
	net := parseProperties(o.get("net0", ""))
	hw := cluster.Hardware{
		CPUType:      parseProperties(o.get("cpu", "kvm64")).or("cputype", ""),
		Cores:        int(max(1, scalar(o.get("cores", "1")).number()) * max(1, scalar(o.get("sockets", "1")).number())),
		MemoryMiB:    scalar(parseProperties(o.get("memory", "512")).or("current", "")).number(),
		Balloon:      o.get("balloon", "1") != "0",
		Machine:      machineOf(parseProperties(o.get("machine", "pc")).or("type", "")),
		BIOS:         o.get("bios", "seabios"),
		SCSIHardware: o.get("scsihw", "lsi"),
		MAC:          macOf(net),
		Bridge:       net["bridge"],
		VLAN:         int(scalar(net["tag"]).number()),
		Data:         map[string]cluster.DiskSeen{},
		Address:      addressOf(o.get("ipconfig0", "")),
		Agent:        scalar(parseProperties(o.get("agent", "0")).or("enabled", "")).on(),
		OnBoot:       o["onboot"].on(),
	}
	for key, value := range o {
		if !drivePattern.MatchString(key) || !strings.Contains(string(value), "serial="+serialPrefix) {
			continue
		}
		d := parseProperties(string(value))
		store, _, _ := strings.Cut(d.or("file", ""), ":")
		seen := cluster.DiskSeen{Datastore: store, Bytes: parseSize(d["size"])}
		switch serial := d["serial"]; {
		case serial == cluster.SystemDiskSerial:
			hw.System = seen
		case strings.HasPrefix(serial, serialPrefix):
			hw.Data[serial] = seen
		}
	}
	return hw
}

// systemDisk is the drive the system disk is attached as, "" when it is not.
func systemDisk(o options) string {
	for key, value := range o {
		if drivePattern.MatchString(key) && parseProperties(string(value))["serial"] == cluster.SystemDiskSerial {
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

// macPair matches a MAC in any case.
var macPair = regexp.MustCompile(`^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`)

// macOf is the MAC of a network card, which is the value of the model's name:
// "virtio=BC:24:11:00:00:11".
func macOf(net properties) string {
	if mac := net["macaddr"]; mac != "" {
		return strings.ToUpper(mac)
	}
	for _, v := range net {
		if macPair.MatchString(v) {
			return strings.ToUpper(v)
		}
	}
	return ""
}

// addressOf spells an ipconfig option in canonical form,
// "10.10.0.11/24,gw=10.10.0.1". Asking DHCP is what a guest does without one
// too.
func addressOf(ipconfig string) string {
	p := parseProperties(ipconfig)
	var parts []string
	if ip := p["ip"]; ip != "" && ip != "dhcp" {
		if a, err := netip.ParsePrefix(ip); err == nil {
			ip = a.String()
		}
		parts = append(parts, ip)
	}
	for _, k := range []string{"gw", "ip6", "gw6"} {
		if v := p[k]; v != "" {
			parts = append(parts, k+"="+v)
		}
	}
	return strings.Join(parts, ",")
}

// uuidOf is the SMBIOS UUID of a VM, in lower case; "" when it has none.
func uuidOf(o options) string {
	return strings.ToLower(parseProperties(string(o["smbios1"]))["uuid"])
}

// ownedVolume matches the last part of the name of a volume that belongs to a
// VM: vm-410-disk-0, base-104-disk-0.qcow2, vm-410-cloudinit.
var ownedVolume = regexp.MustCompile(`^(?:vm|base|subvol)-([0-9]+)-`)

// volumePattern matches the options that hold a volume which goes with the VM.
var volumePattern = regexp.MustCompile(`^(?:(?:ide|sata|scsi|virtio|unused)[0-9]{1,3}|efidisk0|tpmstate0|vmstate)$`)

// othersVolumes lists the volumes that Proxmox VE would delete with the VM and
// that are not known to be ours: everything attached that belongs to the VM's number and is
// neither a disk with a serial of ours nor what a VM has of its own, its EFI
// variables, TPM state and cloud-init drive.
func othersVolumes(o options, vmid string) cluster.Drives {
	var out cluster.Drives
	for key, value := range o {
		if !volumePattern.MatchString(key) {
			continue
		}
		d := parseProperties(string(value))
		volume := d.or("file", "")
		if volume == "none" || volume == "cdrom" || volume == "" || strings.HasPrefix(d["serial"], serialPrefix) {
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
