package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/sandbox"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// hostile is a commit of somebody who may push, and not log in to the host: what it changes
// of a second cluster that is as it should be otherwise.
type hostile struct {
	name string
	// cluster and nodes are changed by pairs of old and new text; files are set.
	cluster, nodes []string
	files          map[string]string
	want           string // is in what is reported of the cluster
}

// The files of the second cluster, below its folder.
const (
	otherCluster = `cluster_name: other
talos_version: v1.13.9
kubernetes_version: v1.36.1
network:
  cidr: 10.10.0.0/20
  gateway: 10.10.0.1
  nameservers: [10.10.0.1]
  time_servers: [10.10.0.1]
proxmox:
  node: pve1
  datastore: local-lvm
  bridge: vmbr1
cni: none
`
	otherNodes = "controlplane:\n  - {name: other-cp-1, vmid: 590, ip: 10.10.8.1, cpu: 2, ram: 4096, disk: 20G}\nworkers: []\n"
)

// push is the commit's files in a repository.
func (h hostile) push() map[string][]byte {
	files := map[string][]byte{
		"inventory/other/cluster.yaml": []byte(strings.NewReplacer(h.cluster...).Replace(otherCluster)),
		"inventory/other/nodes.yaml":   []byte(strings.NewReplacer(h.nodes...).Replace(otherNodes)),
	}
	for name, text := range h.files {
		delete(files, "inventory/other/"+path.Dir(name)) // where a folder takes a file's place
		files["inventory/other/"+name] = []byte(text)
	}
	return files
}

// aliases are anchors that stand for each other: a few lines that are gigabytes when they are
// written out.
func aliases() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := range 12 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.Join(slices.Repeat([]string{fmt.Sprintf("*a%d", i)}, 9), ","))
	}
	return b.String()
}

// keys are so many keys of one mapping.
func keys(n int, indent string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%sk%d: v\n", indent, i)
	}
	return b.String()
}

// addon is a cluster whose one addon is a file.
func withAddon(text string) hostile {
	return hostile{cluster: []string{"cni: none", "cni: none\naddons: [a.yaml]"}, files: map[string]string{"a.yaml": text}}
}

// withPatch is a cluster with a patch.
func withPatch(text string) hostile {
	return hostile{cluster: []string{"cni: none", "cni: none\npatches: {all: [p.yaml]}"}, files: map[string]string{"p.yaml": text}}
}

// named names a commit and what is to be reported of it.
func (h hostile) named(name, want string) hostile {
	h.name, h.want = name, want
	return h
}

