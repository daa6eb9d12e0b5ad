package bounds

import (
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
