package readiness

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestClassify: what is not known is never taken for absent, nor for Ready, and a node is
// Ready only when everything that is seen of it says so.
func TestClassify(t *testing.T) {
	n := cluster.Node{Name: "wk-1", Role: cluster.Worker}
	ours := cluster.VM{Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning, Uptime: time.Hour}
	with := func(change func(*cluster.VM)) cluster.VM {
		vm := ours
		change(&vm)
		return vm
	}
	running := cluster.Machine{Reach: cluster.Configured, Stage: "running", Ready: true, BootID: "b"}
	ready := cluster.Saw(map[string]cluster.KubeNode{"wk-1": {Name: "wk-1", Ready: true, BootID: "b"}})
	for name, tc := range map[string]struct {
		vm    cluster.VM
		mach  cluster.Machine
		nodes cluster.Seen[map[string]cluster.KubeNode]
		want  cluster.Phase
	}{
		"nothing is known":     {cluster.VM{}, cluster.Machine{}, cluster.Seen[map[string]cluster.KubeNode]{}, cluster.PhaseUnknown},
		"no vm":                {cluster.VM{Presence: cluster.Absent}, running, ready, cluster.PhaseAbsent},
		"whose it is":          {with(func(vm *cluster.VM) { vm.Owner = cluster.OwnerUnknown }), running, ready, cluster.PhaseUnknown},
		"somebody else's":      {with(func(vm *cluster.VM) { vm.Owner = cluster.Foreign }), running, ready, cluster.PhaseForeign},
		"power is not known":   {with(func(vm *cluster.VM) { vm.Power = cluster.PowerUnknown }), running, ready, cluster.PhaseUnknown},
		"stopped and locked":   {with(func(vm *cluster.VM) { vm.Power, vm.Lock = cluster.Stopped, "backup" }), running, ready, cluster.PhaseLocked},
		"silent":               {ours, cluster.Machine{Reach: cluster.Silent}, ready, cluster.PhaseUnreachable},
		"just started":         {with(func(vm *cluster.VM) { vm.Uptime = time.Second }), cluster.Machine{Reach: cluster.Silent}, ready, cluster.PhaseBooting},
		"reach is not known":   {ours, cluster.Machine{}, ready, cluster.PhaseUnknown},
		"a stranger":           {ours, cluster.Machine{Reach: cluster.Unexpected}, ready, cluster.PhaseForeign},
		"ready":                {ours, running, ready, cluster.PhaseReady},
		"Kubernetes is silent": {ours, running, cluster.Unseen[map[string]cluster.KubeNode]("no answer"), cluster.PhaseUnknown},
		"of an earlier boot":   {ours, running, cluster.Saw(map[string]cluster.KubeNode{"wk-1": {Name: "wk-1", Ready: true, BootID: "a"}}), cluster.PhaseJoining},
		"not registered":       {ours, running, cluster.Saw(map[string]cluster.KubeNode{}), cluster.PhaseJoining},
	} {
		o := cluster.Observed{Now: time.Now(), VMs: map[string]cluster.VM{"wk-1": tc.vm}, Machines: map[string]cluster.Machine{"wk-1": tc.mach}, Nodes: tc.nodes}
		if got := Classify(n, o); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
