package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// change is one field of the inventory that is edited on a cluster that is as it should be.
type change struct {
	field string
	edit  func(*world, *cluster.Node) // of the worker wk-1
}

// configField is a field that only changes machine configs.
func configField(field string) change {
	return change{field, func(w *world, n *cluster.Node) { w.d.Configs[n.Name] = cluster.Config{Digest: "new"} }}
}

// askNetwork is a change of the network, which is part of the machine configs: until the nodes run
// them, what is planned for is the network that they have.
func askNetwork(edit func(*cluster.Network)) func(*world, *cluster.Node) {
	return func(w *world, n *cluster.Node) {
		asked := w.d
		edit(&asked.Spec.Network)
		asked.Configs = maps.Clone(asked.Configs)
		asked.Configs[n.Name] = cluster.Config{Digest: "new"}
		w.d.Asked = &asked
	}
}

// renameNode has the inventory give a node another name.
func renameNode(replace string) func(*world, *cluster.Node) {
	return func(w *world, n *cluster.Node) {
		now := *n
		w.remove(n.Name)
		now.Name, now.UUID, now.Replace = renamed, cluster.NodeUUID(w.d.Spec.ID, renamed), replace
		w.d.Spec.Nodes = append(w.d.Spec.Nodes, now)
		w.o.VMs[renamed] = cluster.VM{VMID: now.VMID, Node: renamed, Host: "pve1", Presence: cluster.Present, Owner: cluster.Foreign}
		w.refresh()
	}
}

const renamed = "web-1"

