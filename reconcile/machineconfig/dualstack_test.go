package machineconfig

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/dualstack"
	"github.com/talos-agent/talos-agent/internal/golden"
)

// addIPv6 makes a cluster with static addresses dual stack.
func addIPv6(s *cluster.Snapshot, gateway string) {
	n := &s.Spec.Network
	n.IPv6 = dualstack.Networks{CIDR: netip.MustParsePrefix("fd00:10:10::/64"), Pods: netip.MustParsePrefix("fd00:10:244::/56"), Services: netip.MustParsePrefix("fd00:10:96::/112")}
	if gateway != "" {
		n.IPv6.Gateway = netip.MustParseAddr(gateway)
	}
	for i := range s.Spec.Nodes {
		s.Spec.Nodes[i].IP6, _ = n.IPv6.AddressOf(s.Spec.Nodes[i].IP, n.CIDR)
	}
}

// TestDualStack: what a dual-stack cluster has besides is IPv6 alone, behind IPv4, at every contract, and all of it is what
// Talos reads.
func TestDualStack(t *testing.T) {
	for _, contract := range []string{"v1.8", "v1.11", "v1.12", "v1.13", "v1.14"} {
		for _, gateway := range []string{"", "fe80::1"} {
			s := snapshot(t, contract)
			plain := mustRender(t, s)
			addIPv6(&s, gateway)
			configs := mustRender(t, s)
			for _, n := range s.Spec.Nodes {
				before, after := plain[n.Name].Bytes.RevealString(), configs[n.Name].Bytes.RevealString()
				if gateway != "" {
					golden.Check(t, filepath.Join("testdata", "golden", "dual-stack-"+contract+"-"+string(n.Role)+".txt"), []byte(strings.Join(listAdded(before, after), "\n")+"\n"))
				}
				if removed := listAdded(after, before); len(removed) > 0 {
					t.Errorf("%s %s: with IPv6 it lacks %q", contract, n.Name, removed)
				}
				c, err := configloader.NewFromBytes([]byte(after))
				if err != nil {
					t.Fatal(err)
				}
				if got, want := joinNetworks(c.K8sNetworkConfig().PodCIDRs()), "10.244.0.0/16,fd00:10:244::/56"; got != want || configs[n.Name].Summary.Pods != want {
					t.Errorf("%s %s: pods %s, %s", contract, n.Name, got, configs[n.Name].Summary.Pods)
				}
				if got, want := joinNetworks(c.K8sNetworkConfig().ServiceCIDRs()), "10.96.0.0/12,fd00:10:96::/112"; got != want || configs[n.Name].Summary.Services != want {
					t.Errorf("%s %s: services %s, %s", contract, n.Name, got, configs[n.Name].Summary.Services)
				}
				if got, want := c.K8sNodeConfig().NodeIP().ValidSubnets(), []string{n.IP.String() + "/32", n.IP6.String() + "/128"}; !slices.Equal(got, want) {
					t.Errorf("%s %s: it takes its addresses from %v", contract, n.Name, got)
				}
				if n.Role == cluster.ControlPlane {
					if got, want := c.Cluster().Etcd().AdvertisedSubnets(), []string{n.IP.String() + "/32"}; !slices.Equal(got, want) {
						t.Errorf("%s %s: etcd takes its address from %v", contract, n.Name, got)
					}
				}
				if !slices.Contains(configs[n.Name].Addresses, n.IP6) || !givesAddress(c, n.IP6.String()+"/64") {
					t.Errorf("%s %s: addresses %v", contract, n.Name, configs[n.Name].Addresses)
				}
				if got := strings.Contains(after, "gateway: fe80::1"); got != (gateway != "") {
					t.Errorf("%s %s: a route over the IPv6 router: %v", contract, n.Name, got)
				}
			}
		}
	}
}

// TestHasAddress: a config without the IPv6 address lacks an address of the node.
func TestHasAddress(t *testing.T) {
	for _, contract := range []string{"v1.11", "v1.13"} {
		s := snapshot(t, contract)
		plain := mustRender(t, s)["dev-cp-1"]
		addIPv6(&s, "")
		dual := mustRender(t, s)["dev-cp-1"]
		ins, _, err := listInputs(s, testSchematic)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			config cluster.Config
			want   bool
		}{{plain, false}, {dual, true}} {
			p, err := configloader.NewFromBytes(c.config.Bytes.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			if got := hasAddress(p, &ins[0]); got != c.want {
				t.Errorf("%s: it has the node's addresses: %v, want %v", contract, got, c.want)
			}
		}
	}
}

// TestDualStackIsNotAPatchs: a patch takes no network of IPv6 away.
func TestDualStackIsNotAPatchs(t *testing.T) {
	for patch, want := range map[string]string{
		"cluster: {network: {podSubnets: [10.244.0.0/16]}}":    "the pod network",
		"cluster: {network: {serviceSubnets: [10.96.0.0/12]}}": "the service network",
	} {
		s := snapshot(t, "v1.13")
		addIPv6(&s, "")
		withPatch(&s, "p.yaml", patch)
		var r Renderer
		if _, ps := r.Render(s, testSchematic); !ps.HasErrors() || !strings.Contains(ps[0].Message, want) {
			t.Errorf("%s: %v", patch, ps)
		}
	}
}
