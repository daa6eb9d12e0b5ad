package upgrade

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestGates: gates are looked at while the cluster is to be upgraded and no node is out of service that others wait for,
// and hold only where it is known that all do.
func TestGates(t *testing.T) {
	gates := []cluster.Gate{{Name: "a", Condition: "objects.all(o,\n  o.status.ok)"}, {Name: "b", Condition: strings.Repeat("true && ", 100) + "true"}}
	hops := []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}}
	holds, closed := cluster.Saw(true), cluster.Saw(false)
	for name, c := range map[string]struct {
		hops  []cluster.Hop
		gates []cluster.Gate
		turn  string
		order cluster.UpgradeOrder
		seen  map[string]cluster.Seen[bool]
		asks  bool
		shut  string
		why   string
	}{
		"no gate":                         {hops: hops},
		"no upgrade":                      {gates: gates, shut: "ab", why: "not looked at yet"},
		"not looked at":                   {hops: hops, gates: gates, asks: true, shut: "ab", why: "not looked at yet"},
		"all hold":                        {hops: hops, gates: gates, seen: map[string]cluster.Seen[bool]{"a": holds, "b": holds}, asks: true},
		"one does not":                    {hops: hops, gates: gates, seen: map[string]cluster.Seen[bool]{"a": closed, "b": holds}, asks: true, shut: "a", why: "does not hold: objects.all(o, o.status.ok)"},
		"the other is long":               {hops: hops, gates: gates, seen: map[string]cluster.Seen[bool]{"a": holds, "b": closed}, asks: true, shut: "b", why: "&&…"},
		"one is not known":                {hops: hops, gates: gates, seen: map[string]cluster.Seen[bool]{"a": cluster.Unseen[bool]("no such key: ok"), "b": holds}, asks: true, shut: "a", why: "not known whether it holds: no such key: ok"},
		"a node is out of service":        {hops: hops, gates: gates, turn: "t", shut: "ab", why: "not looked at yet"},
		"and no other waits for that":     {hops: hops, gates: gates, turn: "t", order: cluster.UpgradeOrder{Despite: []string{"wk-1"}}, asks: true, shut: "ab", why: "not looked at yet"},
		"where another is not waited for": {hops: hops, gates: gates, turn: "t", order: cluster.UpgradeOrder{Despite: []string{"wk-2"}}, shut: "ab", why: "not looked at yet"},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Revision: "r", Spec: cluster.Spec{Gates: c.gates, Nodes: []cluster.Node{{Name: "wk-1"}}}}, Way: cluster.Way{Hops: c.hops}}
		o := cluster.Observed{Gates: c.seen, Nodes: cluster.Saw(map[string]cluster.KubeNode{"wk-1": {Turn: c.turn}})}
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendUpgrade, Revision: "r", Order: c.order})
		if got := AsksGates(d, o); got != c.asks {
			t.Errorf("%s: asks %v", name, got)
		}
		shut, first := "", cluster.Wait{}
		for _, w := range ClosedGates(d, o) {
			if shut += w.About; first.Reason == "" {
				first = w
			}
		}
		if shut != c.shut || !strings.Contains(first.Message, c.why) || len(first.Message) > 300 || (first.Hint == "") != (c.shut == "") {
			t.Errorf("%s: %q, %+v", name, shut, first)
		}
		if o.Gates = OpenGates(d); len(o.Gates) != len(c.gates) {
			t.Errorf("%s: %d gates are open", name, len(o.Gates))
		}
		if shut := ClosedGates(d, o); len(shut) > 0 {
			t.Errorf("%s: %+v are not open", name, shut)
		}
	}
}

// TestWordWait: a node that goes back is not called one that is upgraded.
func TestWordWait(t *testing.T) {
	const up = "waits to be upgraded until cp-1 is Ready"
	if got := WordWait(up, true); got != "waits to go back until cp-1 is Ready" {
		t.Error(got)
	}
	if WordWait(up, false) != up || WordWait("waits", true) != "waits" {
		t.Error("what does not go back is worded anew")
	}
}
