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
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// What differs, each with from what to what, since when, and by whom where that is known. The
// planner's blocks and a comparison have it from here, so that they cannot disagree.

// The names of what differs as a whole.
const (
	FieldVM         = "vm"
	FieldPool       = "pool"
	fieldObject     = "node object"
	fieldRelease    = "release"
	FieldChart      = "chart version"
	FieldValues     = "values"
	FieldConfig     = "machine config"
	FieldTalos      = "talos version"
	FieldSchematic  = cluster.FieldSchematic
	FieldSecureBoot = "secure boot"
	fieldKubernetes = "kubernetes version"
	FieldStaged     = "staged machine config"
	FieldPower      = "power"
	FieldReplace    = "replace"
	FieldSystemDisk = "system disk"
	FieldRollback   = "booted Talos"
	FieldEtcd       = "etcd"
)

// Describe is drifts of a node for people and programs.
func Describe(d cluster.Desired, o cluster.Observed, n cluster.Node, drifts []Drift) []cluster.FieldDifference {
	var out []cluster.FieldDifference
	for _, dr := range drifts {
		f := cluster.FieldDifference{Field: dr.Field, Has: cmp.Or(dr.Have, "none"), Wants: dr.Wants(), How: string(dr.How), By: dr.By, Since: dr.Since}
		if takesNoReboot(d, o, n, dr) {
			f.How = string(InPlace)
		}
		if has, wants := o.Machines[n.Name].Summary, d.Repository().Configs[n.Name]; dr.Field == FieldConfig && dr.Want == wants.Digest && OnlyComponents(has, wants.Summary) {
			f.Has, f.Wants = describeVersions(ComponentsOf(has.Images, wants.Summary.Images))
		}
		switch {
		case dr.By != "" || !OriginOf(d, o, n, dr.Field).Edited:
		case dr.Reason == cluster.HardwareDrift:
			f = setBy(o, n.Name, f)
		case dr.Reason == cluster.ConfigDrift:
			f.By, f.Since = byConfigEdit, o.Machines[n.Name].ConfigSince
		}
		out = append(out, seenSince(o, n.Name, partOf(dr), f))
	}
	return out
}

// takesNoReboot reports whether a machine is known to take its config while it runs: it was asked, or the config
// differs in the images of Kubernetes alone, as in an upgrade of that.
func takesNoReboot(d cluster.Desired, o cluster.Observed, n cluster.Node, dr Drift) bool {
	mach, config := o.Machines[n.Name], d.Repository().Configs[n.Name]
	switch {
	case dr.Field != FieldConfig || dr.How != Reboot || dr.Want != config.Digest:
		return false
	case mach.Change != nil && mach.Change.For == dr.Want && mach.Change.Refused == "":
		return !mach.Change.Reboots
	}
	return mach.Summary.OnlyImages(config.Summary)
}

// partOf is the part of a node that a drift is of.
func partOf(dr Drift) cluster.Part {
	switch dr.Reason {
	case cluster.HardwareDrift:
		return cluster.PartVM
	case "":
		return cluster.PartObject
	}
	return cluster.PartMachine
}

// seenSince is a difference with since when it was seen, where the world does not show since
// when it is there.
func seenSince(o cluster.Observed, subject string, part cluster.Part, f cluster.FieldDifference) cluster.FieldDifference {
	if f.Since.IsZero() {
		note, seen := o.DriftNotes[cluster.DriftKey{Subject: subject, Part: part, Field: f.Field}]
		if f.Since = note.Since; !seen {
			f.Since = o.Now
		}
	}
	f.Since = plausible(f.Since, o.Now).UTC()
	return f
}

// plausible is a time that a node, or whoever may write in the cluster, has named: not in the
// future, and none that JSON has no form for.
func plausible(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	if earliest := time.Unix(0, 0); t.Before(earliest) {
		return earliest
	}
	return t
}

