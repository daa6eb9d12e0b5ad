package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
)

// The inventory that the mistakes are made in.
const (
	rightCluster = `cluster_name: dev
talos_version: v1.13.9
kubernetes_version: v1.36.1
network:
  cidr: 10.10.0.0/24
  gateway: 10.10.0.1
proxmox:
  node: pve1
`
	rightNodes = `controlplane:
  - {name: cp-1, ip: 10.10.0.11}
workers:
  - {name: wk-1, ip: 10.10.0.21}
`
)

// TestMistakes makes the mistakes that people make, and holds every word that
// they are told about them: the place, what is wrong, and what to write.
func TestMistakes(t *testing.T) {
	const c, n = "cluster.yaml", "nodes.yaml"
	for _, m := range []struct {
		name, file, old, new string
		want                 string
	}{
		{"a tab", n, "  - {name: wk-1", "\t- {name: wk-1",
			`nodes.yaml:4:1: not valid YAML: a tab in the indentation (indent with spaces)`},
		{"a key twice", c, "  gateway: 10.10.0.1\n", "  gateway: 10.10.0.1\n  gateway: 10.10.0.2\n",
			`cluster.yaml:7:3: duplicate key "gateway" (it stands in line 6 already: remove one)`},
		{"a second document", c, "proxmox:", "---\nproxmox:", `cluster.yaml:8:1: a second document (keep one and remove the --- line)`},
		{"a key misspelt", n, "workers:", "worker:", `nodes.yaml:3:1: nodes: unknown key "worker" (did you mean workers?)`},
		{"a version's key misspelt", c, "talos_version", "talos_versoin", `cluster.yaml:2:1: unknown key "talos_versoin" (did you mean talos_version?)`},
		{"the control planes misspelt", n, "controlplane:", "controlplan:", `nodes.yaml:1:1: nodes: unknown key "controlplan" (did you mean controlplane?)`},
		{"the router misspelt", c, "gateway:", "gatway:", `cluster.yaml:6:3: network: unknown key "gatway" (did you mean gateway?)`},
		{"no space after a colon", c, "talos_version: v", "talos_version:v", `cluster.yaml:2:15: not valid YAML: there is no space after the colon (write key: value)`},
		{"no space in a row", n, "name: wk-1", "name:wk-1", `nodes.yaml:4:6: nodes.workers[0]: unknown key "name:wk-1" (put a space after the colon: name: wk-1)`},
		{"what a merge left", n, "workers:\n", "<<<<<<< HEAD\nworkers:\n=======\nworkers:\n>>>>>>> main\n",
			`nodes.yaml:3:1: not valid YAML: a merge conflict that is not resolved (keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>)`},
		{"a row too deep", c, "  gateway:", "   gateway:",
			`cluster.yaml:6:4: not valid YAML: the line is indented further than the one above, whose key has a value already (keys beside each other begin in the same column, and what belongs to one stands two spaces further right)`},
		{"a row beyond the network", n, "workers:\n  - {name: wk-1, ip: 10.10.0.21}\n", "counted:\n  - {role: worker, name: \"wk-{n}\", count: 40, first_ip: 10.10.0.240}\n",
			`nodes.yaml:4:43: nodes.counted[0].count: 40 nodes from 10.10.0.240 on end at 10.10.1.23, beyond network.cidr 10.10.0.0/24 (write a count of 15 or less, an earlier first_ip, or a larger network.cidr)`},
		{"a row over the control planes", n, "workers:\n  - {name: wk-1, ip: 10.10.0.21}\n", "  - {name: cp-2, ip: 10.10.0.12}\n  - {name: cp-3, ip: 10.10.0.13}\ncounted:\n  - {role: worker, name: \"wk-{n}\", count: 3, first_ip: 10.10.0.11}\n",
			`nodes.yaml:6:56: nodes.counted[0].first_ip: 10.10.0.11 is the address of cp-1 (inventory/dev/nodes.yaml:2), and likewise for 2 more of the row (give every node an address of its own)`},
		{"two rows without addresses", n, "workers:\n  - {name: wk-1, ip: 10.10.0.21}\n", "counted:\n  - {role: worker, name: \"a-{n}\", count: 2}\n  - {role: worker, name: \"b-{n}\", count: 3, first_vmid: 540}\n",
			`nodes.yaml:5:5: nodes.counted[1].offset: 10.10.0.20 of b-1 (offset 20) is the address of a-1 (inventory/dev/nodes.yaml:4), and likewise for 1 more of the row (write an offset for the row whose addresses are free, like offset: 30)`},
		{"an offset and an address", n, "ip: 10.10.0.21", "ip: 10.10.0.21, offset: 21", `nodes.yaml:4:34: nodes.workers[0].offset: ip and offset are both written (keep one of them)`},
		{"an offset beyond the network", n, "ip: 10.10.0.21", "offset: 300", `nodes.yaml:4:26: nodes.workers[0].offset: offset 300 is beyond network.cidr 10.10.0.0/24 (write an offset from 1 to 254)`},
		{"another tool's key", n, "ip: 10.10.0.21", "ip: 10.10.0.21, cores: 4", `nodes.yaml:4:34: nodes.workers[0]: unknown key "cores" (did you mean cpu?)`},
		{"no name", c, "cluster_name: dev\n", "", `cluster.yaml:1:1: cluster_name: is missing (write cluster_name: dev)`},
		{"a name that is none", c, "cluster_name: dev", `cluster_name: "my cluster"`,
			`cluster.yaml:1:15: cluster_name: "my cluster" is not a DNS label (lower-case letters, digits and -, at most 63) (write one like dev)`},
		{"the folder of another name", c, "cluster_name: dev", "cluster_name: prod", `cluster.yaml:1:15: cluster_name: the cluster prod lies in a folder named dev (write ` + "`cluster_name: dev`" + ` again, where the cluster is there already; or rename the folder to prod: another cluster_name is another cluster)`},
		{"an address twice", n, "10.10.0.21", "10.10.0.11",
			`nodes.yaml:4:22: nodes.workers[0].ip: 10.10.0.11 is the address of cp-1 (inventory/dev/nodes.yaml:2) (give every node an address of its own)`},
		{"the gateway's address", n, "10.10.0.21", "10.10.0.1", `nodes.yaml:4:22: nodes.workers[0].ip: 10.10.0.1 is the gateway (choose another one)`},
		{"an address of elsewhere", n, "10.10.0.21", "10.11.0.21",
			`nodes.yaml:4:22: nodes.workers[0].ip: 10.11.0.21 is not in network.cidr 10.10.0.0/24 (choose one inside it)`},
		{"a gateway of elsewhere", c, "gateway: 10.10.0.1", "gateway: 10.10.1.1",
			`cluster.yaml:6:12: network.gateway: 10.10.1.1 is not in network.cidr 10.10.0.0/24 (choose one inside it)`},
		{"the pods' network", c, "gateway: 10.10.0.1\n", "gateway: 10.10.0.1\n  pod_cidr: 10.10.0.0/16\n",
			`cluster.yaml:5:9: network.cidr: the nodes' network 10.10.0.0/24 overlaps with the pods' network 10.10.0.0/16: a node takes its own address for one of theirs and never comes up (move the nodes or write another network.pod_cidr)`},
		{"a name twice", n, "wk-1,", "cp-1,", `nodes.yaml:4:12: nodes.workers[0].name: cp-1 is the name of another node (inventory/dev/nodes.yaml:2) (give every node a name of its own)`},
		{"a version without v", c, "v1.36.1", "1.36", `cluster.yaml:3:21: kubernetes_version: "1.36" is not a version: v, then three numbers (write one like v1.36.1)`},
		{"versions that do not go together", c, "v1.36.1", "v1.20.0",
			`cluster.yaml:3:21: kubernetes_version: Kubernetes v1.20.0 does not run on Talos v1.13.9 (choose a version from v1.31 to v1.36)`},
		{"memory with a unit", n, "wk-1,", "wk-1, ram: 1G,", `nodes.yaml:4:23: nodes.workers[0].ram: "1G" is not a number of MiB (write 1024)`},
		{"memory in gigabytes", n, "wk-1,", "wk-1, ram: 8,", `nodes.yaml:4:23: nodes.workers[0].ram: too little memory for a worker: 8 MiB (write 8192 for 8 GiB: the number counts MiB)`},
		{"too little memory", n, "wk-1,", "wk-1, ram: 512,", `nodes.yaml:4:23: nodes.workers[0].ram: too little memory for a worker: 512 MiB (write 1024 or more; the number counts MiB)`},
		{"a VMID Proxmox VE keeps", n, "wk-1,", "wk-1, vmid: 12,", `nodes.yaml:4:24: nodes.workers[0].vmid: 12 is too small for a VMID (write 100 or more)`},
		{"a MAC that is none", n, "wk-1,", "wk-1, mac: xx,", `nodes.yaml:4:23: nodes.workers[0].mac: "xx" is not a MAC address (write one like "BC:24:11:00:00:21")`},
		{"two control planes", n, "ip: 10.10.0.11}", "ip: 10.10.0.11}\n  - {name: cp-2, ip: 10.10.0.12}", ``},
		{"high availability of one", c, "cluster_name: dev\n", "cluster_name: dev\nha_enabled: true\n",
			`cluster.yaml:2:13: ha_enabled: needs an odd number of control planes, at least 3; the inventory has 1 (make it 3 or 5, or write ha_enabled: false)`},
		{"no control plane", n, "controlplane:\n  - {name: cp-1, ip: 10.10.0.11}\n", "",
			`nodes.yaml: nodes.controlplane: a cluster needs at least one control plane (add one under controlplane:, or a counted row with role: controlplane)`},
		{"Cilium without its chart", c, "proxmox:", "cni: cilium\nproxmox:",
			`cluster.yaml:7:6: cni: cilium needs an addon of that name (write addons: [addons/cilium.yaml], and into that file: {name: cilium, namespace: kube-system, chart: {repository: "https://helm.cilium.io", name: cilium, version: 1.19.3}})`},
		{"what is not supported yet", c, "proxmox:", "talos: {boot: template}\nproxmox:", `cluster.yaml:7:15: talos.boot: template is not supported yet (write image or iso)`},
		{"Secure Boot with an older Talos", c, "proxmox:", "talos: {secureboot: true}\nproxmox:",
			`cluster.yaml:7:21: talos.secureboot: the disk image of Talos v1.13.9 does not give the firmware its keys, so that nothing would be verified (write talos_version: v1.14.0 or newer, or remove it)`},
		{"a patch that is not there", c, "proxmox:", "patches: {all: [p.yaml]}\nproxmox:", `cluster.yaml:7:17: patches.all[0]: there is no file "inventory/dev/p.yaml" (paths are relative to inventory/dev)`},
		{"an empty file", n, rightNodes, "", `nodes.yaml: the file is empty`},
	} {
		t.Run(m.name, func(t *testing.T) {
			files := map[string]string{c: rightCluster, n: rightNodes}
			if strings.Count(files[m.file], m.old) != 1 {
				t.Fatalf("%s does not have %q once", m.file, m.old)
			}
			files[m.file] = strings.Replace(files[m.file], m.old, m.new, 1)
			dir := t.TempDir()
			folder := filepath.Join(dir, "inventory", "dev")
			must(os.MkdirAll(folder, 0o755))
			for name, text := range files {
				must(os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
			}
			v, err := validation.Validate(context.Background(), dir, validation.Config{Folder: "inventory", Owner: "talos-agent"}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range v.Problems {
				if p.Severity == cluster.Error {
					got = append(got, strings.TrimPrefix(p.String(), "inventory/dev/"))
				}
			}
			if text := strings.Join(got, "\n"); text != m.want {
				t.Errorf("told\n%s\nwant\n%s", text, m.want)
			}
			if v.Valid != (m.want == "") {
				t.Errorf("valid: %v", v.Valid)
			}
		})
	}
}