// hostilePushes is the corpus.
func hostilePushes() []hostile {
	node := func(name, want string, pairs ...string) hostile { return hostile{name: name, nodes: pairs, want: want} }
	of := func(name, want string, pairs ...string) hostile {
		return hostile{name: name, cluster: pairs, want: want}
	}
	file := func(name, path, text, want string) hostile {
		return hostile{name: name, files: map[string]string{path: text}, want: want}
	}
	const counted = "workers: []"
	many := func(count string) []string {
		return []string{counted, "workers: []\ncounted:\n  - {name: \"w-{n}\", role: worker, count: " + count + ", first_vmid: 591, first_ip: 10.10.9.1, cpu: 2, ram: 4096, disk: 20G}"}
	}
	return []hostile{
		file("nothing", "cluster.yaml", "", "cluster.yaml: the file is empty"),
		file("zeros", "cluster.yaml", strings.Repeat("\x00", 1000), "cluster.yaml:1:1: control character U+0000"),
		file("binary", "nodes.yaml", "\xff\xfe\x00\x01\x02", "nodes.yaml:1:1: the file is UTF-16"),
		file("not UTF-8", "cluster.yaml", otherCluster+"# \xc3\x28\n", "cluster.yaml:14:3: a byte that is not UTF-8"),
		file("aliases", "cluster.yaml", aliases(), "cluster.yaml:1:5: an anchor (&) is not allowed"),
		file("aliases beside", "cluster.yaml", otherCluster+aliases(), "cluster.yaml:14:5: an anchor (&) is not allowed"),
		file("an alias of itself", "cluster.yaml", otherCluster+"x: &a [*a]\n", "cluster.yaml:14:4: an anchor (&) is not allowed"),
		file("deep lists", "cluster.yaml", strings.Repeat("[", 100_000), "cluster.yaml:1:51: not valid YAML: while increasing flow level: nested deeper than 50 levels"),
		file("deep mappings", "nodes.yaml", strings.Repeat("{a: ", 100_000), "nodes.yaml:1:201: not valid YAML: while increasing flow level: nested deeper than 50 levels"),
		file("deep indents", "nodes.yaml", func() string {
			var b strings.Builder
			for i := range 1000 {
				b.WriteString(strings.Repeat(" ", i) + "a:\n")
			}
			return b.String()
		}(), "nodes.yaml:51:52: not valid YAML: while increasing indent level: nested deeper than 50 levels"),
		file("many keys", "cluster.yaml", otherCluster+keys(60_000, ""), "cluster.yaml:14:1: unknown key \"k0\""),
		file("the same key", "cluster.yaml", otherCluster+"cni: none\n", "cluster.yaml:14:1: duplicate key \"cni\""),
		file("two documents", "cluster.yaml", otherCluster+"---\n"+otherCluster, "cluster.yaml:15:1: a second document"),
		file("a tag", "cluster.yaml", strings.Replace(otherCluster, "cni: none", "cni: !!python/object:os.system none", 1), "cluster.yaml:13:6: a tag (!) is not allowed"),
		file("a merge key", "cluster.yaml", otherCluster+"<<: {cni: cilium}\n", "cluster.yaml:14:1: a merge key (<<) is not allowed"),
		file("a long text", "cluster.yaml", strings.Replace(otherCluster, "cluster_name: other", "cluster_name: "+strings.Repeat("x", 900_000), 1), "cluster.yaml:1:15: cluster_name: \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"... is not a DN"),
		file("a file too large", "nodes.yaml", otherNodes+"# "+strings.Repeat("x", 2<<20), "nodes.yaml: cannot be read: larger than 1048576 bytes, the limit for one file"),
		file("much too large", "nodes.yaml", strings.Repeat("#\n", 20<<20), "nodes.yaml: cannot be read: larger than 1048576 bytes, the limit for one file"),
		file("a folder in a file's place", "nodes.yaml/x", "x", "nodes.yaml: cannot be read: not a regular file"),
		of("a right-to-left name", "cluster.yaml:1:15: cluster_name: \"oth\\u202eer\" is not a DNS label (lower-case letters, digits and -, at most 6", "cluster_name: other", "cluster_name: \"oth\u202eer\""),
		of("a name of nothing to see", "cluster.yaml:1:15: cluster_name: \"other\\u200b\" is not a DNS label (lower-case letters, digits and -, at most 6", "cluster_name: other", "cluster_name: \"other\u200b\""),
		of("another cluster's name", "cluster.yaml:1:15: cluster_name: the cluster dev lies in a folder named other", "cluster_name: other", "cluster_name: dev"),
		of("a name with a path", "cluster.yaml:1:15: cluster_name: \"../dev\" is not a DNS label (lower-case letters, digits and -, at most 63)", "cluster_name: other", "cluster_name: ../dev"),
		of("an unknown field", "cluster.yaml:14:1: unknown key \"exec\"", "cni: none", "cni: none\nexec: rm -rf /"),
		of("a gateway outside", "cluster.yaml:6:12: network.gateway: 169.254.169.254 cannot be the address of a machine", "gateway: 10.10.0.1", "gateway: 169.254.169.254"),
		of("a network of everything", "cluster.yaml:5:9: network.cidr: the nodes' network 0.0.0.0/0 overlaps with the pods' network 10.244.0.0/16: a ", "10.10.0.0/20", "0.0.0.0/0"),
		of("another storage", "it wants storage \"other\", and the host allows local, local-lvm", "datastore: local-lvm", "datastore: other"),
		of("a storage with a parameter", "cluster.yaml:11:14: proxmox.datastore: \"local-lvm:1,import-from=/etc/shadow\" is not the name of a storage", "datastore: local-lvm", "datastore: \"local-lvm:1,import-from=/etc/shadow\""),
		of("another bridge", "it wants bridge \"vmbr0\", and the host allows vmbr1", "bridge: vmbr1", "bridge: vmbr0"),
		of("a bridge with a parameter", "cluster.yaml:12:11: proxmox.bridge: \"vmbr1,firewall=0\" is not the name of a bridge", "bridge: vmbr1", "bridge: \"vmbr1,firewall=0\""),
		of("a host with a path", "cluster.yaml:10:9: proxmox.node: \"../pve1\" is not the name of a Proxmox VE host", "node: pve1", "node: ../pve1"),
		of("another pool", "it wants pool \"production\", and the host allows \"talos\"", "bridge: vmbr1", "bridge: vmbr1\n  pool: production"),
		of("a Talos with a path", "cluster.yaml:2:16: talos_version: \"v1.13.9/../../x\" is not a version: v, then three numbers", "v1.13.9", "v1.13.9/../../x"),
		of("a time server on the host", "cluster.yaml:8:18: network.time_servers[0]: \"127.0.0.1; reboot\" is not a host name or an address", "time_servers: [10.10.0.1]", "time_servers: [\"127.0.0.1; reboot\"]"),
		of("patches from elsewhere", "cluster.yaml:14:17: patches.all[0]: \"../../../../etc/passwd\" leaves the repository", "cni: none", "cni: none\npatches: {all: [../../../../etc/passwd]}"),
		of("patches from the root", "cluster.yaml:14:17: patches.all[0]: \"/etc/passwd\" is not a path of the repository", "cni: none", "cni: none\npatches: {all: [/etc/passwd]}"),
		{name: "a large patch in every place", cluster: []string{"cni: none", "cni: none\npatches: {all: [" + strings.TrimSuffix(strings.Repeat("p.yaml,", 500), ",") + "]}"},
			files: map[string]string{"p.yaml": "machine: {sysctls: {a: " + strings.Repeat("x", 900_000) + "}}\n"}, want: "the patches of other-cp-1 have 439465 KiB together, and 1024 KiB at most are taken"},
		of("its own age key", "cluster.yaml:14:1: unknown key \"age_key\"", "cni: none", "cni: none\nage_key: AGE-SECRET-KEY-1"),
		node("dev's VMID", "nodes.yaml:2:5: nodes.other-cp-1: VMID 411 of other-cp-1 is that of dev-cp-1 in cluster dev (inventory/dev/nod", "vmid: 590", "vmid: 411"),
		node("dev's address", "nodes.yaml:2:5: nodes.other-cp-1: address 10.10.0.11 of other-cp-1 is that of dev-cp-1 in cluster dev (invento", "10.10.8.1", "10.10.0.11"),
		node("the gateway's address", "nodes.yaml:2:39: nodes.controlplane[0].ip: 10.10.0.1 is the gateway", "10.10.8.1", "10.10.0.1"),
		node("an address of the loopback", "nodes.yaml:2:39: nodes.controlplane[0].ip: 127.0.0.1 is not in network.cidr 10.10.0.0/20", "10.10.8.1", "127.0.0.1"),
		node("the host's own address", "its address 10.10.8.99 is that of this host or of one of its routers", "10.10.8.1", "10.10.8.99"),
		node("an address of all", "nodes.yaml:2:39: nodes.controlplane[0].ip: 0.0.0.0 cannot be the address of a machine", "10.10.8.1", "0.0.0.0"),
		node("an address of a group", "nodes.yaml:2:39: nodes.controlplane[0].ip: 224.0.0.1 cannot be the address of a machine", "10.10.8.1", "224.0.0.1"),
		node("the broadcast address", "nodes.yaml:2:39: nodes.controlplane[0].ip: 10.10.15.255 is the broadcast address of 10.10.0.0/20", "10.10.8.1", "10.10.15.255"),
		node("a VMID outside the policy", "its vmid 100 lies outside 400-599", "vmid: 590", "vmid: 100"),
		node("a VMID that is too large", "nodes.yaml:2:30: nodes.controlplane[0].vmid: \"99999999999999999999\" is not a VMID", "vmid: 590", "vmid: 99999999999999999999"),
		node("a negative VMID", "nodes.yaml:2:30: nodes.controlplane[0].vmid: -1 is too small for a VMID", "vmid: 590", "vmid: -1"),
		node("a name with a line", "nodes.yaml:2:12: nodes.controlplane[0].name: \"other\\ncp\" is not a DNS label (lower-case letters, digits and -,", "other-cp-1", "\"other\\ncp\""),
		node("a name with a parameter", "nodes.yaml:2:12: nodes.controlplane[0].name: \"other,hookscript=local:x\" is not a DNS label (lower-case letters", "other-cp-1", "\"other,hookscript=local:x\""),
		node("memory without end", "nodes.yaml:2:63: nodes.controlplane[0].ram: 9999999999999 is too large for a number of MiB", "4096", "9999999999999"),
		node("a disk without end", "nodes.yaml:2:75: nodes.controlplane[0].disk: \"99999999999T\" is not a size", "20G", "99999999999T"),
		node("cores without end", "nodes.yaml:2:55: nodes.controlplane[0].cpu: 2000000000 is too large for a number of cores", "cpu: 2", "cpu: 2000000000"),
		node("a MAC address of a group", "nodes.yaml:2:63: nodes.controlplane[0].mac: FF:FF:FF:FF:FF:FF is a multicast address", "cpu: 2", "cpu: 2, mac: \"ff:ff:ff:ff:ff:ff\""),
		node("the same node twice", "nodes.yaml:4:12: nodes.workers[0].name: other-cp-1 is the name of another node (inventory/other/nodes.yaml:2)", counted, "workers:\n  - {name: other-cp-1, vmid: 591, ip: 10.10.8.2, cpu: 2, ram: 4096, disk: 20G}"),
		{name: "a thousand million nodes", nodes: many("1000000000"), want: "count: 1000000000 is too large for a number of nodes"},
		{name: "nodes without a number", nodes: many("99999999999999999999"), want: "count: \"99999999999999999999\" is not a number of nodes"},
		{name: "nodes below none", nodes: many("-5"), want: "count: -5 is too small for a number of nodes"},
		{name: "more nodes than allowed", nodes: many("5001"), want: "count: 5001 is too large for a number of nodes"},
		{name: "nodes beyond the policy", nodes: many("20"), want: "its vmid 600 lies outside 400-599"},
		withAddon("name: a\nnamespace: a\nchart: {path: ../../../../../etc}\n").named("a chart from elsewhere", "a.yaml:3:15: addons[0].chart.path: \"../../../../../etc\" leaves the repository"),
		withAddon("name: a\nnamespace: a\nchart: {path: /etc}\n").named("a chart from the root", "a.yaml:3:15: addons[0].chart.path: \"/etc\" is not a path of the repository"),
		withAddon("name: a\nnamespace: a\nchart: {repository: \"file:///etc\", name: passwd, version: 1.0.0}\n").named("a chart of a file", "a.yaml:3:21: addons[0].chart.repository: \"file:///etc\" is not an https URL without user, query, fragment or es"),
		withAddon("name: a\nnamespace: a\nchart: {repository: \"http://169.254.169.254/latest\", name: x, version: 1.0.0}\n").named("a chart of the metadata service", "a.yaml:3:21: addons[0].chart.repository: \"http://169.254.169.254/latest\" is not an https URL without user, que"),
		withAddon("name: a\nnamespace: a\nchart: {repository: \"https://charts.example.org\", name: ../x, version: 1.0.0}\n").named("a chart with a path", "a.yaml:3:57: addons[0].chart.name: \"../x\" is not the name of a chart"),
		withAddon("name: a\nnamespace: \"kube-system/../x\"\nchart: {repository: \"https://charts.example.org\", name: x, version: 1.0.0}\n").named("a namespace with a path", "a.yaml:2:12: addons[0].namespace: \"kube-system/../x\" is not a DNS label (lower-case letters, digits and -, at "),
		withAddon("name: a\nnamespace: a\nchart: {repository: \"https://charts.example.org\", name: x, version: 1.0.0}\ndepends_on: [a]\n").named("an addon behind itself", "a.yaml:4:1: addons[0].depends_on: waits for itself: a -> a"),
		withAddon("name: a\nnamespace: a\nchart: {repository: \"https://charts.example.org\", name: x, version: 1.0.0}\nvalues:\n"+aliases()).named("aliases in values", "a.yaml:5:5: an anchor (&) is not allowed"),
		withPatch(aliases()).named("aliases in a patch", "p.yaml:1:5: an anchor (&) is not allowed"),
		withPatch("machine:\n  sysctls:\n"+keys(60_000, "    ")).named("many keys in a patch", "p.yaml:3:5: a mapping with more than 1000 keys"),
		withPatch("[").named("a patch that is none", "p.yaml:2:1: not valid YAML: a value is missing here, or a bracket is too many"),
		withPatch("machine: {type: controlplane, ca: {key: x}}\n").named("a patch of the authority", "p.yaml:1:17: machine.type: a patch must not set it"),
		withPatch("- op: remove\n  path: /machine\n").named("a patch of operations", "p.yaml:1:1: not a strategic-merge patch, but a list"),
		file("secrets in the clear", "secrets.sops.yaml", "secrets: {cluster: {id: x}}\n", "secrets.sops.yaml: is not encrypted"),
		file("secrets that are tampered with", "secrets.sops.yaml", "a: ENC[AES256_GCM,data:AAAA,iv:AAAA,tag:AAAA,type:str]\nsops:\n  age: []\n  lastmodified: \"2026-01-01T00:00:00Z\"\n  mac: ENC[AES256_GCM,data:AAAA,iv:AAAA,tag:AAAA,type:str]\n  version: 3.9.0\n", "secrets.sops.yaml: its sops section cannot be read"),
		file("secrets of a cloud", "secrets.sops.yaml", "a: ENC[AES256_GCM,data:AAAA,iv:AAAA,tag:AAAA,type:str]\nsops:\n  kms: [{arn: \"arn:aws:kms:us-east-1:1:key/x\", created_at: \"2026-01-01T00:00:00Z\", enc: AAAA}]\n  lastmodified: \"2026-01-01T00:00:00Z\"\n  mac: ENC[AES256_GCM,data:AAAA,iv:AAAA,tag:AAAA,type:str]\n  version: 3.9.0\n", "secrets.sops.yaml: is encrypted to no age key"),
	}
}

// hostileCharts are templates that take too much.
func hostileCharts() map[string]string {
	return map[string]string{
		"a chart of one text":     `{{ repeat 20000000000 "x" }}`,
		"a chart that ranges":     `{{ range $i := untilStep 0 2000000000 1 }}{{ end }}`,
		"a chart that doubles":    `{{ $d := "xxxxxxxx" }}` + strings.Repeat(`{{ $d = printf "%s%s" $d $d }}`, 40) + `{{ $d }}`,
		"a chart that never ends": `{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}`,
	}
}

// packagedPolicy is what the package allows a repository.
func packagedPolicy() cluster.Policy {
	return cluster.Policy{File: "policy.yaml", Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 599}}, Datastores: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"},
		Taken: []netip.Addr{netip.MustParseAddr("10.10.8.99")}}
}

