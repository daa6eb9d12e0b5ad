package readiness

import (
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestUnplaced: workloads are listed by name, each once with the first of its reasons, and
// warned of where another pod does their work.
func TestUnplaced(t *testing.T) {
	o := cluster.Observed{SystemPods: cluster.Saw(map[string]cluster.SystemPod{
		"coredns-1": {Workload: "deployment coredns", DNS: true, Unschedulable: "0/1 nodes: taint b"},
		"coredns-2": {Workload: "deployment coredns", DNS: true, Unschedulable: "0/1 nodes: taint a"},
		"coredns-3": {Workload: "deployment coredns", DNS: true, Ready: true},
		"agent-1":   {Workload: "daemonset agent", Unschedulable: "too little memory"},
		"agent-2":   {Workload: "daemonset agent"},
		"proxy-1":   {Workload: "daemonset proxy", Ready: true},
	})}
	want := []Unplaced{{Name: "daemonset agent", Why: "too little memory"}, {Name: "deployment coredns", Why: "0/1 nodes: taint a", Served: true, DNS: true}}
	for range 50 { // in whatever order the pods come
		if got := ListUnplaced(o); !slices.Equal(got, want) {
			t.Fatalf("%+v", got)
		}
	}
	ps := WarnOfUnplaced(o)
	if len(ps) != 1 || ps[0].Severity != cluster.Warning || ps[0].Message != "no node takes a pod of deployment coredns in kube-system, of which another is ready: 0/1 nodes: taint a" || ps[0].Hint == "" {
		t.Errorf("%v", ps)
	}
}

// TestAwaitSystemPods: what no node takes is waited for, and the first pod of the cluster's DNS until the cluster was Ready once, in
// one wait alone.
func TestAwaitSystemPods(t *testing.T) {
	p := Patience{API: 1, DNS: 2, Pods: 3}
	for name, c := range map[string]struct {
		pods     map[string]cluster.SystemPod
		unseen   string
		wasReady bool
		want     []cluster.Wait
	}{
		"all is well":     {pods: map[string]cluster.SystemPod{"dns": {Workload: "coredns", DNS: true, Ready: true}}},
		"not seen":        {unseen: "no route", want: []cluster.Wait{{Reason: cluster.SystemPodsUnknown, Within: 1, Message: "cannot see the pods of kube-system: no route"}}},
		"not asked yet":   {unseen: "-", want: []cluster.Wait{{Reason: cluster.SystemPodsUnknown, Within: 1, Message: "cannot see the pods of kube-system: there is no answer yet"}}},
		"no DNS yet":      {want: []cluster.Wait{{Reason: cluster.ClusterDNSNotReady, Within: 2, Message: "waits for the cluster's DNS: Talos has not deployed it yet"}}},
		"no DNS any more": {wasReady: true},
		"DNS has no node": {pods: map[string]cluster.SystemPod{"dns": {Name: "dns", Workload: "coredns", DNS: true, Unschedulable: "full"}},
			want: []cluster.Wait{{Reason: cluster.ClusterDNSNotReady, Within: 2, Message: "waits for the cluster's DNS: dns: full"}}},
		"DNS has no node any more": {wasReady: true, pods: map[string]cluster.SystemPod{"dns": {Workload: "coredns", DNS: true, Unschedulable: "full"}},
			want: []cluster.Wait{{Reason: cluster.PodsUnschedulable, Within: 3, Message: "no node takes pods of kube-system: coredns: full"}}},
		"both": {pods: map[string]cluster.SystemPod{"dns": {Name: "dns", Workload: "coredns", DNS: true, Unschedulable: "full"}, "agent": {Workload: "agent", Unschedulable: "taint"}},
			want: []cluster.Wait{{Reason: cluster.ClusterDNSNotReady, Within: 2, Message: "waits for the cluster's DNS: dns: full"}, {Reason: cluster.PodsUnschedulable, Within: 3, Message: "no node takes pods of kube-system: agent: taint"}}},
		"another one serves": {wasReady: true, pods: map[string]cluster.SystemPod{"a": {Workload: "coredns", DNS: true, Unschedulable: "full"}, "b": {Workload: "coredns", DNS: true, Ready: true}}},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp", Role: cluster.ControlPlane}}}}, Configs: map[string]cluster.Config{"cp": {DNS: true}}}
		o := cluster.Observed{SystemPods: cluster.Saw(c.pods)}
		if c.unseen != "" {
			o.SystemPods = cluster.Unseen[map[string]cluster.SystemPod](strings.TrimPrefix(c.unseen, "-"))
		}
		if c.wasReady {
			o.Facts.Intend(cluster.Intent{Kind: cluster.SeenReady})
		}
		got := AwaitSystemPods(d, o, p)
		same := slices.EqualFunc(got, c.want, func(a, b cluster.Wait) bool {
			return a.Subject == "dev" && a.Reason == b.Reason && a.Within == b.Within && a.Message == b.Message && (a.Hint == "") == (a.Reason == cluster.SystemPodsUnknown)
		})
		if !same {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
