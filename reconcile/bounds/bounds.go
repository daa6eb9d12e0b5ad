// Package bounds holds an inventory against what its host allows: it outranks the
// repository. It is pure, and knows no actions.
package bounds

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
)

// OfSpec lists where a cluster, taken by itself, asks for more than its host
// allows. A pass counts what the host's other clusters have, too.
func OfSpec(s cluster.Spec, p cluster.Policy) []cluster.Block {
	return Violations(cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}}, p)
}

// BlockUnknown blocks a cluster as a whole while it is not known what its host allows.
func BlockUnknown(name string, p cluster.Policy) []cluster.Block {
	if len(p.Problems) == 0 {
		return nil
	}
	why := p.Problems[0]
	hint := why.Hint
	why.Hint = ""
	return []cluster.Block{{Subject: name, Reason: cluster.PolicyUnknown, Message: "nothing is changed while it is not known what the host allows: " + why.String(),
		Hint: strings.TrimPrefix(hint+"; the agent goes on by itself when root of the host has fixed it", "; ")}}
}

// maxViolations is how many violations a cluster has at most in its status, where each is a
// block: a row of thousands of nodes may lie outside what the host allows.
const maxViolations = 50

// defaultCPUUnits is the weight of a VM that has none of its own (PVE 9.2 qemu-server, with cgroup v2).
const defaultCPUUnits = 100

// mostCPUUnits is the greatest weight that a VM may have: by default none has more than the host's other guests.
func mostCPUUnits(p cluster.Policy) int { return cmp.Or(p.CPUUnits, defaultCPUUnits) }

// unfiltered is the first network card of a node that the inventory does not have the firewall of Proxmox VE filter, "" of none.
func unfiltered(n cluster.Node) string {
	if n.Options[cluster.FieldFirewall] != cluster.OptionOn {
		return "net0"
	}
	for i, c := range n.Devices.Cards {
		if !c.Firewall {
			return fmt.Sprintf("net%d", i+1)
		}
	}
	return ""
}

// policyMappings are the lists of mappings in the policy, by kind.
var policyMappings = map[string]string{device.PCIMapping: "pci_mappings", device.USBMapping: "usb_mappings"}

