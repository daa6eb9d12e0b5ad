package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// How is what it takes to correct a drift.
type How string

// The ways to correct a drift, from the cheapest.
const (
	InPlace How = "in place"
	Reboot  How = "reboot"
	Replace How = "replace"
	Refuse  How = "refuse"
)

// Drift is one field in which a node is not what the inventory has.
type Drift struct {
	Reason     cluster.Reason
	Field      string
	Want, Have string
	How        How
}

func (d Drift) have() string { return d.Field + " " + cmp.Or(d.Have, "none") }
func (d Drift) want() string { return cmp.Or(d.Want, "none") }

// driftsOf compares a node with the inventory: its VM, and its machine as far as
// Talos lets us see it.
func driftsOf(d cluster.Desired, o cluster.Observed, n cluster.Node, mach cluster.Machine) []Drift {
	var out []Drift
	if vm := o.VMs[n.Name]; vm.Hardware.Known {
		out = append(hardwareDrifts(WantHardware(d.Spec, n), vm.Hardware.Value), tagDrifts(n, vm)...)
	}
	if mach.Reach == cluster.Configured {
		out = append(out, machineDrifts(d, o, n, mach)...)
	}
	return out
}

// machineDrifts compares what a machine runs. Versions come first and alone: an
// older version has another config, too.
func machineDrifts(d cluster.Desired, o cluster.Observed, n cluster.Node, mach cluster.Machine) []Drift {
	want := d.Spec.Versions
	if mach.Talos != "" && mach.Talos != want.Talos {
		return []Drift{{cluster.TalosVersionDrift, "talos version", want.Talos, mach.Talos, Reboot}}
	}
	if kn, ok := o.Nodes.Value[n.Name]; o.Nodes.Known && ok && kn.Kubelet != "" && kn.Kubelet != want.Kubernetes {
		return []Drift{{cluster.KubernetesDrift, "kubernetes version", want.Kubernetes, kn.Kubelet, InPlace}}
	}
	if cfg, ok := d.Configs[n.Name]; ok && mach.ConfigDigest != "" && mach.ConfigDigest != cfg.Digest {
		return []Drift{{cluster.ConfigDrift, "machine config", cfg.Digest, mach.ConfigDigest, Reboot}}
	}
	return nil
}

// hardwareField is one field of a VM that is compared.
type hardwareField struct {
	name string
	of   func(cluster.Hardware) any
	how  How
}

const addressField = "address"

// hardwareFields are the fields of a VM that are not disks, in the order in which
// their drifts are reported. How is what Proxmox VE and Talos take to change
// them: Talos sees no processor, memory or device come or go while it runs, and
// firmware and controller decide whether it boots at all. The MAC is part of a
// machine's identity in a DHCP server and in maintenance mode.
var hardwareFields = []hardwareField{
	{"cpu type", func(h cluster.Hardware) any { return h.CPUType }, Reboot},
	{"cores", func(h cluster.Hardware) any { return h.Cores }, Reboot},
	{"memory (MiB)", func(h cluster.Hardware) any { return h.MemoryMiB }, Reboot},
	{"ballooning", func(h cluster.Hardware) any { return h.Balloon }, Reboot},
	{"machine type", func(h cluster.Hardware) any { return h.Machine }, Reboot},
	{"bios", func(h cluster.Hardware) any { return h.BIOS }, Replace},
	{"scsi controller", func(h cluster.Hardware) any { return h.SCSIHardware }, Reboot},
	{"mac", func(h cluster.Hardware) any { return h.MAC }, Refuse},
	{"bridge", func(h cluster.Hardware) any { return h.Bridge }, InPlace},
	{"vlan", func(h cluster.Hardware) any { return h.VLAN }, InPlace},
	{addressField, func(h cluster.Hardware) any { return h.Address }, Reboot},
	{"guest agent", func(h cluster.Hardware) any { return h.Agent }, Reboot},
	{"start at boot", func(h cluster.Hardware) any { return h.OnBoot }, InPlace},
}

// WantHardware is the VM a node of the inventory should have. The values that
// the inventory cannot choose are the ones Talos runs well with on Proxmox VE:
// q35 and OVMF (systemd-boot), no balloon (Talos does not see memory come and
// go).
func WantHardware(s cluster.Spec, n cluster.Node) cluster.Hardware {
	hw := cluster.Hardware{
		CPUType: n.CPUType, Cores: n.Cores, MemoryMiB: n.MemoryMiB,
		Machine: "q35", BIOS: "ovmf", SCSIHardware: n.SCSIHardware,
		MAC: n.MAC, Bridge: n.Bridge, VLAN: s.Network.VLAN,
		System: cluster.DiskSeen{Datastore: n.Datastore, Bytes: n.DiskBytes},
		Data:   map[string]cluster.DiskSeen{},
		Agent:  s.Schematic.GuestAgent(), OnBoot: true,
	}
	for _, d := range n.Disks {
		hw.Data[d.Serial] = cluster.DiskSeen{Datastore: d.Datastore, Bytes: d.Bytes}
	}
	if s.Network.Mode == cluster.AddressStatic {
		hw.Address = fmt.Sprintf("%s/%d,gw=%s", n.IP, s.Network.CIDR.Bits(), s.Network.Gateway)
	}
	return hw
}

