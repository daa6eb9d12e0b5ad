package agent

import (
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/leases"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// Several states of the files can have one revision: a work tree that is edited
// (+dirty), directories that are sent to be planned. Each is judged by itself.
func TestRendererJudgesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	f, err := factory.New(factory.Config{URL: "https://factory.example.org", CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r := &renderer{addresses: &leases.Book{}, factory: f, builtWith: func(string) (string, error) { return "", nil }, policy: func() cluster.Policy { return cluster.Policy{} }}
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
	t.Parallel()
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
		r := &renderer{addresses: &leases.Book{}, factory: f, builtWith: func(string) (string, error) { return "", nil }, policy: func() cluster.Policy { return cluster.Policy{Limits: cluster.Limits{Nodes: limit}} }}
		if d, problems := r.Desired(snap, facts, time.Now()); r.configs.Count() != want || len(d.Configs) != want || problems.HasErrors() {
			t.Errorf("limit %d: %d configs rendered, want %d: %v", limit, r.configs.Count(), want, problems)
		}
	}
}

// The host's clock is set while the agent runs: what was minted by the wrong time
// must not stay in use.
func TestCredentialsFollowTheClock(t *testing.T) {
	t.Parallel()
	f, err := factory.New(factory.Config{URL: "https://factory.example.org", CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	noon := time.Now()
	bundle, err := machineconfig.NewBundle("v1.13", noon.AddDate(0, 0, -30))
	if err != nil {
		t.Fatal(err)
	}
	snap := cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1", Contract: "v1.13"}}}
	snap.Bundle = cluster.NewSecret(bundle)
	r := &renderer{addresses: &leases.Book{}, factory: f, builtWith: func(string) (string, error) { return "", nil }, policy: func() cluster.Policy { return cluster.Policy{} }}
	var cert string
	for _, c := range []struct {
		what   string
		at     time.Duration
		minted bool
	}{
		{"at first", 0, true},
		{"a little later", time.Hour, false},
		{"set back by a blink", time.Hour - 500*time.Millisecond, false},
		{"set back", -2 * time.Hour, true},
		{"set back again, by days", -72 * time.Hour, true},
		{"set right", 0, true},
		{"as usual", 12 * time.Hour, false},
		{"in time", 13 * time.Hour, true},
	} {
		now := noon.Add(c.at)
		d, problems := r.Desired(snap, cluster.Facts{}, now)
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		got := d.Access.Talos.Cert.RevealString()
		if (got != cert) != c.minted {
			t.Errorf("%s: minted: %v, want %v", c.what, got != cert, c.minted)
		}
		cert = got
		block, _ := pem.Decode([]byte(got))
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if leaf.NotBefore.After(now.Add(-20*time.Hour)) || leaf.NotAfter.Before(now.Add(20*time.Hour)) {
			t.Errorf("%s: at %v it is good from %v to %v only", c.what, now, leaf.NotBefore, leaf.NotAfter)
		}
		if r.minted != r.minted.Round(0) {
			t.Error("its age is reckoned by a clock that cannot be set")
		}
	}
}
