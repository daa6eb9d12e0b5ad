package quorum

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWhyADisruptionWaits: what a person reads when a node may not go down.
func TestWhyADisruptionWaits(t *testing.T) {
	three := []string{"cp-1", "cp-2", "cp-3"}
	for _, c := range []struct {
		e    Etcd
		want string
	}{
		{Etcd{voters: 3, Healthy: three, agreed: cluster.Saw(true)}, ""},
		{Etcd{voters: 3, Healthy: three[1:], agreed: cluster.Saw(true)}, ""},
		{Etcd{voters: 3, Healthy: []string{"cp-1", "cp-3"}, agreed: cluster.Saw(true)}, "with cp-1 down 1 of 3 members of etcd would be healthy, and 2 are needed"},
		{Etcd{voters: 1, Healthy: three[:1], agreed: cluster.Saw(true)}, "with cp-1 down 0 of 1 members of etcd would be healthy, and 1 are needed"},
		{Etcd{voters: 3, Healthy: three, learners: []string{"cp-4"}, agreed: cluster.Saw(true)}, "cp-4 is still a learner of etcd"},
		{Etcd{voters: 3, Healthy: three, agreed: cluster.Saw(false)}, "the members of etcd do not all name the same members"},
		{Etcd{voters: 3, Healthy: three}, "whether all members of etcd name the same members is not known"},
		{Etcd{unknown: "timeout"}, "the members of etcd are not known: timeout"},
	} {
		if got := c.e.Without("cp-1"); got != c.want {
			t.Errorf("%+v: %q, want %q", c.e, got, c.want)
		}
	}
}
