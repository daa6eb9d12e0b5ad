package readiness

import (
	"net/netip"
	"strings"
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

// TestWhatAControlPlaneLacks: each clause by itself keeps a control plane from being Ready,
// and what is only not seen is another state than what is missing.
func TestWhatAControlPlaneLacks(t *testing.T) {
	n := cluster.Node{Name: "cp-1", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.0.0.1")}
	for name, tc := range map[string]struct {
		change func(o *cluster.Observed)
		want   cluster.Reason
		about  string
		phase  cluster.Phase
	}{
		"nothing": {func(*cluster.Observed) {}, "", "", cluster.PhaseReady},
		"boots":   {func(o *cluster.Observed) { edit(o.Machines, func(m *cluster.Machine) { m.Stage = "booting" }) }, cluster.WaitingForTalos, "booting", cluster.PhaseJoining},
		"finds no etcd": {func(o *cluster.Observed) {
			o.Members = cluster.Saw([]cluster.Member{{Name: "cp-2"}})
			edit(o.Machines, func(m *cluster.Machine) { m.Stage, m.Summary.Endpoint = "booting", n.IP.String() })
		}, cluster.WaitingForTalos, "booting", cluster.PhaseJoining},
		"members not known": {func(o *cluster.Observed) { o.Members.Known, o.Members.Why = false, "timeout" }, cluster.EtcdMembersUnknown, "", cluster.PhaseUnknown},
		"no member":         {func(o *cluster.Observed) { o.Members = cluster.Saw([]cluster.Member{{Name: "cp-2"}}) }, cluster.WaitingForMembership, "", cluster.PhaseJoining},
		"left": {func(o *cluster.Observed) {
			o.Members = cluster.Saw([]cluster.Member{{Name: "cp-2"}})
			edit(o.Machines, func(m *cluster.Machine) { m.Services = map[string]cluster.Service{"etcd": {State: "Finished"}} })
		}, cluster.WaitingForMembership, "left", cluster.PhaseJoining},
		"stopped, and not out of etcd": {func(o *cluster.Observed) {
			edit(o.Machines, func(m *cluster.Machine) { m.Services = map[string]cluster.Service{"etcd": {State: "Finished"}} })
		}, cluster.EtcdUnhealthy, "", cluster.PhaseJoining},
		"a learner":           {func(o *cluster.Observed) { o.Members = cluster.Saw([]cluster.Member{{Name: "cp-1", Learner: true}}) }, cluster.WaitingForMembership, "learner", cluster.PhaseJoining},
		"etcd is not healthy": {func(o *cluster.Observed) { edit(o.Machines, func(m *cluster.Machine) { m.Services = nil }) }, cluster.EtcdUnhealthy, "", cluster.PhaseJoining},
		"API not known":       {func(o *cluster.Observed) { o.APIs = nil }, cluster.APIServerNotReady, "", cluster.PhaseUnknown},
		"API not known now": {func(o *cluster.Observed) {
			edit(o.APIs, func(s *cluster.Seen[bool]) { s.Known = false })
		}, cluster.APIServerNotReady, "", cluster.PhaseUnknown},
		"API not ready":   {func(o *cluster.Observed) { edit(o.APIs, func(s *cluster.Seen[bool]) { s.Value = false }) }, cluster.APIServerNotReady, "", cluster.PhaseJoining},
		"nodes not known": {func(o *cluster.Observed) { o.Nodes.Known = false }, cluster.NodesUnknown, "", cluster.PhaseUnknown},
		"not known, and not well": {func(o *cluster.Observed) {
			o.Nodes.Known = false
			edit(o.Machines, func(m *cluster.Machine) { m.Ready = false })
		}, cluster.NodesUnknown, "", cluster.PhaseJoining},
		"not registered":   {func(o *cluster.Observed) { o.Nodes.Value = nil }, cluster.WaitingToRegister, "", cluster.PhaseJoining},
		"not Ready":        {func(o *cluster.Observed) { edit(o.Nodes.Value, func(kn *cluster.KubeNode) { kn.Ready = false }) }, cluster.NodeNotReady, "", cluster.PhaseJoining},
		"an earlier boot":  {func(o *cluster.Observed) { edit(o.Nodes.Value, func(kn *cluster.KubeNode) { kn.BootID = "a" }) }, cluster.WaitingToRegister, "boot", cluster.PhaseJoining},
		"boot not in node": {func(o *cluster.Observed) { edit(o.Nodes.Value, func(kn *cluster.KubeNode) { kn.BootID = "" }) }, "", "", cluster.PhaseReady},
		"boot not read":    {func(o *cluster.Observed) { edit(o.Machines, func(m *cluster.Machine) { m.BootID = "" }) }, "", "", cluster.PhaseReady},
		"Talos not ready":  {func(o *cluster.Observed) { edit(o.Machines, func(m *cluster.Machine) { m.Ready = false }) }, cluster.TalosNotReady, "", cluster.PhaseJoining},
		"as its config":    {runs("1/1/1", true), "", "", cluster.PhaseReady},
		"as before":        {runs("1/2/1", true), cluster.StaticPodOutdated, "kube-scheduler", cluster.PhaseJoining},
		"restarts":         {runs("1/1/1", false), cluster.StaticPodNotReady, "kube-scheduler", cluster.PhaseJoining},
		"not shown yet": {func(o *cluster.Observed) {
			runs("1/1/1", true)(o)
			o.SystemPods.Value["kube-apiserver-cp-1"] = o.SystemPods.Value["kube-scheduler-cp-1"]
			delete(o.SystemPods.Value, "kube-scheduler-cp-1")
		}, cluster.StaticPodOutdated, "kube-scheduler", cluster.PhaseJoining},
		"of another node": {func(o *cluster.Observed) {
			runs("1/2/1", true)(o)
			p := o.SystemPods.Value["kube-scheduler-cp-1"]
			p.Node = "cp-2"
			o.SystemPods.Value["kube-scheduler-cp-1"] = p
		}, "", "", cluster.PhaseReady},
		"no static pod": {func(o *cluster.Observed) {
			runs("1/2/1", true)(o)
			o.SystemPods.Value["kube-scheduler-cp-1"] = cluster.SystemPod{Node: "cp-1"}
		}, "", "", cluster.PhaseReady},
		"pods not known": {func(o *cluster.Observed) {
			runs("1/2/1", true)(o)
			o.SystemPods.Known = false
		}, cluster.SystemPodsUnknown, "", cluster.PhaseUnknown},
		"pods not known, static pods neither": {func(o *cluster.Observed) { o.SystemPods.Known = false }, "", "", cluster.PhaseReady},
	} {
		o := cluster.Observed{
			VMs: map[string]cluster.VM{"cp-1": {Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning, Uptime: time.Hour}},
			Machines: map[string]cluster.Machine{"cp-1": {Reach: cluster.Configured, Stage: "running", Ready: true, BootID: "b",
				Services: map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}}}},
			Members: cluster.Saw([]cluster.Member{{Name: "cp-1"}}), APIs: map[string]cluster.Seen[bool]{"cp-1": cluster.Saw(true)},
			Nodes: cluster.Saw(map[string]cluster.KubeNode{"cp-1": {Name: "cp-1", Ready: true, BootID: "b"}}),
		}
		tc.change(&o)
		if l := Lacking(n, o); l.Reason != tc.want || l.About != tc.about {
			t.Errorf("%s: lacks %+v, want %s %s", name, l, tc.want, tc.about)
		} else if none := strings.Contains(l.Message, "does not have its"); none != (name == "not shown yet") {
			t.Errorf("%s: %s", name, l.Message)
		}
		if p := Classify(n, o); p != tc.phase {
			t.Errorf("%s: %s, want %s", name, p, tc.phase)
		}
	}
}

