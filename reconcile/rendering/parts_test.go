package rendering

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestHasMachine: a machine can be asked if there may be one.
func TestHasMachine(t *testing.T) {
	there := cluster.VM{Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning}
	for name, c := range map[string]struct {
		change func(*cluster.VM)
		want   bool
	}{
		"it runs":             {func(*cluster.VM) {}, true},
		"it may run":          {func(vm *cluster.VM) { vm.Power = cluster.PowerUnknown }, true},
		"it is stopped":       {func(vm *cluster.VM) { vm.Power = cluster.Stopped }, false},
		"it may be there":     {func(vm *cluster.VM) { vm.Presence, vm.Power = cluster.PresenceUnknown, cluster.Stopped }, true},
		"it is absent":        {func(vm *cluster.VM) { vm.Presence = cluster.Absent }, false},
		"it is not ours":      {func(vm *cluster.VM) { vm.Owner = cluster.Foreign }, false},
		"it is being deleted": {func(vm *cluster.VM) { vm.Deleting = true }, false},
	} {
		vm := there
		if c.change(&vm); HasMachine(vm) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}

// TestIsOurs: a release is compared if it is seen, in its namespace, the agent's, and not
// bootstrap-only once it is deployed.
func TestIsOurs(t *testing.T) {
	for name, c := range map[string]struct {
		unseen    bool
		namespace string
		digest    string
		status    string
		ownership cluster.Ownership
		want      bool
	}{
		"managed":                    {false, "app", "d", "deployed", cluster.Managed, true},
		"bootstrap-only":             {false, "app", "d", "deployed", cluster.BootstrapOnly, false},
		"bootstrap-only, and failed": {false, "app", "d", "failed", cluster.BootstrapOnly, true},
		"of somebody else":           {false, "app", "", "deployed", cluster.Managed, false},
		"elsewhere":                  {false, "other", "d", "deployed", cluster.Managed, false},
		"not seen":                   {true, "app", "d", "deployed", cluster.Managed, false},
	} {
		o := cluster.Observed{Releases: cluster.Seen[map[string]cluster.Release]{Known: !c.unseen, Value: map[string]cluster.Release{"app": {Namespace: c.namespace, Digest: c.digest, Status: c.status}}}}
		a := cluster.Addon{Name: "app", Namespace: "app", Ownership: c.ownership}
		if o.IsOurs(a) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
		if none := (cluster.Addon{Name: "none", Namespace: "app", Ownership: c.ownership}); o.IsOurs(none) {
			t.Errorf("one that is not there is: %s", name)
		}
	}
}

// TestPartsOfADifference: what is compared of VMs, machines, releases and namespaces, each
// by itself.
func TestPartsOfADifference(t *testing.T) {
	type fields = []cluster.FieldDifference
	onVM := func(change func(*cluster.VM)) func(*cluster.Desired, *cluster.Observed, Asked) {
		return func(_ *cluster.Desired, o *cluster.Observed, _ Asked) {
			vm := o.VMs["dev-wk-1"]
			change(&vm)
			o.VMs["dev-wk-1"] = vm
		}
	}
	onRelease := func(change func(*cluster.Release, *cluster.Installed)) func(*cluster.Desired, *cluster.Observed, Asked) {
		return func(_ *cluster.Desired, o *cluster.Observed, a Asked) {
			rel, made := o.Releases.Value["app"], a.Releases["app"]
			change(&rel, &made.Value)
			o.Releases.Value["app"], a.Releases["app"] = rel, made
		}
	}
	namespace := func(name string) func(*cluster.Desired, *cluster.Observed, Asked) {
		return func(_ *cluster.Desired, o *cluster.Observed, _ Asked) {
			o.Namespaces = map[string]cluster.NamespaceMeta{name: {Labels: map[string]string{"a": "b"}}}
		}
	}
	for name, c := range map[string]struct {
		change  func(*cluster.Desired, *cluster.Observed, Asked)
		want    string // the first field, if there is one
		fields  int    // that differ
		unknown string // the first part that is
	}{
		"paused":           {change: onVM(func(vm *cluster.VM) { vm.Power = cluster.Paused }), want: "power: paused -> running", fields: 1},
		"power is unknown": {change: onVM(func(vm *cluster.VM) { vm.Power, vm.Why = cluster.PowerUnknown, "no answer" }), unknown: "power: no answer"},
		"being deleted":    {change: onVM(func(vm *cluster.VM) { vm.Deleting = true }), want: "vm: one that is being deleted -> vm 411", fields: 1},
		"presence is unknown": {change: onVM(func(vm *cluster.VM) {
			vm.Presence, vm.Power, vm.Why = cluster.PresenceUnknown, cluster.Stopped, "no answer"
		}), unknown: "vm: no answer"},
		"owner is unknown": {change: onVM(func(vm *cluster.VM) { vm.Owner, vm.Power, vm.Why = cluster.OwnerUnknown, cluster.Stopped, "no mark" }), unknown: "vm: no mark"},
		"in maintenance mode": {change: func(_ *cluster.Desired, o *cluster.Observed, _ Asked) {
			o.Machines["dev-wk-1"] = cluster.Machine{Reach: cluster.Maintenance}
		}, want: "machine config: none: it is in maintenance mode -> one", fields: 1},
		"nothing is rendered": {change: func(d *cluster.Desired, _ *cluster.Observed, _ Asked) { delete(d.Configs, "dev-wk-1") }, unknown: "machine config: what it should be cannot be rendered"},
		"what is wanted is no text": {change: func(d *cluster.Desired, _ *cluster.Observed, _ Asked) {
			d.Configs["dev-wk-1"] = cluster.Config{Bytes: cluster.SecretString("x: [")}
		}, unknown: "machine config: "},

		"in another namespace": {change: onRelease(func(r *cluster.Release, _ *cluster.Installed) { r.Namespace = "other" }), want: "release: none -> https://charts.example.org/app-1.2.3", fields: 1},
		"another version":      {change: onRelease(func(r *cluster.Release, made *cluster.Installed) { r.Digest, made.Version = "older", "1.2.2" }), want: "chart version: 1.2.2 -> 1.2.3", fields: 1},
		"the same version":     {change: onRelease(func(_ *cluster.Release, made *cluster.Installed) { made.Version = "v1.2.3" })},
		"other values": {change: onRelease(func(r *cluster.Release, made *cluster.Installed) {
			r.Digest, made.Values = "older", cluster.SecretString(`{"plain":"x"}`)
		}), want: "values: others at auth, db, list, plain -> those of the inventory", fields: 1},
		"a node that is none": {change: func(_ *cluster.Desired, o *cluster.Observed, _ Asked) {
			o.Nodes.Value["ghost"] = cluster.KubeNode{Name: "ghost", Ready: true}
		}, want: "node object: one that is Ready -> none", fields: 1},
		"a member that is none": {change: func(_ *cluster.Desired, o *cluster.Observed, _ Asked) {
			o.Members = cluster.Saw([]cluster.Member{{ID: 7, Name: "ghost", Address: "192.0.2.7"}})
		}, want: "etcd member 0000000000000007: ghost at 192.0.2.7 -> none", fields: 1},
		"in another pool": {change: func(_ *cluster.Desired, o *cluster.Observed, _ Asked) {
			vm := o.VMs["dev-wk-1"]
			vm.Owner, vm.Moved, vm.Pool = cluster.Foreign, true, "theirs"
			o.VMs["dev-wk-1"] = vm
		}, want: "pool: theirs -> none", fields: 1},
		"a version that is not known": {change: func(d *cluster.Desired, _ *cluster.Observed, _ Asked) { d.Spec.Addons[2].Chart.Version = "" }},

		"another label":                 {change: namespace("app"), want: "labels of namespace app: a=b -> none", fields: 1},
		"a namespace of bootstrap-only": {change: namespace("store")},
		"a namespace that is not managed": {change: func(d *cluster.Desired, _ *cluster.Observed, _ Asked) {
			d.Spec.Addons[0].Asks.Labels = map[string]string{"a": "b"}
		}},

		"left, and to be uninstalled": {change: func(d *cluster.Desired, o *cluster.Observed, _ Asked) {
			d.Spec.Prune, o.Left = true, []cluster.LeftRelease{{ReleaseName: cluster.ReleaseName{Namespace: "old", Name: "old"}}}
		}, want: "release: old/old -> none", fields: 1},
		"left, and kept": {change: func(d *cluster.Desired, o *cluster.Observed, _ Asked) {
			d.Spec.Prune, o.Left = true, []cluster.LeftRelease{{Kept: "it has volumes"}}
		}},
		"left, and nothing is uninstalled": {change: func(_ *cluster.Desired, o *cluster.Observed, _ Asked) { o.Left = []cluster.LeftRelease{{}} }},
	} {
		d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
		o, asked := settle(t, d)
		c.change(&d, &o, asked)
		out := compare(t, d, o, asked)
		var all fields
		values := false
		for _, n := range out.Nodes {
			all = append(append(append(append(all, n.VM...), n.Machine...), n.Object...), n.Etcd...)
		}
		for _, a := range out.Addons {
			all = append(all, a.Fields...)
			values = values || a.Values != ""
		}
		got := ""
		switch {
		case len(all) > 0:
			got = all[0].Field + ": " + all[0].Has + " -> " + all[0].Wants
		case values:
			got = "values"
		}
		unknown := ""
		if len(out.Unknown) > 0 {
			unknown = out.Unknown[0].Part + ": " + out.Unknown[0].Why
		}
		if got != c.want || len(all) != c.fields || out.Differs != (c.want != "") || !strings.HasPrefix(unknown, c.unknown) || (unknown != "") != (c.unknown != "") {
			t.Errorf("%s: %q, %d fields, unknown: %q", name, got, len(all), unknown)
		}
	}
}

// TestNoValues: Helm has none where there are none.
func TestNoValues(t *testing.T) {
	m := newMask(t, desire(t, "v1.13", "v1.13.9", "v1.36.1").Snapshot)
	for _, has := range []string{"", "null", "{}"} {
		if text, err := diffValues(m, []byte(has), []byte("{}")); err != nil || text != "" {
			t.Errorf("%q: %q, %v", has, text, err)
		}
	}
}

// TestDifferenceOfOneNode: of one node all is compared that is of all of them.
func TestDifferenceOfOneNode(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	o, asked := settle(t, d)
	for _, name := range []string{"dev-cp-1", "dev-wk-1"} {
		vm := o.VMs[name]
		vm.Power = cluster.Stopped
		o.VMs[name] = vm
	}
	out, err := Compare(d, o, asked, "dev-wk-1")
	if err != nil || len(out.Nodes) != 1 || out.Nodes[0].Node != "dev-wk-1" {
		t.Errorf("%+v, %v", out.Nodes, err)
	}
}
