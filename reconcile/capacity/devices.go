package capacity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
)

// LackOptions returns what of the options that the VM of a node is to have its host does not have for it, so that it would not
// start: a mapping that names no device of the host, or one whose devices other VMs of the cluster have, a version of the machine
// type, or a bridge with as great an MTU. What is not seen is not known to be there. fields are what is asked for, by field of the VM:
// of a mapping among them all devices count that the node is to have, for the VM needs those that it has at its next start, too.
func (l *Ledger) LackOptions(n cluster.Node, host string, fields map[cluster.VMField]string) (lacks []cluster.Block) {
	wanted := map[device.Mapping]int{}
	for field, value := range fields {
		if m := device.MappingOf(string(field), value); m != (device.Mapping{}) {
			wanted[m] = devicesOf(n.Options, m)
		}
	}
	for m, count := range wanted {
		if b := l.lackMapping(n, host, m, count); b.Reason != "" {
			lacks = append(lacks, b)
		}
	}
	for field, value := range fields {
		if bridge, mtu := mtuOf(n, field, value); mtu > 0 {
			if b := l.lackMTU(n, host, bridge, mtu); b.Reason != "" {
				lacks = append(lacks, b)
			}
		}
	}
	if b := l.lackMachine(n, host, fields[cluster.FieldMachinePin]); b.Reason != "" {
		lacks = append(lacks, b)
	}
	slices.SortFunc(lacks, func(a, b cluster.Block) int { return slices.Compare([]string{a.About}, []string{b.About}) })
	return lacks
}

// TakeOptions promises the VM of a node the options that it does not have yet, when its host has all that they take; else it returns
// what that does not have. What the VM has counts as well, until it has lost it. fields are as in LackOptions.
func (l *Ledger) TakeOptions(n cluster.Node, host string, fields map[cluster.VMField]string) (lacks []cluster.Block) {
	if lacks = l.LackOptions(n, host, fields); len(lacks) == 0 {
		l.given[n.Name] = true
	}
	return lacks
}

// devicesOf is how many devices of a mapping are among options.
func devicesOf(options map[cluster.VMField]string, m device.Mapping) (count int) {
	for field, value := range options {
		if device.MappingOf(string(field), value) == m {
			count++
		}
	}
	return count
}

// lackMapping is the block for a node that a host has too few devices of a mapping for; no Reason: it has enough.
func (l *Ledger) lackMapping(n cluster.Node, host string, m device.Mapping, count int) cluster.Block {
	b := cluster.Block{Subject: n.Name, Reason: cluster.HostUnsuitable, About: host + "/" + m.Kind + "/" + m.Name}
	seen := l.o.Hosts[host].Offers[m.Kind]
	has := 0
	for _, name := range seen.Value {
		if name == m.Name {
			has++
		}
	}
	taken, by := l.devicesTaken(n, host, m)
	switch {
	case !seen.Known && seen.Why == "": // nothing has looked yet
		b.Message = fmt.Sprintf("it wants a device of the %s %s, and which ones %s has is not seen yet", m.Kind, m.Name, host)
		b.Hint = "nothing; the agent looks again"
	case !seen.Known:
		b.Message = fmt.Sprintf("it wants a device of the %s %s, and cannot see which ones %s has: %s", m.Kind, m.Name, host, seen.Why)
		b.Hint = "see whether Proxmox VE answers: `talos-agent doctor`"
	case has == 0:
		b.Message = fmt.Sprintf("it wants a device of the %s %s, which shows none of %s; Proxmox VE would not start it", m.Kind, m.Name, host)
		b.Hint = fmt.Sprintf("add the device of %s to it (Datacenter > Resource Mappings), give the agent's user and token Mapping.Use on /mapping/%s, or give the node another host", host, m.Path())
	case has < taken+count:
		b.Message = fmt.Sprintf("it wants %d of the %d devices that %s has of the %s %s, and %s already", count, has, host, m.Kind, m.Name, by)
		if taken == 0 {
			b.Message = fmt.Sprintf("it wants %d devices of the %s %s, and %s has %d", count, m.Kind, m.Name, host, has)
		}
		b.Hint = "give it another host or another mapping, or take the device from the other node"
	default:
		return cluster.Block{}
	}
	return b
}

// mtuOf is the bridge and the MTU that a network card of a node is to have, with an option; 0: the option is about none.
func mtuOf(n cluster.Node, field cluster.VMField, value string) (bridge string, mtu int) {
	if field == cluster.FieldMTU { // as one of the others
		return device.MTUOf("network card net1", "bridge="+n.Bridge+",mtu="+value)
	}
	return device.MTUOf(string(field), value)
}

