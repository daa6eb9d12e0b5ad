package leftover

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestEvictedPlanes: a control plane whose etcd runs, is not healthy and is no member is one; what
// Talos does with such an etcd, and that the members are not known for a while, does not end it.
func TestEvictedPlanes(t *testing.T) {
	n := cluster.Node{Name: "cp-2", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.0.0.2")}
	others := cluster.Saw([]cluster.Member{{ID: 1, Name: "cp-1", Address: "10.0.0.1"}})
	unseen := cluster.Unseen[[]cluster.Member]("no answer")
	for name, tc := range map[string]struct {
		members cluster.Seen[[]cluster.Member]
		reach   cluster.Reach
		etcd    cluster.Service
		known   bool
		want    bool
	}{
		"runs":                  {others, cluster.Configured, cluster.Service{State: "Running"}, false, true},
		"is started again":      {others, cluster.Configured, cluster.Service{State: "Waiting"}, true, true},
		"boots":                 {others, cluster.Configured, cluster.Service{State: "Waiting"}, false, false},
		"joins":                 {others, cluster.Configured, cluster.Service{State: "Preparing"}, true, false},
		"has left":              {others, cluster.Configured, cluster.Service{State: "Finished"}, true, false},
		"founded another":       {others, cluster.Configured, cluster.Service{State: "Running", Healthy: true}, true, false},
		"members not known":     {unseen, cluster.Configured, cluster.Service{State: "Running"}, false, false},
		"members not known now": {unseen, cluster.Configured, cluster.Service{State: "Waiting"}, true, true},
		"silent":                {others, cluster.Silent, cluster.Service{State: "Running"}, true, false},
		"silent, and not known": {unseen, cluster.Silent, cluster.Service{}, true, false},
		"is a member":           {cluster.Saw([]cluster.Member{{ID: 2, Name: "cp-2", Address: "10.0.0.2"}}), cluster.Configured, cluster.Service{State: "Running"}, true, false},
		"is one without a name": {cluster.Saw([]cluster.Member{{ID: 2, Address: "10.0.0.2", Learner: true}}), cluster.Configured, cluster.Service{State: "Running"}, true, false},
	} {
		d := cluster.Desired{}
		d.Spec.Nodes = []cluster.Node{n, {Name: "wk-1", Role: cluster.Worker}}
		o := cluster.Observed{Members: tc.members, Machines: map[string]cluster.Machine{
			"cp-2": {Reach: tc.reach, Services: map[string]cluster.Service{"etcd": tc.etcd}},
			"wk-1": {Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {State: "Running"}}}}}
		before := map[string]time.Time{}
		if tc.known {
			before["cp-2"] = time.Unix(1, 0)
		}
		want := map[bool]string{true: "[cp-2]", false: "[]"}[tc.want]
		if got := fmt.Sprint(EvictedPlanes(d, o, before)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	o := cluster.Observed{Now: time.Unix(100, 0), EvictedSince: map[string]time.Time{"cp-1": time.Unix(40, 0), "cp-2": time.Unix(41, 0)}}
	if !IsEvicted(o, "cp-1") || IsEvicted(o, "cp-2") || IsEvicted(o, "cp-3") {
		t.Errorf("seen for %v: %v, for a second less: %v, never: %v", LostFor, IsEvicted(o, "cp-1"), IsEvicted(o, "cp-2"), IsEvicted(o, "cp-3"))
	}
}
