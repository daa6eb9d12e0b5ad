package readiness

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestJudgedSince: an upgrade is judged since its nodes are there for it, and not while one is down or in its turn.
func TestJudgedSince(t *testing.T) {
	tried := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		kn    cluster.KubeNode
		phase cluster.Phase
		since time.Time
		want  bool
	}{
		"Ready before":        {cluster.KubeNode{Name: "a", ReadySince: tried.Add(-time.Hour)}, cluster.PhaseReady, tried, true},
		"Ready since":         {cluster.KubeNode{Name: "a", ReadySince: tried.Add(time.Hour)}, cluster.PhaseReady, tried.Add(time.Hour), true},
		"not Ready, answers":  {cluster.KubeNode{Name: "a"}, cluster.PhaseJoining, tried, true},
		"down":                {cluster.KubeNode{Name: "a"}, cluster.PhaseUnreachable, tried, false},
		"in its turn":         {cluster.KubeNode{Name: "a", Turn: "x"}, cluster.PhaseReady, tried, false},
		"without Node object": {cluster.KubeNode{}, cluster.PhaseReady, tried, false},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "a"}}}}}
		o := cluster.Observed{Nodes: cluster.Saw(map[string]cluster.KubeNode{"a": c.kn})}
		since, judged := JudgedSince(d, o, map[string]cluster.Phase{"a": c.phase}, cluster.Release{Tried: tried})
		if judged != c.want || !since.Equal(c.since) {
			t.Errorf("%s: %v since %v", name, judged, since)
		}
	}
}

// TestMayHaveFlannel: while a control plane runs with Flannel and the inventory has another network, no addon is
// installed, which may be that network; nor is Cilium while it is not known.
func TestMayHaveFlannel(t *testing.T) {
	for name, c := range map[string]struct {
		cni     cluster.CNI
		flannel string
		addon   string
		ready   bool
		want    bool
	}{
		"the same":               {cluster.CNIFlannel, "yes", "web", true, false},
		"another":                {cluster.CNINone, "yes", "calico", true, true},
		"Cilium beside it":       {cluster.CNICilium, "yes", "cilium", true, true},
		"Cilium without":         {cluster.CNICilium, "no", "cilium", true, false},
		"Cilium, not known":      {cluster.CNICilium, "", "cilium", true, true},
		"Cilium, new":            {cluster.CNICilium, "", "cilium", false, false},
		"another one, not known": {cluster.CNICilium, "", "web", true, false},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{CNI: c.cni, Nodes: []cluster.Node{{Name: "a", Role: cluster.ControlPlane}}}}}
		o := cluster.Observed{Machines: map[string]cluster.Machine{"a": {Summary: cluster.ConfigSummary{Flannel: c.flannel}}}}
		if c.ready {
			o.Facts.Intents = append(o.Facts.Intents, cluster.Intent{Kind: cluster.SeenReady})
		}
		if got := MayHaveFlannel(d, o, cluster.Addon{Name: c.addon}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestUnmetDependency: the first that is not installed, or not ready.
func TestUnmetDependency(t *testing.T) {
	web := cluster.Addon{Name: "web", DependsOn: []string{"db", "mq"}}
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Addons: []cluster.Addon{web, {Name: "db"}, {Name: "mq"}}}}}
	for want, releases := range map[string]map[string]cluster.Release{
		"db": {"mq": {Ready: true}},
		"mq": {"db": {Ready: true}, "mq": {}},
		"":   {"db": {Ready: true}, "mq": {Ready: true}},
	} {
		if got := UnmetDependency(d, cluster.Observed{Releases: cluster.Saw(releases)}, web); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestLacksAddon: what is not seen to be there and ready is lacking, of those that the agent keeps.
func TestLacksAddon(t *testing.T) {
	ready := cluster.Release{Status: "deployed", Ready: true}
	for name, c := range map[string]struct {
		ownership cluster.Ownership
		releases  cluster.Seen[map[string]cluster.Release]
		want      bool
	}{
		"it is there":    {cluster.Managed, cluster.Saw(map[string]cluster.Release{"web": ready}), false},
		"unknown":        {cluster.Managed, cluster.Seen[map[string]cluster.Release]{Value: map[string]cluster.Release{"web": ready}}, true},
		"it is not":      {cluster.Managed, cluster.Saw(map[string]cluster.Release{}), true},
		"it failed":      {cluster.Managed, cluster.Saw(map[string]cluster.Release{"web": {Status: "failed", Ready: true}}), true},
		"not ready":      {cluster.Managed, cluster.Saw(map[string]cluster.Release{"web": {Status: "deployed"}}), true},
		"somebody's own": {cluster.BootstrapOnly, cluster.Saw(map[string]cluster.Release{}), false},
	} {
		if got := LacksAddon(cluster.Observed{Releases: c.releases}, cluster.Addon{Name: "web", Ownership: c.ownership}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
