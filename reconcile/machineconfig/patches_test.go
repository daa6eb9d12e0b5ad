package machineconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

const longhorn = `apiVersion: v1alpha1
kind: UserVolumeConfig
name: longhorn
provisioning:
  diskSelector:
    match: disk.serial == "talos-longhorn"
  minSize: 1GiB
`

func TestPatchProblems(t *testing.T) {
	const file = "inventory/dev/patches/x.yaml"
	for name, c := range map[string]struct {
		contract string // default v1.13
		patch    string
		want     string // the problems, printed
		iso      bool
	}{
		"fits":                        {patch: "machine: {sysctls: {vm.nr_hugepages: \"1024\"}}"},
		"several":                     {patch: "machine: {sysctls: {vm.nr_hugepages: \"1024\"}}\n---\n" + longhorn},
		"extension":                   {patch: "apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: tailscale\nenvironment: [TS_AUTHKEY=tskey-auth-canary]"},
		"another subnet":              {patch: "machine: {kubelet: {nodeIP: {validSubnets: [\"fd00::/64\"]}}}"},
		"discovery on":                {patch: "cluster: {discovery: {enabled: true}}"},
		"another link":                {patch: "apiVersion: v1alpha1\nkind: LinkConfig\nname: lan0\nmtu: 9000\naddresses: [{address: 10.10.0.200/24}]"},
		"a link with another address": {patch: "apiVersion: v1alpha1\nkind: LinkConfig\nname: lan1\naddresses: [{address: 10.20.0.200/24}]"},
		"its own image":               {patch: "machine: {kubelet: {image: \"registry.example.org/kubelet:v1.36.1@sha256:" + strings.Repeat("a", 64) + "\"}}"},
		"deletes what is not there":   {contract: "v1.14", patch: "apiVersion: v1alpha1\nkind: ZswapConfig\n$patch: delete"},
		"empty":                       {patch: "# nothing yet\n", want: "warning: the patch holds no settings (remove it from the list of patches, or write something into it)"},

		"unknown key": {patch: "machine:\n  netwerk:\n    interfaces: [canary-canary]\n",
			want: "there is no setting machine.netwerk.interfaces (check the spelling and the indentation)"},
		"unknown keys in lists": {patch: "machine:\n  network:\n    interfaces:\n    - interface: eth0\n      adress: canary-canary\n      x: 1\n      y: {z: 2, zz: 3}\n",
			want: "there is no setting machine.network.interfaces.adress, machine.network.interfaces.x, machine.network.interfaces.y.z, and 1 more (check the spelling and the indentation)"},
		"unknown kind": {patch: "apiVersion: v1alpha1\nkind: UserVolumConfig\nname: x\n",
			want: "UserVolumConfig (v1alpha1) is no document of a machine config (check its kind and apiVersion)"},
		"wrong type": {patch: "machine:\n  install:\n    wipe: canary-canary\n",
			want: "machine.install.wipe: is a text, and Talos wants true or false"},
		"no yaml": {patch: "machine: [\n", want: "decode error: "},
		"json patch": {patch: "- op: add\n  path: /machine/sysctls\n  value: {}\n",
			want: "this is a list of JSON patch operations, which do not work on configs of several documents (write what should be there as a strategic-merge patch: the same keys as in the machine config)"},
		"too new": {contract: "v1.8", patch: longhorn,
			want: "UserVolumeConfig is known from Talos v1.10 on, and this cluster runs v1.8 (raise talos_version or remove the document)"},
		"refused": {patch: "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: longhorn\n",
			want: "Talos would refuse the config: UserVolumeConfig/longhorn: disk selector is required"},
		"refused with a secret": {patch: "machine:\n  network:\n    interfaces:\n    - interface: wg0\n      wireguard: {privateKey: canary-canary}\n",
			want: "Talos would refuse the config: private key is invalid: "},
		"deletes what must be":                {patch: "machine:\n  type:\n    $patch: delete\n", want: "Talos would refuse the config: "},
		"deletes by a path that is not there": {patch: "machine:\n  sysctls:\n    vm.swappiness:\n      $patch: delete\n", want: "the patch does not fit: "},

		"type":     {patch: "machine: {type: controlplane}", want: "Talos would refuse the config: "}, // of the worker
		"hostname": {patch: "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: canary-canary", want: "the patch changes the hostname, which is not a patch's to set (the node's name in nodes.yaml is its hostname)"},
		"hostname, old place": {contract: "v1.11", patch: "machine: {network: {hostname: canary-canary}}",
			want: "the patch changes the hostname, which is not a patch's to set (the node's name in nodes.yaml is its hostname)"},
		"hostname, old place, new contract": {patch: "machine: {network: {hostname: canary-canary}}",
			want: "Talos would refuse the config: static hostname is already set in v1alpha1 config"},
		"address":      {patch: "apiVersion: v1alpha1\nkind: LinkConfig\nname: lan0\n$patch: delete", want: "the patch changes the node's address, which is not a patch's to set (set ip and ip6 in nodes.yaml, and network.cidr, network.cidr6 and their gateways in cluster.yaml)"},
		"name":         {patch: "cluster: {clusterName: other}", want: "the patch changes the cluster's name, which is not a patch's to set (set cluster_name in cluster.yaml)"},
		"endpoint":     {patch: "cluster: {controlPlane: {endpoint: \"https://other:6443\"}}", want: "the patch changes the cluster's endpoint, which is not a patch's to set (set network.endpoint in cluster.yaml)"},
		"pods":         {patch: "cluster: {network: {podSubnets: [10.0.0.0/16]}}", want: "the patch changes the pod network, which is not a patch's to set (set network.pod_cidr and network.pod_cidr6 in cluster.yaml)"},
		"services":     {patch: "cluster: {network: {serviceSubnets: [10.0.0.0/16]}}", want: "the patch changes the service network, which is not a patch's to set (set network.svc_cidr and network.svc_cidr6 in cluster.yaml)"},
		"token":        {patch: "machine: {token: abcdef.canarycanarycana}", want: "the patch changes the cluster's secrets, which is not a patch's to set (they are in secrets.sops.yaml)"},
		"cluster id":   {patch: "cluster: {id: canary-canary}", want: "the patch changes the cluster's secrets, which is not a patch's to set (they are in secrets.sops.yaml)"},
		"kubernetes":   {patch: "machine: {kubelet: {image: \"ghcr.io/siderolabs/kubelet:v1.30.0\"}}", want: "the patch changes the version of Kubernetes, which is not a patch's to set (set kubernetes_version in cluster.yaml)"},
		"installer":    {patch: "machine: {install: {image: \"ghcr.io/siderolabs/installer:v1.13.9\"}}", want: "the patch changes the installer image, which is not a patch's to set (it follows from talos_version, talos.schematic and talos.installer_registry in cluster.yaml)"},
		"no installer": {contract: "v1.14", patch: "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\n$patch: delete", want: "the patch changes the installer image, "},
		"disk":         {iso: true, patch: "machine: {install: {diskSelector: {model: other*}}}", want: "the patch changes the disk that Talos is installed on, which is not a patch's to set (with boot: iso it is the system disk of the node, by its serial)"},
		"disk, unattended": {iso: true, contract: "v1.14", patch: "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\nprovisioning: {diskSelector: {match: \"disk.size > 1u\"}}",
			want: "the patch changes the disk that Talos is installed on, which is not a patch's to set (with boot: iso it is the system disk of the node, by its serial)"},
		"wipe, unattended": {iso: true, contract: "v1.14", patch: "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\nprovisioning: {diskSelector: {match: \"disk.serial == \\\"talos-sys\\\"\"}, wipe: true}",
			want: "the patch changes the disk that Talos is installed on, which is not a patch's to set (with boot: iso it is the system disk of the node, by its serial)"},
		"disk that counts for nothing": {iso: true, patch: "machine: {install: {disk: /dev/sda}}"},
		"disk of a disk image":         {patch: "machine: {install: {diskSelector: {model: other*}}}"},
		"everything":                   {patch: "cluster: {clusterName: other, network: {podSubnets: [10.0.0.0/16]}}", want: "the patch changes the cluster's name, "},
	} {
		t.Run(name, func(t *testing.T) {
			if c.contract == "" {
				c.contract = "v1.13"
			}
			s := snapshot(t, c.contract)
			s.Spec.ISO = c.iso
			withPatch(&s, file, c.patch)
			withPatch(&s, "inventory/dev/patches/innocent.yaml", "machine: {sysctls: {net.ipv4.ip_forward: \"1\"}}")
			var r Renderer
			configs, ps := r.Render(s, testSchematic)
			got := ps.Error()
			if c.want == "" {
				if len(ps) > 0 || len(configs) != 2 {
					t.Fatalf("%d configs, problems:\n%v", len(configs), got)
				}
				return
			}
			if !strings.HasPrefix(got, file+": "+c.want) {
				t.Errorf("problems:\n%s\nwant:\n%s: %s", got, file, c.want)
			}
			if strings.HasSuffix(c.want, ")") && got != file+": "+c.want {
				t.Errorf("more problems than one:\n%s", got)
			}
			if strings.Contains(got, "canary") {
				t.Errorf("a value of the patch is shown:\n%s", got)
			}
			if ps.HasErrors() && name != "type" && name != "deletes what must be" && len(configs) != 0 {
				t.Errorf("%d configs in spite of it", len(configs))
			}
		})
	}
}

