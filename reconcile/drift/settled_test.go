package drift

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// kept is a node that was as the inventory has it, and what is kept of that.
type kept struct {
	d cluster.Desired
	o cluster.Observed
	n cluster.Node
}

func newKept() *kept {
	n := cluster.Node{Name: "wk-1", VMID: 521, Role: cluster.Worker, Cores: 4, MemoryMiB: 8192, DiskBytes: 40 << 30, Bridge: "vmbr1", Datastore: "lvm", Pool: "talos", MAC: "BC:24:11:00:00:01",
		Tags: []string{"web"}, Labels: map[string]string{"zone": "a", "rack": "1"}, Disks: []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "lvm", Bytes: 1 << 30}}}
	k := &kept{n: n}
	k.d = cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}}}, Configs: map[string]cluster.Config{"wk-1": {Digest: "one"}}}
	k.o = cluster.Observed{
		VMs:      map[string]cluster.VM{"wk-1": {Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning, Tags: n.VMTags(), Hardware: cluster.Saw(WantHardware(k.d.Spec, n))}},
		Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Configured, ConfigDigest: "one"}},
		Nodes:    cluster.Saw(map[string]cluster.KubeNode{"wk-1": {Name: "wk-1", Meta: n.Meta(), Owned: n.Meta().Noted()}}),
	}
	k.settle(true)
	return k
}

func (k *kept) settle(whole bool) {
	k.o.Facts.Settled = map[string]string{"wk-1": Settle(k.d, k.o, k.n, whole)}
}

// push changes the inventory.
func (k *kept) push(change func(*cluster.Node)) {
	k.n.Labels = maps.Clone(k.n.Labels)
	change(&k.n)
	k.d.Spec.Nodes = []cluster.Node{k.n}
}

func (k *kept) config(digest string) {
	k.d.Configs = map[string]cluster.Config{"wk-1": {Digest: digest}}
}

// runs has the machine run a config.
func (k *kept) runs(digest string) {
	k.o.Machines = map[string]cluster.Machine{"wk-1": {Reach: cluster.Configured, ConfigDigest: digest}}
}

// edit changes the VM.
func (k *kept) edit(change func(*cluster.Hardware)) {
	vm := k.o.VMs["wk-1"]
	change(&vm.Hardware.Value)
	k.o.VMs = map[string]cluster.VM{"wk-1": vm}
}

func (k *kept) begin(fields ...string) {
	k.o.Facts.Settled = map[string]string{"wk-1": Begin(k.d, k.o.Facts, k.n, fields, "")}
}

// want checks who has changed a field: E somebody, P the inventory, B and the agent has begun.
func (k *kept) want(t *testing.T, what, field, want string) {
	t.Helper()
	o, got := OriginOf(k.d, k.o, k.n, field), ""
	for letter, is := range map[string]bool{"E": o.Edited, "P": o.Pushed, "B": o.Begun, "?": !o.Known} {
		if is {
			got += letter
		}
	}
	if len(got) != len(want) || strings.ContainsFunc(got, func(r rune) bool { return !strings.ContainsRune(want, r) }) {
		t.Errorf("%s: %s is %q, want %q", what, field, got, want)
	}
}

// TestOriginOfWhatItRunsMeanwhile: a config that the agent gives a node on the way to that of the
// inventory is no edit, until the node runs that, also when the inventory goes back meanwhile.
func TestOriginOfWhatItRunsMeanwhile(t *testing.T) {
	begin := func(k *kept) {
		k.config("two")
		k.o.Facts.Settled = map[string]string{"wk-1": Begin(k.d, k.o.Facts, k.n, []string{FieldConfig}, "between")}
	}
	k := newKept()
	begin(k)
	k.want(t, "not given yet", FieldConfig, "PB")
	k.runs("between")
	k.settle(false)
	k.want(t, "given", FieldConfig, "PB")
	k.begin(FieldConfig) // its turn
	k.settle(true)
	k.want(t, "in its turn", FieldConfig, "PB")
	k.runs("else")
	k.want(t, "edited", FieldConfig, "EPB")
	k.runs("two")
	k.settle(true)
	k.runs("between")
	k.want(t, "edited to what it ran", FieldConfig, "E")
	k = newKept()
	begin(k)
	k.runs("between")
	k.settle(true)
	k.config("one")
	k.settle(true)
	k.want(t, "the inventory goes back", FieldConfig, "P")
}

// TestOriginOfFields: a field is edited where the inventory has what it had of it, whatever else
// was pushed, and however often.
func TestOriginOfFields(t *testing.T) {
	k := newKept()
	for _, field := range []string{"bridge", "cores", "memory (MiB)", "tags", "system disk size", "disk talos-data", "disk talos-data size", "label zone", "pool", "replace", "description"} {
		k.want(t, "nothing was pushed", field, "E")
	}
	k.push(func(n *cluster.Node) {
		n.Cores, n.Tags, n.Pool, n.Replace, n.Labels["zone"] = 8, []string{"db"}, "other", "again", "b"
		n.Disks = append(n.Disks, cluster.Disk{Name: "more", Serial: "talos-more", Bytes: 1 << 30})
		delete(n.Labels, "rack")
	})
	for field, want := range map[string]string{"cores": "P", "tags": "P", "pool": "P", "replace": "P", "label zone": "P", "disk talos-more": "P", "label rack": "P",
		"bridge": "E", "memory (MiB)": "E", "disk talos-data": "E", "machine config": "E", "disk of somebody's": "E"} {
		if field == "machine config" {
			k.runs("edited")
		}
		k.want(t, "something was pushed", field, want)
	}
	k.push(func(n *cluster.Node) { n.Disks = nil })
	k.want(t, "a disk was taken out", "disk talos-data", "P")
	k.o.Facts.Settled = nil
	k.want(t, "nothing is kept", "cores", "?")
}