// hardwareDrifts compares wanted and seen hardware field by field. Disks without
// a serial of ours are not compared: storage drivers plug their own.
func hardwareDrifts(want, have cluster.Hardware) []Drift {
	var out []Drift
	add := func(field string, w, h any, how How) {
		if w != h {
			out = append(out, Drift{cluster.HardwareDrift, field, fmt.Sprint(w), fmt.Sprint(h), how})
		}
	}
	for _, f := range hardwareFields {
		add(f.name, f.of(want), f.of(have), f.how)
	}
	disk := func(name string, w, h cluster.DiskSeen) {
		add(name+" datastore", w.Datastore, h.Datastore, Refuse)
		if w.Bytes != h.Bytes {
			how := Reboot // Talos grows its partition when it boots
			if w.Bytes < h.Bytes {
				how = Refuse
			}
			out = append(out, Drift{cluster.HardwareDrift, name + " size", gib(w.Bytes), gib(h.Bytes), how})
		}
	}
	if have.System != (cluster.DiskSeen{}) { // missingSystemDisk reports that there is none
		disk("system disk", want.System, have.System)
	}
	for _, serial := range slices.Sorted(maps.Keys(want.Data)) {
		h, ok := have.Data[serial]
		if !ok {
			out = append(out, Drift{Reason: cluster.HardwareDrift, Field: "disk " + serial, Want: gib(want.Data[serial].Bytes), How: InPlace})
			continue
		}
		disk("disk "+serial, want.Data[serial], h)
	}
	for _, serial := range slices.Sorted(maps.Keys(have.Data)) {
		if _, ok := want.Data[serial]; !ok {
			out = append(out, Drift{Reason: cluster.HardwareDrift, Field: "disk " + serial, Have: gib(have.Data[serial].Bytes), How: Refuse})
		}
	}
	return out
}

// tagDrifts compares the tags of a VM. What people add is theirs. A VM without our own
// tag may be one that Proxmox VE does not let us tag; Warnings has it.
func tagDrifts(n cluster.Node, vm cluster.VM) []Drift {
	if !hasTag(vm, cluster.OwnTag) || all(n.VMTags(), func(t string) bool { return hasTag(vm, t) }) {
		return nil
	}
	return []Drift{{cluster.HardwareDrift, "tags", strings.Join(n.VMTags(), ", "), strings.Join(vm.Tags, ", "), InPlace}}
}

// hasTag reports whether a VM carries a tag, which Proxmox VE writes in lower case.
func hasTag(vm cluster.VM, tag string) bool {
	return slices.ContainsFunc(vm.Tags, func(t string) bool { return strings.EqualFold(t, tag) })
}

// unsupported is the block for a drift that cannot be corrected yet.
func (dr Drift) unsupported(n cluster.Node) cluster.Block {
	b := cluster.Block{Subject: n.Name, Reason: dr.Reason, About: dr.Field}
	switch dr.Reason {
	case cluster.TalosVersionDrift:
		b.Message = fmt.Sprintf("it runs Talos %s, and the inventory has %s; upgrading is not supported yet", dr.Have, dr.Want)
		b.Hint = "set talos_version back, or upgrade with talosctl"
	case cluster.KubernetesDrift:
		b.Message = fmt.Sprintf("it runs Kubernetes %s, and the inventory has %s; upgrading is not supported yet", dr.Have, dr.Want)
		b.Hint = "set kubernetes_version back, or upgrade with talosctl upgrade-k8s"
	case cluster.ConfigDrift:
		b.Message = "its machine config differs from the repository's; changing the config of a running node is not supported yet"
		b.Hint = "undo the change in the repository, or apply it with talosctl"
	default:
		b.Message = fmt.Sprintf("vm %d has %s, and the inventory has %s; changing a vm is not supported yet", n.VMID, dr.have(), dr.want())
		b.Hint = "undo the change in the repository, or change the vm by hand to match"
		if dr.Field == addressField {
			b.Hint = "undo the change in the repository: a machine's address is in its config and in etcd, too"
		}
	}
	return b
}