// The blame goes to the patch after which the config stayed bad, and a patch
// that is right again is not blamed.
func TestBlame(t *testing.T) {
	s := snapshot(t, "v1.13")
	s.Spec.Nodes = s.Spec.Nodes[:1]
	withPatch(&s, "1-wrong.yaml", "cluster: {clusterName: other}")
	withPatch(&s, "2-right-again.yaml", "cluster: {clusterName: dev}")
	withPatch(&s, "3-harmless.yaml", "machine: {sysctls: {a.b: \"1\"}}")
	var r Renderer
	if _, ps := r.Render(s, testSchematic); ps.HasErrors() {
		t.Errorf("problems:\n%v", ps)
	}
	withPatch(&s, "4-guilty.yaml", "cluster: {clusterName: other}")
	withPatch(&s, "5-harmless.yaml", "machine: {sysctls: {c.d: \"1\"}}")
	if _, ps := r.Render(s, testSchematic); len(ps) != 1 || ps[0].File != "4-guilty.yaml" {
		t.Errorf("problems:\n%v", ps)
	}
}

// What the settings themselves get wrong is reported with the node's name.
func TestNoPatchToBlame(t *testing.T) {
	s := snapshot(t, "v1.13")
	s.Spec.Nodes[1].Labels = map[string]string{"not a label!": "x"}
	var r Renderer
	configs, ps := r.Render(s, testSchematic)
	const want = `inventory/dev/cluster.yaml: Talos would refuse the config of node dev-wk-1: invalid machine node labels: `
	if len(ps) != 1 || !strings.HasPrefix(ps.Error(), want) {
		t.Errorf("problems:\n%v", ps)
	}
	if _, ok := configs["dev-cp-1"]; !ok || len(configs) != 1 {
		t.Errorf("configs of %d nodes", len(configs))
	}
}

