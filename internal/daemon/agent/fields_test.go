package agent_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// fieldEdits edit one field of an inventory each, of those that share a row of the page of
// changes with others: from what to what, in cluster.yaml, in nodes.yaml, or in an addon.
var fieldEdits = map[string][3]string{
	"cpu":                         {"nodes", "cpu: 4, ram: 8192, disk: 60G}\n  - {name: dev-wk-2", "cpu: 2, ram: 8192, disk: 60G}\n  - {name: dev-wk-2"},
	"profiles":                    {"cluster", "cni: cilium\n", "cni: cilium\nprofiles: {worker: {cpu: 2}}\n"},
	"tags":                        {"nodes", "{name: dev-wk-1,", "{name: dev-wk-1, tags: [web],"},
	"proxmox.tags":                {"cluster", "  bridge: vmbr1\n", "  bridge: vmbr1\n  tags: [web]\n"},
	"mac":                         {"nodes", "{name: dev-wk-1,", "{name: dev-wk-1, mac: \"BC:24:11:00:00:99\","},
	"network.mac_prefix":          {"cluster", "network:\n", "network:\n  mac_prefix: \"BC:24:12\"\n"},
	"vmid":                        {"nodes", "{name: dev-wk-1,", "{name: dev-wk-1, vmid: 999,"},
	"ip":                          {"nodes", "10.10.0.41", "10.10.0.49"},
	"first_vmid":                  {"nodes", "first_vmid: 700", "first_vmid: 701"},
	"offset":                      {"nodes", "first_ip: 10.10.0.61, first_vmid: 700", "offset: 62, first_vmid: 701"},
	"first_ip":                    {"nodes", "10.10.0.61, first_vmid: 700", "10.10.0.62, first_vmid: 701"},
	"proxmox.vmid_ranges":         {"cluster", "worker: 500-2599", "worker: 600-2599"},
	"patches":                     {"cluster", "cni: cilium\n", "cni: cilium\npatches: {worker: [patches/worker.yaml]}\n"},
	"network.vip":                 {"cluster", "vip: 10.10.0.5", "vip: 10.10.0.7"},
	"network.endpoint":            {"cluster", "network:\n", "network:\n  endpoint: https://k8s.example.org:6443\n"},
	"network.nameservers":         {"cluster", "nameservers: [10.10.0.1]", "nameservers: [10.10.0.2]"},
	"network.time_servers":        {"cluster", "time_servers: [10.10.0.1]", "time_servers: [10.10.0.2]"},
	"network.cert_sans":           {"cluster", "network:\n", "network:\n  cert_sans: [k8s.example.org]\n"},
	"talos.installer_registry":    {"cluster", "talos:\n", "talos:\n  installer_registry: mirror.example.org\n"},
	"network.pod_cidr":            {"cluster", "network:\n", "network:\n  pod_cidr: 10.200.0.0/16\n"},
	"network.svc_cidr":            {"cluster", "network:\n", "network:\n  svc_cidr: 10.128.0.0/12\n"},
	"network.gateway":             {"cluster", "gateway: 10.10.0.1", "gateway: 10.10.0.2"},
	"network.address_mode":        {"cluster", "network:\n", "network:\n  address_mode: dhcp-reservation\n"},
	"network.cidr":                {"cluster", "cidr: 10.10.0.0/20", "cidr: 10.10.0.0/21"},
	"node":                        {"nodes", "{name: dev-wk-1, node: pve1", "{name: dev-wk-1, node: pve2"},
	"proxmox.node":                {"cluster", "  nodes: [pve1, pve2]\n", "  node: pve1\n"},
	"proxmox.nodes":               {"cluster", "  nodes: [pve1, pve2]\n", "  nodes: [pve1, pve2, pve3]\n"},
	"placement":                   {"cluster", "cni: cilium\n", "cni: cilium\nplacement: {strategy: pin}\n"},
	"proxmox.image_datastore":     {"cluster", "  bridge: vmbr1\n", "  bridge: vmbr1\n  image_datastore: other\n"},
	"proxmox.cloudinit_datastore": {"cluster", "  bridge: vmbr1\n", "  bridge: vmbr1\n  cloudinit_datastore: local\n"},
	"talos.boot":                  {"cluster", "talos:\n", "talos:\n  boot: image\n"},
	"talos.arch":                  {"cluster", "talos:\n", "talos:\n  arch: amd64\n"},
	"pve_capacity":                {"cluster", "cni: cilium\n", "cni: cilium\npve_capacity: {pve1: {cpu: 24, ram: 49152}}\n"},
	"ha_enabled":                  {"cluster", "cni: cilium\n", "cni: cilium\nha_enabled: true\n"},
	"protect":                     {"nodes", "{name: dev-wk-1,", "{name: dev-wk-1, protect: true,"},
	"environment":                 {"cluster", "cni: cilium\n", "cni: cilium\nenvironment: lab\n"},
	"values":                      {"addons/podinfo", "name: podinfo\n", "name: podinfo\nvalues: {color: blue}\n"},
	"values_files":                {"addons/podinfo", "name: podinfo\n", "name: podinfo\nvalues_files: [values.yaml]\n"},
	"namespace_labels":            {"addons/podinfo", "name: podinfo\n", "name: podinfo\nnamespace_labels: {team: web}\n"},
	"namespace_annotations":       {"addons/podinfo", "name: podinfo\n", "name: podinfo\nnamespace_annotations: {team: web}\n"},
	"depends_on":                  {"addons/podinfo", "depends_on: [cilium]\n", ""},
	"ready.timeout":               {"addons/podinfo", "name: podinfo\n", "name: podinfo\nready: {timeout: 30m}\n"},
	"prune":                       {"cluster", "cni: cilium\n", "cni: cilium\nprune: true\n"},
	"heal":                        {"cluster", "cni: cilium\n", "cni: cilium\nheal: observe\n"},
	"apply":                       {"cluster", "cni: cilium\n", "cni: cilium\napply: \"off\"\n"},
	"upgrade":                     {"cluster", "cni: cilium\n", "cni: cilium\nupgrade: approve\n"},
	"canary":                      {"cluster", "cni: cilium\n", "cni: cilium\ncanary: dev-wk-1\n"},
	"gates":                       {"cluster", "cni: cilium\n", "cni: cilium\ngates: [{name: never, condition: \"size(status.nodes) > 999\"}]\n"},
	"soak":                        {"cluster", "cni: cilium\n", "cni: cilium\nsoak: 5m\n"},
	"window":                      {"cluster", "cni: cilium\n", "cni: cilium\nwindow: {from: \"22:00\", to: \"05:00\"}\n"},
	"replace_dead":                {"cluster", "cni: cilium\n", "cni: cilium\nreplace_dead: {worker: 15m, controlplane: 15m}\n"},
	"max_unavailable":             {"cluster", "cni: cilium\n", "cni: cilium\nmax_unavailable: 2\n"},
	"allow_even":                  {"cluster", "cni: cilium\n", "cni: cilium\nallow_even: true\n"},
	"drain":                       {"cluster", "cni: cilium\n", "cni: cilium\ndrain: {timeout: 2m, on_timeout: delete}\n"},
}

