package rendering

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// Asked is what was asked for a comparison, besides what is observed for every plan.
type Asked struct {
	Configs  map[string]cluster.Seen[cluster.Secret]    // that run, by node
	Releases map[string]cluster.Seen[cluster.Installed] // by addon
}

// comparison is one run of Compare.
type comparison struct {
	d, repository cluster.Desired
	o             cluster.Observed
	asked         Asked
	mask          *Mask
	out           cluster.Difference
}

// Compare returns how a cluster, or one node of it, differs from what it should be: as the
// planner compares it, and further what the difference of a machine config or of an
// addon's values is.
func Compare(d cluster.Desired, o cluster.Observed, asked Asked, node string) (cluster.Difference, error) {
	c := comparison{d: d, repository: d.Repository(), o: o, asked: asked}
	c.out = cluster.Difference{Cluster: d.Spec.Name, Revision: c.repository.Revision, Nodes: []cluster.NodeDifference{}, Addons: []cluster.AddonDifference{}, Unknown: []cluster.UnknownPart{}}
	var err error
	if c.mask, err = NewMask(false, c.repository.Snapshot, d.Snapshot); err != nil {
		return c.out, err
	}
	for _, n := range d.Spec.Nodes {
		if node == "" || node == n.Name {
			c.compareNode(n)
		}
	}
	if node == "" {
		c.compareOrphans()
		for _, a := range c.repository.Spec.Addons {
			c.compareAddon(a)
		}
		c.compareLeft()
	}
	c.out.Differs = len(c.out.Nodes)+len(c.out.Addons) > 0
	c.cleanWords()
	return c.out, nil
}

// cleanWords hides the secrets in all that is no diff: a chart can put a value into the name
// of an object, and whoever is asked can repeat what it was sent.
func (c *comparison) cleanWords() {
	fields := func(of []cluster.FieldDifference) {
		for i := range of {
			of[i].Field, of[i].Has, of[i].Wants = c.mask.Clean(of[i].Field), c.mask.Clean(of[i].Has), c.mask.Clean(of[i].Wants)
		}
	}
	for _, n := range c.out.Nodes {
		fields(n.VM)
		fields(n.Machine)
		fields(n.Object)
	}
	for _, a := range c.out.Addons {
		fields(a.Fields)
		for i := range a.Missing {
			a.Missing[i] = c.mask.Clean(a.Missing[i])
		}
		for i := range a.Altered {
			a.Altered[i] = c.mask.Clean(a.Altered[i])
		}
	}
	for i := range c.out.Unknown {
		c.out.Unknown[i].Why = c.mask.Clean(c.out.Unknown[i].Why)
	}
}

// OfNode is what of the difference of a cluster is about one node.
func OfNode(all cluster.Difference, node string) cluster.Difference {
	out := cluster.Difference{Cluster: all.Cluster, Revision: all.Revision, Nodes: []cluster.NodeDifference{}, Addons: []cluster.AddonDifference{}, Unknown: []cluster.UnknownPart{}}
	for _, n := range all.Nodes {
		if n.Node == node {
			out.Nodes, out.Differs = append(out.Nodes, n), true
		}
	}
	for _, u := range all.Unknown {
		if u.Subject == node {
			out.Unknown = append(out.Unknown, u)
		}
	}
	return out
}

func (c *comparison) noteUnknown(subject, part, why string) {
	c.out.Unknown = append(c.out.Unknown, cluster.UnknownPart{Subject: subject, Part: part, Why: cmp.Or(why, "there is no answer yet")})
}

func (c *comparison) compareNode(n cluster.Node) {
	vm := c.o.VMs[n.Name]
	diff := cluster.NodeDifference{Node: n.Name, VM: c.compareVM(n, vm)}
	if HasMachine(vm) {
		c.compareMachine(n, &diff)
	}
	switch kn, there := c.o.Nodes.Value[n.Name]; {
	case !c.o.Nodes.Known:
		c.noteUnknown(n.Name, "labels, taints and annotations", c.o.Nodes.Why)
	case !there:
		diff.Object = []cluster.FieldDifference{{Field: "node object", Has: "none", Wants: "one"}}
	default:
		diff.Object = describeDrifts(drift.OfMeta(kn.EditsFor(drift.RepositoryNode(c.d, n).Meta())))
	}
	if len(diff.VM)+len(diff.Machine)+len(diff.Object)+len(diff.MachineConfig) > 0 {
		c.out.Nodes = append(c.out.Nodes, diff)
	}
}

// HasMachine reports whether the machine in a VM can be asked, as far as is known.
func HasMachine(vm cluster.VM) bool {
	switch {
	case vm.Presence == cluster.PresenceUnknown:
		return true
	case vm.Presence == cluster.Absent, vm.Owner == cluster.Foreign, vm.Deleting:
		return false
	}
	return vm.Power == cluster.PowerRunning || vm.Power == cluster.PowerUnknown
}