// A warning of the library names the patch and does not stop anything.
func TestPatchWarning(t *testing.T) {
	s := snapshot(t, "v1.14")
	s.Spec.Nodes = s.Spec.Nodes[:1]
	withPatch(&s, "proxy.yaml", "apiVersion: v1alpha1\nkind: KubeProxyConfig\nmode: ipvs")
	var r Renderer
	configs, ps := r.Render(s, testSchematic)
	if len(configs) != 1 || ps.HasErrors() || !strings.Contains(ps.Error(), "proxy.yaml: warning: proxy mode") {
		t.Errorf("%d configs, problems:\n%v", len(configs), ps)
	}
}

// A cluster of control planes alone takes workloads only when set to.
func TestIdleCluster(t *testing.T) {
	for _, contract := range contracts {
		s := snapshot(t, contract)
		s.Spec.Nodes = s.Spec.Nodes[:1]
		var r Renderer
		_, ps := r.Render(s, testSchematic)
		if len(ps) != 1 || ps.HasErrors() || ps[0].Message != "there are no workers, and the control planes take no workloads" {
			t.Fatalf("%s: problems:\n%v", contract, ps)
		}
		_, hint, _ := strings.Cut(ps[0].Hint, "a patch")
		_, hint, _ = strings.Cut(hint, ": ")
		if contract == "v1.14" {
			hint = "apiVersion: v1alpha1\nkind: KubeNodeConfig\n" + hint
		}
		withPatch(&s, "single.yaml", hint)
		if _, ps := r.Render(s, testSchematic); len(ps) > 0 {
			t.Errorf("%s: the hint's patch leaves problems:\n%v", contract, ps)
		}
	}
}

