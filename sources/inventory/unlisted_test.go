package inventory

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

const unlistedTree = `
-- inventory/dev/cluster.yaml --
cluster_name: dev
talos_version: v1.13.9
kubernetes_version: v1.36.1
network: {cidr: 10.10.0.0/24, gateway: 10.10.0.1}
proxmox: {node: pve1}
patches: {all: [patches/used.yaml, ../shared/used.yaml]}
addons: [addons/used.yaml]
gates: [{name: used, job: gates/used.yaml}]
-- inventory/dev/gates/used.yaml --
apiVersion: batch/v1
kind: Job
spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}
-- inventory/dev/gates/left.yaml --
apiVersion: batch/v1
kind: Job
-- inventory/dev/manifests/job.yaml --
apiVersion: batch/v1
kind: Job
-- inventory/dev/nodes.yaml --
controlplane:
  - {name: cp-1, ip: 10.10.0.11}
-- inventory/dev/secrets.sops.yaml --
-- inventory/dev/patches/used.yaml --
machine: {sysctls: {a: b}}
-- inventory/dev/patches/left.yaml --
machine: {sysctls: {a: b}}
-- inventory/dev/patches/broken.yml --
machine: {
-- inventory/dev/patches/kept.yaml --
# Not now.
# unused: ok
machine: {sysctls: {a: b}}
-- inventory/dev/patches/README.md --
-- inventory/dev/addons/used.yaml --
name: used
chart: {path: charts/used}
values_files: [addons/used-values.yaml]
-- inventory/dev/addons/used-values.yaml --
a: 1
-- inventory/dev/addons/left-values.yaml --
a: 1
-- inventory/dev/charts/used/Chart.yaml --
name: used
version: 1.0.0
-- inventory/dev/charts/used/values.yaml --
machine: {}
-- inventory/dev/tailscale.yaml --
apiVersion: v1alpha1
kind: ExtensionServiceConfig
name: tailscale
-- inventory/dev/longhorn.yaml --
name: longhorn
chart: {repository: "https://charts.longhorn.io", name: longhorn, version: 1.2.3}
-- inventory/dev/manifests/deployment.yaml --
apiVersion: apps/v1
kind: Deployment
-- inventory/shared/used.yaml --
machine: {sysctls: {c: d}}
-- inventory/shared/left.yaml --
a: 1
-- inventory/argocd/app.yaml --
apiVersion: argoproj.io/v1alpha1
kind: Application
-- inventory/prod/cluster.yaml --
patchs: {}
-- inventory/prod/patches/left.yaml --
machine: {sysctls: {a: b}}
`

// TestUnlisted: a file that looks like part of a cluster and is none is named, with
// the list it belongs to; what others keep beside it is not.
func TestUnlisted(t *testing.T) {
	fsys := treeOf(txtar.Parse([]byte(unlistedTree)))
	snap, problems := Load(fsys, "inventory/dev", Options{})
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	find := func() string {
		var got []string
		for _, p := range Unlisted(fsys, "inventory", []cluster.Snapshot{snap}) {
			list, _, _ := strings.Cut(p.Hint, "; to keep it unused, begin it with the line # unused: ok")
			if p.Severity != cluster.Error || p.Message != "no list names the file: nothing in it has an effect" || list == p.Hint {
				t.Error(p)
			}
			got = append(got, p.File+" "+list)
		}
		return strings.Join(got, "\n")
	}
	want := []string{
		"inventory/dev/addons/left-values.yaml " + listValues,
		"inventory/dev/gates/left.yaml " + listGate,
		"inventory/dev/longhorn.yaml " + listAddon,
		"inventory/dev/patches/broken.yml " + listPatch,
		"inventory/dev/patches/left.yaml " + listPatch,
		"inventory/dev/tailscale.yaml " + listPatch,
	}
	if got := find(); got != strings.Join(want, "\n") {
		t.Errorf("with an invalid cluster beside it\n%s", got)
	}
	for _, file := range []string{"inventory/prod/cluster.yaml", "inventory/prod/patches/left.yaml"} {
		delete(fsys, file)
	}
	if got := find(); got != strings.Join(append(want, "inventory/shared/left.yaml "+listAny), "\n") {
		t.Errorf("with every cluster known\n%s", got)
	}
}