// IsTakenOut reports whether the VM of a node is in another pool, or in none, where the agent does not see
// it: what has its VMID is not shown, and the machine of the node, which was as the inventory had it, still
// answers and proves to be its own.
func IsTakenOut(o cluster.Observed, n cluster.Node) bool {
	vm := o.VMs[n.Name]
	return vm.Presence == cluster.Present && vm.Owner == cluster.Foreign && !vm.Moved && !vm.Disproven && o.Facts.Settled[n.Name] != "" && o.Machines[n.Name].Reach == cluster.Configured
}

// OfPlace compares what has the VMID of a node with the VM that should: none where that is not
// known, and where it is the node's own.
func OfPlace(d cluster.Desired, o cluster.Observed, n cluster.Node) []cluster.FieldDifference {
	vm := o.VMs[n.Name]
	f := cluster.FieldDifference{Field: FieldVM, Wants: fmt.Sprintf("vm %d", n.VMID)}
	switch {
	case vm.Presence == cluster.Absent:
		f.Has = "none"
	case vm.Presence == cluster.PresenceUnknown, vm.Owner == cluster.OwnerUnknown:
		return nil
	case vm.Moved, IsTakenOut(o, n):
		has := "another, or none"
		if vm.Moved {
			has = cmp.Or(vm.Pool, "none")
		}
		f = cluster.FieldDifference{Field: FieldPool, Has: has, Wants: cmp.Or(n.Pool, "none"), How: string(Refuse)}
	case vm.Owner == cluster.Foreign:
		f.Has = "one that is not the agent's: " + vm.Why
	case vm.Deleting:
		f.Has = "one that is being deleted"
	default:
		return nil
	}
	if f.Field == FieldPool && !OriginOf(d, o, n, FieldPool).Edited { // the inventory may have another pool
		return []cluster.FieldDifference{seenSince(o, n.Name, cluster.PartVM, f)}
	}
	return []cluster.FieldDifference{seenSince(o, n.Name, cluster.PartVM, setBy(o, n.Name, f))}
}

// OfOwnVM compares a VM that is a node's own with the one that the inventory has.
func OfOwnVM(d cluster.Desired, o cluster.Observed, n cluster.Node) []cluster.FieldDifference {
	vm := o.VMs[n.Name]
	out := Describe(d, o, n, OfNodeVM(d, o, n, vm))
	note := func(f cluster.FieldDifference) {
		out = append(out, seenSince(o, n.Name, cluster.PartVM, setBy(o, n.Name, f)))
	}
	if LacksSystemDisk(vm) {
		note(cluster.FieldDifference{Field: FieldSystemDisk, Has: "none", Wants: "one with the serial " + cluster.SystemDiskSerial})
	}
	if IsReplaced(n, vm, o.Facts) { // another token is the inventory's own change
		out = append(out, seenSince(o, n.Name, cluster.PartVM, cluster.FieldDifference{Field: FieldReplace, Has: cmp.Or(vm.Replace, "none"), Wants: n.Replace, How: string(Replace)}))
	} else if IsRestored(n, vm, o.Facts) {
		note(cluster.FieldDifference{Field: FieldReplace, Has: cmp.Or(vm.Replace, "none"), Wants: n.Replace, How: string(Refuse)})
	}
	switch vm.Power {
	case cluster.Stopped:
		note(cluster.FieldDifference{Field: FieldPower, Has: "stopped", Wants: "running"})
	case cluster.Paused:
		note(cluster.FieldDifference{Field: FieldPower, Has: "paused", Wants: "running"})
	}
	return out
}

// OfObject compares the Node object of a node, where the nodes of Kubernetes are seen.
func OfObject(d cluster.Desired, o cluster.Observed, n cluster.Node) []cluster.FieldDifference {
	kn, there := o.Nodes.Value[n.Name]
	switch {
	case !o.Nodes.Known:
		return nil
	case !there:
		return []cluster.FieldDifference{seenSince(o, n.Name, cluster.PartObject, cluster.FieldDifference{Field: fieldObject, Has: "none", Wants: "one"})}
	}
	return Describe(d, o, n, OfMeta(kn.EditsFor(RepositoryNode(d, n).Meta())))
}