// A node whose volumes a TPM opens is warned of where its VM has none, in whichever document that stands.
func TestSealedWithoutTPM(t *testing.T) {
	const tpm, node = "keys: [{slot: 0, tpm: {}}]", "keys: [{slot: 0, nodeID: {}}]"
	legacy := func(label, keys string) string {
		return "machine: {systemDiskEncryption: {" + label + ": {provider: luks2, " + keys + "}}}"
	}
	volume := func(kind, name, keys string) string {
		return "apiVersion: v1alpha1\nkind: " + kind + "\nname: " + name + "\nencryption: {provider: luks2, " + keys + "}\n"
	}
	user := "provisioning: {diskSelector: {match: system_disk == false}, minSize: 1GiB}\n"
	for name, c := range map[string]struct {
		contract, patch string
		secure          bool
		want            string
	}{
		"nothing":                  {"v1.14", "machine: {sysctls: {vm.swappiness: \"1\"}}", false, ""},
		"state, in a document":     {"v1.14", volume("VolumeConfig", "STATE", tpm), false, "encrypt STATE with a TPM"},
		"state, in the old place":  {"v1.13", legacy("state", tpm), false, "encrypt STATE with a TPM"},
		"ephemeral, there":         {"v1.13", legacy("ephemeral", tpm), false, "encrypt EPHEMERAL with a TPM"},
		"a volume of the user's":   {"v1.14", volume("UserVolumeConfig", "data", tpm) + user, false, "encrypt data with a TPM"},
		"with a key of the node":   {"v1.14", volume("VolumeConfig", "STATE", node), false, ""},
		"with a key of it, before": {"v1.13", legacy("state", node), false, ""},
		"with Secure Boot":         {"v1.14", volume("VolumeConfig", "STATE", tpm), true, ""},
	} {
		s := snapshot(t, c.contract)
		s.Spec.SecureBoot = c.secure
		withPatch(&s, "disk.yaml", c.patch)
		var r Renderer
		for range 2 { // the second time from memory
			configs, ps := r.Render(s, testSchematic)
			text := ps.Error()
			if len(configs) != 2 || ps.HasErrors() || (c.want == "") != (len(ps) == 0) || !strings.Contains(text, c.want) {
				t.Errorf("%s: %d configs, problems:\n%v", name, len(configs), ps)
			}
			if c.want != "" && (len(ps) != 1 || !strings.Contains(text, "the VMs of dev-cp-1 and 1 more are made without one")) {
				t.Errorf("%s: problems:\n%v", name, ps)
			}
		}
	}
}

// Merging leaves parts of a patch in the config. What the next patch of one
// node changes there must not reach another node.
func TestPatchesOfNodesStayApart(t *testing.T) {
	s := snapshot(t, "v1.14")
	for i := range 20 {
		n := s.Spec.Nodes[1]
		n.Name = fmt.Sprintf("dev-wk-%d", i+2)
		s.Spec.Nodes = append(s.Spec.Nodes, n)
	}
	withPatch(&s, "all.yaml", "machine: {udev: {rules: [first]}}\n---\napiVersion: v1alpha1\nkind: KubeNodeConfig\nannotations: {shared: \"yes\"}\n")
	for i := range s.Spec.Nodes {
		n := &s.Spec.Nodes[i]
		n.Patches = append(n.Patches, cluster.Patch{File: "one.yaml", Document: cluster.SecretString(fmt.Sprintf(
			"machine: {udev: {rules: [of-%s]}}\n---\napiVersion: v1alpha1\nkind: KubeNodeConfig\nannotations: {of: %s, of-%s: \"yes\"}\n", n.Name, n.Name, n.Name))})
	}
	for name, c := range mustRender(t, s) {
		found := map[string]bool{}
		for _, m := range regexp.MustCompile(`of-(dev-[a-z]+-\d+)`).FindAllStringSubmatch(c.Bytes.RevealString(), -1) {
			found[m[1]] = true
		}
		if len(found) != 1 || !found[name] {
			t.Errorf("the config of %s carries settings of %v", name, found)
		}
	}
}