func (c *comparison) compareVM(n cluster.Node, vm cluster.VM) []cluster.FieldDifference {
	own := fmt.Sprintf("vm %d", n.VMID)
	switch {
	case vm.Presence == cluster.Absent:
		return []cluster.FieldDifference{{Field: "vm", Has: "none", Wants: own}}
	case vm.Presence == cluster.PresenceUnknown, vm.Owner == cluster.OwnerUnknown:
		c.noteUnknown(n.Name, "vm", vm.Why)
		return nil
	case vm.Owner == cluster.Foreign:
		return []cluster.FieldDifference{{Field: "vm", Has: "one that is not the agent's: " + vm.Why, Wants: own}}
	case vm.Deleting:
		return []cluster.FieldDifference{{Field: "vm", Has: "one that is being deleted", Wants: own}}
	case !vm.Hardware.Known:
		c.noteUnknown(n.Name, "vm", vm.Hardware.Why)
	}
	out := describeDrifts(drift.OfNodeVM(c.d, c.o, n, vm))
	if drift.LacksSystemDisk(vm) {
		out = append(out, cluster.FieldDifference{Field: "system disk", Has: "none", Wants: "one with the serial " + cluster.SystemDiskSerial})
	}
	if drift.IsReplaced(n, vm, c.o.Facts) {
		out = append(out, cluster.FieldDifference{Field: "replace", Has: cmp.Or(vm.Replace, "none"), Wants: n.Replace, How: string(drift.Replace)})
	} else if drift.IsRestored(n, vm, c.o.Facts) {
		out = append(out, cluster.FieldDifference{Field: "replace", Has: cmp.Or(vm.Replace, "none"), Wants: n.Replace, How: string(drift.Refuse)})
	}
	switch vm.Power {
	case cluster.Stopped:
		out = append(out, cluster.FieldDifference{Field: "power", Has: "stopped", Wants: "running"})
	case cluster.Paused:
		out = append(out, cluster.FieldDifference{Field: "power", Has: "paused", Wants: "running"})
	case cluster.PowerUnknown:
		c.noteUnknown(n.Name, "power", vm.Why)
	}
	return out
}

func describeDrifts(drifts []drift.Drift) []cluster.FieldDifference {
	var out []cluster.FieldDifference
	for _, dr := range drifts {
		out = append(out, cluster.FieldDifference{Field: dr.Field, Has: cmp.Or(dr.Have, "none"), Wants: dr.Wants(), How: string(dr.How), By: dr.By})
	}
	return out
}

// compareMachine compares the versions that a machine runs, and its config.
func (c *comparison) compareMachine(n cluster.Node, diff *cluster.NodeDifference) {
	mach := c.o.Machines[n.Name]
	switch mach.Reach {
	case cluster.Configured:
		drifts := slices.DeleteFunc(drift.OfMachine(c.repository, c.o, n, mach), func(dr drift.Drift) bool { return dr.Reason == cluster.ConfigDrift })
		diff.Machine = describeDrifts(append(drifts, drift.OfStaged(c.repository, n, mach)...))
	case cluster.Maintenance:
		diff.Machine = []cluster.FieldDifference{{Field: "machine config", Has: "none: it is in maintenance mode", Wants: "one"}}
		return
	}
	const part = "machine config"
	running, asked := c.asked.Configs[n.Name]
	wanted, rendered := c.repository.Configs[n.Name]
	switch {
	case !asked || !running.Known:
		c.noteUnknown(n.Name, part, cmp.Or(running.Why, mach.Why))
		return
	case !rendered:
		c.noteUnknown(n.Name, part, "what it should be cannot be rendered")
		return
	}
	switch digest, err := machineconfig.Digest(running.Value.Reveal()); {
	case err != nil:
		c.noteUnknown(n.Name, part, "the one that runs cannot be read by this version of the agent")
		return
	case digest == wanted.Digest:
		return
	}
	text, err := diffConfigs(c.mask, running.Value.Reveal(), wanted.Bytes.Reveal())
	switch {
	case err != nil:
		c.noteUnknown(n.Name, part, err.Error())
	case text == "":
		diff.Machine = append(diff.Machine, cluster.FieldDifference{Field: part, Has: "the same documents in another order", Wants: "the order of the inventory"})
	default:
		diff.MachineConfig = text
	}
}

// diffConfigs compares two machine configs document by document, whatever order these are
// in, without the secrets.
func diffConfigs(mask *Mask, has, wants []byte) (string, error) {
	s := newSides(mask)
	b, err := machineconfig.Rewrite(wants, s.wanted)
	if err != nil {
		return "", err
	}
	a, err := machineconfig.Rewrite(has, s.running)
	if err != nil {
		return "", err
	}
	return diffTexts(listDocuments(a), listDocuments(b))
}

// listDocuments writes documents in the order of their names, each after its own.
func listDocuments(docs []machineconfig.Document) string {
	var b strings.Builder
	for _, d := range slices.SortedFunc(slices.Values(docs), func(a, b machineconfig.Document) int { return cmp.Compare(a.Name, b.Name) }) {
		fmt.Fprintf(&b, "# %s\n%s", d.Name, d.Text)
	}
	return b.String()
}

