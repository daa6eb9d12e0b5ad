package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	talosresource "github.com/siderolabs/talos/pkg/machinery/resources/config"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestRenderAndDiff looks at what a cluster would be given, and at how it differs from
// that, while somebody edits it. That no secret is shown is in TestNoSecretEscapes.
func TestRenderAndDiff(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.start()
	r.run(exitFailed, do("render", "dev"), "the inventory of this cluster has not been read yet")
	commit := r.push(withAddon(r.inventory(1), "3"))
	r.run(exitOK, do("reconcile"))
	r.untilReady(commit)

	all := r.run(exitOK, do("render"), "# cluster dev at main@sha1:"+commit, "---\n# node dev-cp-1: vm\nvmid: 412\n", "---\n# node dev-wk-1: machine config\nversion: v1alpha1\n",
		"memoryMiB: 4096", "token: <secret hmac:",
		"---\n# addon app\naddon: app\nnamespace: app\norder: 1\nchart: inventory/dev/chart\nversion: 1.0.0\n", "values:\n    size: 3\n")
	if all.has("KEY-----") || all.has("key: LS0t") {
		t.Errorf("there are keys in it: %v", all)
	}
	if one := r.run(exitOK, do("render", "dev", "dev-wk-1")); !one.has("# node dev-wk-1: machine config\n") || one.has("dev-cp-1: vm") {
		t.Errorf("one node: %v", one)
	}
	r.run(exitFailed, do("render", "dev", "dev-wk-9"), `cluster dev has no node "dev-wk-9"`, "-> its nodes are dev-cp-1, dev-wk-1")
	r.run(exitFailed, do("render", "other"), `no such cluster: "other"`, "-> this host manages dev")
	r.run(exitUsage, do("render", "dev", "--age-key", "age.key"), "--age-key is for --dir: the daemon has its own")

	a := r.run(exitOK, do("render", "dev", "--show-secrets", "--output", "json"))
	var shown struct {
		Kind string
		Data cluster.Rendering
	}
	must(json.Unmarshal([]byte(a.out), &shown))
	if shown.Kind != "Rendering" || len(shown.Data.Nodes) != 2 {
		t.Fatalf("rendered %v", a)
	}
	for _, n := range shown.Data.Nodes {
		if has := r.machineConfig(n.Node); has != n.MachineConfig {
			t.Errorf("%s has\n%s\nand would be given\n%s", n.Node, has, n.MachineConfig)
		}
	}
	checkout := t.TempDir()
	save(checkout, withAddon(r.inventory(1), "3"))
	r.file("checkout.key", string(r.keys.ageKey))
	offline := r.run(exitOK, do("render", "--dir", checkout, "--owner", "rig", "--age-key", r.dir+"/checkout.key"), "the image's id is a placeholder")
	if offline.has("throw-away") {
		t.Errorf("the secrets are known: %v", offline)
	}
	for line := range strings.Lines(all.out) {
		if strings.Contains(line, "<secret ") && !strings.Contains(offline.out, line) {
			t.Errorf("%q is another offline", line)
		}
	}
	r.findDifferences()
}

