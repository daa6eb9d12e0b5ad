package drift

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// How is what it takes to correct a drift.
type How string

// The ways to correct a drift, from the cheapest.
const (
	InPlace   How = "in place"
	NextStart How = "in place, for its next start"
	Reboot    How = "reboot"
	Replace   How = "replace"
	Refuse    How = "refuse"
)

// Drift is one field in which a node is not what the inventory has.
type Drift struct {
	Reason     cluster.Reason
	Field      string
	Want, Have string
	How        How
	By         string    // who has set what it has, for people; "" : it is not known
	Since      time.Time // when that was set; zero: it is not known
}

// Has is what the node has, for people.
func (d Drift) Has() string { return d.Field + " " + d.shorten(d.Have) }

// Wants is what the inventory has, for people.
func (d Drift) Wants() string { return d.shorten(d.Want) }

// shorten is a value, for people, who do not read the 64 digits of a schematic. What stands in
// the place of one that the factory has not answered yet is words, and stays whole.
func (d Drift) shorten(value string) string {
	if d.Field == FieldSchematic && !strings.Contains(value, " ") {
		value = fmt.Sprintf("%.12s", value)
	}
	return cmp.Or(value, "none")
}

// Change is what becomes of it, for people.
func (d Drift) Change() string {
	return fmt.Sprintf("%s from %s to %s", d.Field, d.shorten(d.Have), d.Wants())
}

// Fields are the fields of some drifts.
func Fields(drifts []Drift) []string {
	var out []string
	for _, dr := range drifts {
		out = append(out, dr.Field)
	}
	return out
}

// IsStaged reports whether it is a machine config that waits for the next boot, on a machine
// that runs what it should.
func (d Drift) IsStaged() bool { return d.Reason == cluster.ConfigDrift && d.How == InPlace }

// DescribeStaged is where a machine config that waits for the next boot is from, for people.
func DescribeStaged(since time.Time) string {
	return fmt.Sprintf("staged on the node at %s; Talos does not note by whom", text.Moment(since))
}

