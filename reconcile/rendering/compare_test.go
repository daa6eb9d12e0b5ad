package rendering

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// settle is what is seen of a cluster that is as it should be, with what was asked of it.
func settle(t *testing.T, d cluster.Desired) (cluster.Observed, Asked) {
	t.Helper()
	o := cluster.Observed{VMs: map[string]cluster.VM{}, Machines: map[string]cluster.Machine{}, Orphans: cluster.Saw([]cluster.VM{}),
		Nodes: cluster.Saw(map[string]cluster.KubeNode{}), Releases: cluster.Saw(map[string]cluster.Release{}), Charts: map[string]cluster.Seen[cluster.Fetched]{}}
	asked := Asked{Configs: map[string]cluster.Seen[cluster.Secret]{}, Releases: map[string]cluster.Seen[cluster.Installed]{}}
	for _, n := range d.Spec.Nodes {
		o.VMs[n.Name] = cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning, Tags: n.VMTags(), Hardware: cluster.Saw(drift.WantHardware(d.Spec, n))}
		digest, err := machineconfig.Digest(d.Configs[n.Name].Bytes.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Talos: d.Spec.Versions.Talos, Schematic: d.Schematic, ConfigDigest: digest}
		o.Nodes.Value[n.Name] = cluster.KubeNode{Name: n.Name, Kubelet: d.Spec.Versions.Kubernetes}
		asked.Configs[n.Name] = cluster.Saw(d.Configs[n.Name].Bytes)
	}
	for _, a := range d.Spec.Addons {
		o.Releases.Value[a.Name] = cluster.Release{Namespace: a.Namespace, Status: "deployed", Digest: "d-" + a.Name, Ready: true}
		o.Charts[a.Name] = cluster.Saw(cluster.Fetched{Release: "d-" + a.Name})
		asked.Releases[a.Name] = cluster.Saw(cluster.Installed{Chart: a.Name, Version: a.Chart.Version, Values: a.Values})
	}
	return o, asked
}

