package drift

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWhatAMachineIsGivenBack: its MAC and its address are refused where the inventory has
// changed, and corrected where somebody has edited the VM of a node that had them.
func TestWhatAMachineIsGivenBack(t *testing.T) {
	n := cluster.Node{Name: "wk-1", MAC: "BC:24:11:00:00:01", Cores: 4}
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}}}, Configs: map[string]cluster.Config{"wk-1": {Digest: "config"}}}
	hw := WantHardware(d.Spec, n)
	hw.MAC, hw.Address = "BC:24:11:00:00:02", "10.0.0.9/24,gw=10.0.0.1"
	hw.System = cluster.DiskSeen{Datastore: n.Datastore, Bytes: 1}
	for _, c := range []struct {
		what         string
		card         string
		power        cluster.Power
		mac, address How
	}{
		{"never seen as the inventory has it", "", cluster.PowerRunning, Refuse, Refuse},
		{"the inventory has changed since", "BC:24:11:00:00:09 ", cluster.PowerRunning, Refuse, Refuse},
		{"edited", "BC:24:11:00:00:01 ", cluster.PowerRunning, Reboot, NextStart},
		{"edited, and off", "BC:24:11:00:00:01 ", cluster.Stopped, InPlace, InPlace},
	} {
		o := cluster.Observed{Facts: cluster.Facts{Cards: map[string]string{}}}
		if c.card != "" {
			o.Facts.Cards["wk-1"] = c.card
		}
		got := map[string]How{}
		for _, dr := range OfNodeVM(d, o, n, cluster.VM{Power: c.power, Hardware: cluster.Saw(hw)}) {
			got[dr.Field] = dr.How
		}
		if got[string(cluster.FieldMAC)] != c.mac || got[string(cluster.FieldAddress)] != c.address {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
