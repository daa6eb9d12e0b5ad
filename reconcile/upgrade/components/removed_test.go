package components

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

var hopTo136 = cluster.Hop{Kind: cluster.HopKubernetes, From: "v1.35.4", To: "v1.36.1"}

func TestRemovedAPIs(t *testing.T) {
	flow := cluster.DeprecatedAPI{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3", Resource: "flowschemas", Removed: "v1.32"}
	o := cluster.Observed{Deprecated: cluster.Saw([]cluster.DeprecatedAPI{{Version: "v1", Resource: "endpoints"}, flow})}
	for in, want := range map[string]int{"v1.31.14": 0, "v1.32.0": 1, "v1.33.5": 1} {
		if got := RemovedAPIs(in, o); !got.Known || len(got.Value) != want || want > 0 && got.Value[0] != flow {
			t.Errorf("%s: %+v", in, got)
		}
	}
	if got := RemovedAPIs("v1.33.5", cluster.Observed{Deprecated: cluster.Unseen[[]cluster.DeprecatedAPI]("no answer")}); got.Known || got.Why != "no answer" {
		t.Errorf("%+v", got)
	}
}

// TestDescribeRemoved: what is not seen is no none.
func TestDescribeRemoved(t *testing.T) {
	api := cluster.DeprecatedAPI{Group: "policy", Version: "v1beta1", Resource: "podsecuritypolicies", Removed: "v1.36"}
	core := cluster.DeprecatedAPI{Version: "v1", Resource: "componentstatuses", Removed: "v1.40"}
	for _, c := range []struct {
		seen cluster.Seen[[]cluster.DeprecatedAPI]
		want string
	}{
		{cluster.Saw([]cluster.DeprecatedAPI{core}), ""},
		{cluster.Saw([]cluster.DeprecatedAPI{core, api}), "; clients use APIs that it does not have: policy/v1beta1 podsecuritypolicies"},
		{cluster.Unseen[[]cluster.DeprecatedAPI]("timeout"), "; which APIs clients use that it does not have is not known: timeout"},
	} {
		if got := DescribeRemoved(hopTo136, cluster.Observed{Deprecated: c.seen, ReleaseAPIs: cluster.Saw([]cluster.ReleaseAPI(nil))}); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestDescribeReleases: a release is named where the hop, and no hop before it, takes an API of it away; one that cannot be read is not
// passed over, and releases that were not seen are none that have nothing.
func TestDescribeReleases(t *testing.T) {
	release := func(name, kind, removed string) cluster.ReleaseAPI {
		return cluster.ReleaseAPI{Release: cluster.ReleaseName{Namespace: "apps", Name: name}, API: cluster.DeprecatedAPI{Group: "policy", Version: "v1beta1", Resource: kind, Removed: removed}}
	}
	budget := release("web", "PodDisruptionBudget", "v1.36")
	broken := cluster.ReleaseAPI{Release: budget.Release, Unread: "it cannot be unpacked"}
	none := cluster.Saw([]cluster.DeprecatedAPI(nil))
	unseen := cluster.Unseen[[]cluster.DeprecatedAPI]("timeout")
	for name, c := range map[string]struct {
		requested cluster.Seen[[]cluster.DeprecatedAPI]
		seen      cluster.Seen[[]cluster.ReleaseAPI]
		want      string
	}{
		"none":                {none, cluster.Saw([]cluster.ReleaseAPI(nil)), ""},
		"one":                 {none, cluster.Saw([]cluster.ReleaseAPI{budget}), "; Helm cannot upgrade releases any more whose manifests have what it does not: apps/web (policy/v1beta1 PodDisruptionBudget, which v1.36 removes)"},
		"removed before":      {none, cluster.Saw([]cluster.ReleaseAPI{release("old", "PodSecurityPolicy", "v1.35")}), ""},
		"removed later":       {none, cluster.Saw([]cluster.ReleaseAPI{release("new", "Eviction", "v1.37")}), ""},
		"unread":              {none, cluster.Saw([]cluster.ReleaseAPI{broken}), "; what is in these releases of Helm is not known: apps/web (it cannot be unpacked)"},
		"unseen":              {none, cluster.Unseen[[]cluster.ReleaseAPI]("forbidden"), "; which releases of Helm have APIs that it does not is not known: forbidden"},
		"nothing is seen":     {unseen, cluster.Unseen[[]cluster.ReleaseAPI]("timeout"), "; which APIs clients use that it does not have is not known: timeout"},
		"for several reasons": {unseen, cluster.Unseen[[]cluster.ReleaseAPI]("forbidden"), "; which APIs clients use that it does not have is not known: timeout; which releases of Helm have APIs that it does not is not known: forbidden"},
	} {
		if got := DescribeRemoved(hopTo136, cluster.Observed{Deprecated: c.requested, ReleaseAPIs: c.seen}); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