func compare(t *testing.T, d cluster.Desired, o cluster.Observed, asked Asked) cluster.Difference {
	t.Helper()
	out, err := Compare(d, o, asked, "")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNoDifference(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	o, asked := settle(t, d)
	if out := compare(t, d, o, asked); out.Differs || len(out.Nodes)+len(out.Addons)+len(out.Unknown) > 0 {
		t.Errorf("it differs: %+v", out)
	}
}

// edit changes the text of a running config.
func edit(t *testing.T, asked Asked, node string, change ...string) {
	t.Helper()
	text := asked.Configs[node].Value.RevealString()
	edited := strings.NewReplacer(change...).Replace(text)
	if edited == text {
		t.Fatalf("%q is not in\n%s", change, text)
	}
	asked.Configs[node] = cluster.Saw(cluster.SecretString(edited))
}

func TestMachineConfigDiffers(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	o, asked := settle(t, d)
	edit(t, asked, "dev-wk-1", "disableManifestsDirectory: true", "disableManifestsDirectory: false", "TS_AUTHKEY=tskey", "TS_AUTHKEY=retired", "name: tailscale", "name: tailscale # by hand")
	edit(t, asked, "dev-cp-1", "machine:\n", "machine:\n    env:\n        TOKEN: retired\n    sysctls:\n        vm.overcommit_memory: \"1\"\n")
	edit(t, asked, "dev-cp-1", "    type: controlplane\n    token: ", "    type: controlplane\n    token: retired.")
	out := compare(t, d, o, asked)
	if !out.Differs || len(out.Nodes) != 2 || len(out.Unknown) > 0 {
		t.Fatalf("the difference is %+v", out)
	}
	cp, wk := out.Nodes[0].MachineConfig, out.Nodes[1].MachineConfig
	for _, want := range []string{"--- has\n+++ wants\n", "\n-        disableManifestsDirectory: false\n+        disableManifestsDirectory: true\n", "\n-    - <secret hmac:", "\n+    - TS_AUTHKEY=<secret hmac:"} {
		if !strings.Contains(wk, want) {
			t.Errorf("%q is not in\n%s", want, wk)
		}
	}
	for _, want := range []string{"\n-    sysctls:\n-        vm.overcommit_memory: \"1\"\n", "TOKEN: <secret hmac:", "\n-    token: <secret hmac:", "\n+    token: <secret hmac:"} {
		if !strings.Contains(cp, want) {
			t.Errorf("%q is not in\n%s", want, cp)
		}
	}
	for _, never := range []string{"retired", "tskey", "by hand", "\n-    - PLAIN"} {
		if strings.Contains(wk+cp, never) {
			t.Errorf("%q is in\n%s\n%s", never, wk, cp)
		}
	}
}

// Comments, the order of keys and the order of documents are no difference of their text.
func TestOrderOfAMachineConfig(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	o, asked := settle(t, d)
	docs := strings.Split(asked.Configs["dev-wk-1"].Value.RevealString(), "---\n")
	docs[1], docs[2] = docs[2], docs[1]
	asked.Configs["dev-wk-1"] = cluster.Saw(cluster.SecretString("# a comment\n" + strings.Join(docs, "---\n")))
	out := compare(t, d, o, asked)
	if len(out.Nodes) != 1 || out.Nodes[0].MachineConfig != "" || len(out.Nodes[0].Machine) != 1 || !strings.Contains(out.Nodes[0].Machine[0].Has, "another order") {
		t.Errorf("the difference is %+v", out)
	}
}

// What is not seen is unknown with the reason, and never the same.
func TestWhatIsUnknown(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	for what, c := range map[string]struct {
		hide func(*cluster.Observed, Asked)
		want string
	}{
		"machine": {func(_ *cluster.Observed, a Asked) {
			a.Configs["dev-wk-1"] = cluster.Unseen[cluster.Secret]("no route")
		}, "dev-wk-1 machine config no route"},
		"not asked":  {func(_ *cluster.Observed, a Asked) { delete(a.Configs, "dev-wk-1") }, "dev-wk-1 machine config there is no answer yet"},
		"unreadable": {func(_ *cluster.Observed, a Asked) { a.Configs["dev-wk-1"] = cluster.Saw(cluster.SecretString("x: y")) }, "dev-wk-1 machine config the one that runs cannot be read by this version of the agent"},
		"vm":         {func(o *cluster.Observed, _ Asked) { o.VMs["dev-cp-1"] = cluster.VM{Why: "no answer"} }, "dev-cp-1 vm no answer"},
		"its config": {func(o *cluster.Observed, _ Asked) {
			vm := o.VMs["dev-cp-1"]
			vm.Hardware = cluster.Unseen[cluster.Hardware]("timeout")
			o.VMs["dev-cp-1"] = vm
		}, "dev-cp-1 vm timeout"},
		"orphans":  {func(o *cluster.Observed, _ Asked) { o.Orphans = cluster.Unseen[[]cluster.VM]("no list") }, "dev vms of removed nodes no list"},
		"releases": {func(o *cluster.Observed, _ Asked) { o.Releases = cluster.Unseen[map[string]cluster.Release]("no API") }, "app release no API"},
		"release": {func(_ *cluster.Observed, a Asked) {
			a.Releases["app"] = cluster.Unseen[cluster.Installed]("no secret")
		}, "app release no secret"},
		"chart": {func(o *cluster.Observed, _ Asked) { delete(o.Charts, "app") }, "app chart it has not been fetched"},
		"nodes": {func(o *cluster.Observed, _ Asked) { o.Nodes = cluster.Unseen[map[string]cluster.KubeNode]("no API") }, "dev-cp-1 labels, taints and annotations no API"},
	} {
		o, asked := settle(t, d)
		c.hide(&o, asked)
		out := compare(t, d, o, asked)
		if len(out.Unknown) == 0 {
			t.Errorf("%s: nothing is unknown: %+v", what, out)
			continue
		}
		if u := out.Unknown[0]; u.Subject+" "+u.Part+" "+u.Why != c.want || out.Differs {
			t.Errorf("%s: %+v", what, out)
		}
	}
}

func TestFieldsDiffer(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	first := func(out cluster.Difference) string {
		var all []cluster.FieldDifference
		for _, n := range out.Nodes {
			all = append(append(append(all, n.VM...), n.Machine...), n.Object...)
		}
		for _, a := range out.Addons {
			all = append(all, a.Fields...)
		}
		if len(all) == 0 {
			return ""
		}
		return all[0].Field + ": " + all[0].Has + " -> " + all[0].Wants
	}
	onVM := func(change func(*cluster.VM)) func(*cluster.Observed) {
		return func(o *cluster.Observed) {
			vm := o.VMs["dev-wk-1"]
			change(&vm)
			o.VMs["dev-wk-1"] = vm
		}
	}
	onRelease := func(change func(*cluster.Release)) func(*cluster.Observed) {
		return func(o *cluster.Observed) {
			rel := o.Releases.Value["app"]
			change(&rel)
			o.Releases.Value["app"] = rel
		}
	}
	for want, change := range map[string]func(*cluster.Observed){
		"memory (MiB): 8192 -> 4096":                              onVM(func(vm *cluster.VM) { vm.Hardware.Value.MemoryMiB = 8192 }),
		"vm: none -> vm 411":                                      onVM(func(vm *cluster.VM) { vm.Presence = cluster.Absent }),
		"power: stopped -> running":                               onVM(func(vm *cluster.VM) { vm.Power = cluster.Stopped }),
		"vm: one that is not the agent's: another uuid -> vm 411": onVM(func(vm *cluster.VM) { vm.Owner, vm.Why = cluster.Foreign, "another uuid" }),
		"talos version: v1.13.8 -> v1.13.9": func(o *cluster.Observed) {
			m := o.Machines["dev-wk-1"]
			m.Talos = "v1.13.8"
			o.Machines["dev-wk-1"] = m
		},
		"node object: none -> one":                              func(o *cluster.Observed) { delete(o.Nodes.Value, "dev-wk-1") },
		"vm: vm 599 -> none":                                    func(o *cluster.Observed) { o.Orphans.Value = []cluster.VM{{Node: "dev-wk-9", VMID: 599}} },
		"release: none -> https://charts.example.org/app-1.2.3": func(o *cluster.Observed) { delete(o.Releases.Value, "app") },
		"status: failed -> deployed":                            onRelease(func(r *cluster.Release) { r.Status = "failed" }),
		"release: one that is not the agent's -> its own":       onRelease(func(r *cluster.Release) { r.Digest = "" }),
		"digest of chart and values: changed -> d-app":          onRelease(func(r *cluster.Release) { r.Digest = "changed" }),
	} {
		o, asked := settle(t, d)
		change(&o)
		out := compare(t, d, o, asked)
		if got := first(out); got != want || !out.Differs {
			t.Errorf("want %q, got %q in %+v", want, got, out)
		}
	}
}

// A release that is bootstrap-only is others' to change.
func TestBootstrapOnlyIsNotCompared(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	o, asked := settle(t, d)
	rel := o.Releases.Value["store"]
	rel.Digest = ""
	o.Releases.Value["store"] = rel
	delete(asked.Releases, "store")
	if out := compare(t, d, o, asked); out.Differs || len(out.Unknown) > 0 {
		t.Errorf("the difference is %+v", out)
	}
}

func TestAddonDiffers(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	o, asked := settle(t, d)
	asked.Releases["app"] = cluster.Saw(cluster.Installed{Chart: "app", Version: "1.2.2", Missing: []string{"service app/" + password}, Altered: []string{"service app/web: spec." + password},
		Values: cluster.SecretString(`{"auth":{"password":"retired","renamed":"retired","url":"https://me:retired@example.org"},"db":{"phrase":"retired","other":"retired"},"list":["x retired",3],"plain":"other","apiToken":"retired","size":2}`)})
	rel := o.Releases.Value["app"]
	rel.Digest = "older"
	o.Releases.Value["app"] = rel
	out := compare(t, d, o, asked)
	if len(out.Addons) != 1 || len(out.Unknown) > 0 {
		t.Fatalf("the difference is %+v", out)
	}
	a := out.Addons[0]
	if len(a.Fields) != 2 || a.Fields[0].Has != "1.2.2" || len(a.Missing) != 1 || len(a.Altered) != 1 {
		t.Errorf("it is %+v", a)
	}
	for _, want := range []string{"-  \"plain\": \"other\",\n", "+  \"plain\": \"abc\"\n", "-  \"size\": 2\n", "-    \"password\": \"<secret hmac:", "+    \"password\": \"<secret hmac:", "+    true\n"} {
		if !strings.Contains(a.Values, want) {
			t.Errorf("%q is not in\n%s", want, a.Values)
		}
	}
	if !strings.HasPrefix(a.Missing[0], "service app/<secret hmac:") || strings.Contains(a.Altered[0], password) {
		t.Errorf("an object that is called like a secret: %v, %v", a.Missing, a.Altered)
	}
	if strings.Contains(a.Values, "retired") {
		t.Errorf("a secret of before is shown:\n%s", a.Values)
	}
}

func TestCompareOneNode(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	o, asked := settle(t, d)
	delete(asked.Configs, "dev-cp-1")
	o.Releases = cluster.Seen[map[string]cluster.Release]{}
	out, err := Compare(d, o, asked, "dev-wk-1")
	if err != nil || out.Differs || len(out.Unknown) > 0 {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestFormerSecretsAreHidden: what an addon was installed with may be a secret that the
// inventory no longer has anywhere, not even its place, or with another text there.
func TestFormerSecretsAreHidden(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	mask, err := NewMask(false, d.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ has, wants string }{
		{`{"admin": {"password": "hunter-2"}}`, `{"admin": {"password": ""}}`},
		{`{"admin": {"password": "hunter-2"}}`, `{"admin": {"password": "changeme"}}`},
		{`{"env": [{"name": "API_TOKEN", "value": "hunter-2"}]}`, `{"env": [{"name": "API_TOKEN", "value": "x"}]}`},
		{`{"db": {"url": "postgres://app:hunter-2@db/app"}}`, `{"db": {"url": "postgres://db/app"}}`},
		{`{"db": {"dsn": "hunter-2"}}`, `{}`},
	} {
		text, err := diffValues(mask, []byte(c.has), []byte(c.wants))
		if err != nil || text == "" || strings.Contains(text, "hunter-2") {
			t.Errorf("%s, and should be %s: %v\n%s", c.has, c.wants, err, text)
		}
	}
	if text, err := diffValues(mask, []byte(`{"replicas": "one"}`), []byte(`{"replicas": "two"}`)); err != nil || !strings.Contains(text, "one") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestOptionsAreRendered: what the inventory has of further options of a VM is shown by the names that drifts have, and
// nothing where it has none.
func TestOptionsAreRendered(t *testing.T) {
	n := cluster.Node{Name: "wk-1", SCSIHardware: cluster.SingleController}
	if vm := renderVM(cluster.Desired{}, n); vm.Options != nil {
		t.Errorf("%v", vm.Options)
	}
	n.Options, n.NetworkCard = map[cluster.VMField]string{cluster.FieldCPULimit: "2"}, "e1000e"
	if vm := renderVM(cluster.Desired{}, n); len(vm.Options) != 1 || vm.Options[cluster.FieldCPULimit] != "2" || vm.Network.Model != "e1000e" {
		t.Errorf("%v, %s", vm.Options, vm.Network.Model)
	}
}