// Violations lists where a repository asks for more than its host allows. Each
// names the line of the policy; nothing is touched while there is one.
func Violations(d cluster.Desired, p cluster.Policy) []cluster.Block {
	var out []cluster.Block
	more := 0
	add := func(b cluster.Block) {
		switch {
		case slices.ContainsFunc(out, b.Equal):
		case len(out) >= maxViolations:
			more++
		default:
			out = append(out, b)
		}
	}
	refuse := func(subject, field, format string, args ...any) {
		add(cluster.Block{Subject: subject, Reason: cluster.PolicyViolation, About: field, Message: fmt.Sprintf(format, args...) + fmt.Sprintf(" (host policy, %s: %s)", p.Line(field), field),
			Hint: "ask for less in the repository, or have root of the host change the policy"})
	}
	taken := func(subject, what string, a netip.Addr) {
		add(cluster.Block{Subject: subject, Reason: cluster.PolicyViolation, About: "taken", Message: fmt.Sprintf("%s %s is that of this host or of one of its routers", what, a),
			Hint: "write an address that nothing else has; `networks` in the host's policy bounds where nodes may be"})
	}
	for _, n := range d.Spec.Nodes {
		if p.Pool != "" && n.Pool != p.Pool {
			refuse(n.Name, "pool", "it wants pool %q, and the host allows %q", n.Pool, p.Pool)
		}
		if !allowsVMID(p, n.VMID) {
			refuse(n.Name, "vmids", "its vmid %d lies outside %s", n.VMID, listed(p.VMIDs))
		}
		stores := []string{n.Datastore, n.CloudInitDatastore, n.ImageDatastore}
		for _, dk := range n.Disks {
			stores = append(stores, dk.Datastore)
		}
		for _, s := range stores {
			if !allowsDatastore(p, s) {
				refuse(n.Name, "datastores", "it wants storage %q, and the host allows %s", s, strings.Join(p.Datastores, ", "))
			}
		}
		if units, _ := strconv.Atoi(n.Options[cluster.FieldCPUUnits]); units > mostCPUUnits(p) { // 0 where it has none; the greatest where it is beyond all
			refuse(n.Name, "cpu_units", "it wants cpu_units %d, and the host allows %d", units, mostCPUUnits(p))
		}
		for _, m := range n.Devices.Mappings() {
			if allowed := p.Mappings[m.Kind]; !slices.Contains(allowed, m.Name) {
				refuse(n.Name, policyMappings[m.Kind], "it wants the %s %q, and the host allows %s", m.Kind, m.Name, cmp.Or(strings.Join(allowed, ", "), "none"))
			}
		}
		if card := unfiltered(n); p.Firewall && card != "" {
			refuse(n.Name, "firewall", "its network card %s has no firewall: true, and the host wants that of all", card)
		}
		bridges, others := []string{n.Bridge}, []netip.Addr(nil)
		for _, c := range n.Devices.Cards {
			bridges = append(bridges, c.Bridge)
			if !allowsMAC(p.MACs, c.MAC) {
				refuse(n.Name, "macs", "the MAC address %s of a further network card does not begin with %s", c.MAC, strings.Join(p.MACs, " or "))
			}
			if c.Address.IsValid() {
				others = append(others, c.Address.Addr())
			}
		}
		for _, bridge := range bridges {
			if len(p.Bridges) > 0 && !slices.Contains(p.Bridges, bridge) {
				refuse(n.Name, "bridges", "it wants bridge %q, and the host allows %s", bridge, strings.Join(p.Bridges, ", "))
			}
		}
		for _, a := range others {
			if slices.Contains(p.Taken, a) {
				taken(n.Name, "the address of a further network card", a)
			}
			if !p.AllowsAddress(a) {
				refuse(n.Name, "networks", "the address %s of a further network card lies outside %s", a, listed(p.Networks))
			}
		}
		if !allowsMAC(p.MACs, n.MAC) {
			refuse(n.Name, "macs", "its MAC address %s does not begin with %s", n.MAC, strings.Join(p.MACs, " or "))
		}
		if slices.Contains(p.Taken, n.IP) {
			taken(n.Name, "its address", n.IP)
		}
		if slices.Contains(p.Taken, n.IP6) {
			taken(n.Name, "its IPv6 address", n.IP6)
		}
		if n.IP6.IsValid() && !p.AllowsAddress(n.IP6) {
			refuse(n.Name, "networks", "its IPv6 address %s lies outside %s", n.IP6, listed(p.Networks))
		}
		if !n.Leased && !p.AllowsAddress(n.IP) { // of one that is leased none is taken that is not allowed
			refuse(n.Name, "networks", "its address %s lies outside %s", n.IP, listed(p.Networks))
		}
		// What the repository has is what is going to be sent; what a machine runs already is taken
		// back by sending another one.
		for _, a := range d.Repository().Configs[n.Name].Addresses {
			switch {
			case a == d.Spec.Network.IPv6.Gateway:
				add(cluster.Block{Subject: n.Name, Reason: cluster.PolicyViolation, About: "taken", Message: fmt.Sprintf("its machine config has the address %s, which is that of its router", a), Hint: "remove it from the patches"})
			case a == n.IP || a == n.IP6 || a == d.Spec.Network.OwnVIP() || slices.Contains(others, a) || !a.IsGlobalUnicast(): // see above; or no one's but the link's
			case slices.Contains(p.Taken, a):
				taken(n.Name, "its machine config has an address that it must not have:", a)
			case !p.AllowsAddress(a):
				refuse(n.Name, "networks", "its machine config has the address %s, which lies outside %s", a, listed(p.Networks))
			}
		}
	}
	vip := d.Spec.Network.OwnVIP() // an address that no node of the cluster takes is not bounded, as a name in the endpoint
	if slices.Contains(p.Taken, vip) {
		taken(d.Spec.Name, "its vip", vip)
	}
	if vip.IsValid() && !p.AllowsAddress(vip) {
		refuse(d.Spec.Name, "networks", "its vip %s lies outside %s", vip, listed(p.Networks))
	}
	if reg := d.Spec.InstallerRegistry; reg != "" && len(p.Factories) > 0 && !slices.ContainsFunc(p.Factories, func(allowed string) bool { return below("https://"+reg, "https://"+hostOf(allowed)) }) {
		refuse(d.Spec.Name, "sources.factory", "its nodes would install Talos from %s, and the host allows %s", reg, strings.Join(p.Factories, ", "))
	}
	if d.Spec.Availability && !p.HA {
		refuse(d.Spec.Name, "ha", "it wants its VMs to be those of Proxmox VE's HA manager, and the host does not allow it")
	}
	for _, f := range d.Spec.Forwards {
		if !p.AllowsForward(f.Port) {
			refuse(d.Spec.Name, "port_forwards", "it wants port %d of the host, and the host allows %s", f.Port, cmp.Or(strings.Trim(fmt.Sprint(p.Forwards), "[]"), "none"))
		}
	}
	out = append(out, OverLimits(d, p, nil)...)
	for _, a := range d.Spec.Addons {
		src := a.Chart.Repository
		if src == "" {
			src = a.Chart.OCI
		}
		if a.Chart.Path != "" && len(p.Charts) > 0 && !slices.Contains(p.Charts, cluster.ChartsInRepository) {
			refuse(a.Name, "sources.charts", "its chart lies in the repository, and the host allows %s; `%s` in that list allows it", strings.Join(p.Charts, ", "), cluster.ChartsInRepository)
		}
		if src != "" && len(p.Charts) > 0 && !slices.ContainsFunc(p.Charts, func(allowed string) bool { return below(src, allowed) }) {
			refuse(a.Name, "sources.charts", "its chart comes from %s, and the host allows %s", src, strings.Join(p.Charts, ", "))
		}
	}
	if more > 0 {
		out = append(out, cluster.Block{Subject: d.Spec.Name, Reason: cluster.PolicyViolation, Message: fmt.Sprintf("%d more violations of the host's policy are not shown", more),
			Hint: "ask for less in the repository, or have root of the host change the policy"})
	}
	return out
}

