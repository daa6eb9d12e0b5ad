package drift

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// What the inventory had of a node is kept field by field, so that a change of one of them
// does not make an edit of another look like a change.

// Origin is who made a field of a node differ from the inventory. Of a machine config, which is
// one text, both may have.
type Origin struct {
	// Known: it was seen before that the node had what the inventory had.
	Known bool
	// Edited: somebody else has set what the node has.
	Edited bool
	// Pushed: the inventory has another value than it had then.
	Pushed bool
	// Begun: the agent has begun to give the node the value that the inventory has.
	Begun bool
}

// EditedOnly reports whether the inventory has what it had, and the node does not any more.
func (o Origin) EditedOnly() bool { return o.Edited && !o.Pushed }

// fieldGiven is what the agent has begun to give of a field, until the node is seen to have
// what the inventory has of it.
func fieldGiven(field string) string { return "given " + field }

// fieldMeanwhile is the machine config that the agent gives a node on the way to that of the
// inventory, until the node is seen to run that.
const fieldMeanwhile = "meanwhile " + FieldConfig

// settled is what the inventory had of a node, by field: of names and values digests.
type settled map[string]string

// settledMark begins the text of settled. Without it the text is one digest of all that the
// inventory had (journals up to version 8).
const settledMark = "="

// hashLength is the length of a digest in the text. They are compared with what the same
// repository has; 24 bits are enough to see a change.
const hashLength = 4

func hashField(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:3])
}

// decodeSettled reads what encode wrote; nil where a text is something else.
func decodeSettled(text string) settled {
	fields, ok := cutSettled(text)
	if !ok {
		return nil
	}
	out := settled{}
	for rest := string(fields); rest != ""; rest = rest[2*hashLength:] {
		out[rest[:hashLength]] = rest[hashLength : 2*hashLength]
	}
	return out
}

// settledFields is the text of settled behind its mark, to look up a few fields in, which takes less than to decode it.
type settledFields string

// cutSettled is the fields of what encode wrote; false where a text is something else.
func cutSettled(text string) (fields settledFields, ok bool) {
	rest, ok := strings.CutPrefix(text, settledMark)
	return settledFields(rest), ok && len(rest)%(2*hashLength) == 0
}

// find is the digest of what a field had, and whether it had anything.
func (s settledFields) find(field string) (hash string, there bool) {
	name := hashField(field)
	for rest := string(s); rest != ""; rest = rest[2*hashLength:] {
		if rest[:hashLength] == name {
			return rest[hashLength : 2*hashLength], true
		}
	}
	return "", false
}

// has reports whether a field had a value.
func (s settledFields) has(field, value string) bool {
	hash, _ := s.find(field)
	return hash == hashField(value)
}

// encode writes it for the journal, the same always.
func (s settled) encode() string {
	var b strings.Builder
	b.WriteString(settledMark)
	for _, name := range slices.Sorted(maps.Keys(s)) {
		b.WriteString(name + s[name])
	}
	return b.String()
}

// has reports whether a field had a value.
func (s settled) has(field, value string) bool { return s[hashField(field)] == hashField(value) }

func (s settled) set(field, value string) { s[hashField(field)] = hashField(value) }

// wantFields is what the inventory has of a node, by field, in the names of drifts; without
// the machine config while that is not known.
func wantFields(d cluster.Desired, n cluster.Node) map[string]string {
	hw := WantHardware(d.Spec, n)
	out := map[string]string{FieldReplace: n.Replace, FieldPool: n.Pool, string(cluster.FieldTags): strings.Join(n.VMTags(), ","),
		"system disk datastore": hw.System.Datastore, string(cluster.FieldSystemSize): fmt.Sprint(hw.System.Bytes)}
	maps.Copy(out, wantOfMachine(d, n))
	for _, f := range hardwareFields {
		out[string(f.name)] = fmt.Sprint(f.of(&hw))
	}
	if hw.TPM != "" {
		out[string(cluster.FieldTPM)] = hw.TPM
	}
	for field, value := range hw.Options {
		out[string(field)], out[fieldOptions] = value, ""
	}
	for serial, disk := range hw.Data {
		name := string(cluster.FieldDisk(serial))
		out[name], out[name+" datastore"], out[name+" size"] = "", disk.Datastore, fmt.Sprint(disk.Bytes)
	}
	meta := RepositoryNode(d, n).Meta()
	for kind, values := range map[cluster.MetaKind]map[string]string{cluster.MetaLabel: meta.Labels, cluster.MetaTaint: meta.Taints, cluster.MetaAnnotation: meta.Annotations} {
		for key, value := range values {
			out[cluster.MetaEdit{Kind: kind, Key: key}.Field()] = value
		}
	}
	return out
}

// wantOfMachine is what the inventory has of what the machine of a node runs, by field, as far as it is known.
func wantOfMachine(d cluster.Desired, n cluster.Node) map[string]string {
	asked := d.Repository()
	out := map[string]string{FieldTalos: asked.Spec.Versions.Talos}
	if asked.Spec.SecureBoot {
		out[FieldSecureBoot] = cluster.OptionOn
	}
	if cfg := asked.Configs[n.Name]; cfg.Digest != "" {
		out[FieldConfig] = cfg.Digest
	}
	if asked.Schematic != "" {
		out[FieldSchematic] = asked.Schematic
	}
	return out
}

// wantField is what the inventory has of one field of a node, and whether it has it. Those of machines are asked
// for in every pass, and take none of the others.
func wantField(d cluster.Desired, n cluster.Node, field string) (want string, wanted bool) {
	if field == FieldConfig || field == FieldTalos || field == FieldSchematic || field == FieldSecureBoot {
		want, wanted = wantOfMachine(d, n)[field]
		return want, wanted
	}
	want, wanted = wantFields(d, n)[field]
	return want, wanted
}

