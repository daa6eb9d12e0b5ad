package drift

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestNoneGoesBackAlone: where another node cannot follow a node to the version that all ran before, that node stays, too, and
// so it does where Kubernetes does not run there.
func TestNoneGoesBackAlone(t *testing.T) {
	var d cluster.Desired
	d.Schematic = "376567988ad3"
	d.Spec.Nodes = []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "wk-1"}, {Name: "wk-2"}}
	for name, c := range map[string]struct {
		others     string // what those beside wk-1 run
		kubernetes string // that all run
		want       bool
	}{
		"all can":             {others: "v1.12.11", kubernetes: "v1.34.3", want: true},
		"all have":            {others: "v1.11.6", kubernetes: "v1.34.3", want: true},
		"one is two ahead":    {others: "v1.13.9", kubernetes: "v1.34.3"},
		"one does not answer": {kubernetes: "v1.34.3", want: true},
		"too new a kubelet":   {others: "v1.12.11", kubernetes: "v1.35.3"},
	} {
		var o cluster.Observed
		o.Machines = map[string]cluster.Machine{"cp-1": {Talos: "v1.12.11"}, "wk-1": {Talos: "v1.12.11"}, "wk-2": {Talos: c.others}}
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendConfig, Versions: cluster.Versions{Talos: "v1.12.11", Kubernetes: c.kubernetes}, Previous: cluster.Versions{Talos: "v1.11.6"}})
		dr := Drift{Field: FieldTalos, Reason: cluster.TalosVersionDrift, Have: "v1.12.11", Want: "v1.11.6"}
		if got := IsUpgrade(d, o, d.Spec.Nodes[1], dr); got != c.want {
			t.Errorf("%s: goes back: %t", name, got)
		}
	}
}
