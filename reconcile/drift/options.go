package drift

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
)

// Further options of a VM are compared where the inventory has them. What it never had, a person may
// have set, and stays; what it had and has no more becomes what a new VM gets.

// listOptions lists the further options that the VM of a node may have, each with what a new VM gets
// where the inventory does not have it.
func listOptions(n cluster.Node) map[cluster.VMField]string {
	out := map[cluster.VMField]string{
		cluster.FieldCPUFlags: cluster.OptionNone, cluster.FieldCPULimit: cluster.OptionNone, cluster.FieldCPUUnits: "100", cluster.FieldNUMA: cluster.OptionOff,
		cluster.FieldBalloonMin: cluster.OptionNone, cluster.FieldMachinePin: "q35", cluster.FieldDisplay: "std", cluster.FieldFirewall: cluster.OptionOff, cluster.FieldMTU: cluster.OptionNone,
	}
	for _, field := range deviceFields {
		out[field] = device.None
	}
	for _, o := range cluster.DiskOptions {
		fresh := cluster.NewDiskOption(o, n.SCSIHardware)
		out[cluster.FieldDiskOption(cluster.SystemDiskSerial, o)] = fresh
		for _, d := range n.Disks {
			out[cluster.FieldDiskOption(d.Serial, o)] = fresh
		}
	}
	return out
}

// deviceFields are the devices that a VM may have, each of which is an option.
var deviceFields = func() (out []cluster.VMField) {
	for _, field := range device.Fields() {
		out = append(out, cluster.VMField(field))
	}
	return out
}()

// isDevice reports whether an option is a device, which a VM that has none of it is seen without.
func isDevice(field cluster.VMField) bool { return device.KeyOf(string(field)) != "" }

// fieldOptions is kept of a node whose options the inventory had, or has.
const fieldOptions = "options"

// howOfOption is what it takes to change an option of a VM that runs, from a value to another.
//
// PVE 9.2 qemu-server, vmconfig_hotplug_pending, vmconfig_update_net and vmconfig_update_disk: the limit and the
// weight of the processor change at once, as the firewall of a network card does, and so does the minimum of
// memory where there is one before and after. Of the options of a disk that are compared here `backup` does. All
// others change when the VM stops.
func howOfOption(field cluster.VMField, now, want string) How {
	switch {
	case isDevice(field) && device.IsRaw(now): // which no token may remove
		return Refuse
	case field == cluster.FieldCPULimit, field == cluster.FieldCPUUnits, field == cluster.FieldFirewall, strings.HasSuffix(string(field), " "+string(cluster.DiskBackup)),
		field == cluster.FieldBalloonMin && now != cluster.OptionNone && want != cluster.OptionNone,
		isDevice(field) && device.TakesLive(string(field), now, want):
		return InPlace
	}
	return Reboot
}

// wantSince is the VM that a node should have, as WantHardware is it, with what a new VM gets of options
// that the inventory had when the node was last seen to have them, and has no more.
func wantSince(d cluster.Desired, o cluster.Observed, n cluster.Node) cluster.Hardware {
	want := WantHardware(d.Spec, n)
	had, isFields := cutSettled(o.Facts.Settled[n.Name])
	if !isFields {
		return want
	}
	if _, any := had.find(fieldOptions); !any { // of most nodes, without a look at each option
		return want
	}
	for field, fresh := range listOptions(n) {
		_, has := want.Options[field]
		_, seen := had.find(string(field))
		_, given := had.find(fieldGiven(string(field)))
		if has || !seen && !given {
			continue
		}
		if want.Options = maps.Clone(want.Options); want.Options == nil {
			want.Options = map[cluster.VMField]string{}
		}
		want.Options[field] = fresh
	}
	return want
}

// compareOptions compares the options that a VM should have. One that is not seen belongs to a disk
// that is not there.
func compareOptions(want, next, active cluster.Hardware) []Drift {
	var out []Drift
	for _, field := range slices.Sorted(maps.Keys(want.Options)) {
		later, seen := next.Options[field]
		now, runs := active.Options[field]
		switch {
		case isDevice(field) && want.Options[field] == device.None && device.IsRaw(later): // a person has put another one there
			continue
		case isDevice(field):
			later, now = cmp.Or(later, device.None), cmp.Or(now, device.None)
		case !seen:
			continue
		case !runs:
			now = later
		}
		if dr, differs := compareValue(field, howOfOption(field, now, want.Options[field]), want.Options[field], later, now); differs {
			out = append(out, dr)
		}
	}
	return out
}

// takeOptions are the options of a VM once it was given some fields of a node. A disk that is attached
// has those of a new one.
func takeOptions(n cluster.Node, has map[cluster.VMField]string, fields []cluster.VMField) map[cluster.VMField]string {
	out := maps.Clone(has)
	for field, fresh := range listOptions(n) {
		if value, ok := n.Options[field]; ok {
			fresh = value
		}
		isOf := func(f cluster.VMField) bool { return f == field || isOfDisk(n, field, f) }
		if out != nil && slices.ContainsFunc(fields, isOf) {
			out[field] = fresh
		}
	}
	return out
}

// isOfDisk reports whether an option is one of a data disk, which is a field itself.
func isOfDisk(n cluster.Node, option, disk cluster.VMField) bool {
	return slices.ContainsFunc(n.Disks, func(d cluster.Disk) bool {
		return cluster.FieldDisk(d.Serial) == disk && strings.HasPrefix(string(option), string(disk)+" ")
	})
}