// TestFieldsThatShareARow: each field of a row of the page of changes that has several leads to what
// the row has, from the file of the inventory on.
func TestFieldsThatShareARow(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../../docs/reference/changes.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(file)
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		base := func() map[string][]byte {
			files := sz.Files()
			files["inventory/dev/nodes.yaml"] = append(files["inventory/dev/nodes.yaml"], "counted:\n  - {name: \"dev-ct-{n}\", role: worker, count: 1, first_ip: 10.10.0.61, first_vmid: 700}\n"...)
			files["inventory/dev/nodes.yaml"] = regexp.MustCompile(`name: [a-z0-9"{}-]+,`).ReplaceAll(files["inventory/dev/nodes.yaml"], []byte("$0 node: pve1,"))
			changed(t, files, "inventory/dev/cluster.yaml", "  node: pve1\n", "  nodes: [pve1, pve2]\n")
			files["inventory/dev/patches/worker.yaml"] = []byte("machine: {sysctls: {vm.max_map_count: \"262144\"}}\n")
			files["inventory/dev/values.yaml"] = []byte("color: blue\n")
			return files
		}
		s.Push(base(), "with a counted worker")
		s.UntilReady(20 * time.Minute)
		for _, name := range slices.Sorted(maps.Keys(fieldEdits)) {
			edit, dir := fieldEdits[name], fstest.MapFS{}
			files := base()
			changed(t, files, "inventory/dev/"+edit[0]+".yaml", edit[1], edit[2])
			for name, data := range files {
				dir[name] = &fstest.MapFile{Data: data}
			}
			f, err := s.Cluster().ForecastDir(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := classOf(f), classOfRow(t, page, name); got != want {
				t.Errorf("%s: %s, and the page has %s: %q, %v, %v", name, got, want, textsOf(f), f.Waiting, f.Blocked)
			}
		}
		s.Halt()
	})
}

// classOf is what a forecast comes to, in the words of the page of changes.
func classOf(f cluster.Forecast) string {
	does := func(kind cluster.ActionKind) bool {
		return slices.ContainsFunc(f.Steps, func(s cluster.Step) bool { return s.Action == kind })
	}
	switch {
	case f.Problems.HasErrors():
		return "invalid: " + f.Problems.Error()
	case does(cluster.DeleteVM):
		return "its machine is deleted"
	case does(cluster.DrainNode):
		return "in a turn"
	case len(f.Steps) > 0:
		return "as it runs"
	case len(f.Blocked) > 0:
		return "refused"
	case len(f.Waiting) > 0:
		return "waits"
	}
	return "nothing"
}

// classOfRow is what the page has of the row that names a field.
func classOfRow(t *testing.T, page, field string) string {
	t.Helper()
	if slices.Contains([]string{"heal", "apply", "upgrade", "window", "replace_dead", "max_unavailable", "allow_even", "drain"}, field) {
		field = "protect" // "and the switches below"
	}
	for line := range strings.Lines(page) {
		cells := strings.Split(line, " | ")
		if len(cells) < 2 || !strings.Contains(cells[0], "`"+field+"`") {
			continue
		}
		class, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(cells[1]), " |"), ":")
		if slices.Contains([]string{"nothing", "as it runs", "in a turn", "refused", "its machine is deleted"}, class) {
			return class
		}
		return "as it runs" // of an addon
	}
	t.Errorf("no row names %s", field)
	return ""
}
