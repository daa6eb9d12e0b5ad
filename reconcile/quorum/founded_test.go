package quorum

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWasSeen: etcd is seen by its members, or by a machine of the cluster on which it runs.
func TestWasSeen(t *testing.T) {
	machine := func(reach cluster.Reach, etcd string) map[string]cluster.Machine {
		return map[string]cluster.Machine{"cp-1": {Reach: reach, Services: map[string]cluster.Service{"etcd": {State: etcd}}}}
	}
	members := []cluster.Member{{ID: 1}}
	for _, c := range []struct {
		what string
		o    cluster.Observed
		want bool
	}{
		{"nothing is known", cluster.Observed{}, false},
		{"a member", cluster.Observed{Members: cluster.Seen[[]cluster.Member]{Value: members, Known: true}}, true},
		{"members of an older look", cluster.Observed{Members: cluster.Seen[[]cluster.Member]{Value: members}}, false},
		{"no member", cluster.Observed{Members: cluster.Seen[[]cluster.Member]{Known: true}}, false},
		{"it runs", cluster.Observed{Machines: machine(cluster.Configured, "Running")}, true},
		{"it waits", cluster.Observed{Machines: machine(cluster.Configured, "Preparing")}, false},
		{"it ran on a machine that is silent", cluster.Observed{Machines: machine(cluster.Silent, "Running")}, false},
	} {
		if got := WasSeen(c.o); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// TestIsNeverFounded: silence is no proof that a control plane has no etcd.
func TestIsNeverFounded(t *testing.T) {
	n := cluster.Node{Name: "cp-1"}
	for _, c := range []struct {
		what  string
		there cluster.Presence
		reach cluster.Reach
		etcd  string
		want  bool
	}{
		{"its VM is not there", cluster.Absent, cluster.Silent, "", true},
		{"it has no config", cluster.Present, cluster.Maintenance, "", true},
		{"its etcd waits", cluster.Present, cluster.Configured, "Preparing", true},
		{"its etcd runs", cluster.Present, cluster.Configured, "Running", false},
		{"it is silent", cluster.Present, cluster.Silent, "Preparing", false},
	} {
		o := cluster.Observed{VMs: map[string]cluster.VM{"cp-1": {Presence: c.there}},
			Machines: map[string]cluster.Machine{"cp-1": {Reach: c.reach, Services: map[string]cluster.Service{"etcd": {State: c.etcd}}}}}
		if got := IsNeverFounded(o, n); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
