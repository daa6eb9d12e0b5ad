package options

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The machine types that GET /nodes/{node}/capabilities/qemu/machines listed, in its order, without the "pc-" of each.
const (
	machines9 = `i440fx-10.0+pve1 q35-10.0+pve1 i440fx-10.0 q35-10.0 i440fx-9.2+pve1 q35-9.2+pve1 i440fx-9.2 q35-9.2 i440fx-9.1 q35-9.1
		i440fx-9.0 q35-9.0 i440fx-8.2 q35-8.2 i440fx-8.1 q35-8.1 i440fx-8.0 q35-8.0 i440fx-7.2 q35-7.2 i440fx-7.1 q35-7.1
		i440fx-7.0 q35-7.0 i440fx-6.2 q35-6.2 i440fx-6.1 q35-6.1 i440fx-6.0 q35-6.0 i440fx-5.2 q35-5.2 i440fx-5.1 q35-5.1
		i440fx-5.0 q35-5.0 i440fx-4.2 q35-4.2 i440fx-4.1+pve2 q35-4.1+pve2 i440fx-4.1+pve1 q35-4.1+pve1 i440fx-4.1 q35-4.1
		i440fx-4.0 q35-4.0.1 q35-4.0 i440fx-3.1 q35-3.1 i440fx-3.0 q35-3.0 i440fx-2.12 q35-2.12 i440fx-2.11 q35-2.11 i440fx-2.10
		q35-2.10 i440fx-2.9 q35-2.9 i440fx-2.8 q35-2.8 i440fx-2.7 q35-2.7 i440fx-2.6 q35-2.6 i440fx-2.5 q35-2.5 i440fx-2.4
		q35-2.4`
	machines8 = `q35-7.2 q35-7.1 q35-7.0 q35-6.2 q35-6.1 q35-6.0 q35-5.2 q35-5.1 q35-5.0 q35-4.2 q35-4.1+pve2 q35-4.1+pve1 q35-4.1
		q35-4.0.1 q35-4.0 q35-3.1 q35-3.0 q35-2.9 q35-2.8 q35-2.7 q35-2.6 q35-2.5 q35-2.4 q35-2.12 q35-2.11 q35-2.10 i440fx-7.2
		i440fx-7.1 i440fx-7.0 i440fx-6.2 i440fx-6.1 i440fx-6.0 i440fx-5.2 i440fx-5.1 i440fx-5.0 i440fx-4.2 i440fx-4.1+pve2
		i440fx-4.1+pve1 i440fx-4.1 i440fx-4.0 i440fx-3.1 i440fx-3.0 i440fx-2.9 i440fx-2.8 i440fx-2.7 i440fx-2.6 i440fx-2.5
		i440fx-2.4 i440fx-2.3 i440fx-2.2 i440fx-2.12 i440fx-2.11 i440fx-2.10 i440fx-2.1 i440fx-2.0 i440fx-1.7 i440fx-1.6
		i440fx-1.5 i440fx-1.4`
)

// MachineChanges are what versions of Proxmox VE's own changed.
var MachineChanges = map[string]string{
	"10.0+pve1": "Set host_mtu vNIC option even with default value for migration compat.",
	"9.2+pve1":  "Disables S3/S4 power states by default.",
	"4.1+pve2":  "Increases the number of SCSI drives supported.",
	"4.1+pve1":  "Introduction of pveX versioning, no changes.",
}

// MachineTypes are those of Proxmox VE 9.2, or of 8.4, each without "pc-".
func MachineTypes(nine bool) []string {
	if nine {
		return strings.Fields(machines9)
	}
	return strings.Fields(machines8)
}

// IsLaterMachine reports whether a version of a machine type ("10.1+pve0") is later than that of QEMU ("10.0.13").
func IsLaterMachine(machine, qemu string) bool {
	number := func(version string) (n [2]int) {
		version, _, _ = strings.Cut(version, "+")
		for i, part := range strings.SplitN(version, ".", 3) {
			if i < len(n) {
				n[i], _ = strconv.Atoi(part)
			}
		}
		return n
	}
	a, b := number(machine), number(qemu)
	return slices.Compare(a[:], b[:]) > 0
}

// ListMachines is the answer of GET /nodes/{node}/capabilities/qemu/machines.
func ListMachines(nine bool) []map[string]any {
	out := []map[string]any{}
	for _, t := range MachineTypes(nine) {
		kind, version, _ := strings.Cut(t, "-")
		r := map[string]any{"id": "pc-" + t, "type": kind, "version": version}
		if text := MachineChanges[version]; text != "" {
			r["changes"] = text
		}
		out = append(out, r)
	}
	return out
}

// JudgeMachine is why a VM with a machine option does not start on a host with some QEMU, and what its task has logged then.
func JudgeMachine(option string, nine bool, qemu, host string) (log, refused string) {
	m := ParseDrive(option)
	name, ok := strings.CutPrefix(cmp.Or(m["type"], m["file"]), "pc-")
	name = strings.TrimSuffix(name, "+pve0") // QEMU's own version, without a change of Proxmox VE's
	if !ok || slices.Contains(MachineTypes(nine), name) {
		return "", ""
	}
	_, version, _ := strings.Cut(name, "-")
	if IsLaterMachine(version, qemu) {
		return "", fmt.Sprintf("Installed QEMU version '%s' is too old to run machine type 'pc-%s', please upgrade node '%s'", qemu, name, host)
	}
	return fmt.Sprintf("kvm: unsupported machine type: \"pc-%s\"", name), "start failed: QEMU exited with code 1"
}

// JudgeMTU is why a VM with an option does not start, if that is a network card on a bridge with some MTU. 1 stands for that of the bridge.
// Source: Proxmox VE 9.2, qemu-server, print_netdevice_full.
func JudgeMTU(key, value string, bridge int) (refused string) {
	mtu, err := strconv.Atoi(ParseNet(value)["mtu"])
	switch {
	case !IsNet(key) || err != nil || mtu == 1:
		return ""
	case mtu < 576:
		return fmt.Sprintf("netdev %s: MTU '%d' is smaller than the IP minimum MTU '576'", key, mtu)
	case mtu > bridge:
		return fmt.Sprintf("netdev %s: MTU '%d' is bigger than the bridge MTU '%d'", key, mtu, bridge)
	}
	return ""
}
