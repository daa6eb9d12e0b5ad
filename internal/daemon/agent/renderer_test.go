package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// Several states of the files can have one revision: a work tree that is edited
// (+dirty), directories that are sent to be planned. Each is judged by itself.
func TestRendererJudgesWhatItIsGiven(t *testing.T) {
	f, err := factory.New(factory.Config{URL: "https://factory.example.org", CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r := &renderer{factory: f, policy: func() cluster.Policy { return cluster.Policy{} }}
	for _, c := range []struct {
		talos string
		bad   bool
	}{{"v1.13.9", false}, {"v1.99.0", true}, {"v1.13.9", false}} {
		snap := cluster.Snapshot{Revision: sentDirectory, Spec: cluster.Spec{Name: "dev",
			Versions: cluster.Versions{Talos: c.talos, Kubernetes: "v1.36.1", Contract: "v1.13"}}}
		if _, problems := r.Desired(snap, cluster.Facts{}, time.Now()); problems.HasErrors() != c.bad {
			t.Errorf("Talos %s: %v", c.talos, problems)
		}
	}
}

// What the policy refuses for its size is not rendered first.
func TestNothingIsRenderedForARefusal(t *testing.T) {
	f, err := factory.New(factory.Config{URL: "https://factory.example.org", CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := machineconfig.NewBundle("v1.13", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	spec := cluster.Spec{ID: cluster.ClusterID("test", "dev"), Name: "dev", CNI: cluster.CNIFlannel, InstallerRegistry: "factory.example.org",
		Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1", Contract: "v1.13"},
		Network: cluster.Network{Endpoint: "https://10.10.0.11:6443", CIDR: netip.MustParsePrefix("10.10.0.0/24"), Gateway: netip.MustParseAddr("10.10.0.1"),
			PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12")},
		Nodes: []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.10.0.11"), MAC: "BC:24:11:00:00:01"}}}
	snap := cluster.Snapshot{Revision: sentDirectory, Spec: spec, Siblings: []cluster.Usage{{Cluster: "prod", Nodes: 2}}}
	snap.Bundle = cluster.NewSecret(bundle)
	facts := cluster.Facts{Images: map[string]cluster.ImagePin{"x": {For: spec.Schematic.Digest(), Schematic: machineconfig.PlaceholderSchematic}}}
	for limit, want := range map[int]int{0: 1, 2: 0, 3: 1} {
		r := &renderer{factory: f, policy: func() cluster.Policy { return cluster.Policy{Limits: cluster.Limits{Nodes: limit}} }}
		if d, problems := r.Desired(snap, facts, time.Now()); r.configs.Count() != want || len(d.Configs) != want || problems.HasErrors() {
			t.Errorf("limit %d: %d configs rendered, want %d: %v", limit, r.configs.Count(), want, problems)
		}
	}
}