// TestOriginOfConfigs: of a machine config both may have changed what the node has.
func TestOriginOfConfigs(t *testing.T) {
	k := newKept()
	k.runs("edited")
	k.want(t, "edited", FieldConfig, "E")
	k.config("two")
	k.want(t, "and pushed", FieldConfig, "EP")
	k.runs("one")
	k.want(t, "pushed", FieldConfig, "P")
	k.begin(FieldConfig)
	k.want(t, "about to be given", FieldConfig, "PB")
	k.config("one")
	k.runs("two")
	k.settle(true)
	k.want(t, "given, and taken back", FieldConfig, "P")
	k.config("three")
	k.want(t, "given, and another one pushed", FieldConfig, "P")
	k.runs("edited")
	k.want(t, "and edited", FieldConfig, "EP")
	k.o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Configured, ConfigDigest: "one", Staged: "two"}
	k.want(t, "given, for the next boot", FieldStaged, "PB")
	k.o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Configured, ConfigDigest: "one", Staged: "theirs"}
	k.want(t, "somebody's, for the next boot", FieldStaged, "E")
	k.config("two")
	k.runs("two")
	k.settle(false)
	k.runs("one")
	k.want(t, "it was seen with it", FieldConfig, "E")
}

// TestSettleByField: what is seen to be as the inventory has it is kept of each field, though
// another differs; what is not seen stays as it was.
func TestSettleByField(t *testing.T) {
	k := newKept()
	k.edit(func(hw *cluster.Hardware) { hw.Bridge = "vmbr0" })
	k.push(func(n *cluster.Node) { n.Cores, n.MemoryMiB, n.Replace, n.Labels["zone"] = 8, 16384, "again", "b" })
	k.edit(func(hw *cluster.Hardware) { hw.Cores = 8 })
	k.settle(false)
	for field, want := range map[string]string{"cores": "E", "memory (MiB)": "P", "bridge": "E", "replace": "P", "label zone": "P"} {
		k.want(t, "one of two was given", field, want)
	}
	unseen := k.o.VMs["wk-1"]
	unseen.Hardware = cluster.Unseen[cluster.Hardware]("no answer")
	k.o.VMs = map[string]cluster.VM{"wk-1": unseen}
	k.settle(false)
	k.want(t, "not seen", "memory (MiB)", "P")
	k.want(t, "not seen", "cores", "E")
	k.config("")
	k.settle(false)
	k.config("two")
	k.want(t, "it was not known what its config is", FieldConfig, "P")

	// While an action is under way, what is seen may be from before it.
	k = newKept()
	k.push(func(n *cluster.Node) { n.Cores = 8 })
	k.begin("cores")
	k.want(t, "begun", "cores", "PB")
	k.push(func(n *cluster.Node) { n.Cores = 4 })
	k.o.Running = []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.ChangeVM, Subject: "wk-1"}, Node: "wk-1"}}
	k.settle(true)
	k.edit(func(hw *cluster.Hardware) { hw.Cores = 8 })
	k.want(t, "taken back meanwhile", "cores", "P")
	k.o.Running = nil
	k.edit(func(hw *cluster.Hardware) { hw.Cores = 4 })
	k.settle(true)
	k.want(t, "and seen as it was", "cores", "E")

	// What is begun to be corrected was edited all the same.
	k = newKept()
	k.begin("bridge", FieldConfig, FieldStaged)
	k.want(t, "corrected", "bridge", "E")
}

// TestSettledOfOlderAgents: one digest of everything is read as it was meant, and becomes one for
// each field once the node has everything.
func TestSettledOfOlderAgents(t *testing.T) {
	k := newKept()
	k.o.Facts.Settled = map[string]string{"wk-1": WantDigest(k.d, k.n)}
	k.want(t, "nothing was pushed", "bridge", "E")
	k.push(func(n *cluster.Node) { n.Cores = 8 })
	k.want(t, "something was pushed", "bridge", "PB")
	before := k.o.Facts.Settled["wk-1"]
	k.begin("cores")
	k.settle(false)
	if k.o.Facts.Settled["wk-1"] != before {
		t.Errorf("it was rewritten: %s", k.o.Facts.Settled["wk-1"])
	}
	k.edit(func(hw *cluster.Hardware) { hw.Cores = 8 })
	k.settle(true)
	k.push(func(n *cluster.Node) { n.Tags = nil })
	k.want(t, "it has everything", "bridge", "E")
	k.want(t, "it has everything", "tags", "P")

	for _, text := range []string{"", "=", "=abc", "=abcdefg", "0123456789abcdef"} {
		if got := decodeSettled(text); (got != nil) != (text == "=") {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	k.o.Facts.Settled = nil
	k.n.Cores = 9
	k.d.Spec.Nodes = []cluster.Node{k.n}
	if got := Settle(k.d, k.o, k.n, true); got != "" {
		t.Errorf("a node that never was as the inventory has it is kept: %s", got)
	}
}

// TestSettledIsSmall: the journal is written whole with every fact, for a thousand nodes, too.
func TestSettledIsSmall(t *testing.T) {
	k := newKept()
	for i := range 10 {
		k.push(func(n *cluster.Node) { n.Labels[fmt.Sprint("example.org/", i)] = strings.Repeat("x", 60) })
	}
	k.o.Nodes.Value["wk-1"] = cluster.KubeNode{Name: "wk-1", Meta: k.n.Meta()}
	k.settle(true)
	if text := k.o.Facts.Settled["wk-1"]; len(text) > 320 || len(text) < 100 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}