// OfRunning compares what the machine of a node runs, etcd included, and what waits for its next boot.
func OfRunning(d cluster.Desired, o cluster.Observed, n cluster.Node) []cluster.FieldDifference {
	switch mach := o.Machines[n.Name]; mach.Reach {
	case cluster.Configured:
		out := Describe(d, o, n, slices.Concat(OfWholeMachine(d, o, n, mach), OfStaged(d.Repository(), n, mach), OfEtcd(o, n)))
		if role := mach.Summary.Role; role != "" && role != n.Role {
			out = append(out, OfRole(o, n, role))
		}
		return out
	case cluster.Maintenance:
		out := []cluster.FieldDifference{seenSince(o, n.Name, cluster.PartMachine, cluster.FieldDifference{Field: FieldConfig, Has: "none: it is in maintenance mode", Wants: "one"})}
		if dr, differs := OfSecureBoot(d, mach); differs {
			out = append(out, Describe(d, o, n, []Drift{dr})...)
		}
		return out
	}
	return nil
}

// OfRole is a node that runs in another role than the inventory has it in.
func OfRole(o cluster.Observed, n cluster.Node, has cluster.Role) cluster.FieldDifference {
	return seenSince(o, n.Name, cluster.PartMachine, cluster.FieldDifference{Field: "role", Has: string(has), Wants: string(n.Role), How: string(Refuse)})
}

// OfNode is what differs of one part of a node, as far as it is seen.
func OfNode(d cluster.Desired, o cluster.Observed, n cluster.Node, part cluster.Part) []cluster.FieldDifference {
	vm := o.VMs[n.Name]
	switch place := OfPlace(d, o, n); {
	case part == cluster.PartObject:
		return OfObject(d, o, n)
	case part == cluster.PartMachine && len(place) == 0:
		return OfRunning(d, o, n)
	case part == cluster.PartVM && len(place) == 0 && vm.Owner == cluster.Ours:
		return OfOwnVM(d, o, n)
	case part == cluster.PartVM:
		return place
	}
	return nil
}

// OrphanObjects are the Node objects that are no node's of the inventory, by name.
func OrphanObjects(d cluster.Desired, o cluster.Observed) []cluster.KubeNode {
	var out []cluster.KubeNode
	for _, name := range slices.Sorted(maps.Keys(o.Nodes.Value)) {
		if _, ok := d.Spec.Node(name); !ok {
			kn := o.Nodes.Value[name]
			kn.Name = name
			out = append(out, kn)
		}
	}
	return out
}

// OrphanMembers are the members of etcd that are no control plane's of the inventory, and those
// of which it is not known which of several is a control plane's own.
func OrphanMembers(d cluster.Desired, o cluster.Observed) []cluster.Member {
	var out []cluster.Member
	for _, mem := range o.Members.Value {
		if owner, sure := quorum.OwnerOf(o.Members.Value, mem, d.Spec.ControlPlanes()); owner == "" || !sure {
			out = append(out, mem)
		}
	}
	return out
}

// OfOrphanObject is a Node object that is no node's of the inventory.
func OfOrphanObject(o cluster.Observed, kn cluster.KubeNode) cluster.FieldDifference {
	has := "one that is Ready"
	if !kn.Ready {
		has = "one that is NotReady"
	}
	if !kn.Created.IsZero() {
		has += ", made at " + text.Moment(kn.Created)
	}
	return seenSince(o, kn.Name, cluster.PartObject, cluster.FieldDifference{Field: fieldObject, Has: has, Wants: "none"})
}

// OfMember is a member of etcd that the inventory has no control plane for, or one too many.
func OfMember(o cluster.Observed, mem cluster.Member) cluster.FieldDifference {
	has := fmt.Sprintf("%s at %s", cmp.Or(mem.Name, "one without a name"), cmp.Or(mem.Address, "no address"))
	return seenSince(o, mem.HexID(), cluster.PartMember, cluster.FieldDifference{Field: fieldMember(mem), Has: has, Wants: "none"})
}

func fieldMember(mem cluster.Member) string { return "etcd member " + mem.HexID() }