// OfDeletion is why the VM of a node that is removed or replaced, for these reasons, is kept: it lies,
// or a disk of it does, where the host allows the agent nothing; no Reason: that is allowed. It holds
// for a removal that has begun or is approved, too: how many nodes go is approved, and not where.
func OfDeletion(node string, vm cluster.VM, p cluster.Policy, drift []cluster.FieldDifference) cluster.Block {
	keep := func(field, what string) cluster.Block {
		return cluster.Block{Subject: node, Reason: cluster.PolicyViolation, About: field, Drift: drift, Message: fmt.Sprintf("vm %d is kept: %s (host policy, %s: %s)", vm.VMID, what, p.Line(field), field),
			Hint: fmt.Sprintf("have root of the host allow that in the policy until the vm is deleted; or, when nothing on it is needed, remove it by hand: `qm stop %d && qm destroy %[1]d --purge` on %s", vm.VMID, vm.Host)}
	}
	if !allowsVMID(p, vm.VMID) {
		return keep("vmids", fmt.Sprintf("its vmid lies outside %s", listed(p.VMIDs)))
	}
	disks := []cluster.DiskSeen{vm.Hardware.Value.System}
	for _, serial := range slices.Sorted(maps.Keys(vm.Hardware.Value.Data)) {
		disks = append(disks, vm.Hardware.Value.Data[serial])
	}
	for _, disk := range disks {
		if !allowsDatastore(p, disk.Datastore) {
			return keep("datastores", fmt.Sprintf("a disk of it is on storage %q, and the host allows %s", disk.Datastore, strings.Join(p.Datastores, ", ")))
		}
	}
	return cluster.Block{}
}

