package bounds

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestMaxUnavailable: the stricter of cluster and host applies, and the rule is named where
// it is the host's.
func TestMaxUnavailable(t *testing.T) {
	for _, c := range []struct {
		asks, allows, most int
		rule               string
	}{
		{0, 0, 1, ""}, {3, 0, 3, ""}, {3, 3, 3, ""}, {2, 3, 2, ""}, {0, 1, 1, ""},
		{3, 2, 2, "the cluster asks for 3, and the host allows 2 (host policy, policy.yaml:7: max_unavailable)"},
	} {
		most, rule := MaxUnavailable(cluster.Spec{MaxUnavailable: c.asks}, cluster.Policy{File: "policy.yaml", MaxUnavailable: c.allows, Lines: map[string]int{"max_unavailable": 7}})
		if most != c.most || rule != c.rule {
			t.Errorf("%d of %d: %d, %q", c.asks, c.allows, most, rule)
		}
	}
}

// TestDrain: the host may forbid that pods are deleted, and nothing else.
func TestDrain(t *testing.T) {
	for _, c := range []struct{ asks, stops, deletes bool }{{false, false, false}, {true, false, true}, {false, true, false}, {true, true, false}} {
		how, rule := Drain(cluster.Spec{Drain: cluster.Drain{Timeout: time.Hour, Delete: c.asks}}, cluster.Policy{File: "policy.yaml", DrainStops: c.stops, Lines: map[string]int{"drain.on_timeout": 8}})
		want := ""
		if c.asks && c.stops {
			want = "pods that may not leave are not deleted (host policy, policy.yaml:8: drain.on_timeout)"
		}
		if how.Delete != c.deletes || how.Timeout != time.Hour || rule != want {
			t.Errorf("%+v: %+v, %q", c, how, rule)
		}
	}
}

// TestDrainTimeout: of how long pods may take, the shorter applies, that which is used where the
// cluster has none included.
func TestDrainTimeout(t *testing.T) {
	const rule = "for 10m00s at most (host policy, policy.yaml:8: drain.timeout)"
	for _, c := range []struct {
		asks, allows, want time.Duration
		rule               string
	}{
		{0, 0, 5 * time.Minute, ""}, {time.Hour, 0, time.Hour, ""}, {time.Hour, 10 * time.Minute, 10 * time.Minute, rule},
		{10 * time.Minute, 10 * time.Minute, 10 * time.Minute, ""}, {time.Minute, 10 * time.Minute, time.Minute, ""}, {0, 10 * time.Minute, 5 * time.Minute, ""},
		{0, time.Minute, time.Minute, "for 1m00s at most (host policy, policy.yaml:8: drain.timeout)"},
	} {
		p := cluster.Policy{File: "policy.yaml", DrainWithin: c.allows, Lines: map[string]int{"drain.timeout": 8}}
		how, got := Drain(cluster.Spec{Drain: cluster.Drain{Timeout: c.asks}}, p)
		if how.Patience() != c.want || got != c.rule {
			t.Errorf("%v of %v: %v, %q", c.asks, c.allows, how.Patience(), got)
		}
	}
	p := cluster.Policy{File: "policy.yaml", DrainWithin: time.Minute, DrainStops: true}
	if _, got := Drain(cluster.Spec{Drain: cluster.Drain{Delete: true}}, p); !strings.Contains(got, "drain.on_timeout); for 1m00s at most") {
		t.Errorf("both: %q", got)
	}
}
