package bounds

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestNetworks: every address that machines of a cluster take lies in a network of the policy.
func TestNetworks(t *testing.T) {
	spec := cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp-1", IP: netip.MustParseAddr("10.10.0.11")}, {Name: "wk-1", IP: netip.MustParseAddr("10.10.0.80")}}}
	spec.Network.VIP = netip.MustParseAddr("10.10.0.10")
	for _, c := range []struct {
		networks []string
		refused  []string
	}{
		{nil, nil},
		{[]string{"10.10.0.0/24"}, nil},
		{[]string{"10.10.0.8/29", "10.10.0.64/26"}, nil},
		{[]string{"10.10.0.64/26"}, []string{"cp-1", "dev"}},
		{[]string{"10.10.0.11/32", "10.10.0.80/32"}, []string{"dev"}},
		{[]string{"10.10.0.8/29"}, []string{"wk-1"}},
	} {
		var p cluster.Policy
		for _, n := range c.networks {
			p.Networks = append(p.Networks, netip.MustParsePrefix(n))
		}
		var refused []string
		for _, b := range OfSpec(spec, p) {
			if b.Reason != cluster.PolicyViolation || b.About != "networks" {
				t.Errorf("%v: %+v", c.networks, b)
			}
			refused = append(refused, b.Subject)
		}
		if !slices.Equal(refused, c.refused) {
			t.Errorf("%v: refused %q, want %q", c.networks, refused, c.refused)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		src, allowed string
		want         bool
	}{
		{"https://charts.example.org", "https://charts.example.org", true},
		{"https://charts.example.org/a/b", "https://charts.example.org/a", true},
		{"https://charts.example.org/ab", "https://charts.example.org/a", false},
		{"https://charts.example.org.evil.net", "https://charts.example.org", false},
		{"http://charts.example.org", "https://charts.example.org", false},
		{"https://user@charts.example.org", "https://charts.example.org", false},
		{"https://charts.example.org/a/../b", "https://charts.example.org/a", false},
		{"https://charts.example.org/a/%2e%2e/b", "https://charts.example.org/a", false},
		{"oci://ghcr.io/org/chart", "oci://ghcr.io/org", true},
		{"https://CHARTS.example.org", "https://charts.example.org", true},
	} {
		if got := below(c.src, c.allowed); got != c.want {
			t.Errorf("below(%q, %q) = %v", c.src, c.allowed, got)
		}
	}
}
