package readiness

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestAwaitDNS: one pod that serves is enough, whatever becomes of the others, and none is waited for that Talos does not deploy.
func TestAwaitDNS(t *testing.T) {
	starts, fails, serves := cluster.SystemPod{Name: "a", DNS: true}, cluster.SystemPod{Name: "b", DNS: true, Failing: "ImagePullBackOff"}, cluster.SystemPod{Name: "c", DNS: true, Ready: true}
	full := cluster.SystemPod{Name: "d", DNS: true, Unschedulable: "no room"}
	for name, c := range map[string]struct {
		without bool // Talos deploys none
		pods    []cluster.SystemPod
		want    string // the end of the message; "" : no wait
	}{
		"none yet":             {want: "Talos has not deployed it yet"},
		"none is deployed":     {without: true},
		"others do not count":  {pods: []cluster.SystemPod{{Name: "proxy", Ready: true}, {Name: "x", Failing: "crash"}}, want: "Talos has not deployed it yet"},
		"it starts":            {pods: []cluster.SystemPod{starts}, want: "a starts"},
		"one fails":            {pods: []cluster.SystemPod{starts, fails}, want: "b: ImagePullBackOff"},
		"one has no node":      {pods: []cluster.SystemPod{full}, want: "d: no room"},
		"one of several works": {pods: []cluster.SystemPod{starts, fails, serves}},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp", Role: cluster.ControlPlane}}}}, Configs: map[string]cluster.Config{"cp": {DNS: !c.without}}}
		pods := map[string]cluster.SystemPod{}
		for _, p := range c.pods {
			pods[p.Name] = p
		}
		w, waits := AwaitDNS(d, cluster.Observed{SystemPods: cluster.Saw(pods)}, time.Minute)
		if waits != (c.want != "") || waits && (w.Reason != cluster.ClusterDNSNotReady || w.Within != time.Minute || w.Message != "waits for the cluster's DNS: "+c.want) {
			t.Errorf("%s: %v, %+v", name, waits, w)
		}
	}
}

// TestAwaitVIP: a VIP that does not lead to the cluster is reported with who has it, and not while that is unknown.
func TestAwaitVIP(t *testing.T) {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Network: cluster.Network{VIP: netip.MustParseAddr("10.10.0.5")}, Nodes: []cluster.Node{{Name: "cp", MAC: "own"}}}}}
	for name, c := range map[string]struct {
		vip  cluster.Seen[cluster.VirtualIP]
		want string // part of the message; "" : no wait
	}{
		"not known":       {},
		"it is served":    {vip: cluster.Saw(cluster.VirtualIP{Served: true, MAC: "other"})},
		"nobody has it":   {vip: cluster.Saw(cluster.VirtualIP{Why: "no route"}), want: "control plane's own address: no route"},
		"a node has it":   {vip: cluster.Saw(cluster.VirtualIP{MAC: "own"}), want: "; cp has the address"},
		"another machine": {vip: cluster.Saw(cluster.VirtualIP{MAC: "other"}), want: "; a machine with MAC other has the address"},
	} {
		w := AwaitVIP(d, cluster.Observed{VIP: c.vip})
		if (w.Reason != "") != (c.want != "") || !strings.Contains(w.Message, c.want) || c.want != "" && (w.Hint == "" || w.Within == 0) {
			t.Errorf("%s: %+v", name, w)
		}
	}
}

// TestAwaitVIPOfOthers: the hint is about who has the address, and another machine has that of a load balancer.
func TestAwaitVIPOfOthers(t *testing.T) {
	lacking := cluster.Observed{VIP: cluster.Saw(cluster.VirtualIP{MAC: "other", Why: "refused"})}
	for by, c := range map[cluster.VIPHolder]struct {
		free   string // part of the hint while nobody has the address
		blames bool   // another machine that has it
	}{
		"":                    {"talosctl get addresses", true},
		cluster.VIPByKubeVIP:  {"grep kube-vip", true},
		cluster.VIPByExternal: {"load balancer that has 10.10.0.5 runs", false},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Network: cluster.Network{VIP: netip.MustParseAddr("10.10.0.5"), VIPBy: by}}}}
		if w := AwaitVIP(d, cluster.Observed{VIP: cluster.Saw(cluster.VirtualIP{})}); w.Reason != cluster.VIPNotServed || !strings.Contains(w.Hint, c.free) {
			t.Errorf("%q: %+v", by, w)
		}
		w := AwaitVIP(d, lacking)
		if w.Reason != cluster.VIPNotServed || strings.Contains(w.Message, "MAC other") != c.blames || (w.About == "") == c.blames || !strings.Contains(w.Message, "refused") || w.Within != vipWithin || w.Subject != "dev" {
			t.Errorf("%q, another machine has it: %+v", by, w)
		}
	}
}