// OfOrphanVM is a VM of a node that the inventory does not have, or has with another VMID.
func OfOrphanVM(d cluster.Desired, o cluster.Observed, vm cluster.VM) cluster.FieldDifference {
	f := cluster.FieldDifference{Field: FieldVM, Has: fmt.Sprintf("vm %d", vm.VMID), Wants: "none"}
	if n, ok := d.Spec.Node(vm.Node); ok && n.VMID != vm.VMID {
		f = cluster.FieldDifference{Field: "vmid", Has: fmt.Sprint(vm.VMID), Wants: fmt.Sprint(n.VMID), How: string(Refuse)}
	}
	return seenSince(o, cmp.Or(vm.Node, vm.Name), cluster.PartVM, f)
}

// OfAddon compares the release of an addon, where the releases are seen.
func OfAddon(o cluster.Observed, a cluster.Addon) []cluster.FieldDifference {
	rel, there := o.Releases.Value[a.Name]
	var out []cluster.FieldDifference
	note := func(field, has, wants string) {
		if has != wants {
			out = append(out, ofRelease(o, a, cluster.FieldDifference{Field: field, Has: cmp.Or(has, "none"), Wants: cmp.Or(wants, "none")}))
		}
	}
	switch {
	case !o.Releases.Known:
	case !there || rel.Namespace != a.Namespace:
		note(fieldRelease, "", a.Chart.Ref())
	case rel.Digest == "" && a.Ownership == cluster.Managed:
		note(fieldRelease, "one that is not the agent's", "its own")
	case o.IsOurs(a):
		note("status", rel.Status, "deployed")
		out = append(out, OfRelease(o, a)...)
	}
	return out
}

// OfRelease compares what a release of ours was made of.
func OfRelease(o cluster.Observed, a cluster.Addon) []cluster.FieldDifference {
	rel, chart := o.Releases.Value[a.Name], o.Charts[a.Name]
	var out []cluster.FieldDifference
	note := func(field, has, wants string) {
		out = append(out, ofRelease(o, a, cluster.FieldDifference{Field: field, Has: has, Wants: wants}))
	}
	if has, wants := rel.Version, a.Chart.Version; has != "" && wants != "" && strings.TrimPrefix(has, "v") != strings.TrimPrefix(wants, "v") {
		note(FieldChart, has, wants)
	}
	if rel.OtherValues != "" {
		note(FieldValues, "others at "+rel.OtherValues, "those of the inventory")
	}
	if len(out) == 0 && (rel.Edited || chart.Known && rel.Digest != chart.Value.Release) {
		note("digest of chart and values", rel.Digest, cmp.Or(chart.Value.Release, "that of the inventory"))
	}
	return out
}

// ofRelease is a difference of a release, since it was written where somebody else has done
// that.
func ofRelease(o cluster.Observed, a cluster.Addon, f cluster.FieldDifference) cluster.FieldDifference {
	if rel := o.Releases.Value[a.Name]; rel.Edited {
		f.By, f.Since = rel.EditedBy, rel.Changed
	}
	return seenSince(o, a.Name, cluster.PartRelease, f)
}

// OfObjects are the objects of a release of ours that somebody else has deleted or changed.
func OfObjects(o cluster.Observed, a cluster.Addon) []cluster.FieldDifference {
	has := o.Releases.Value[a.Name].ToPutBack()
	if has == "" {
		return nil
	}
	return []cluster.FieldDifference{seenSince(o, a.Name, cluster.PartRelease, cluster.FieldDifference{Field: "objects", Has: has, Wants: "as the release has them"})}
}

// OfLeft is a release of ours that no addon has.
func OfLeft(o cluster.Observed, left cluster.LeftRelease) cluster.FieldDifference {
	return seenSince(o, left.String(), cluster.PartRelease, cluster.FieldDifference{Field: fieldRelease, Has: left.String(), Wants: "none"})
}

