package inventory

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func load(t *testing.T, name, clusterYAML, nodesYAML string) cluster.Snapshot {
	t.Helper()
	fsys := fstest.MapFS{
		"inv/" + name + "/cluster.yaml": {Data: []byte(clusterYAML)},
		"inv/" + name + "/nodes.yaml":   {Data: []byte(nodesYAML)},
	}
	snap, problems := Load(fsys, "inv/"+name, Options{})
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	return snap
}

func TestCheckTogether(t *testing.T) {
	vip := strings.Replace(smallCluster, "gateway: 10.10.0.1}", "gateway: 10.10.0.1, vip: 10.10.0.5}", 1)
	called := func(text, name string) string {
		return strings.Replace(text, "cluster_name: dev", "cluster_name: "+name, 1)
	}
	on := func(text, proxmox string) string { return strings.Replace(text, "{node: pve1}", proxmox, 1) }
	first := load(t, "dev", vip+"port_forwards: [{port: 443}]\n", "controlplane:\n  - {name: cp-1, ip: 10.10.0.11, vmid: 110, mac: \"02:00:00:00:00:01\", nics: [{bridge: vmbr2, address: 10.20.0.11/24}, {bridge: vmbr2, address: 10.20.0.12/24}]}\n")
	for name, c := range map[string]struct {
		cluster, nodes string
		want           string
	}{
		"nothing shared": {called(smallCluster, "prod"), "controlplane:\n  - {name: cp-1, ip: 10.10.0.12}\n", ""},
		"everything shared": {called(vip, "prod"), "controlplane:\n  - {name: cp-x, ip: 10.10.0.11, vmid: 110, mac: \"02:00:00:00:00:01\"}\n",
			`inv/prod/cluster.yaml:4:56: network.vip: address 10.10.0.5 of the VIP is that of the VIP in cluster dev (inv/dev/cluster.yaml:4) (give the cluster an address of its own)
inv/prod/nodes.yaml:2:5: nodes.cp-x: MAC address 02:00:00:00:00:01 of cp-x is that of cp-1 in cluster dev (inv/dev/nodes.yaml:2) (write another mac for one of them)
inv/prod/nodes.yaml:2:5: nodes.cp-x: VMID 110 of cp-x is that of cp-1 in cluster dev (inv/dev/nodes.yaml:2) (write another vmid, or move proxmox.vmid_ranges of one cluster)
inv/prod/nodes.yaml:2:5: nodes.cp-x: address 10.10.0.11 of cp-x is that of cp-1 in cluster dev (inv/dev/nodes.yaml:2) (give every machine on a bridge an address of its own)`},
		"on another host": {on(called(vip, "prod"), "{node: pve2}"), "controlplane:\n  - {name: cp-x, ip: 10.10.0.11, vmid: 111, mac: \"02:00:00:00:00:01\"}\n", ""},
		"on another bridge": {on(called(vip, "prod"), "{node: pve1, bridge: vmbr9}"), "controlplane:\n  - {name: cp-x, ip: 10.10.0.11, vmid: 110}\n",
			`inv/prod/nodes.yaml:2:5: nodes.cp-x: VMID 110 of cp-x is that of cp-1 in cluster dev (inv/dev/nodes.yaml:2) (write another vmid, or move proxmox.vmid_ranges of one cluster)`},
		"an address that is the other's VIP": {called(smallCluster, "prod"), "controlplane:\n  - {name: cp-x, ip: 10.10.0.5}\n",
			`inv/prod/nodes.yaml:2:5: nodes.cp-x: address 10.10.0.5 of cp-x is that of the VIP in cluster dev (inv/dev/cluster.yaml:4) (give every machine on a bridge an address of its own)`},
		"an address of a further network card": {called(smallCluster, "prod"), "controlplane:\n  - {name: cp-x, ip: 10.10.0.13, nics: [{bridge: vmbr2, address: 10.20.0.11/24}, {bridge: vmbr2, vlan: 5, address: 10.20.0.12/24}]}\n",
			`inv/prod/nodes.yaml:2:5: nodes.cp-x: address 10.20.0.11 of cp-x is that of cp-1 in cluster dev (inv/dev/nodes.yaml:2) (give every machine on a bridge an address of its own)`},
		"another port of the host": {called(smallCluster, "prod") + "port_forwards: [{port: 80}, {port: 443, protocol: udp}]\n", "controlplane:\n  - {name: cp-x, ip: 10.10.0.12}\n", ""},
		"a port of the host": {called(smallCluster, "prod") + "port_forwards: [{port: 80}, {port: 443, node_port: 30443}]\n", "controlplane:\n  - {name: cp-x, ip: 10.10.0.12}\n",
			`inv/prod/cluster.yaml:6:29: port_forwards[1]: port 443/tcp of the host is that of the host in cluster dev (inv/dev/cluster.yaml:6) (a port of the host leads to one cluster: take another port for one of them)`},
		"the name": {smallCluster, "controlplane:\n  - {name: other, ip: 10.10.0.12}\n",
			`inv/prod/cluster.yaml:1:15: cluster_name: dev is the name of another cluster (inv/dev/cluster.yaml:1) (every cluster needs a name of its own: the identity of its nodes follows from it)`},
	} {
		t.Run(name, func(t *testing.T) {
			second := load(t, "prod", c.cluster, c.nodes)
			both := CheckTogether([]cluster.Snapshot{second, first})
			got := both[0]
			if fmt.Sprint(both[1]) != fmt.Sprint(got) {
				t.Errorf("the other has %v", both[1])
			}
			if got.Error() != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got.Error(), c.want)
			}
			if again := CheckTogether([]cluster.Snapshot{first, second})[0]; again.Error() != got.Error() {
				t.Errorf("in the other order:\n%s", again.Error())
			}
			checkProblems(t, got)
		})
	}
	if got := CheckTogether(nil); len(got) > 0 {
		t.Error(got)
	}
}

