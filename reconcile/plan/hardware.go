package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// WantedHardware is the VM a node of the inventory should have. The values
// that the inventory cannot choose are the ones Talos runs well with on
// Proxmox VE: q35 and OVMF (systemd-boot), no balloon (Talos does not see
// memory come and go).
func WantedHardware(s cluster.Spec, n cluster.Node) cluster.Hardware {
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

// Difference is one field in which a VM is not what the inventory wants.
type Difference struct {
	Field      string
	Want, Have string
}

func (d Difference) have() string { return d.Field + " " + orElse(d.Have, "none") }
func (d Difference) want() string { return orElse(d.Want, "none") }

// Differences compares wanted and seen hardware field by field. Disks without
// a serial of ours are nobody's business here: storage drivers plug their own.
func Differences(want, have cluster.Hardware) []Difference {
	var out []Difference
	diff := func(field string, w, h any) {
		if w != h {
			out = append(out, Difference{Field: field, Want: fmt.Sprint(w), Have: fmt.Sprint(h)})
		}
	}
	diff("cpu type", want.CPUType, have.CPUType)
	diff("cores", want.Cores, have.Cores)
	diff("memory (MiB)", want.MemoryMiB, have.MemoryMiB)
	diff("ballooning", want.Balloon, have.Balloon)
	diff("machine type", want.Machine, have.Machine)
	diff("bios", want.BIOS, have.BIOS)
	diff("scsi controller", want.SCSIHardware, have.SCSIHardware)
	diff("mac", want.MAC, have.MAC)
	diff("bridge", want.Bridge, have.Bridge)
	diff("vlan", want.VLAN, have.VLAN)
	diff("address", want.Address, have.Address)
	diff("guest agent", want.Agent, have.Agent)
	diff("start at boot", want.OnBoot, have.OnBoot)
	disk := func(name string, w, h cluster.DiskSeen) {
		diff(name+" datastore", w.Datastore, h.Datastore)
		if w.Bytes != h.Bytes {
			out = append(out, Difference{Field: name + " size", Want: gib(w.Bytes), Have: gib(h.Bytes)})
		}
	}
	disk("system disk", want.System, have.System)
	for _, serial := range slices.Sorted(maps.Keys(want.Data)) {
		h, ok := have.Data[serial]
		if !ok {
			out = append(out, Difference{Field: "disk " + serial, Want: gib(want.Data[serial].Bytes)})
			continue
		}
		disk("disk "+serial, want.Data[serial], h)
	}
	for _, serial := range slices.Sorted(maps.Keys(have.Data)) {
		if _, ok := want.Data[serial]; !ok {
			out = append(out, Difference{Field: "disk " + serial, Have: gib(have.Data[serial].Bytes)})
		}
	}
	return out
}