// runs has cp-1 run a scheduler of versions, whose config has those of 1/1/1.
func runs(versions string, ready bool) func(*cluster.Observed) {
	return func(o *cluster.Observed) {
		edit(o.Machines, func(m *cluster.Machine) {
			m.StaticPods = map[string]cluster.StaticPod{"kube-scheduler": {Image: "registry.k8s.io/kube-scheduler:v1.36.3", Versions: "1/1/1"}}
		})
		o.SystemPods = cluster.Saw(map[string]cluster.SystemPod{"kube-scheduler-cp-1": {Name: "kube-scheduler-cp-1", Node: "cp-1", Ready: ready,
			Static: cluster.StaticPod{Image: "mirror.example.org/k8s/kube-scheduler:v1.36.3@sha256:0123", Versions: versions}}})
	}
}

// edit changes what cp-1 has in a map.
func edit[V any](of map[string]V, change func(*V)) {
	v := of["cp-1"]
	change(&v)
	of["cp-1"] = v
}

// TestWhatGoesOn: an action on the node itself decides where it stands, and one on another
// node, or of another kind, does not; what was seen before a VM became unknown does not either.
func TestWhatGoesOn(t *testing.T) {
	n, now := cluster.Node{Name: "wk-1", Role: cluster.Worker}, time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	run := func(kind cluster.ActionKind, node string) *cluster.Running {
		r := &cluster.Running{Node: node}
		r.Kind = kind
		return r
	}
	vm := cluster.VM{Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.Stopped}
	of := func(change func(*cluster.VM)) cluster.VM {
		out := vm
		change(&out)
		return out
	}
	started := of(func(vm *cluster.VM) { vm.Power, vm.Uptime = cluster.PowerRunning, time.Minute })
	for name, tc := range map[string]struct {
		vm      cluster.VM
		running *cluster.Running
		readyAt time.Time
		want    cluster.Phase
	}{
		"made":                         {cluster.VM{Presence: cluster.Absent}, run(cluster.CreateVM, "wk-1"), time.Time{}, cluster.PhaseCreating},
		"deleted":                      {vm, run(cluster.DeleteVM, "wk-1"), time.Time{}, cluster.PhaseLeaving},
		"another is made":              {vm, run(cluster.CreateVM, "wk-2"), time.Time{}, cluster.PhaseStopped},
		"another is deleted":           {vm, run(cluster.DeleteVM, "wk-2"), time.Time{}, cluster.PhaseStopped},
		"started":                      {vm, run(cluster.StartVM, "wk-1"), time.Time{}, cluster.PhaseStopped},
		"made in a task":               {of(func(vm *cluster.VM) { vm.Task = &cluster.Task{Type: "qmcreate"} }), nil, time.Time{}, cluster.PhaseCreating},
		"another task":                 {of(func(vm *cluster.VM) { vm.Task = &cluster.Task{Type: "qmstart"} }), nil, time.Time{}, cluster.PhaseStopped},
		"not seen, as it was before":   {of(func(vm *cluster.VM) { vm.Presence = cluster.PresenceUnknown }), nil, time.Time{}, cluster.PhaseUnknown},
		"boots":                        {started, nil, time.Time{}, cluster.PhaseBooting},
		"was ready since it started":   {started, nil, now.Add(-time.Second), cluster.PhaseUnreachable},
		"was ready before it started":  {started, nil, now.Add(-time.Hour), cluster.PhaseBooting},
		"longer than a boot takes":     {of(func(vm *cluster.VM) { vm.Power, vm.Uptime = cluster.PowerRunning, BootWithin+1 }), nil, time.Time{}, cluster.PhaseUnreachable},
		"as long as a boot may take":   {of(func(vm *cluster.VM) { vm.Power, vm.Uptime = cluster.PowerRunning, BootWithin }), nil, time.Time{}, cluster.PhaseBooting},
		"runs, and is locked":          {of(func(vm *cluster.VM) { vm.Power, vm.Lock = cluster.PowerRunning, "backup" }), nil, time.Time{}, cluster.PhaseBooting},
		"paused":                       {of(func(vm *cluster.VM) { vm.Power = cluster.Paused }), nil, time.Time{}, cluster.PhasePaused},
		"to be deleted":                {of(func(vm *cluster.VM) { vm.Deleting = true }), nil, time.Time{}, cluster.PhaseLeaving},
		"to be deleted, and not known": {of(func(vm *cluster.VM) { vm.Deleting, vm.Presence = true, cluster.PresenceUnknown }), nil, time.Time{}, cluster.PhaseUnknown},
	} {
		o := cluster.Observed{Now: now, VMs: map[string]cluster.VM{"wk-1": tc.vm}, Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Silent, ReadyAt: tc.readyAt}}}
		if tc.running != nil {
			o.Running = []cluster.Running{*tc.running}
		}
		if p := Classify(n, o); p != tc.want {
			t.Errorf("%s: %s, want %s", name, p, tc.want)
		}
	}
}