var changes = []change{
	{"`cpu`, also in `profiles`, as the four below", func(_ *world, n *cluster.Node) { n.Cores = 8 }},
	{"`cpu_type`", func(_ *world, n *cluster.Node) { n.CPUType = "host" }},
	{"`ram`", func(_ *world, n *cluster.Node) { n.MemoryMiB = 16384 }},
	{"`disk`, larger", func(_ *world, n *cluster.Node) { n.DiskBytes = 60 << 30 }},
	{"`disk`, smaller", func(_ *world, n *cluster.Node) { n.DiskBytes = 20 << 30 }},
	{"`cpu_flags`", wantOption(cluster.FieldCPUFlags, "none", "+aes")},
	{"`cpu_limit`", wantOption(cluster.FieldCPULimit, "none", "2")},
	{"`cpu_units`", wantOption(cluster.FieldCPUUnits, "100", "50")},
	{"`numa`", wantOption(cluster.FieldNUMA, "off", "on")},
	{"`balloon`, from one value to another", func(w *world, n *cluster.Node) {
		wantOption(cluster.FieldBalloonMin, "4096", "2048")(w, n)
		vm := w.o.VMs[n.Name]
		vm.Hardware.Value.Balloon = true
		w.o.VMs[n.Name] = vm
	}},
	{"`balloon`, which was 0 or is to be", wantOption(cluster.FieldBalloonMin, "none", "4096")},
	{"`machine`", wantOffered(cluster.FieldMachinePin, "q35", "pc-q35-9.2")},
	{"`vga`", wantOption(cluster.FieldDisplay, "std", "serial0")},
	{"`nic.model`", func(_ *world, n *cluster.Node) { n.NetworkCard = "e1000e" }},
	{"`nic.mtu`", wantOffered(cluster.FieldMTU, "none", "9000")},
	{"`nic.firewall`", wantOption(cluster.FieldFirewall, "off", "on")},
	{"`nics`, one more, or its `bridge`, `vlan` or `firewall`", wantOption("network card net1", "none", "virtio=BC:24:11:00:00:99,bridge=vmbr2")},
	{"`nics`, one less, or its `model` or `mtu`", wantOffered("network card net1", "virtio=BC:24:11:00:00:99,bridge=vmbr2", "virtio=BC:24:11:00:00:99,bridge=vmbr2,mtu=9000")},
	{"`pci`", wantOffered("PCI device hostpci0", "none", "mapping=gpu,pcie=1")},
	{"`usb`", wantOffered("USB device usb0", "none", "mapping=dongle")},
	{"`disk_options`, and the options of a disk of `disks`", wantOption(cluster.FieldDiskOption(cluster.SystemDiskSerial, cluster.DiskCache), "none", "writethrough")},
	{"`disk_options.backup`, and that of a disk", wantOption(cluster.FieldDiskOption(cluster.SystemDiskSerial, cluster.DiskBackup), "on", "off")},
	{"`disks`, one more", func(_ *world, n *cluster.Node) {
		n.Disks = []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "local-lvm", Bytes: 20 << 30}}
	}},
	{"`disks`, one less", func(w *world, n *cluster.Node) {
		vm := w.o.VMs[n.Name]
		vm.Hardware.Value.Data = map[string]cluster.DiskSeen{"talos-data": {Datastore: "local-lvm", Bytes: 20 << 30}}
		w.o.VMs[n.Name] = vm
	}},
	{"`proxmox.datastore`", func(_ *world, n *cluster.Node) { n.Datastore = "fast" }},
	{"`proxmox.scsihw`", func(_ *world, n *cluster.Node) { n.SCSIHardware = "virtio-scsi-pci" }},
	{"`proxmox.bridge`", func(_ *world, n *cluster.Node) { n.Bridge = "vmbr2" }},
	{"`network.vlan`", func(w *world, _ *cluster.Node) { w.d.Spec.Network.VLAN = 20 }},
	{"`tags`, `proxmox.tags`", func(_ *world, n *cluster.Node) { n.Tags = []string{"web"} }},
	{"`mac`, `network.mac_prefix`", func(_ *world, n *cluster.Node) { n.MAC = "BC:24:11:00:00:99" }},
	{"`vmid`, or the `ip` or `offset` that it follows from; `first_vmid`, `first_ip`, `proxmox.vmid_ranges`", func(w *world, n *cluster.Node) {
		vm := w.o.VMs[n.Name]
		vm.VMID = n.VMID
		w.o.Orphans = cluster.Saw([]cluster.VM{vm})
		n.VMID = 559
		w.o.VMs[n.Name] = cluster.VM{VMID: 559, Node: n.Name, Presence: cluster.Absent}
	}},
	{"`labels`", func(w *world, n *cluster.Node) {
		n.Labels, w.d.Configs[n.Name] = map[string]string{"zone": "b"}, cluster.Config{Digest: "new"}
	}},
	{"`taints` of a worker", func(w *world, n *cluster.Node) {
		n.Taints, w.d.Configs[n.Name] = map[string]string{"dedicated": "gpu:NoSchedule"}, cluster.Config{Digest: "new"}
	}},
	{"`annotations`", func(_ *world, n *cluster.Node) { n.Annotations = map[string]string{"example.org/rack": "7"} }},
	configField("`patches`, `network.vip`, `network.endpoint`, `network.nameservers`, `network.time_servers`, `network.cert_sans`, `talos.installer_registry` and whatever else is only in the machine config"),
	{"`network.pod_cidr`, `network.svc_cidr`; of a dual-stack cluster `network.pod_cidr6` and `network.svc_cidr6` likewise", func(w *world, n *cluster.Node) {
		w.d.Configs[n.Name] = cluster.Config{Digest: "new", Summary: cluster.ConfigSummary{Pods: "10.99.0.0/16"}}
		m := w.o.Machines[n.Name]
		m.Summary = cluster.ConfigSummary{Pods: "10.244.0.0/16"}
		w.o.Machines[n.Name] = m
	}},
	{"`cni`, from or to flannel", func(w *world, n *cluster.Node) { // in the configs of control planes
		w.d.Configs[n.Name] = cluster.Config{Digest: "new", Summary: cluster.ConfigSummary{Flannel: "no"}}
		m := w.o.Machines[n.Name]
		m.Summary = cluster.ConfigSummary{Flannel: "yes"}
		w.o.Machines[n.Name] = m
	}},
	{"the list of nodes.yaml that it is in, `role` in `counted`: its role", func(w *world, n *cluster.Node) {
		m := w.o.Machines[n.Name]
		m.Summary = cluster.ConfigSummary{Role: n.Role}
		w.o.Machines[n.Name] = m
		n.Role = cluster.ControlPlane
	}},
	{"`network.gateway`", askNetwork(func(n *cluster.Network) { n.Gateway = netip.MustParseAddr("10.10.0.254") })},
	{"`network.cidr`", askNetwork(func(n *cluster.Network) { n.CIDR = netip.MustParsePrefix("10.10.0.0/16") })},
	{"`network.cidr6`, `network.gateway6`, `ip6`", func(w *world, n *cluster.Node) {
		n.IP6 = netip.MustParseAddr("fd00:10:10::15")
		askNetwork(func(n *cluster.Network) { n.IPv6.CIDR = netip.MustParsePrefix("fd00:10:10::/64") })(w, n)
	}},
	{"`network.address_mode`", askNetwork(func(n *cluster.Network) { n.Mode = cluster.AddressReserved })},
	{"`ha`", func(w *world, n *cluster.Node) {
		w.d.Spec.Availability, w.p.HA, w.o.Availability.Known = true, true, true
		st := w.o.Hosts["pve1"].Storages.Value[n.Datastore]
		st.Shared = true
		w.o.Hosts["pve1"].Storages.Value[n.Datastore] = st
	}},
	{"`proxmox.pool`", func(w *world, n *cluster.Node) {
		vm := w.o.VMs[n.Name]
		n.Pool, vm.Moved, vm.Owner, vm.Pool = "talos", true, cluster.Foreign, "other"
		w.o.VMs[n.Name] = vm
	}},
	{"`node`, `proxmox.node`, `proxmox.nodes`, `placement`", func(_ *world, n *cluster.Node) { n.Placement.Pin = "pve2" }},
	{"`proxmox.image_datastore`, `proxmox.cloudinit_datastore`, `talos.boot`, `talos.arch`", func(_ *world, n *cluster.Node) { n.ImageDatastore, n.CloudInitDatastore = "fast", "fast" }},
	{"`pve_capacity`, `ha_enabled`", func(w *world, _ *cluster.Node) {
		w.d.Spec.Capacity = map[string]cluster.HostCapacity{"pve1": {MemoryMiB: 1}}
	}},
	{"`protect`, `environment`, `canary`, `soak`, `gates`, and the switches below", func(_ *world, n *cluster.Node) { n.Protect = true }},
	{"`config_contract`", func(w *world, _ *cluster.Node) { w.d.OtherContract = "v1.14" }},
	{"`talos.secureboot`", func(w *world, n *cluster.Node) {
		m := w.o.Machines[n.Name]
		w.d.Spec.SecureBoot, m.SecureBoot = true, cluster.OptionOff
		w.o.Machines[n.Name] = m
	}},
	{"`talos.schematic`", func(w *world, n *cluster.Node) {
		m := w.o.Machines[n.Name]
		m.Schematic, w.d.Schematic, w.d.Image.Schematic = w.d.Schematic, "613e1592b2da", "613e1592b2da"
		w.o.Machines[n.Name] = m
	}},
	{"`talos_version`", func(w *world, _ *cluster.Node) {
		w.runs("v1.13.9", "v1.36.1")
		w.asks = w.d.Spec.Versions
		w.asks.Talos = "v1.13.10"
		w.stage()
	}},
	{"`kubernetes_version`", func(w *world, n *cluster.Node) {
		w.runs("v1.13.9", "v1.36.1")
		w.asks = w.d.Spec.Versions
		w.asks.Kubernetes = "v1.36.2"
		w.stage()
		n.Components.Kubelet = "v1.36.2" // as its turn comes
		w.d.Configs[n.Name] = cluster.Config{Digest: "new", Summary: cluster.ConfigSummary{Rest: "same", Images: cluster.Images{Kubelet: "ghcr.io/siderolabs/kubelet:v1.36.2"}}}
		m := w.o.Machines[n.Name]
		m.Summary = cluster.ConfigSummary{Rest: "same", Images: cluster.Images{Kubelet: "ghcr.io/siderolabs/kubelet:v1.36.1"}}
		w.o.Machines[n.Name] = m
	}},
	{"`replace`", func(_ *world, n *cluster.Node) { n.Replace = "again" }},
	{"`name`", renameNode("")},
	{"`name`, and `replace`", renameNode("again")},
	{"the node, which the inventory no longer has, or a smaller `count`", func(w *world, n *cluster.Node) { w.remove(n.Name) }},
	{"`locked: true`, with any of them", func(_ *world, n *cluster.Node) { n.Locked, n.Cores = true, 8 }},
}