// lackMTU is the block for a node one of whose network cards is to have a greater MTU than its bridge; no Reason: it is not, or the
// MTU of the bridge is not known, as Proxmox VE lists only what is written, or the bridge is not seen, which others report.
func (l *Ledger) lackMTU(n cluster.Node, host, bridge string, mtu int) cluster.Block {
	seen := l.o.Hosts[host].Offers[device.BridgeMTU]
	b := cluster.Block{Subject: n.Name, Reason: cluster.HostUnsuitable, About: host + "/" + device.BridgeMTU + "/" + bridge}
	has := 0
	for _, text := range seen.Value {
		if number, ok := strings.CutPrefix(text, bridge+"="); ok {
			has, _ = strconv.Atoi(number) // 0 of what is no number, which is as not seen
		}
	}
	switch {
	case !seen.Known && seen.Why == "":
		b.Message, b.Hint = fmt.Sprintf("it wants an MTU of %d on %s, and that of the bridge on %s is not seen yet", mtu, bridge, host), "nothing; the agent looks again"
	case !seen.Known:
		b.Message, b.Hint = fmt.Sprintf("it wants an MTU of %d on %s, and that of the bridge on %s cannot be seen: %s", mtu, bridge, host, seen.Why), "see whether Proxmox VE answers: `talos-agent doctor`"
	case has == 0 || mtu <= has:
		return cluster.Block{}
	default:
		b.Message = fmt.Sprintf("it wants an MTU of %d on %s, and the bridge has %d on %s; Proxmox VE would not start it", mtu, bridge, has, host)
		b.Hint = fmt.Sprintf("`mtu %d` for %s in /etc/network/interfaces of %s, then `ifreload -a`; or a smaller mtu, or 1, which is that of the bridge", mtu, bridge, host)
	}
	return b
}

// newestMachine is the machine type without a version, which every host has.
const newestMachine = "q35"

// lackMachine is the block for a node whose host does not have a version of the machine type; no Reason: it has it.
func (l *Ledger) lackMachine(n cluster.Node, host, version string) cluster.Block {
	seen := l.o.Hosts[host].Offers[device.Machine]
	b := cluster.Block{Subject: n.Name, Reason: cluster.HostUnsuitable, About: host + "/" + device.Machine}
	listed := strings.TrimSuffix(version, "+pve0") // that of QEMU, which no host lists under this name
	switch {
	case version == "" || version == newestMachine || slices.Contains(seen.Value, listed):
		return cluster.Block{}
	case !seen.Known && seen.Why == "":
		b.Message, b.Hint = fmt.Sprintf("it wants the machine version %s, and whether %s has it is not seen yet", version, host), "nothing; the agent looks again"
	case !seen.Known:
		b.Message, b.Hint = fmt.Sprintf("it wants the machine version %s, and cannot see whether %s has it: %s", version, host, seen.Why), "see whether Proxmox VE answers: `talos-agent doctor`"
	default:
		b.Message = fmt.Sprintf("it wants the machine version %s, which %s does not have; Proxmox VE would not start it", version, host)
		b.Hint = fmt.Sprintf("write one that it has, or machine: q35, or upgrade the host; as root on %s: `pvesh get /nodes/%[1]s/capabilities/qemu/machines` lists them", host)
	}
	return b
}

// devicesTaken is how many devices of a mapping other nodes have on a host, as their VMs are or are to be made there, or are
// promised, and which of these nodes has them, or gets them.
func (l *Ledger) devicesTaken(n cluster.Node, host string, m device.Mapping) (count int, by string) {
	for _, other := range l.d.Spec.Nodes {
		if other.Name == n.Name || !l.made[other.Name] || l.o.VMs[other.Name].Carrier(other) != host {
			continue
		}
		wants := devicesOf(other.Options, m)
		has := wants
		if hw := l.o.VMs[other.Name].Hardware; hw.Known {
			has = devicesOf(hw.Value.Options, m)
		}
		if has > 0 {
			by = other.Name + " has them"
		}
		if l.given[other.Name] && wants > has {
			has, by = wants, other.Name+" gets them"
		}
		count += has
	}
	return count, by
}

// NewOptions are the options of a node that its VM does not have and that a host may not have either, by field, and those fields.
func NewOptions(n cluster.Node, has cluster.Hardware) (options map[cluster.VMField]string, fields []string) {
	options = map[cluster.VMField]string{}
	for field, value := range n.Options {
		_, mtu := mtuOf(n, field, value)
		if (field == cluster.FieldMachinePin || mtu > 0 || device.MappingOf(string(field), value) != (device.Mapping{})) && has.Options[field] != value {
			options[field], fields = value, append(fields, string(field))
		}
	}
	slices.Sort(fields)
	return options, fields
}
