package effect

import (
	"reflect"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestMachineWithout: what a forecast takes away is gone, and nothing else.
func TestMachineWithout(t *testing.T) {
	m := cluster.Machine{Reach: cluster.Configured, ConfigDigest: "runs", Staged: "waits", StagedSince: time.Unix(1, 0), StagedAuthorities: cluster.Authorities{Talos: "t"}}
	if got := withoutStaged(m); !reflect.DeepEqual(got, cluster.Machine{Reach: cluster.Configured, ConfigDigest: "runs"}) || m.Staged != "waits" {
		t.Errorf("%+v of %+v", got, m)
	}
	var none *cluster.Change
	all, lacks := &cluster.Change{For: "a", Reboots: true}, &cluster.Change{For: "a", Reboots: true, Lacks: "image"}
	if withImages(none) != nil || withImages(all) != all {
		t.Error("what lacks nothing is changed")
	}
	if got := withImages(lacks); *got != *all || lacks.Lacks != "image" {
		t.Errorf("%+v of %+v", got, lacks)
	}
}
