package machineconfig

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestSummarize: what a config has of it is read from it again, whichever documents carry it,
// and no error quotes the config.
func TestSummarize(t *testing.T) {
	for _, contract := range contracts {
		s := snapshot(t, contract)
		want := cluster.ConfigSummary{Cluster: s.Spec.Name, DNSDomain: "cluster.local", Pods: s.Spec.Network.PodCIDR.String(), Services: s.Spec.Network.ServiceCIDR.String(), Endpoint: "10.10.0.5"}
		for name, cfg := range mustRender(t, s) {
			if want.Registries = cfg.Summary.Registries; want.Registries == "" {
				t.Errorf("%s at %s: nothing of resolvers", name, contract)
			}
			if want.Rest = cfg.Summary.Rest; len(want.Rest) != 64 {
				t.Errorf("%s at %s: nothing of the rest", name, contract)
			}
			want.Authorities, want.Role, want.Flannel = cfg.Summary.Authorities, cluster.ControlPlane, "yes"
			of := s.Spec.Versions.Kubernetes
			want.Images = cluster.Images{Kubelet: "ghcr.io/siderolabs/kubelet:" + of, APIServer: "registry.k8s.io/kube-apiserver:" + of, ControllerManager: "registry.k8s.io/kube-controller-manager:" + of, Scheduler: "registry.k8s.io/kube-scheduler:" + of, Proxy: "registry.k8s.io/kube-proxy:" + of}
			if name == "dev-wk-1" {
				want.Role, want.Flannel, want.Images = cluster.Worker, "", cluster.Images{Kubelet: want.Images.Kubelet}
			}
			if cfg.Summary != want || want.Authorities.Talos == "" || want.Authorities.Kubernetes == "" || (want.Authorities.Etcd == "") != (name == "dev-wk-1") {
				t.Errorf("%s at %s: %+v", name, contract, cfg.Summary)
			}
			if got, err := Summarize(cfg.Bytes.Reveal()); err != nil || got != want {
				t.Errorf("%s at %s: %+v, %v", name, contract, got, err)
			}
		}
	}
	if _, err := Summarize([]byte("machine: {token: secret, nosuch: 1}")); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

// next is another patch of a version.
func next(version string) string {
	if before, ok := strings.CutSuffix(version, ".1"); ok {
		return before + ".2"
	}
	return version[:strings.LastIndexByte(version, '.')] + ".1"
}

// TestRestOfConfigs: what a machine runs with a config is told from how Talos is installed, and from its
// images, whichever documents carry them.
func TestRestOfConfigs(t *testing.T) {
	for _, contract := range contracts {
		was := mustRender(t, snapshot(t, contract))
		for name, c := range map[string]struct {
			edit               func(*cluster.Spec)
			runsAs, onlyImages bool
		}{
			"nothing":       {func(*cluster.Spec) {}, true, true},
			"the schematic": {func(s *cluster.Spec) { s.InstallerRegistry = "registry.example.org/installers" }, true, true},
			"kubernetes":    {func(s *cluster.Spec) { s.Versions.Kubernetes = next(s.Versions.Kubernetes) }, false, true},
			"a label":       {func(s *cluster.Spec) { s.Nodes[0].Labels = map[string]string{"example.org/rack": "b7"} }, false, false},
			"the resolvers": {func(s *cluster.Spec) { s.Network.Nameservers = []netip.Addr{netip.MustParseAddr("9.9.9.9")} }, false, false},
		} {
			s := snapshot(t, contract)
			c.edit(&s.Spec)
			is := mustRender(t, s)["dev-cp-1"].Summary
			if had := was["dev-cp-1"].Summary; had.RunsAs(is) != c.runsAs || had.OnlyImages(is) != c.onlyImages {
				t.Errorf("%s at %s: runs as %v, only images %v", name, contract, had.RunsAs(is), had.OnlyImages(is))
			}
		}
	}
}

// TestAuthoritiesOfConfigs: configs of the same secrets have the same authorities, and those
// of others have others; no key is in what identifies them.
func TestAuthoritiesOfConfigs(t *testing.T) {
	s := snapshot(t, contracts[len(contracts)-1])
	ours := mustRender(t, s)
	text, err := NewBundle("v1.13", testNow)
	if err != nil {
		t.Fatal(err)
	}
	s.Bundle = cluster.NewSecret(text)
	theirs := mustRender(t, s)
	for name, cfg := range ours {
		for other := range ours {
			if what := cfg.Summary.Authorities.Other(ours[other].Summary.Authorities); what != "" {
				t.Errorf("%s has another authority than %s: %s", name, other, what)
			}
			if what := cfg.Summary.Authorities.Other(theirs[other].Summary.Authorities); what != "Talos" {
				t.Errorf("%s has another authority than %s of another cluster: %q", name, other, what)
			}
		}
	}
}

// TestAddressesOfPatches: whatever document gives an address to a link, it is seen.
func TestAddressesOfPatches(t *testing.T) {
	s := snapshot(t, "v1.14")
	vip := s.Spec.Network.VIP.String()
	for text, want := range map[string]string{
		"machine: {sysctls: {vm.nr_hugepages: \"1024\"}}":                                                                                                           "",
		"machine: {network: {interfaces: [{interface: eth1, addresses: [10.10.99.1/24, 10.10.99.2]}]}}":                                                             "10.10.99.1 10.10.99.2",
		"machine: {network: {interfaces: [{interface: eth1, vip: {ip: 10.10.99.3}}]}}":                                                                              "10.10.99.3",
		"machine: {network: {interfaces: [{interface: eth1, vlans: [{vlanId: 7, addresses: [10.10.99.4/24], vip: {ip: 10.10.99.5}}]}]}}":                            "10.10.99.4 10.10.99.5",
		"apiVersion: v1alpha1\nkind: LinkConfig\nname: eth1\naddresses: [{address: 10.10.99.6/24}]\n":                                                               "10.10.99.6",
		"apiVersion: v1alpha1\nkind: DummyLinkConfig\nname: dummy9\naddresses: [{address: 10.10.99.7/32}]\n":                                                        "10.10.99.7",
		"apiVersion: v1alpha1\nkind: Layer2VIPConfig\nname: 10.10.99.8\nlink: eth1\n":                                                                               "10.10.99.8",
		"apiVersion: v1alpha1\nkind: VethConfig\nname: veth0\naddresses: [{address: 10.10.99.9/30}]\npeer: {name: veth1, addresses: [{address: 10.10.99.10/30}]}\n": "10.10.99.9 10.10.99.10",
	} {
		s.Spec.Nodes[0].Patches = []cluster.Patch{{File: "x.yaml", Document: cluster.SecretString(text)}}
		var got []string
		for _, a := range mustRender(t, s)["dev-cp-1"].Addresses {
			if a.String() != vip && a != s.Spec.Nodes[0].IP {
				got = append(got, a.String())
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestSummaryOfDiscovery: only a discovery service leads a machine to others that it does not
// know yet.
func TestSummaryOfDiscovery(t *testing.T) {
	const rest = "version: v1alpha1\nmachine: {type: controlplane, token: a.b}\n"
	for text, want := range map[string]bool{
		"cluster: {discovery: {enabled: false}}": false,
		"cluster: {discovery: {enabled: true}}":  true,
		"cluster: {discovery: {enabled: true, registries: {kubernetes: {disabled: false}, service: {disabled: true}}}}":      false,
		"---\napiVersion: v1alpha1\nkind: DiscoveryServiceConfig\nname: default\nendpoint: https://discovery.example.org/\n": true,
	} {
		got, err := Summarize([]byte(rest + text))
		if err != nil || got.Discovery != want {
			t.Errorf("%s: %v, %v", text, got.Discovery, err)
		}
	}
}

// TestHashRegistries: whatever a machine needs to reach an image is in the digest, and nothing
// else.
func TestHashRegistries(t *testing.T) {
	const rest = "version: v1alpha1\nmachine: {type: worker, token: a.b, ca: {crt: \"\"}, "
	of := func(more string) string {
		t.Helper()
		s, err := Summarize([]byte(rest + more))
		if err != nil {
			t.Fatal(err)
		}
		return s.Registries
	}
	seen := map[string]string{}
	for _, more := range []string{
		"}", "registries: {mirrors: {docker.io: {endpoints: [\"https://a.example.org\"]}}}}", "registries: {mirrors: {docker.io: {endpoints: [\"https://a.example.org\", \"https://b.example.org\"]}}}}",
		"registries: {mirrors: {docker.io: {endpoints: [\"https://b.example.org\", \"https://a.example.org\"]}}}}", "registries: {mirrors: {docker.io: {endpoints: [\"https://a.example.org\"], skipFallback: true}}}}",
		"registries: {config: {a.example.org: {auth: {username: u, password: p}}}}}", "registries: {config: {a.example.org: {auth: {username: u, password: q}}}}}",
		"registries: {config: {a.example.org: {tls: {insecureSkipVerify: true}}}}}", "network: {nameservers: [10.0.0.1]}}", "network: {nameservers: [10.0.0.2]}}",
		"network: {extraHostEntries: [{ip: 10.0.0.1, aliases: [a.example.org]}]}}", "env: {https_proxy: \"http://10.0.0.1\"}}",
		"}\n---\napiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: a\ncertificates: x\n",
	} {
		sum := of(more)
		if other, twice := seen[sum]; twice {
			t.Errorf("%s and %s are the same", more, other)
		}
		if seen[sum] = more; sum != of(more) {
			t.Errorf("%s is not the same again", more)
		}
	}
	for _, other := range []string{"sysctls: {a: b}}", "env: {GRPC_GO_LOG_VERBOSITY_LEVEL: \"99\"}}"} {
		if of(other) != of("}") {
			t.Errorf("%s has to do with images", other)
		}
	}
}
