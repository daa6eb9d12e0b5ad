package upgrade

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// TestAwaitKnown: a drift of versions is waited for while it is not known which versions run or which image is asked for, and a config that
// cannot be compared with it; what no way leads to is not.
func TestAwaitKnown(t *testing.T) {
	way := cluster.Way{Hops: []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}}}
	for name, c := range map[string]struct {
		way       cluster.Way
		schematic string
		has       string // of Talos
		version   cluster.Reason
		config    cluster.Reason // of a config that is not compared
	}{
		"the image is not named":   {way, "", "v1.13.9", cluster.WaitingForInstaller, cluster.ConfigDrift},
		"it is":                    {way, "a", "v1.13.9", "", cluster.ConfigDrift},
		"versions are not known":   {cluster.Way{}, "a", "v1.13.9", cluster.RunningConfigUnknown, cluster.ConfigDrift},
		"there is no way":          {cluster.Way{NoWay: "why"}, "", "v1.13.9", "", ""},
		"the node has a newer one": {cluster.Way{}, "", "v1.14.2", "", ""},
		"it has that version":      {cluster.Way{}, "", "v1.14.1", "", ""},
	} {
		n := cluster.Node{Name: "wk-1", Role: cluster.Worker}
		asked := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}, Versions: cluster.Versions{Talos: "v1.14.1"}}}, Schematic: c.schematic, Way: c.way,
			Configs: map[string]cluster.Config{"wk-1": {Digest: "new"}}}
		mach := cluster.Machine{Reach: cluster.Configured, Talos: c.has, Schematic: c.schematic, ConfigDigest: "given"}
		o := cluster.Observed{Machines: map[string]cluster.Machine{"wk-1": mach}}
		var version, config cluster.Reason
		for _, dr := range drift.OfWholeMachine(asked, o, n, mach) {
			w, awaits := AwaitKnown(asked, o, n, dr, time.Minute)
			if awaits && (w.Subject != "wk-1" || w.About != dr.Field || w.Message == "") || !awaits && w.Reason != "" {
				t.Errorf("%s: %+v", name, w)
			}
			switch {
			case dr.IsUncompared():
				config = w.Reason
			case dr.Reason == cluster.TalosVersionDrift:
				if version = w.Reason; version != "" && w.Within == 0 {
					t.Errorf("%s: it is waited for without an end: %+v", name, w)
				}
			}
		}
		if version != c.version || config != c.config {
			t.Errorf("%s: %q, and the config %q", name, version, config)
		}
	}
}
