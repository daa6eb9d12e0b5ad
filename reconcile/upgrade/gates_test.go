package upgrade

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
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
		for _, w := range ClosedGates(d, o, cluster.Policy{}) {
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
		if shut := ClosedGates(d, o, cluster.Policy{}); len(shut) > 0 {
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

// TestGatesAndAWindow: beside a gate that does not hold stands when the window opens, unless it is open or not waited for.
func TestGatesAndAWindow(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	night := window.Window{From: 22 * 60, To: 60, Zone: time.UTC}
	for name, c := range map[string]struct {
		cluster, host window.Window
		order         cluster.UpgradeOrder
		at            time.Time
		want          string
	}{
		"there is none":        {at: now},
		"it is closed":         {cluster: night, at: now, want: "; its window opens at 2026-03-01 22:00 UTC"},
		"the host's is closed": {host: night, at: now, want: "; its window opens at 2026-03-01 22:00 UTC"},
		"it is open":           {cluster: night, at: now.Add(11 * time.Hour)},
		"root does not wait":   {cluster: night, at: now, order: cluster.UpgradeOrder{Now: true}},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Revision: "r", Spec: cluster.Spec{Window: c.cluster, Gates: []cluster.Gate{{Name: "a", Condition: "false"}}}}}
		o := cluster.Observed{Now: c.at}
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendUpgrade, Revision: "r", Order: c.order})
		got := ClosedGates(d, o, cluster.Policy{Window: c.host})
		if want := "waits to be upgraded until the gate a holds: it was not looked at yet" + c.want; len(got) != 1 || got[0].Message != want {
			t.Errorf("%s: %+v, want %q", name, got, want)
		}
	}
}