// TestHostilePushes: whatever somebody pushes, nothing of it reaches the host: it is reported
// with what is wrong, and the cluster beside it stays Ready and is healed meanwhile.
func TestHostilePushes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1}, lab.Config{})
		defer s.Close()
		dev := size{ControlPlanes: 1}.Files()
		changed(t, dev, "inventory/dev/cluster.yaml", "worker: 500-2599", "worker: 500-589")
		s.Push(dev, "within the policy")
		s.Lab.Repo.AllowFilter(true)
		s.Boot(func(c *agent.Config) {
			c.Clusters, c.Policy = nil, packagedPolicy
			brief := func(ctx context.Context, job worker.Job, l worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
				l.CPU = 2 * time.Second // of real time
				return worker.Run(ctx, job, l, request, answer)
			}
			c.Charts.Worker = brief
			// 2 s and 256 MiB are enough for the worst of them.
			c.Sources.Inspect = sandbox.New(sandbox.Config{Inventory: c.Sources.Inventory, Worker: brief}).Inspect
		})
		s.UntilReady(20 * time.Minute)
		vms := s.Lab.PVE.VMs()
		pushes := hostilePushes()
		before := map[string][]byte{}
		for i, h := range pushes {
			files := h.push()
			for name := range before {
				if _, kept := files[name]; !kept {
					files[name] = nil
				}
			}
			before = maps.Clone(files)
			s.Push(files, h.name)
			if i%10 == 0 {
				must(s.Lab.PVE.Stop(vms[0].VMID))
			}
			var got string
			for range 600 {
				if got = s.reportedOf("other"); got != "" {
					break
				}
				time.Sleep(time.Second)
			}
			if !strings.Contains(got, h.want) || h.want == "" {
				t.Errorf("%s: %.300q, want %q", h.name, got, h.want)
			}
			if i%10 == 0 {
				s.UntilReady(20 * time.Minute)
			}
		}
		s.Push(removal(before), "none of it")
		own := maps.Clone(dev)
		changed(t, own, "inventory/dev/cluster.yaml", "addons: [", "patches: {controlplane: [own.yaml]}\naddons: [")
		own["inventory/dev/own.yaml"] = []byte("machine: {network: {interfaces: [{interface: eth1, addresses: [10.10.8.99/20]}]}}\n")
		s.Push(own, "the host's address in a patch")
		s.Until(10*time.Minute, "the host's address in a patch is refused", func(st cluster.Status) bool {
			return st.Revision.Commit() == s.Head() && len(st.Blocked) == 1 && strings.Contains(st.Blocked[0].Message, "its machine config has an address that it must not have: 10.10.8.99 is that of this host")
		})
		dev["inventory/dev/own.yaml"] = nil
		for name, text := range hostileCharts() {
			files := maps.Clone(dev)
			changed(t, files, "inventory/dev/cluster.yaml", "addons/cilium.yaml]", "addons/cilium.yaml, addons/bad.yaml]")
			files["inventory/dev/addons/bad.yaml"] = []byte("name: bad\nnamespace: apps\nchart: {path: charts/bad}\n")
			files["inventory/dev/charts/bad/Chart.yaml"] = []byte("apiVersion: v2\nname: bad\nversion: 1.0.0\n")
			files["inventory/dev/charts/bad/templates/x.yaml"] = []byte(text)
			s.Push(files, name)
			s.Until(10*time.Minute, "reported: "+name, func(st cluster.Status) bool {
				return st.Revision.Commit() == s.Head() && strings.Contains(fmt.Sprint(st.Message, st.Blocked, st.Waiting, st.Addons), "it takes more than ")
			})
			must(s.Lab.PVE.Stop(vms[0].VMID))
			s.Until(10*time.Minute, "healed beside "+name, func(st cluster.Status) bool { return st.Nodes[0].Phase == cluster.PhaseReady })
		}
		dev["inventory/dev/addons/bad.yaml"], dev["inventory/dev/charts/bad/Chart.yaml"], dev["inventory/dev/charts/bad/templates/x.yaml"] = nil, nil, nil
		s.Push(dev, "none of these either")
		s.UntilReady(20 * time.Minute)
		if len(s.Lab.PVE.VMs()) != len(vms) {
			t.Errorf("VMs %v", s.Lab.PVE.VMs())
		}
		s.Halt()
	})
}

// reportedOf is what keeps a cluster from being made at the newest commit, "" while that is
// not known.
func (s *sim) reportedOf(name string) string {
	st, err := s.Agent.Status(name)
	if err != nil || st.Revision.Commit() != s.Head() {
		return ""
	}
	var b bytes.Buffer
	for _, p := range st.Problems {
		if p.Severity == cluster.Error {
			fmt.Fprintf(&b, "%s\n", p)
		}
	}
	for _, blocked := range st.Blocked {
		fmt.Fprintf(&b, "%s\n", blocked.Message)
	}
	return b.String()
}
