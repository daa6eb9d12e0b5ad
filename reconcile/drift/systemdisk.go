package drift

import (
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// LacksSystemDisk reports whether a VM is seen to have no disk with the serial of the
// system disk. A creation makes VM and disk in one task, so it was there.
func LacksSystemDisk(vm cluster.VM) bool {
	return vm.Hardware.Known && vm.Hardware.Value.System == (cluster.DiskSeen{})
}

// MissingSystemDisk is the block for a VM without a system disk: what became of it, as
// far as the config shows, and how it is attached again. Proxmox VE keeps a detached
// disk as unusedN, and forgets its serial. Which volume is the node's own only a person
// knows, so none is touched.
func MissingSystemDisk(n cluster.Node, vm cluster.VM, host string) cluster.Block {
	b := cluster.Block{Subject: vm.Node, Reason: cluster.SystemDiskMissing}
	attach := func(key, volume string) string {
		return fmt.Sprintf("as root on %s: `qm set %d --%s %s%s,serial=%s --boot order=%s`", host, vm.VMID, key, volume, n.DiskProperties(cluster.SystemDiskSerial), cluster.SystemDiskSerial, key)
	}
	own := slices.DeleteFunc(slices.Clone(vm.Others), func(d cluster.Drive) bool { return !d.Own })
	switch {
	case len(own) == 0 && vm.Power == cluster.Stopped:
		b.Message = fmt.Sprintf("vm %d has no system disk", vm.VMID)
		b.Hint = fmt.Sprintf("restore the vm from a backup; or, if nothing on it is needed, as root on %s: `qm destroy %d --purge`, and it is made again", host, vm.VMID)
	case len(own) == 0:
		b.Message = fmt.Sprintf("somebody detached the system disk of vm %d, which it loses when it stops, if not before", vm.VMID)
		b.Hint = fmt.Sprintf("`qm pending %d` shows the change; as root on %s: `qm set %[1]d --revert scsi0,boot` takes it back", vm.VMID, host)
	case len(own) > 1:
		b.Message = fmt.Sprintf("no disk of vm %d has the serial %s, by which its system disk is known: %s", vm.VMID, cluster.SystemDiskSerial, own)
		b.Hint = attach("scsi0", "VOLUME") + " with the volume that Talos is on"
	case own[0].Detached():
		b.Message = fmt.Sprintf("the system disk of vm %d is detached: %s is kept as %s", vm.VMID, own[0].Volume, own[0].Key)
		b.Hint = attach("scsi0", own[0].Volume)
	default:
		b.Message = fmt.Sprintf("%s of vm %d lacks the serial %s, by which its system disk is known: %s", own[0].Key, vm.VMID, cluster.SystemDiskSerial, own[0].Volume)
		b.Hint = attach(own[0].Key, own[0].Volume)
	}
	return b
}