// TestWordsOfALack: a boot that waits for the VIP, and a node whose network fails, name that.
func TestWordsOfALack(t *testing.T) {
	n := cluster.Node{Name: "wk-1", Role: cluster.Worker}
	o := cluster.Observed{Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Configured, Stage: "booting"}}}
	const waits = ", which does not end before the VIP answers"
	for served, vip := range map[string]cluster.Seen[cluster.VirtualIP]{
		"":    {Value: cluster.VirtualIP{}},
		"yes": cluster.Saw(cluster.VirtualIP{Served: true}),
		waits: cluster.Saw(cluster.VirtualIP{}),
	} {
		o.VIP = vip
		if l := Lacking(n, o); l.Message != "Talos is booting"+strings.TrimPrefix(served, "yes") {
			t.Errorf("%+v: %q", vip, l.Message)
		}
	}
	o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Configured, Stage: "running"}
	o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"wk-1": {Name: "wk-1", Why: "network is not ready"}})
	for want, pods := range map[string]map[string]cluster.SystemPod{
		"Kubernetes reports NotReady: network is not ready":                                                                  {"here": {Name: "here", Node: "wk-1"}, "elsewhere": {Name: "elsewhere", Node: "wk-2", Failing: "CrashLoopBackOff"}},
		"Kubernetes reports NotReady: network is not ready; pods of kube-system that fail on it: cilium-1: CrashLoopBackOff": {"cilium-1": {Name: "cilium-1", Node: "wk-1", Failing: "CrashLoopBackOff"}, "here": {Name: "here", Node: "wk-1"}},
	} {
		o.SystemPods = cluster.Saw(pods)
		if l := Lacking(n, o); l.Message != want {
			t.Errorf("%q, want %q", l.Message, want)
		}
	}
	if p := Classify(n, cluster.Observed{VMs: map[string]cluster.VM{"wk-1": {Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning}},
		Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Maintenance}}}); p != cluster.PhaseMaintenance {
		t.Errorf("%s in maintenance mode", p)
	}
}

// TestIsTakenDown: what has a machine go down, and no other action, nor that of another node.
func TestIsTakenDown(t *testing.T) {
	for kind, want := range map[cluster.ActionKind]bool{
		cluster.RebootNode: true, cluster.UpgradeTalos: true, cluster.RollBackTalos: true, cluster.ShutDownVM: true, cluster.StartVM: true, cluster.ResetVM: true,
		cluster.ChangeConfig: false, cluster.DrainNode: false, cluster.InstallTalos: false, cluster.CreateVM: false,
	} {
		running := []cluster.Running{{ActionID: cluster.ActionID{Kind: kind, Subject: "a"}, Node: "a"}}
		if IsTakenDown("a", running) != want || IsTakenDown("b", running) || IsTakenDown("a", nil) {
			t.Errorf("%s: a %v, b %v", kind, !want, IsTakenDown("b", running))
		}
	}
}