// compareOrphans reports the VMs of nodes that the inventory no longer has.
func (c *comparison) compareOrphans() {
	if !c.o.Orphans.Known {
		c.noteUnknown(c.d.Spec.Name, "vms of removed nodes", c.o.Orphans.Why)
	}
	for _, vm := range c.o.Orphans.Value {
		c.out.Nodes = append(c.out.Nodes, cluster.NodeDifference{Node: cmp.Or(vm.Node, vm.Name), VM: []cluster.FieldDifference{{Field: "vm", Has: fmt.Sprintf("vm %d", vm.VMID), Wants: "none"}}})
	}
}

// IsOurs reports whether the release of an addon is there, and for this cluster to keep as
// the inventory has it: one that is bootstrap-only belongs to others once it is deployed.
func IsOurs(o cluster.Observed, a cluster.Addon) bool {
	rel, there := o.Releases.Value[a.Name]
	return o.Releases.Known && there && rel.Namespace == a.Namespace && rel.Digest != "" && (a.Ownership == cluster.Managed || rel.Status != "deployed")
}

func (c *comparison) compareAddon(a cluster.Addon) {
	rel, there := c.o.Releases.Value[a.Name]
	diff := cluster.AddonDifference{Addon: a.Name}
	note := func(field, has, wants string) {
		if has != wants {
			diff.Fields = append(diff.Fields, cluster.FieldDifference{Field: field, Has: cmp.Or(has, "none"), Wants: cmp.Or(wants, "none")})
		}
	}
	switch {
	case !c.o.Releases.Known:
		c.noteUnknown(a.Name, "release", c.o.Releases.Why)
		return
	case !there || rel.Namespace != a.Namespace:
		note("release", "", a.Chart.Ref())
	case rel.Digest == "" && a.Ownership == cluster.Managed:
		note("release", "one that is not the agent's", "its own")
	case IsOurs(c.o, a):
		note("status", rel.Status, "deployed")
		c.compareRelease(a, rel, &diff)
	}
	if have, there := c.o.Namespaces[a.Namespace]; there && a.Ownership == cluster.Managed {
		want := c.d.Spec.Namespace(a.Namespace)
		note("labels of namespace "+a.Namespace, formatPairs(have.Labels), formatPairs(want.Labels))
		note("annotations of namespace "+a.Namespace, formatPairs(have.Annotations), formatPairs(want.Annotations))
	}
	if len(diff.Fields)+len(diff.Values)+len(diff.Missing)+len(diff.Altered) > 0 {
		c.out.Addons = append(c.out.Addons, diff)
	}
}

// compareRelease compares the chart and the values that a release was made of.
func (c *comparison) compareRelease(a cluster.Addon, rel cluster.Release, diff *cluster.AddonDifference) {
	chart, made := c.o.Charts[a.Name], c.asked.Releases[a.Name]
	diff.Missing, diff.Altered = listed(rel.Missing), append(listed(rel.Altered), listed(rel.AlteredAgain)...)
	if !made.Known {
		c.noteUnknown(a.Name, "release", made.Why)
	} else {
		if has, wants := made.Value.Version, a.Chart.Version; wants != "" && strings.TrimPrefix(has, "v") != strings.TrimPrefix(wants, "v") {
			diff.Fields = append(diff.Fields, cluster.FieldDifference{Field: "chart version", Has: has, Wants: wants})
		}
		text, err := diffValues(c.mask, made.Value.Values.Reveal(), a.Values.Reveal())
		if err != nil {
			c.noteUnknown(a.Name, "values", err.Error())
		}
		diff.Values, diff.Missing, diff.Altered = text, made.Value.Missing, made.Value.Altered
	}
	switch {
	case !chart.Known:
		c.noteUnknown(a.Name, "chart", cmp.Or(chart.Why, "it has not been fetched"))
	case rel.Digest != chart.Value.Release && len(diff.Fields) == 0 && diff.Values == "":
		diff.Fields = append(diff.Fields, cluster.FieldDifference{Field: "digest of chart and values", Has: rel.Digest, Wants: chart.Value.Release})
	}
}

// listed is a list of what there is.
func listed(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// diffValues compares the values of a chart, without the secrets.
func diffValues(mask *Mask, has, wants []byte) (string, error) {
	s := newSides(mask)
	if len(has) == 0 || string(has) == "null" {
		has = []byte("{}") // Helm writes none where there are none
	}
	b, err := rewriteJSON(wants, "  ", s.wanted)
	if err != nil {
		return "", err
	}
	a, err := rewriteJSON(has, "  ", s.running)
	if err != nil {
		return "", err
	}
	return diffTexts(string(a), string(b))
}

// compareLeft reports the releases that no addon has, where the inventory wants them
// uninstalled.
func (c *comparison) compareLeft() {
	for _, l := range c.o.Left {
		if c.d.Spec.Prune && l.Kept == "" {
			c.out.Addons = append(c.out.Addons, cluster.AddonDifference{Addon: l.Name, Fields: []cluster.FieldDifference{{Field: "release", Has: l.String(), Wants: "none"}}})
		}
	}
}

func formatPairs(pairs map[string]string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		words = append(words, key+"="+pairs[key])
	}
	return strings.Join(words, ", ")
}