// OfNamespace compares what the namespace of an addon has with what its addons ask for, where
// it is there.
func OfNamespace(d cluster.Desired, o cluster.Observed, a cluster.Addon) []cluster.FieldDifference {
	have, there := o.Namespaces[a.Namespace]
	if !there || a.Ownership != cluster.Managed {
		return nil
	}
	var out []cluster.FieldDifference
	want := d.Spec.Namespace(a.Namespace)
	note := func(what string, has, wants map[string]string) {
		if !maps.Equal(has, wants) {
			f := cluster.FieldDifference{Field: what + " of namespace " + a.Namespace, Has: cmp.Or(formatPairs(has), "none"), Wants: cmp.Or(formatPairs(wants), "none")}
			out = append(out, seenSince(o, a.Name, cluster.PartRelease, f))
		}
	}
	note("labels", have.Labels, want.Labels)
	note("annotations", have.Annotations, want.Annotations)
	return out
}

func formatPairs(pairs map[string]string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		words = append(words, key+"="+pairs[key])
	}
	return strings.Join(words, ", ")
}

// Notes are what is to be noted of all that differs: since when, and of VMs who made it so.
// What was noted before stays while it has the same and nothing more is known.
func Notes(d cluster.Desired, o cluster.Observed) map[cluster.DriftKey]cluster.DriftNote {
	out := map[cluster.DriftKey]cluster.DriftNote{}
	note := func(subject string, part cluster.Part, fields ...cluster.FieldDifference) {
		for _, f := range fields {
			key, now := cluster.DriftKey{Subject: subject, Part: part, Field: f.Field}, cluster.DriftNote{Since: f.Since}
			if part == cluster.PartVM {
				now.By, now.Has = f.By, hashHas(f.Has)
			}
			if before, noted := o.DriftNotes[key]; noted && before.By == now.By && before.Has == now.Has {
				now = before
			}
			out[key] = now
		}
	}
	for _, n := range d.Spec.Nodes {
		for _, part := range []cluster.Part{cluster.PartVM, cluster.PartMachine, cluster.PartObject} {
			note(n.Name, part, OfNode(d, o, n, part)...)
		}
	}
	if d.Repository().Held != "" {
		note(d.Spec.Name, cluster.PartMachine, OfWay(d, o)...)
	}
	for _, vm := range o.Orphans.Value {
		note(cmp.Or(vm.Node, vm.Name), cluster.PartVM, OfOrphanVM(d, o, vm))
	}
	for _, kn := range OrphanObjects(d, o) {
		note(kn.Name, cluster.PartObject, OfOrphanObject(o, kn))
	}
	for _, mem := range OrphanMembers(d, o) {
		note(mem.HexID(), cluster.PartMember, OfMember(o, mem))
	}
	for _, a := range d.Repository().Spec.Addons {
		note(a.Name, cluster.PartRelease, slices.Concat(OfAddon(o, a), OfObjects(o, a), OfNamespace(d, o, a))...)
	}
	for _, left := range o.Left {
		note(left.String(), cluster.PartRelease, OfLeft(o, left))
	}
	return out
}

// IsUnseen reports whether it is not known now whether something still differs.
func IsUnseen(d cluster.Desired, o cluster.Observed, key cluster.DriftKey) bool {
	_, isNode := d.Spec.Node(key.Subject)
	switch vm := o.VMs[key.Subject]; key.Part {
	case cluster.PartVM:
		return isNode && (vm.Presence == cluster.PresenceUnknown || vm.Presence == cluster.Present && (vm.Owner == cluster.OwnerUnknown || vm.Owner == cluster.Ours && !vm.Hardware.Known)) || !isNode && !o.Orphans.Known
	case cluster.PartMachine:
		reach := o.Machines[key.Subject].Reach
		unnamed := key.Field == FieldSchematic && d.Repository().Schematic == "" // the image factory has not answered since the agent started
		return isNode && vm.Presence != cluster.Absent && (unnamed || reach != cluster.Configured && reach != cluster.Maintenance)
	case cluster.PartObject:
		return !o.Nodes.Known
	case cluster.PartMember:
		return !o.Members.Known
	}
	return !o.Releases.Known
}
