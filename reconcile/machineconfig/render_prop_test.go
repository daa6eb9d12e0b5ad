package machineconfig

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// privateKeys are the private keys of the test bundle, as they may stand in a
// config: in base64, or as the lines of their PEM.
func privateKeys(t testing.TB) []string {
	t.Helper()
	var keys []string
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		for i, c := range n.Content {
			walk(c)
			if n.Kind != yaml.MappingNode || i%2 == 1 || c.Value != "key" {
				continue
			}
			text := n.Content[i+1].Value
			pem, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, text, strings.Split(string(pem), "\n")[1])
		}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(bundle(t).Reveal(), &doc); err != nil {
		t.Fatal(err)
	}
	walk(&doc)
	if len(keys) != 10 {
		t.Fatalf("%d private keys found", len(keys))
	}
	return keys
}

// hasVIP reports whether a config has what Talos shares an address by: a device
// with `vip: {ip: ...}`, or a document of its own. A label or a taint may have
// that name too, and a word for its value.
func hasVIP(t rapid.TB, text string) bool {
	t.Helper()
	var in func(n *yaml.Node) bool
	in = func(n *yaml.Node) bool {
		for i, c := range n.Content {
			key := n.Kind == yaml.MappingNode && i%2 == 0
			if key && c.Value == "vip" && n.Content[i+1].Kind == yaml.MappingNode || c.Value == "Layer2VIPConfig" || in(c) {
				return true
			}
		}
		return false
	}
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var doc yaml.Node
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return false
		case err != nil:
			t.Fatal(err)
		}
		if in(&doc) {
			return true
		}
	}
}

func drawSnapshot(t *rapid.T, tb testing.TB) cluster.Snapshot {
	s := snapshot(tb, rapid.SampledFrom(contracts).Draw(t, "contract"))
	s.Spec.CNI = rapid.SampledFrom([]cluster.CNI{cluster.CNIFlannel, cluster.CNICilium, cluster.CNINone}).Draw(t, "cni")
	if rapid.Bool().Draw(t, "reserved") {
		reservedAddresses(&s)
	}
	if rapid.Bool().Draw(t, "no vip") {
		s.Spec.Network.VIP = netip.Addr{}
	}
	s.Spec.Network.TimeServers = rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,8}\.example\.org`), 0, 3).Draw(t, "time servers")
	s.Spec.Nodes = nil
	for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
		n := cluster.Node{Name: fmt.Sprintf("n%d-%s", i, rapid.StringMatching(`[a-z0-9]{1,10}`).Draw(t, "name")), Role: cluster.Worker,
			IP: netip.AddrFrom4([4]byte{10, 10, 0, byte(10 + i)}), MAC: fmt.Sprintf("BC:24:11:00:00:%02X", 10+i)}
		if i == 0 || rapid.Bool().Draw(t, "control plane") {
			n.Role = cluster.ControlPlane
		}
		n.Labels = rapid.MapOfN(rapid.StringMatching(`[a-z]{1,8}\.example\.org/[a-z]{1,8}`), rapid.StringMatching(`[a-z0-9]{0,8}`), 0, 3).Draw(t, "labels")
		n.Taints = rapid.MapOfN(rapid.StringMatching(`[a-z]{1,8}`), rapid.StringMatching(`[a-z0-9]{1,8}:NoSchedule`), 0, 2).Draw(t, "taints")
		s.Spec.Nodes = append(s.Spec.Nodes, n)
	}
	if s.Spec.Network.Mode == cluster.AddressStatic && rapid.Bool().Draw(t, "dual stack") {
		addIPv6(&s, rapid.SampledFrom([]string{"", "fe80::1", "fd00:10:10::1"}).Draw(t, "gateway6"))
	}
	return s
}

// Whatever the inventory: the config is of this node and no other, takes only
// the node's own address for it, and a worker never gets a private key of the
// cluster.
func TestRenderedConfigsKeepTheirPromises(t *testing.T) {
	keys := privateKeys(t)
	rapid.Check(t, func(rt *rapid.T) {
		s := drawSnapshot(rt, t)
		var r Renderer
		configs, ps := r.Render(s, testSchematic)
		if ps.HasErrors() || len(configs) != len(s.Spec.Nodes) {
			rt.Fatalf("%d configs for %d nodes, problems:\n%v", len(configs), len(s.Spec.Nodes), ps)
		}
		digests := map[string]bool{}
		for _, n := range s.Spec.Nodes {
			text := configs[n.Name].Bytes.RevealString()
			digests[configs[n.Name].Digest] = true
			c, err := configloader.NewFromBytes([]byte(text))
			if err != nil {
				rt.Fatal(err)
			}
			own, six := []string{n.IP.String() + "/32"}, s.Spec.Network.IPv6
			if six.On() {
				own = append(own, n.IP6.String()+"/128")
			}
			if !six.On() && strings.Contains(text, "fd00:") || len(c.K8sNetworkConfig().PodCIDRs()) != len(own) || len(c.K8sNetworkConfig().ServiceCIDRs()) != len(own) {
				rt.Errorf("%s has networks of a family too many or too few: dual stack %v", n.Name, six.On())
			}
			if got := c.NetworkHostnameConfig().Hostname(); got != n.Name {
				rt.Errorf("hostname of %s is %q", n.Name, got)
			}
			if got := string(n.Role); c.Machine().Type().String() != got {
				rt.Errorf("%s is a %s", n.Name, c.Machine().Type())
			}
			if got := c.K8sNodeConfig().NodeIP().ValidSubnets(); !slices.Equal(got, own) {
				rt.Errorf("%s takes its address from %v", n.Name, got)
			}
			for key, value := range n.Labels {
				if c.K8sNodeConfig().Labels()[key] != value {
					rt.Errorf("%s lacks label %s", n.Name, key)
				}
			}
			for key, value := range n.Taints {
				if c.K8sNodeConfig().Taints()[key] != value {
					rt.Errorf("%s lacks taint %s", n.Name, key)
				}
			}
			if n.Role == cluster.ControlPlane {
				if got := c.Cluster().Etcd().AdvertisedSubnets(); !slices.Equal(got, own[:1]) {
					rt.Errorf("etcd of %s takes its address from %v", n.Name, got)
				}
				if got, want := hasVIP(rt, text), s.Spec.Network.VIP.IsValid(); got != want {
					rt.Errorf("control plane %s gets a virtual IP: %v, want %v", n.Name, got, want)
				}
				continue
			}
			for _, k := range keys {
				if strings.Contains(text, k) {
					rt.Errorf("worker %s gets a private key of the cluster", n.Name)
				}
			}
			if hasVIP(rt, text) {
				rt.Errorf("worker %s gets the virtual IP", n.Name)
			}
		}
		if len(digests) != len(s.Spec.Nodes) {
			rt.Errorf("%d digests for %d nodes", len(digests), len(s.Spec.Nodes))
		}
	})
}
