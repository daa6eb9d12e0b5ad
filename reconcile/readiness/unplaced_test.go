package readiness

import (
	"slices"
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
