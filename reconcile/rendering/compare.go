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
	"github.com/talos-agent/talos-agent/reconcile/quorum"
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
			of[i].Field, of[i].Has, of[i].Wants, of[i].By = c.mask.Clean(of[i].Field), c.mask.Clean(of[i].Has), c.mask.Clean(of[i].Wants), c.mask.Clean(of[i].By)
		}
	}
	for _, n := range c.out.Nodes {
		fields(n.VM)
		fields(n.Machine)
		fields(n.Object)
		fields(n.Etcd)
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
	if diff.Object = drift.OfObject(c.d, c.o, n); !c.o.Nodes.Known {
		c.noteUnknown(n.Name, "labels, taints and annotations", c.o.Nodes.Why)
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
	place := drift.OfPlace(c.d, c.o, n)
	switch {
	case len(place) > 0:
		return place
	case vm.Presence == cluster.PresenceUnknown, vm.Owner == cluster.OwnerUnknown:
		c.noteUnknown(n.Name, "vm", vm.Why)
		return nil
	case !vm.Hardware.Known:
		c.noteUnknown(n.Name, "vm", vm.Hardware.Why)
	}
	if vm.Power == cluster.PowerUnknown {
		c.noteUnknown(n.Name, "power", vm.Why)
	}
	return drift.OfOwnVM(c.d, c.o, n)
}

// compareMachine compares the versions that a machine runs, and its config.
func (c *comparison) compareMachine(n cluster.Node, diff *cluster.NodeDifference) {
	const part = drift.FieldConfig
	mach := c.o.Machines[n.Name]
	diff.Machine = drift.OfRunning(c.d, c.o, n)
	if mach.Reach == cluster.Maintenance {
		return
	}
	isConfig := func(f cluster.FieldDifference) bool { return f.Field == part }
	config := slices.DeleteFunc(slices.Clone(diff.Machine), func(f cluster.FieldDifference) bool { return !isConfig(f) })
	diff.Machine = slices.DeleteFunc(diff.Machine, isConfig) // its texts show more
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
		for _, f := range config {
			diff.MachineConfigBy, diff.MachineConfigSince = f.By, f.Since
		}
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

// compareOrphans reports what is there of nodes that the inventory does not have: VMs, Node
// objects, and members of etcd.
func (c *comparison) compareOrphans() {
	if !c.o.Orphans.Known {
		c.noteUnknown(c.d.Spec.Name, "vms of removed nodes", c.o.Orphans.Why)
	}
	if !c.o.Members.Known && c.o.Facts.BootstrapSent() {
		c.noteUnknown(c.d.Spec.Name, "members of etcd", c.o.Members.Why)
	}
	for _, vm := range c.o.Orphans.Value {
		diff := c.nodeDifference(cmp.Or(vm.Node, vm.Name))
		diff.VM = append(diff.VM, drift.OfOrphanVM(c.d, c.o, vm))
	}
	for _, kn := range drift.OrphanObjects(c.d, c.o) {
		diff := c.nodeDifference(kn.Name)
		diff.Object = append(diff.Object, drift.OfOrphanObject(c.o, kn))
	}
	for _, mem := range drift.OrphanMembers(c.d, c.o) {
		owner, _ := quorum.OwnerOf(c.o.Members.Value, mem, c.d.Spec.ControlPlanes())
		diff := c.nodeDifference(cmp.Or(owner, mem.Name, c.d.Spec.Name))
		diff.Etcd = append(diff.Etcd, drift.OfMember(c.o, mem))
	}
}

// nodeDifference is the entry of a node, to add to.
func (c *comparison) nodeDifference(node string) *cluster.NodeDifference {
	i := slices.IndexFunc(c.out.Nodes, func(n cluster.NodeDifference) bool { return n.Node == node })
	if i < 0 {
		i = len(c.out.Nodes)
		c.out.Nodes = append(c.out.Nodes, cluster.NodeDifference{Node: node})
	}
	return &c.out.Nodes[i]
}

func (c *comparison) compareAddon(a cluster.Addon) {
	diff := cluster.AddonDifference{Addon: a.Name}
	o := c.o
	switch {
	case !o.Releases.Known:
		c.noteUnknown(a.Name, "release", o.Releases.Why)
		return
	case o.IsOurs(a):
		o = c.compareRelease(a, &diff)
	}
	diff.Fields = append(drift.OfAddon(o, a), drift.OfNamespace(c.d, o, a)...)
	if len(diff.Fields)+len(diff.Values)+len(diff.Missing)+len(diff.Altered) > 0 {
		c.out.Addons = append(c.out.Addons, diff)
	}
}

// compareRelease compares what a release was made of with the inventory. It returns what is
// observed, with what was read of the release just now.
func (c *comparison) compareRelease(a cluster.Addon, diff *cluster.AddonDifference) cluster.Observed {
	o, rel, made := c.o, c.o.Releases.Value[a.Name], c.asked.Releases[a.Name]
	diff.Missing, diff.Altered = listed(rel.Missing), append(listed(rel.Altered), listed(rel.AlteredAgain)...)
	if made.Known {
		text, err := diffValues(c.mask, made.Value.Values.Reveal(), a.Values.Reveal())
		if err != nil {
			c.noteUnknown(a.Name, "values", err.Error())
		}
		diff.Values, diff.Missing, diff.Altered = text, made.Value.Missing, made.Value.Altered
		rel.Version, rel.OtherValues = made.Value.Version, made.Value.OtherPaths(a.Values)
		o.Releases.Value = maps.Clone(o.Releases.Value)
		o.Releases.Value[a.Name] = rel
	} else {
		c.noteUnknown(a.Name, "release", made.Why)
	}
	if chart := o.Charts[a.Name]; !chart.Known {
		c.noteUnknown(a.Name, "chart", cmp.Or(chart.Why, "it has not been fetched"))
	}
	return o
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
			c.out.Addons = append(c.out.Addons, cluster.AddonDifference{Addon: l.Name, Fields: []cluster.FieldDifference{drift.OfLeft(c.o, l)}})
		}
	}
}