// TestSharedSecrets: a folder that was copied with its secrets is no cluster of its own.
func TestSharedSecrets(t *testing.T) {
	const bundle = "cluster: {id: %[1]s}\nsecrets: {}\ntrustdinfo: {}\ncerts: {etcd: {key: %[1]s}, k8s: {key: %[1]s}, os: {key: %[2]s}}\n"
	made := func(name, ip, id, talos string) cluster.Snapshot {
		s, problems := ParseSecrets(SecretsFile, fmt.Appendf(nil, bundle, id, talos))
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		snap, problems := Load(fstest.MapFS{
			"inv/" + name + "/cluster.yaml": {Data: []byte(strings.Replace(smallCluster, "cluster_name: dev", "cluster_name: "+name, 1))},
			"inv/" + name + "/nodes.yaml":   {Data: []byte("controlplane:\n  - {name: " + name + "-1, ip: " + ip + "}\n")},
		}, "inv/"+name, Options{Secrets: &s})
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		return snap
	}
	const shared = "inv/prod/secrets.sops.yaml: secrets: an authority's key of the secrets is that of the secrets in cluster dev (inv/dev/secrets.sops.yaml) (every cluster needs secrets of its own: remove the copied file, and make one with `talos-agent secrets new --cluster prod DIR`)"
	for _, c := range []struct{ what, id, talos, want string }{
		{"a copy", "a", "a", shared},
		{"one authority", "b", "a", shared},
		{"its own", "b", "b", ""},
		{"none yet", "''", "''", ""},
	} {
		got := CheckTogether([]cluster.Snapshot{made("prod", "10.10.0.12", c.id, c.talos), made("dev", "10.10.0.11", "a", "a")})[0]
		if got.Error() != c.want {
			t.Errorf("%s: %s", c.what, got.Error())
		}
		checkProblems(t, got)
	}
}

func TestClusters(t *testing.T) {
	fsys := fstest.MapFS{
		"inventory/prod/cluster.yaml":               {},
		"inventory/dev/cluster.yaml":                {},
		"inventory/dev/nodes.yaml":                  {},
		"inventory/half/nodes.yaml":                 {},
		"inventory/shared/x.yaml":                   {},
		"inventory/.hidden/cluster.yaml":            {},
		"inventory/README.md":                       {},
		"none/x.yaml":                               {},
		"links/dev/cluster.yaml":                    {},
		"links/current":                             {Mode: fs.ModeSymlink, Data: []byte("dev")},
		"deep/a/b/cluster.yaml":                     {},
		"odd/dev/cluster.yaml":                      {},
		"odd/::warning title=x::owned/cluster.yaml": {},
		"odd/##[group]x/cluster.yaml":               {},
		"odd/Dev\n/cluster.yaml":                    {},
		"odd/$(id)/README.md":                       {},
		"alone/Dev/cluster.yaml":                    {},
	}
	const hint = " (name it as its cluster: a DNS label (lower-case letters, digits and -, at most 63))"
	for root, want := range map[string]struct{ names, problems string }{
		"inventory":     {"dev prod", "inventory/half: warning: has a nodes.yaml but no cluster.yaml, so it is no cluster (add cluster.yaml)"},
		"inventory/":    {"dev prod", "inventory/half: warning: has a nodes.yaml but no cluster.yaml, so it is no cluster (add cluster.yaml)"},
		"inventory/dev": {"", "inventory/dev: holds a cluster.yaml itself (name the folder above it: every cluster has a folder of its own)"},
		"links":         {"dev", "links/current: warning: is a symbolic link, which is not followed, so it is no cluster (put the folder itself there)"},
		"none":          {"", "none: holds no cluster (a cluster is a folder with a cluster.yaml in it)"},
		"deep":          {"", "deep: holds no cluster (a cluster is a folder with a cluster.yaml in it)"},
		"odd": {"dev", `odd: the folder "##[group]x" has a cluster.yaml and a name that no cluster can have` + hint + "\n" +
			`odd: the folder "::warning title=x::owned" has a cluster.yaml and a name that no cluster can have` + hint + "\n" +
			`odd: the folder "Dev\n" has a cluster.yaml and a name that no cluster can have` + hint},
		"alone":   {"", `alone: the folder "Dev" has a cluster.yaml and a name that no cluster can have` + hint},
		"nowhere": {"", "nowhere: there is no such folder (check the path of the repository in the host's config)"},
		".":       {"", ".: holds no cluster (a cluster is a folder with a cluster.yaml in it)"},
		"../x":    {"", "../x: there is no such folder (check the path of the repository in the host's config)"},
	} {
		names, problems := Clusters(fsys, root)
		if strings.Join(names, " ") != want.names || problems.Error() != want.problems {
			t.Errorf("%s: %v, %v", root, names, problems)
		}
	}
}