// DescribeHave is what a node has and should not have, for people.
func DescribeHave(drifts []Drift) string {
	var words []string
	for _, dr := range drifts {
		switch {
		case dr.IsStaged():
			words = append(words, fmt.Sprintf("another machine config for its next boot (%s)", dr.By))
			continue
		case dr.Reason == cluster.ConfigDrift:
			words = append(words, "another machine config")
			continue
		}
		word := dr.Has()
		if dr.By != "" {
			word += " (" + dr.By + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// DescribeChange is what changes on a node, for people.
func DescribeChange(drifts []Drift) string {
	var words []string
	for _, dr := range drifts {
		if dr.Reason == cluster.ConfigDrift {
			words = append(words, "its machine config")
			continue
		}
		words = append(words, dr.Change())
	}
	return strings.Join(words, ", ")
}

// Of compares a node with the inventory: its VM, its machine as far as
// Talos lets us see it, and its Node object.
func Of(d cluster.Desired, o cluster.Observed, n cluster.Node, mach cluster.Machine) []Drift {
	out := compareVM(wantSince(d, o, n), n, o.VMs[n.Name])
	if mach.Reach == cluster.Configured {
		out = append(out, OfMachine(d, o, n, mach)...)
		out = append(out, OfStaged(d, n, mach)...)
	}
	if kn, ok := o.Nodes.Value[n.Name]; ok {
		out = append(out, OfMeta(kn.EditsFor(RepositoryNode(d, n).Meta()))...)
	}
	return out
}

// OfMachine compares what a machine runs. Secure Boot comes first and alone: what the inventory has is signed, or
// not, as the machine does not boot it. Then versions do: an older version has another config, too. The kubelet that an upgrade under way gives a node is no such version, for it
// comes with the config. While nodes are between two versions of Kubernetes other extensions are none either, nor is a Talos
// that goes back: they wait for that, which comes with the config.
func OfMachine(d cluster.Desired, o cluster.Observed, n cluster.Node, mach cluster.Machine) []Drift {
	if dr, differs := OfSecureBoot(d, mach); differs {
		return []Drift{dr}
	}
	want := d.Spec.Versions
	if mach.Talos != "" && mach.Talos != want.Talos && !(ladder.IsOlder(want.Talos, mach.Talos) && IsBetweenKubernetes(d)) {
		return []Drift{{Reason: cluster.TalosVersionDrift, Field: FieldTalos, Want: want.Talos, Have: mach.Talos, How: Reboot}}
	}
	if mach.Schematic != "" && d.Schematic != "" && mach.Schematic != d.Schematic && !IsBetweenKubernetes(d) {
		return []Drift{{Reason: cluster.SchematicDrift, Field: FieldSchematic, Want: d.Schematic, Have: mach.Schematic, How: Reboot}}
	}
	if kubelet, drifts := kubeletDrifts(d, o, n); drifts {
		return []Drift{{Reason: cluster.KubernetesDrift, Field: fieldKubernetes, Want: kubelet, Have: o.Nodes.Value[n.Name].Kubelet, How: InPlace}}
	}
	if want := d.Configs[n.Name].Digest; want != "" && mach.ConfigDigest != "" && mach.ConfigDigest != want {
		return []Drift{{Reason: cluster.ConfigDrift, Field: FieldConfig, Want: want, Have: mach.ConfigDigest, How: Reboot}}
	}
	return nil
}

// OfSecureBoot compares how a machine has booted with how it should have. Nothing but a new machine changes that: its
// firmware keeps the keys that it has taken, and what is on its disk was installed for the one or the other.
func OfSecureBoot(d cluster.Desired, mach cluster.Machine) (dr Drift, differs bool) {
	dr = Drift{Reason: cluster.SecureBootDrift, Field: FieldSecureBoot, Want: wantSecureBoot(d), Have: mach.SecureBoot, How: Replace}
	return dr, dr.Have != "" && dr.Have != dr.Want
}

func wantSecureBoot(d cluster.Desired) string {
	if d.Spec.SecureBoot {
		return cluster.OptionOn
	}
	return cluster.OptionOff
}

// OfStaged is what waits for the next boot of a machine that runs the inventory's config.
func OfStaged(d cluster.Desired, n cluster.Node, mach cluster.Machine) []Drift {
	if want := d.Configs[n.Name].Digest; want == "" || mach.ConfigDigest != want || mach.Staged == "" {
		return nil
	}
	return []Drift{{Reason: cluster.ConfigDrift, Field: FieldStaged, Have: "another one", How: InPlace, By: DescribeStaged(mach.StagedSince), Since: mach.StagedSince}}
}

// OfEtcd is that the etcd of a control plane has left the others, and stays stopped until its machine
// boots again (Talos 1.13.9: seen). One that its machine stops when it goes down is none.
func OfEtcd(o cluster.Observed, n cluster.Node) []Drift {
	mach := o.Machines[n.Name]
	isMember := slices.ContainsFunc(o.Members.Value, func(mem cluster.Member) bool { return mem.IsOf(n) })
	if n.Role != cluster.ControlPlane || !o.Members.Known || isMember || mach.Reach != cluster.Configured || mach.Stage != "running" || mach.Services["etcd"].State != "Finished" {
		return nil
	}
	return []Drift{{Reason: cluster.EtcdMemberLost, Field: FieldEtcd, Want: "running", Have: "stopped", How: Reboot}}
}

// hardwareField is one field of a VM that is compared.
type hardwareField struct {
	name cluster.VMField
	of   func(*cluster.Hardware) any
	take func(into, from *cluster.Hardware) // the field, in a forecast
	how  How
}

// compareField is a field of which both are known.
func compareField[T comparable](name cluster.VMField, at func(*cluster.Hardware) *T, how How) hardwareField {
	return hardwareField{name, func(h *cluster.Hardware) any { return *at(h) }, func(into, from *cluster.Hardware) { *at(into) = *at(from) }, how}
}

// hardwareFields are the fields of a VM that are not disks, in the order in which
// their drifts are reported. How is what Proxmox VE and Talos take to change
// them: Talos sees no processor, memory or device come or go while it runs, and
// the firmware decides whether it boots at all. The MAC is part of a machine's
// identity in a DHCP server and in maintenance mode; what a VM boots from, and the
// address on its cloud-init drive, are read when it starts.
//
// PVE 9.2 qemu-server: name, description, tags, onboot, protection and cloud-init options
// of a VM that runs change at once, a network card's bridge and VLAN with its hot-plug,
// all else when it stops.
var hardwareFields = []hardwareField{
	compareField(cluster.FieldCPUType, func(h *cluster.Hardware) *string { return &h.CPUType }, Reboot),
	compareField(cluster.FieldCores, func(h *cluster.Hardware) *int { return &h.Cores }, Reboot),
	compareField(cluster.FieldMemory, func(h *cluster.Hardware) *int64 { return &h.MemoryMiB }, Reboot),
	compareField(cluster.FieldBalloon, func(h *cluster.Hardware) *bool { return &h.Balloon }, Reboot),
	compareField(cluster.FieldMachine, func(h *cluster.Hardware) *string { return &h.Machine }, Reboot),
	compareField(cluster.FieldBIOS, func(h *cluster.Hardware) *string { return &h.BIOS }, Replace),
	compareField(cluster.FieldSCSI, func(h *cluster.Hardware) *string { return &h.SCSIHardware }, Reboot),
	compareField(cluster.FieldModel, func(h *cluster.Hardware) *string { return &h.Model }, Reboot),
	compareField(cluster.FieldMAC, func(h *cluster.Hardware) *string { return &h.MAC }, Refuse),
	compareField(cluster.FieldBridge, func(h *cluster.Hardware) *string { return &h.Bridge }, InPlace),
	compareField(cluster.FieldVLAN, func(h *cluster.Hardware) *int { return &h.VLAN }, InPlace),
	compareField(cluster.FieldLink, func(h *cluster.Hardware) *bool { return &h.LinkDown }, InPlace),
	compareField(cluster.FieldBoot, func(h *cluster.Hardware) *string { return &h.Boot }, NextStart),
	compareField(cluster.FieldAddress, func(h *cluster.Hardware) *string { return &h.Address }, Refuse),
	compareField(cluster.FieldAgent, func(h *cluster.Hardware) *bool { return &h.Agent }, Reboot),
	compareField(cluster.FieldOnBoot, func(h *cluster.Hardware) *bool { return &h.OnBoot }, InPlace),
	compareField(cluster.FieldMedium, func(h *cluster.Hardware) *string { return &h.Medium }, NextStart),
}

// WantHardware is the VM a node of the inventory should have. The values that
// the inventory cannot choose are the ones Talos runs well with on Proxmox VE:
// q35 and OVMF (systemd-boot), and no balloon where it asks for none (Talos does not see memory come and
// go).
func WantHardware(s cluster.Spec, n cluster.Node) cluster.Hardware {
	hw := cluster.Hardware{
		CPUType: n.CPUType, Cores: n.Cores, MemoryMiB: n.MemoryMiB,
		Machine: "q35", BIOS: "ovmf", SCSIHardware: n.SCSIHardware,
		Model: cmp.Or(n.NetworkCard, "virtio"), MAC: n.MAC, Bridge: n.Bridge, VLAN: s.Network.VLAN,
		Boot: cluster.BootSystemDisk, System: cluster.DiskSeen{Datastore: n.Datastore, Bytes: n.DiskBytes},
		Data:  map[string]cluster.DiskSeen{},
		Agent: s.Schematic.GuestAgent(), OnBoot: true, Options: n.Options,
	}
	if s.SecureBoot {
		hw.TPM = cluster.TPMVersion
	}
	hw.Balloon = cmp.Or(n.Options[cluster.FieldBalloonMin], cluster.OptionNone) != cluster.OptionNone
	for _, d := range n.Disks {
		hw.Data[d.Serial] = cluster.DiskSeen{Datastore: d.Datastore, Bytes: d.Bytes}
	}
	if s.Network.ModeOf(n) == cluster.AddressStatic {
		hw.Address = fmt.Sprintf("%s/%d,gw=%s", n.IP, s.Network.CIDR.Bits(), s.Network.Gateway)
		if six := s.Network.IPv6; six.On() && n.IP6.IsValid() {
			hw.Address += fmt.Sprintf(",ip6=%s/%d", n.IP6, six.CIDR.Bits())
			if six.Gateway.IsValid() {
				hw.Address += ",gw6=" + six.Gateway.String()
			}
		}
	}
	return hw
}

// compareVM compares the VM of a node with what it should have. How is of a VM that runs;
// one that is stopped takes everything at once that can be changed at all.
func compareVM(want cluster.Hardware, n cluster.Node, vm cluster.VM) []Drift {
	if !vm.Hardware.Known {
		return nil
	}
	next := vm.Hardware.Value
	active := next
	if vm.Active != nil {
		active = *vm.Active
	}
	out := compareHardware(want, next, active)
	if LacksSystemDisk(vm) { // missingSystemDisk reports it, and there is nothing to boot from
		out = slices.DeleteFunc(out, func(dr Drift) bool { return dr.Field == string(cluster.FieldBoot) })
	} else {
		out = append(out, compareDisks(want, next, vm)...)
	}
	out = append(out, compareTags(n, vm)...)
	if vm.Unmarked {
		out = append(out, Drift{Reason: cluster.HardwareDrift, Field: string(cluster.FieldMark), Want: "the mark of the agent on its first line", Have: "another", How: InPlace})
	}
	if vm.Power == cluster.Stopped {
		for i, dr := range out {
			if dr.How == Reboot || dr.How == NextStart {
				out[i].How = InPlace
			}
		}
	}
	return out
}

// compareHardware compares what is wanted with what a VM has from its next start on, and
// with what it has now. A change that waits for the next start, and should not be
// made, is taken back in place.
func compareHardware(want, next, active cluster.Hardware) []Drift {
	var out []Drift
	for _, f := range hardwareFields {
		how := f.how
		if f.name == cluster.FieldModel && active.Model == "" { // a card can be added as it runs, not exchanged
			how = InPlace
		}
		if dr, differs := compareValue(f.name, how, fmt.Sprint(f.of(&want)), fmt.Sprint(f.of(&next)), fmt.Sprint(f.of(&active))); differs {
			out = append(out, dr)
		}
	}
	if want.TPM != "" { // one that is not asked for is somebody's own, and may hold the key of a disk
		if dr, differs := compareValue(cluster.FieldTPM, Replace, want.TPM, cmp.Or(next.TPM, "none"), cmp.Or(active.TPM, "none")); differs {
			out = append(out, dr)
		}
	}
	return append(out, compareOptions(want, next, active)...)
}

// compareValue compares a field of a VM with what it has from its next start on, and with what it
// has now.
func compareValue(name cluster.VMField, how How, want, later, now string) (dr Drift, differs bool) {
	dr = Drift{Reason: cluster.HardwareDrift, Field: string(name), Want: want, Have: now, How: how}
	switch {
	case want == later && (want == now || how == NextStart):
		return Drift{}, false
	case want == now:
		dr.Have, dr.How = cmp.Or(later, "none")+pendingStart, InPlace
	case want == later:
		dr.How = Reboot
	}
	return dr, true
}

// compareDisks compares disks. Those without a serial of ours are not compared: storage
// drivers plug their own.
func compareDisks(want, have cluster.Hardware, vm cluster.VM) []Drift {
	var out []Drift
	disk := func(name string, w, h cluster.DiskSeen) {
		if w.Datastore != h.Datastore {
			out = append(out, Drift{Reason: cluster.HardwareDrift, Field: name + " datastore", Want: w.Datastore, Have: h.Datastore, How: Refuse})
		}
		if w.Bytes != h.Bytes {
			how := Reboot // Talos grows its partition when it boots
			if w.Bytes < h.Bytes {
				how = Refuse
			}
			out = append(out, Drift{Reason: cluster.HardwareDrift, Field: name + " size", Want: text.GiB(w.Bytes), Have: text.GiB(h.Bytes), How: how})
		}
	}
	disk("system disk", want.System, have.System)
	for _, serial := range slices.Sorted(maps.Keys(want.Data)) {
		h, ok := have.Data[serial]
		if ok {
			disk("disk "+serial, want.Data[serial], h)
			continue
		}
		how := InPlace
		if slices.ContainsFunc(vm.Others, cluster.Drive.Detached) {
			how = Refuse // one of them may be it, and an empty disk in its place would look like it
		}
		out = append(out, Drift{Reason: cluster.HardwareDrift, Field: string(cluster.FieldDisk(serial)), Want: text.GiB(want.Data[serial].Bytes), How: how})
	}
	for _, serial := range slices.Sorted(maps.Keys(have.Data)) {
		if _, ok := want.Data[serial]; !ok {
			out = append(out, Drift{Reason: cluster.HardwareDrift, Field: string(cluster.FieldDisk(serial)), Have: text.GiB(have.Data[serial].Bytes), How: Refuse})
		}
	}
	return out
}

// compareTags compares the tags of a VM. What people add is theirs. One that Proxmox VE
// does not let us tag goes without; Warnings has it.
func compareTags(n cluster.Node, vm cluster.VM) []Drift {
	if vm.Untaggable || !slices.ContainsFunc(n.VMTags(), func(t string) bool { return !hasTag(vm, t) }) {
		return nil
	}
	return []Drift{{Reason: cluster.HardwareDrift, Field: string(cluster.FieldTags), Want: strings.Join(n.VMTags(), ", "), Have: strings.Join(vm.Tags, ", "), How: InPlace}}
}

// hasTag reports whether a VM carries a tag, which Proxmox VE writes in lower case.
func hasTag(vm cluster.VM, tag string) bool {
	return slices.ContainsFunc(vm.Tags, func(t string) bool { return strings.EqualFold(t, tag) })
}

// orReplace is the way out that every node has which cannot be what the inventory has. The only
// control plane gets no new machine.
func orReplace(s cluster.Spec, n cluster.Node) string {
	const replace = " give it another `replace` in nodes.yaml: it gets a new machine, and what is on its disks is lost"
	if s.IsOnlyPlane(n) {
		return "; or add two control planes, and then" + replace
	}
	return "; or" + replace
}

// HintOfReserved is what may keep a node from its address where a DHCP server gives that: no VM
// shows which one it has, so that another ip in the inventory is not seen. "" where the VM has
// its address.
func HintOfReserved(s cluster.Spec, f cluster.Facts, n cluster.Node) string {
	if s.Network.ModeOf(n) != cluster.AddressReserved {
		return ""
	}
	hint := fmt.Sprintf("; does the DHCP server give %s to %s?", n.IP, n.MAC)
	if _, was := f.Settled[n.Name]; was {
		hint += " If its ip was changed in nodes.yaml, undo that" + orReplace(s, n)
	}
	return hint
}

// Refusal is the block for a drift that is not corrected, with what to do instead.
func (dr Drift) Refusal(d cluster.Desired, o cluster.Observed, n cluster.Node) cluster.Block {
	s := d.Spec
	b := cluster.Block{Subject: n.Name, Reason: dr.Reason, About: dr.Field}
	switch {
	case dr.Reason == cluster.TalosVersionDrift:
		b.Message = fmt.Sprintf("it runs Talos %s, and the inventory has %s", dr.Have, dr.Want)
		b.Hint = hintOfUpgrade(d, o, "talos_version", dr.Have)
		return b
	case dr.Reason == cluster.SecureBootDrift:
		b.Message = fmt.Sprintf("it has booted with Secure Boot %s, and the inventory has it %s; it gets no config and no other Talos", dr.Have, dr.Want)
		b.Hint = "undo the change of talos.secureboot" + orReplace(s, n)
		return b
	case dr.Reason == cluster.KubernetesDrift && dr.Want != d.Repository().Spec.Versions.Kubernetes:
		b.Message = fmt.Sprintf("its kubelet is %s, and on the way of an upgrade it would be %s now; no node gets an older one", dr.Have, dr.Want)
		b.Hint = "give it the kubelet of the other nodes by hand: the image in its machine config, with `talosctl -n " + n.IP.String() + " edit machineconfig`"
		return b
	case dr.Reason == cluster.KubernetesDrift:
		b.Message = fmt.Sprintf("it runs Kubernetes %s, and the inventory has %s", dr.Have, dr.Want)
		b.Hint = hintOfUpgrade(d, o, "kubernetes_version", dr.Have)
		return b
	case dr.IsUncompared():
		b.Message = "its machine config is " + uncompared
		b.Hint = "`talos-agent diff` shows how it differs from the one for the versions of the inventory"
		return b
	case dr.Reason == cluster.ConfigDrift:
		b.Message = "its machine config is not the inventory's for the versions that it runs"
		if dr.Want == givenConfig {
			b.Message = "its machine config is not " + givenConfig + DescribeConfigEdit(dr.Since)
		}
		b.Message += "; it is left while its versions are not those of the inventory"
		b.Hint = "undo the edit with talosctl; it is corrected, too, once the node has the versions of the inventory"
		return b
	}
	b.Message = fmt.Sprintf("vm %d has %s, and the inventory has %s", n.VMID, dr.Has(), dr.Wants())
	replace := orReplace(s, n)
	b.Hint = "undo the change in the repository, or change the vm by hand to match" + replace
	switch {
	case dr.Field == string(cluster.FieldAddress):
		b.Message += ", which is not changed on a machine that runs"
		b.Hint = "undo the change: a machine's address is in its config and in etcd, too" + replace
	case dr.Field == string(cluster.FieldTPM):
		b.Message += ", which Secure Boot takes"
		b.Hint = fmt.Sprintf("undo the change in the repository, or give it one by hand, with the vm stopped: `qm set %d --tpmstate0 %s:1,version=%s`", n.VMID, n.Datastore, cluster.TPMVersion) + replace
	case strings.HasSuffix(dr.Field, " size"):
		b.Message += ": disks are not made smaller"
		b.Hint = "write the size that it has into the inventory" + replace
	case strings.HasSuffix(dr.Field, " datastore"):
		b.Message += ": disks are not moved"
		b.Hint = "undo the change in the repository, or move the disk by hand: `qm disk move`" + replace
	case dr.Want == "":
		b.Message += ": a disk is never removed"
		b.Hint = "put it back into the inventory, or remove it by hand" + replace
	case dr.Have == "":
		b.Message += ": volumes of the vm are detached, and one of them may be it"
		b.Hint = fmt.Sprintf("attach it again with `serial=%s`, or remove the detached volumes of the vm if nothing on them is needed", strings.TrimPrefix(dr.Field, "disk "))
	default:
		b.Message += ", which is not changed on a vm that is there"
	}
	return b
}

// Take gives a VM what it should have of some fields, as it has it from its next start
// on.
func Take(s cluster.Spec, n cluster.Node, vm *cluster.VM, fields []cluster.VMField) {
	want, next := WantHardware(s, n), vm.Hardware.Value
	next.Data = maps.Clone(next.Data)
	next.Options = takeOptions(n, next.Options, fields)
	for _, field := range fields {
		for _, f := range hardwareFields {
			if f.name == field {
				f.take(&next, &want)
			}
		}
		for serial, disk := range want.Data {
			if field == cluster.FieldDisk(serial) || field == cluster.FieldDiskSize(serial) {
				next.Data[serial] = disk
			}
		}
		switch field {
		case cluster.FieldSystemSize:
			next.System = want.System
		case cluster.FieldTags:
			vm.Tags = WithTags(*vm, n)
		case cluster.FieldMark:
			vm.Unmarked = false
		}
	}
	vm.Hardware.Value = next
	if vm.Active != nil && len(compareHardware(want, next, *vm.Active)) == 0 {
		vm.Active = nil
	}
}

// WithTags are the tags of a VM and those of its node.
func WithTags(vm cluster.VM, n cluster.Node) []string {
	n.Tags = append(n.Tags[:len(n.Tags):len(n.Tags)], vm.Tags...)
	return n.VMTags()
}