// converged is a world that is as its inventory has it.
func converged() *world {
	w := newWorld(3, 2)
	for range 100 {
		if w.step().Converged() {
			break
		}
	}
	w.o.MembersAgree, w.o.MembersAsked = cluster.Saw(true), namesOf(w.o.Members.Value)
	return w
}

// outcome plans a change to its end, and returns what it leads to, in the words of `talos-agent plan`.
func outcome(t *testing.T, c change, answer string) string {
	t.Helper()
	w := converged()
	i := slices.IndexFunc(w.d.Spec.Nodes, func(n cluster.Node) bool { return n.Name == "wk-1" })
	n := w.d.Spec.Nodes[i]
	c.edit(w, &w.d.Spec.Nodes[i])
	if now, ok := w.d.Spec.Node(n.Name); ok {
		n = now
	}
	mach := w.o.Machines[n.Name]
	if want := w.d.Repository().Configs[n.Name].Digest; mach.ConfigDigest != want {
		mach.Change = &cluster.Change{For: want, Reboots: answer == "reboot" || answer == "network"}
		if answer == "network" {
			mach.Change.Network = "meanwhile"
		}
		w.o.Machines[n.Name] = mach
	}
	f := Forecast(w.d, w.o, w.p)
	var kinds []cluster.ActionKind
	var texts []string
	for _, s := range f.Steps {
		if !strings.HasPrefix(s.Text, "upload image") && !strings.HasPrefix(s.Text, "download image") && (s.Subject == n.Name || s.Subject == renamed) {
			kinds, texts = append(kinds, s.Action), append(texts, s.Text)
		}
	}
	switch {
	case len(kinds) == 0 && len(f.Blocked) > 0:
		b := f.Blocked[max(0, slices.IndexFunc(f.Blocked, func(b cluster.Block) bool { return b.Subject == n.Name }))]
		return "refused: " + b.Message + "<br>" + strings.ReplaceAll(b.Hint, "|", `\|`)
	case len(kinds) == 0 && len(f.Waiting) > 0:
		t.Errorf("%s: waits: %v", c.field, f.Waiting)
	case slices.Contains(kinds, cluster.DeleteVM):
		return "its machine is deleted: " + strings.Join(texts, "; ")
	case slices.Contains(kinds, cluster.DrainNode):
		return "in a turn: " + strings.Join(texts, "; ")
	case len(kinds) > 0:
		return "as it runs: " + strings.Join(texts, "; ")
	}
	return "nothing"
}