// withAddon adds an addon with a value to an inventory.
func withAddon(files map[string][]byte, size string) map[string][]byte {
	return with(files, "inventory/dev/cluster.yaml", string(files["inventory/dev/cluster.yaml"])+"addons: [app.yaml]\n",
		"inventory/dev/app.yaml", "name: app\nnamespace: app\nchart: {path: chart}\nvalues: {size: "+size+"}\n",
		"inventory/dev/chart/Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.0.0\n",
		"inventory/dev/chart/templates/x.yaml", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata: {size: \"{{ .Values.size }}\"}\n")
}

// findDifferences has somebody edit a VM and a machine, and looks at the difference.
func (r *rig) findDifferences() {
	t := r.t
	if a := r.run(exitOK, do("diff", "dev")); a.out != "dev: no difference\n" {
		t.Errorf("nothing differs, and %v", a)
	}
	r.run(exitOK, do("diff", "dev", "dev-wk-1", "--output", "json"), `"kind": "Difference"`, `"differs": false`, `"unknown": []`)
	r.run(exitFailed, do("diff", "dev", "dev-wk-9"), `cluster dev has no node "dev-wk-9"`, "-> its nodes are dev-cp-1, dev-wk-1")

	r.run(exitOK, do("suspend", "dev")) // or it would be undone
	r.until("nothing goes on", func() bool { return r.status().Condition == cluster.Suspended })
	must(r.lab.PVE.Edit(522, "memory", "12288"))
	running := r.machineConfig("dev-wk-1")
	edited := "machine:\n    sysctls:\n        vm.overcommit_memory: \"1\"\n" + strings.TrimPrefix(running[strings.Index(running, "machine:\n"):], "machine:\n")
	r.applyConfig("dev-wk-1", edited, machineapi.ApplyConfigurationRequest_NO_REBOOT)
	a := r.run(exitChanges, do("diff", "dev"), "node dev-wk-1\n  memory (MiB): 12288 -> 8192 (", "  machine config", ":\n    --- has\n    +++ wants\n",
		"    -    sysctls:\n    -        vm.overcommit_memory: \"1\"\n")
	if a.has("dev-cp-1") || a.has("unknown") || strings.Contains(a.out, "\n    +  ") {
		t.Errorf("more differs than was edited: %v", a)
	}
	r.run(exitChanges, do("diff", "dev", "dev-wk-1", "-o", "json"), `"field": "memory (MiB)"`, `"wants": "8192"`, "vm.overcommit_memory")
	r.run(exitOK, do("diff", "dev", "dev-cp-1"), "dev: no difference")

	must(r.lab.Talos.Partition(412, true))
	r.run(exitFailed, do("diff", "dev", "dev-cp-1"), "dev-cp-1: machine config is unknown: read config of dev-cp-1")
	must(r.lab.Talos.Partition(412, false))

	// What was only staged runs nowhere yet.
	running = r.machineConfig("dev-cp-1")
	r.applyConfig("dev-cp-1", "machine:\n    sysctls:\n        vm.swappiness: \"1\"\n"+strings.TrimPrefix(running[strings.Index(running, "machine:\n"):], "machine:\n"), machineapi.ApplyConfigurationRequest_STAGED)
	r.until("it is seen", func() bool {
		a := r.try(do("diff", "dev", "dev-cp-1")...)
		return a.code == exitChanges && a.has("  staged machine config: another one -> none (in place), staged on the node at ")
	})

	// The plan has the same, with what is known of who it was.
	edits := []string{"drop the machine config that waits for the next boot of dev-cp-1 (staged on the node at ", "drain dev-wk-1 to change memory (MiB) from 12288 to 8192 (changed after ", "change the machine config of dev-wk-1 back (edited on the node; it runs that since "}
	r.until("the plan undoes all", func() bool { // it is of the last look, and diff takes one
		a := r.try(do("plan", "dev")...)
		return a.code == exitChanges && !slices.ContainsFunc(edits, func(e string) bool { return !a.has(e) })
	})

	commit := r.push(withAddon(r.inventory(1), "4"))
	r.run(exitOK, do("reconcile"))
	r.until("the new value is seen", func() bool { return r.status().Revision.Commit() == commit })
	r.run(exitChanges, do("diff", "dev"), "addon app\n  values: others at size -> those of the inventory, since 20", "  values:\n    --- has\n    +++ wants\n", "    -  \"size\": 3\n    +  \"size\": 4\n")

	r.run(exitOK, do("resume", "dev"))
	r.until("the edits are undone", func() bool { return r.try(do("diff", "dev")...).out == "dev: no difference\n" })
	r.run(exitOK, do("events", "dev", "--since", "1h"), edits...)
}

// machine speaks with the machine of a node as talosctl does.
func (r *rig) machine(node string, do func(ctx context.Context, c *client.Client)) {
	r.t.Helper()
	opened, err := clientconfig.FromBytes([]byte(r.run(exitOK, []string{"talosconfig", "dev"}).out))
	must(err)
	ip := map[string]string{"dev-cp-1": "11", "dev-wk-1": "21"}[node]
	ctx, cancel := context.WithTimeout(r.t.Context(), daemonPatience)
	defer cancel()
	c, err := client.New(ctx, client.WithConfig(opened), client.WithEndpoints(r.base+ip))
	must(err)
	defer func() { must(c.Close()) }()
	do(ctx, c)
}

// applyConfig gives the machine of a node a config, from its part "machine" on, as talosctl
// does.
func (r *rig) applyConfig(node, from string, mode machineapi.ApplyConfigurationRequest_Mode) {
	r.t.Helper()
	r.machine(node, func(ctx context.Context, c *client.Client) {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: []byte("version: v1alpha1\ndebug: false\npersist: true\n" + from), Mode: mode})
		must(err)
	})
}

// machineConfig is the config that the machine of a node runs.
func (r *rig) machineConfig(node string) (text string) {
	r.t.Helper()
	r.machine(node, func(ctx context.Context, c *client.Client) {
		found, err := safe.StateGetByID[*talosresource.MachineConfig](ctx, c.COSI, talosresource.ActiveID)
		must(err)
		b, err := found.Provider().Bytes()
		must(err)
		text = string(b)
	})
	return text
}