// Settle is what to keep of a node: of each field what the inventory has where the node is
// seen to have the same, else what it had before. whole: the node works, and all of it is
// seen. A node of which nothing was kept is kept when it is whole and nothing differs. ""
// while there is nothing to keep.
func Settle(d cluster.Desired, o cluster.Observed, n cluster.Node, whole bool) string {
	before, mach := o.Facts.Settled[n.Name], o.Machines[n.Name]
	if slices.ContainsFunc(o.Running, func(r cluster.Running) bool { return r.Node == n.Name }) {
		return before // what is seen may be from before the action
	}
	was, want, drifts := decodeSettled(before), wantFields(d, n), Of(d.Repository(), o, n, mach)
	if whole && len(drifts) == 0 && want[FieldConfig] != "" {
		was = settled{} // what older agents wrote ends here, too
	}
	if was == nil {
		return before
	}
	out, differs := settled{}, map[string]bool{}
	keep := func(fields ...string) {
		for _, field := range fields {
			if value, ok := was[hashField(field)]; ok {
				out[hashField(field)] = value
			}
		}
	}
	for _, dr := range drifts {
		differs[dr.Field] = true
		keep(dr.Field, fieldGiven(dr.Field)) // the inventory may have it no more
	}
	keep(FieldConfig, fieldOptions)
	if differs[FieldConfig] || !isSeen(o, n, FieldConfig, want[FieldConfig], whole) {
		keep(fieldMeanwhile)
	}
	for field, value := range want {
		if differs[field] || !isSeen(o, n, field, value, whole) {
			keep(field, fieldGiven(field))
			continue
		}
		out.set(field, value)
	}
	if want[FieldConfig] == "" || mach.Staged != "" {
		keep(fieldGiven(FieldConfig))
	}
	return out.encode()
}

// isSeen reports whether a field of a node that does not differ is seen to be as the inventory
// has it.
func isSeen(o cluster.Observed, n cluster.Node, field, want string, whole bool) bool {
	vm, mach := o.VMs[n.Name], o.Machines[n.Name]
	_, there := o.Nodes.Value[n.Name]
	switch {
	case field == FieldReplace: // a new machine has its token before it works
		return whole
	case field == FieldConfig:
		return mach.Reach == cluster.Configured && mach.ConfigDigest == want
	case field == FieldTalos:
		return mach.Reach == cluster.Configured && mach.Talos == want
	case field == FieldSchematic:
		return mach.Reach == cluster.Configured && mach.Schematic == want
	case field == FieldSecureBoot:
		return mach.Reach == cluster.Configured && mach.SecureBoot == want
	case isMeta(field):
		return o.Nodes.Known && there
	}
	return vm.Presence == cluster.Present && vm.Owner == cluster.Ours && !vm.Deleting && vm.Hardware.Known && !LacksSystemDisk(vm)
}

// isMeta reports whether a field is a label, a taint or an annotation of the Node object.
func isMeta(field string) bool {
	kind, _, _ := strings.Cut(field, " ")
	return kind == string(cluster.MetaLabel) || kind == string(cluster.MetaTaint) || kind == string(cluster.MetaAnnotation)
}

// Begin is what to keep of a node before the agent gives it some fields that the inventory
// has changed: whatever the node has of them from then on may be the agent's own work. What
// somebody has edited stays known as that. meanwhile is the digest of a machine config that it
// gives it before that of the inventory, "" for none.
func Begin(d cluster.Desired, f cluster.Facts, n cluster.Node, fields []string, meanwhile string) string {
	before := f.Settled[n.Name]
	out, want := decodeSettled(before), wantFields(d, n)
	if out == nil {
		return before
	}
	for _, field := range fields {
		if value, ok := want[field]; ok && !out.has(field, value) {
			out.set(fieldGiven(field), value)
		}
	}
	if len(n.Options) > 0 {
		out.set(fieldOptions, "")
	}
	if meanwhile != "" {
		out.set(fieldMeanwhile, meanwhile)
	}
	return out.encode()
}

// OriginOf is who made a field of a node differ.
func OriginOf(d cluster.Desired, o cluster.Observed, n cluster.Node, field string) Origin {
	text, known := o.Facts.Settled[n.Name]
	if !known {
		return Origin{}
	}
	had, isFields := cutSettled(text)
	if !isFields {
		same := text == WantDigest(d, n)
		return Origin{Known: true, Edited: same, Pushed: !same, Begun: !same}
	}
	want, wanted := wantField(d, n, field)
	out, mach := Origin{Known: true, Begun: had.has(fieldGiven(field), want)}, o.Machines[n.Name]
	switch given, begun := had.find(fieldGiven(field)); {
	case field == FieldStaged:
		out.Pushed = had.has(fieldGiven(FieldConfig), mach.Staged)
		out.Edited, out.Begun = !out.Pushed, out.Pushed
	case field == FieldRollback: // root has ordered it
	case field == string(cluster.FieldMedium): // a new machine has one, whatever an earlier one had
	case field == string(cluster.FieldMark): // the inventory has no other
		out.Edited = true
	case field == FieldConfig:
		ours := begun && given == hashField(mach.ConfigDigest) || had.has(fieldMeanwhile, mach.ConfigDigest)
		out.Edited = !ours && !had.has(field, mach.ConfigDigest)
		out.Pushed = ours || !had.has(field, want)
	case wanted:
		out.Pushed = begun || !had.has(field, want)
		out.Edited = !out.Pushed
	case isMeta(field): // it is taken back, unless somebody has changed it
		out.Pushed = true
	default:
		_, seen := had.find(field)
		out.Pushed = seen || begun
		out.Edited = !out.Pushed
	}
	return out
}