// wantOption has a node want another value of an option of its VM than that has.
func wantOption(field cluster.VMField, has, wants string) func(*world, *cluster.Node) {
	return func(w *world, n *cluster.Node) {
		vm := w.o.VMs[n.Name]
		vm.Hardware.Value.Options = map[cluster.VMField]string{field: has}
		w.o.VMs[n.Name] = vm
		n.Options = map[cluster.VMField]string{field: wants}
	}
}

// wantOffered is a further option of a VM in the place of another, for which its host has what it takes.
func wantOffered(field cluster.VMField, has, wants string) func(*world, *cluster.Node) {
	return func(w *world, n *cluster.Node) {
		wantOption(field, has, wants)(w, n)
		h := w.o.Hosts["pve1"]
		h.Offers = map[string]cluster.Seen[[]string]{"PCI mapping": cluster.Saw([]string{"gpu"}), "USB mapping": cluster.Saw([]string{"dongle"}), "machine version": cluster.Saw([]string{"pc-q35-9.2"}), "bridge MTU": cluster.Saw([]string{n.Bridge + "=9000", "vmbr2=9000"})}
		w.o.Hosts["pve1"] = h
	}
}

// TestReferenceOfChanges makes the table of what a change of the inventory leads to, from
// what the planner does about it.
func TestReferenceOfChanges(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Changed in the inventory | What it leads to on a node that is there |\n| --- | --- |\n")
	for _, c := range changes {
		fmt.Fprintf(&b, "| %s | %s |\n", c.field, outcome(t, c, ""))
		if strings.HasPrefix(c.field, "`patches`") {
			fmt.Fprintf(&b, "| the same, where the node answers that it takes a reboot | %s |\n", outcome(t, c, "reboot"))
			fmt.Fprintf(&b, "| the same, where a part of that is about the network | %s |\n", outcome(t, c, "network"))
		}
	}
	replacePart(t, "changes", b.String())
}
