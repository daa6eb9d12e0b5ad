package drift

import (
	"net/netip"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestFindsNoEtcd: each clause alone leads a control plane to the others.
func TestFindsNoEtcd(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(n *cluster.Node, o *cluster.Observed, has *cluster.ConfigSummary)
		want   bool
	}{
		"none":            {func(*cluster.Node, *cluster.Observed, *cluster.ConfigSummary) {}, true},
		"a worker":        {func(n *cluster.Node, _ *cluster.Observed, _ *cluster.ConfigSummary) { n.Role = cluster.Worker }, false},
		"a member":        {func(_ *cluster.Node, o *cluster.Observed, _ *cluster.ConfigSummary) { o.Members.Value[0].Name = "cp-1" }, false},
		"not known":       {func(_ *cluster.Node, o *cluster.Observed, _ *cluster.ConfigSummary) { o.Members.Known = false }, false},
		"no etcd yet":     {func(_ *cluster.Node, o *cluster.Observed, _ *cluster.ConfigSummary) { o.Members.Value = nil }, false},
		"another address": {func(_ *cluster.Node, _ *cluster.Observed, has *cluster.ConfigSummary) { has.Endpoint = "10.0.0.9" }, false},
		"discovery":       {func(_ *cluster.Node, _ *cluster.Observed, has *cluster.ConfigSummary) { has.Discovery = true }, false},
	} {
		n := cluster.Node{Name: "cp-1", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.0.0.1")}
		o := cluster.Observed{Members: cluster.Saw([]cluster.Member{{Name: "cp-2"}})}
		has := cluster.ConfigSummary{Endpoint: "10.0.0.1"}
		tc.change(&n, &o, &has)
		o.Machines = map[string]cluster.Machine{"cp-1": {Summary: has}}
		if got := FindsNoEtcd(o, n); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