// The library's copy of an endpoint is not deep.
func TestEndpointOfOneNodeStaysThere(t *testing.T) {
	for _, contract := range contracts {
		s := snapshot(t, contract)
		want := mustRender(t, s)
		text := "cluster: {controlPlane: {endpoint: \"https://other.example.org:1\"}}"
		if contract == "v1.14" {
			text = "apiVersion: v1alpha1\nkind: KubeClusterConfig\nendpoint: https://other.example.org:1"
		}
		s.Spec.Nodes[0].Patches = []cluster.Patch{{File: "one.yaml", Document: cluster.SecretString(text)}}
		var r Renderer
		got, ps := r.Render(s, testSchematic)
		if len(ps) != 1 || !strings.Contains(ps.Error(), "the cluster's endpoint") {
			t.Errorf("%s: problems:\n%v", contract, ps)
		}
		if got["dev-wk-1"].Digest != want["dev-wk-1"].Digest {
			t.Errorf("%s: the patch reached the other node", contract)
		}
	}
}

// TestKindsAreComplete fails when the library learns a kind that kindSince does
// not know, so that an update cannot be forgotten.
func TestKindsAreComplete(t *testing.T) {
	file, _ := runtime.FuncForPC(reflect.ValueOf(configloader.NewFromBytes).Pointer()).FileLine(0)
	schema, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(file)), "schemas", "config.schema.json"))
	if err != nil {
		t.Skipf("the library's schema is not there: %v", err)
	}
	before := []string{"EventSinkConfig", "ExtensionServiceConfig", "KmsgLogConfig", "KubeSpanEndpointsConfig", "NetworkDefaultActionConfig",
		"NetworkRuleConfig", "SideroLinkConfig", "TrustedRootsConfig", "VolumeConfig", "WatchdogTimerConfig"}
	found := 0
	for _, m := range regexp.MustCompile(`"kind": \{\s*"enum": \[\s*"(\w+)"`).FindAllStringSubmatch(string(schema), -1) {
		found++
		if m[1] == "KubeSpanEndpoints" {
			continue // the schema's name of KubeSpanEndpointsConfig
		}
		if kindSince[m[1]] == 0 && !slices.Contains(before, m[1]) {
			t.Errorf("from which minor of Talos on is there a %s? kindSince does not know", m[1])
		}
	}
	if found < 80 {
		t.Errorf("only %d kinds found in the library's schema", found)
	}
	for _, kind := range []string{k8s.KubeNodeConfig, network.LinkKind} {
		if kindSince[kind] == 0 {
			t.Errorf("kindSince does not know %s", kind)
		}
	}
	for kind, since := range kindSince {
		if since <= oldestMinor || since > newestMinor() {
			t.Errorf("kindSince has %s is of v1.%d", kind, since)
		}
	}
}

func FuzzPatch(f *testing.F) {
	for _, text := range []string{longhorn, "machine: {type: worker}", "$patch: delete", "machine:\n  $patch: delete\n", "cluster: null", "[]", "- op: x", "a: &a [*a]",
		"machine: {network: {interfaces: [null]}}", "apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete", "machine: {install: null}\ncluster: {etcd: {$patch: delete}}"} {
		f.Add(text, false)
		f.Add(text, true)
	}
	s := snapshot(f, "v1.14")
	ins, _, err := listInputs(s, testSchematic)
	if err != nil {
		f.Fatal(err)
	}
	g, problem := newGenerator(s, ins[0].shared, open(f, s.Bundle))
	if problem != nil {
		f.Fatal(problem)
	}
	f.Fuzz(func(t *testing.T, text string, worker bool) {
		in := ins[0]
		if worker {
			in = ins[1]
		}
		in.Patches = []patch{{"x.yaml", text}}
		out := g.render(s, &in)
		if out.problems.HasErrors() {
			return
		}
		if digest, err := Digest(out.config.Bytes.Reveal()); err != nil || digest != out.config.Digest {
			t.Errorf("digest is %s, was %s (%v)", digest, out.config.Digest, err)
		}
		if !strings.Contains(out.config.Bytes.RevealString(), in.Name) {
			t.Error("the config has lost the node's name")
		}
	})
}
