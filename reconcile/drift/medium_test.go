package drift

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestMediumStaysUntilTalosRuns: an installation medium is taken out of its drive when Talos runs, which it does from the
// disk, and not while a machine may still have to install itself from it.
func TestMediumStaysUntilTalosRuns(t *testing.T) {
	s, n := newNode()
	hw := WantHardware(s, n)
	hw.Medium = "ide0"
	vm := cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning, Tags: n.VMTags(), Hardware: cluster.Saw(hw)}
	for _, tc := range []struct {
		what string
		mach cluster.Machine
		out  bool
	}{
		{"it was not seen", cluster.Machine{}, false},
		{"nothing answers", cluster.Machine{Reach: cluster.Silent}, false},
		{"maintenance mode", cluster.Machine{Reach: cluster.Maintenance, Stage: "maintenance"}, false},
		{"it installs itself", cluster.Machine{Reach: cluster.Configured, Stage: "installing"}, false},
		{"it boots", cluster.Machine{Reach: cluster.Configured, Stage: "booting"}, false},
		{"it runs", cluster.Machine{Reach: cluster.Configured, Stage: "running"}, true},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}}
		drifts := OfNodeVM(d, cluster.Observed{Machines: map[string]cluster.Machine{n.Name: tc.mach}}, n, vm)
		out := len(drifts) == 1 && drifts[0].Field == string(cluster.FieldMedium) && drifts[0].How == NextStart
		if out != tc.out || len(drifts) > 1 {
			t.Errorf("%s: %+v", tc.what, drifts)
		}
	}
}
