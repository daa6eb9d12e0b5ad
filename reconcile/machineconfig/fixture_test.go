package machineconfig

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// bundle is a secrets bundle made once for these tests and for nothing else.
func bundle(t testing.TB) cluster.Secret {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "secrets.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return cluster.NewSecret(b)
}

// kubernetesFor is a version of Kubernetes that runs on a Talos minor.
var kubernetesFor = map[string]string{"v1.8": "v1.30.1", "v1.9": "v1.31.4", "v1.10": "v1.33.1", "v1.11": "v1.34.1", "v1.12": "v1.35.0", "v1.13": "v1.36.1", "v1.14": "v1.37.0"}

// talosFor is a version of a Talos minor.
var talosFor = map[string]string{"v1.8": "v1.8.2", "v1.9": "v1.9.5", "v1.10": "v1.10.7", "v1.11": "v1.11.6", "v1.12": "v1.12.4", "v1.13": "v1.13.9", "v1.14": "v1.14.1"}

// testNow is when these tests take place: inside the life of the test bundle.
var testNow = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)

const testSchematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

// snapshot is a cluster of one control plane and one worker with static
// addresses and a virtual IP.
func snapshot(t testing.TB, contract string) cluster.Snapshot {
	t.Helper()
	id := cluster.ClusterID("talos-agent", "dev")
	return cluster.Snapshot{
		Bundle: bundle(t),
		Where: map[string]cluster.Position{
			"":                   {File: "inventory/dev/cluster.yaml"},
			"talos_version":      {File: "inventory/dev/cluster.yaml", Line: 2, Column: 16},
			"kubernetes_version": {File: "inventory/dev/cluster.yaml", Line: 3, Column: 21},
			"config_contract":    {File: "inventory/dev/cluster.yaml", Line: 4, Column: 18},
		},
		Spec: cluster.Spec{
			ID:       id,
			Name:     "dev",
			Versions: cluster.Versions{Talos: talosFor[contract], Kubernetes: kubernetesFor[contract], Contract: contract},
			CNI:      cluster.CNIFlannel,
			Network: cluster.Network{
				Mode:        cluster.AddressStatic,
				CIDR:        netip.MustParsePrefix("10.10.0.0/24"),
				Gateway:     netip.MustParseAddr("10.10.0.1"),
				Nameservers: []netip.Addr{netip.MustParseAddr("10.10.0.1"), netip.MustParseAddr("9.9.9.9")},
				TimeServers: []string{"10.10.0.1"},
				PodCIDR:     netip.MustParsePrefix("10.244.0.0/16"),
				ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12"),
				VIP:         netip.MustParseAddr("10.10.0.5"),
				Endpoint:    "https://10.10.0.5:6443",
				CertSANs:    []string{"k8s.example.org"},
				VLAN:        20,
			},
			InstallerRegistry: "factory.talos.dev",
			Mirrors:           map[string]string{"docker.io": "https://mirror.example.org", "ghcr.io": "mirror.example.org"},
			Nodes: []cluster.Node{
				{Name: "dev-cp-1", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.10.0.11"), MAC: "BC:24:11:00:00:11"},
				{Name: "dev-wk-1", Role: cluster.Worker, IP: netip.MustParseAddr("10.10.0.21"), MAC: "BC:24:11:00:00:21",
					Labels: map[string]string{"zone": "a"}, Taints: map[string]string{"dedicated": "gpu:NoSchedule"}},
			},
		},
	}
}

// reservedAddresses turns a cluster into one whose addresses a DHCP server
// gives, without a virtual IP: the smallest inventory there is.
func reservedAddresses(s *cluster.Snapshot) {
	s.Spec.Network = cluster.Network{
		Mode:        cluster.AddressReserved,
		PodCIDR:     s.Spec.Network.PodCIDR,
		ServiceCIDR: s.Spec.Network.ServiceCIDR,
		Endpoint:    "https://10.10.0.11:6443",
	}
	s.Spec.Mirrors = nil
}

// withPatch gives every node a patch.
func withPatch(s *cluster.Snapshot, file, text string) {
	for i := range s.Spec.Nodes {
		s.Spec.Nodes[i].Patches = append(s.Spec.Nodes[i].Patches, cluster.Patch{File: file, Document: cluster.SecretString(text)})
	}
}

// mustRender renders and fails on any problem.
func mustRender(t testing.TB, s cluster.Snapshot) map[string]cluster.Config {
	t.Helper()
	var r Renderer
	configs, ps := r.Render(s, testSchematic)
	if len(ps) > 0 {
		t.Fatalf("problems:\n%v", ps)
	}
	if len(configs) != len(s.Spec.Nodes) {
		t.Fatalf("%d configs for %d nodes", len(configs), len(s.Spec.Nodes))
	}
	return configs
}

// shorten replaces certificates and keys by their digests, so that a golden
// file can be read.
func shorten(config string) string {
	digest := func(s string) string { return fmt.Sprintf("<%x>", sha256.Sum256([]byte(s)))[:13] + ">" }
	config = regexp.MustCompile(`(?s)-----BEGIN.*?-----END [A-Z0-9 ]+-----`).ReplaceAllStringFunc(config, digest)
	return regexp.MustCompile(`LS0t[A-Za-z0-9+/=]{64,}`).ReplaceAllStringFunc(config, digest)
}