// OverLimits adds up all clusters of the agent: limits are the host's, not one
// repository directory's. VMs that the inventory no longer names count as well,
// or new nodes in the place of old ones would lead past every limit: they are made when
// those are deleted.
func OverLimits(d cluster.Desired, p cluster.Policy, orphans []cluster.VM) []cluster.Block {
	total := d.Spec.Usage()
	for _, s := range d.Siblings {
		total.Nodes += s.Nodes
		total.Cores += s.Cores
		total.MemoryMiB += s.MemoryMiB
		total.DiskBytes += s.DiskBytes
	}
	for _, vm := range orphans {
		hw := vm.Hardware.Value
		total.Nodes++
		total.Cores += hw.Cores
		total.MemoryMiB += hw.MemoryMiB
		total.DiskBytes += hw.System.Bytes
		for _, disk := range hw.Data {
			total.DiskBytes += disk.Bytes
		}
	}
	who, wants := "this cluster", "wants"
	if len(d.Siblings) > 0 {
		who, wants = fmt.Sprintf("this cluster and %d more of this host", len(d.Siblings)), "together want"
	}
	if len(orphans) > 0 {
		who += fmt.Sprintf(", with %d vm that the inventory does not name,", len(orphans))
	}
	who += " " + wants
	var out []cluster.Block
	over := func(field, want, allowed string) {
		out = append(out, cluster.Block{Subject: d.Spec.Name,
			Reason: cluster.PolicyViolation, About: field, Message: fmt.Sprintf("%s %s, and the host allows %s (host policy, %s: %s)", who, want, allowed, p.Line(field), field),
			Hint: "ask for less in the repository, or have root of the host change the policy"})
	}
	if l := p.Limits.Nodes; l > 0 && total.Nodes > l {
		over("limits.nodes", fmt.Sprintf("%d nodes", total.Nodes), fmt.Sprint(l))
	}
	if l := p.Limits.Cores; l > 0 && total.Cores > l {
		over("limits.cores", fmt.Sprintf("%d cores", total.Cores), fmt.Sprint(l))
	}
	if l := p.Limits.MemoryMiB; l > 0 && total.MemoryMiB > l {
		over("limits.ram", text.GiB(total.MemoryMiB<<20), text.GiB(l<<20))
	}
	if l := p.Limits.DiskBytes; l > 0 && total.DiskBytes > l {
		over("limits.disk", text.GiB(total.DiskBytes), text.GiB(l))
	}
	return out
}

// StaysOverLimits reports whether a cluster is over the limits also when the VM of a node is deleted
// that the inventory does not have: of control planes that others are to take the place of, one after
// the other would be deleted, and none made.
func StaysOverLimits(d cluster.Desired, p cluster.Policy, orphans []cluster.VM, node string) bool {
	orphans = slices.DeleteFunc(slices.Clone(orphans), func(vm cluster.VM) bool { return vm.Node == node })
	return len(OverLimits(d, p, orphans)) > 0
}

// below reports whether a source is the allowed one or lies below it, compared
// as URLs: "https://charts.example.org.evil.net" is not below
// "https://charts.example.org".
func below(src, allowed string) bool {
	s, err1 := url.Parse(src)
	a, err2 := url.Parse(allowed)
	if err1 != nil || err2 != nil || s.Scheme != a.Scheme || !strings.EqualFold(s.Host, a.Host) || s.User != nil {
		return false
	}
	if strings.Contains(s.Path, "..") || strings.Contains(s.EscapedPath(), "%2e") || strings.Contains(s.EscapedPath(), "%2E") {
		return false
	}
	prefix := strings.TrimSuffix(a.Path, "/")
	return s.Path == prefix || strings.HasPrefix(s.Path, prefix+"/")
}

func hostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL
	}
	return u.Host
}

func listed[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return strings.Join(words, ", ")
}

// allowsMAC reports whether a node may have a MAC address, "" being one that is not known.
func allowsMAC(beginnings []string, mac string) bool {
	begins := func(with string) bool { return strings.HasPrefix(strings.ToUpper(mac), with) }
	return mac == "" || len(beginnings) == 0 || slices.ContainsFunc(beginnings, begins)
}

// OfReservation is why a DHCP server of the host must not be given the address of a MAC; nil: it may. A
// reservation moves whatever machine has the MAC to another address. So without a word in the policy only
// those are allowed that Proxmox VE gives its guests, and no router's or printer's.
func OfReservation(node, mac string, p cluster.Policy) error {
	if len(p.MACs) > 0 || allowsMAC([]string{cluster.ProxmoxMACs}, mac) {
		return nil // what the policy has is held against the inventory as a whole
	}
	return fault.WithHint(fmt.Errorf("the reservation of %s is not written: its MAC address %s may be another machine's, for it does not begin with %s", node, mac, cluster.ProxmoxMACs),
		fmt.Sprintf("have root of the host allow it in the policy, like macs: [%q, %q]; or remove mac and mac_prefix from the inventory", cluster.ProxmoxMACs, strings.ToUpper(mac)))
}

// allowsVMID reports whether a VM may have a VMID.
func allowsVMID(p cluster.Policy, vmid int) bool {
	return len(p.VMIDs) == 0 || slices.ContainsFunc(p.VMIDs, func(r cluster.Range) bool { return r.Contains(vmid) })
}

// allowsDatastore reports whether a storage may be used, "" being none.
func allowsDatastore(p cluster.Policy, name string) bool {
	return name == "" || len(p.Datastores) == 0 || slices.Contains(p.Datastores, name)
}
