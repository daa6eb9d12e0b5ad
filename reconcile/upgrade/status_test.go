package upgrade

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// TestStatusOf: what is left of a way, how far it is, and why there is none; other extensions with the same version are an upgrade, too,
// until the last machine is seen to run them.
func TestStatusOf(t *testing.T) {
	const old, asked = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba", "613e1592b2da41ae5e265e8789429f22e121aab91cb4deb6bc3c0b6262961245"
	machine := func(talos, schematic string) cluster.Machine {
		return cluster.Machine{Reach: cluster.Configured, Talos: talos, Schematic: schematic}
	}
	at, behind, silent := machine("v1.14.1", asked), machine("v1.14.1", old), cluster.Machine{Reach: cluster.Silent}
	installs := cluster.Facts{Installs: map[string]cluster.Install{"b": {Image: "factory.talos.dev/nocloud-installer/" + asked + ":v1.14.1"}}}
	back := cluster.Facts{Installs: map[string]cluster.Install{"b": {Image: installs.Installs["b"].Image, Back: true}}}
	image := "[Talos v1.14.1 with the extensions siderolabs/iscsi-tools and the kernel arguments quiet (schematic 613e1592b2da)]"
	kube := cluster.Hop{Kind: cluster.HopKubernetes, To: "v1.36.1"}
	for name, c := range map[string]struct {
		a, b   cluster.Machine
		facts  cluster.Facts
		way    cluster.Way
		plain  bool // without extensions
		none   bool
		hops   string
		has    int
		noWay  string
		detail string
	}{
		"it is there":                               {a: at, b: at, none: true},
		"a machine is silent":                       {a: at, b: silent, none: true},
		"one lacks extensions":                      {a: at, b: behind, hops: image, has: 1},
		"one has too many":                          {a: at, b: behind, plain: true, hops: "[Talos v1.14.1 with no extensions (schematic 613e1592b2da)]", has: 1},
		"one boots into them":                       {a: at, b: silent, facts: installs, hops: image, has: 1},
		"one boots what it ran before them":         {a: at, b: silent, facts: back, none: true},
		"it has booted into them":                   {a: at, b: at, facts: installs, none: true},
		"a hop of Talos":                            {a: at, b: machine("v1.13.9", asked), way: cluster.Way{Hops: []cluster.Hop{{Kind: cluster.HopTalos, To: "v1.14.1"}}}, hops: "[Talos v1.14.1]", has: 1},
		"a hop of Kubernetes":                       {a: at, b: at, way: cluster.Way{Hops: []cluster.Hop{kube}}, hops: "[Kubernetes v1.36.1]", detail: "1 of 1 kube-apiserver, 0 of 1 kube-controller-manager, 0 of 1 kube-scheduler, 1 of 2 kubelets"},
		"there is no way":                           {a: at, b: at, way: cluster.Way{NoWay: "a downgrade"}, hops: "[]", noWay: "a downgrade"},
		"there is none beyond what it goes back to": {a: at, b: at, way: cluster.Way{NoWay: "a downgrade", Back: cluster.Back{Talos: true}, Goal: cluster.Versions{Talos: "v1.13.9"}}, hops: "[Talos v1.13.9]"},
	} {
		spec := cluster.Spec{Name: "dev", InstallerRegistry: "factory.talos.dev", Versions: cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.35.10"}, Schematic: cluster.Schematic{Extensions: []string{"siderolabs/iscsi-tools"}, ExtraKernelArgs: []string{"quiet"}},
			Nodes: []cluster.Node{{Name: "a", Role: cluster.ControlPlane}, {Name: "b", Role: cluster.Worker}}}
		if c.plain {
			spec.Schematic = cluster.Schematic{}
		}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: spec}, Schematic: asked, Way: c.way}
		pod := func(name, version string) cluster.SystemPod {
			return cluster.SystemPod{Static: cluster.NewStaticPod("registry.k8s.io/"+name+":"+version, nil)}
		}
		o := cluster.Observed{Facts: c.facts, Machines: map[string]cluster.Machine{"a": c.a, "b": c.b}, Nodes: cluster.Saw(map[string]cluster.KubeNode{"a": {Kubelet: "v1.36.1"}, "b": {Kubelet: "v1.35.10"}}),
			SystemPods: cluster.Saw(map[string]cluster.SystemPod{"kube-apiserver-a": pod("kube-apiserver", "v1.36.1"), "kube-scheduler-a": pod("kube-scheduler", "v1.35.10")})}
		u := StatusOf(d, cluster.Policy{}, nil, c.facts, Seen{Observed: o, Ran: Ran{"a": versions(c.a.Talos, "v1.35.10"), "b": versions(c.b.Talos, "v1.35.10")}})
		switch {
		case u == nil && c.none:
		case u == nil || c.none:
			t.Errorf("%s: %+v", name, u)
		case fmt.Sprint(u.Hops) != c.hops || u.Hops == nil || u.Upgraded != c.has || u.NoWay != c.noWay || u.Progress != c.detail || u.Nodes != 2:
			t.Errorf("%s: %+v", name, u)
		}
	}
}

// TestStandingOf: an upgrade stands where its cluster is Stalled and nothing of it runs, begins or ends by itself.
func TestStandingOf(t *testing.T) {
	spec := cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "a"}, {Name: "b"}}}
	stalled := func(reason cluster.Reason, waits ...cluster.WaitStatus) cluster.Status {
		return cluster.Status{Condition: cluster.Stalled, Reason: reason, Waiting: waits, Upgrade: &cluster.UpgradeStatus{Hops: []string{"Talos v1.14.1"}}}
	}
	wait := func(subject string, reason cluster.Reason, within time.Duration, overdue bool) cluster.WaitStatus {
		return cluster.WaitStatus{Wait: cluster.Wait{Subject: subject, Reason: reason, Within: within}, Overdue: overdue}
	}
	held, noWay, goes := stalled(cluster.NodeUnreachable), stalled(cluster.TalosVersionDrift), stalled(cluster.NodeUnreachable)
	held.Upgrade.Held, noWay.Upgrade.NoWay, goes.Condition = "upgrade is off", "a downgrade", cluster.Reconciling
	mixed, same := Ran{"a": versions("v1.14.1", "v1.36.1"), "b": versions("v1.13.9", "v1.36.1")}, Ran{"a": versions("v1.14.1", "v1.36.1"), "b": versions("v1.14.1", ""), "c": {}}
	drains := []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.DrainNode, Subject: "b"}, Node: "b"}}
	for name, c := range map[string]struct {
		s      cluster.Status
		ran    Ran
		begins []cluster.ActionKind
		runs   []cluster.Running
		want   bool
	}{
		"nothing is asked for":                 {s: cluster.Status{Condition: cluster.Stalled}},
		"it goes on":                           {s: goes},
		"it is held":                           {s: held},
		"applying is off":                      {s: stalled(cluster.ApplyingOff)},
		"it is not approved":                   {s: stalled(cluster.ChangeUnapproved)},
		"a node is lost":                       {s: stalled(cluster.NodeUnreachable, wait("a", cluster.NodeUnreachable, time.Hour, true), wait("b", cluster.WaitingForHop, 0, false)), want: true},
		"another one is drained":               {s: stalled(cluster.NodeUnreachable, wait("a", cluster.NodeUnreachable, time.Hour, true)), runs: drains},
		"another one is to be":                 {s: stalled(cluster.NodeUnreachable), begins: []cluster.ActionKind{cluster.TakeSnapshot, cluster.InstallTalos}},
		"a snapshot is taken":                  {s: stalled(cluster.NodeUnreachable), begins: []cluster.ActionKind{cluster.TakeSnapshot}, want: true},
		"another one boots":                    {s: stalled(cluster.NodeUnreachable, wait("b", cluster.NodeUnreachable, time.Hour, false))},
		"an addon waits":                       {s: stalled(cluster.NodeUnreachable, wait("cilium", cluster.AddonNotReady, time.Hour, false)), want: true},
		"another one soaks":                    {s: stalled(cluster.NodeUnreachable, wait("b", cluster.WaitingForSoak, 0, false))},
		"its drain takes too long":             {s: stalled(cluster.ActionOverdue, wait("b", cluster.ActionOverdue, time.Hour, true)), runs: drains, want: true},
		"another's drain takes too long":       {s: stalled(cluster.ActionOverdue, wait("a", cluster.ActionOverdue, time.Hour, true)), runs: drains},
		"it failed, and the window is closed":  {s: stalled(cluster.UpgradeFailed, wait("b", cluster.WaitingForWindow, 0, false)), want: true},
		"it failed, and a node is put back":    {s: stalled(cluster.UpgradeFailed), begins: []cluster.ActionKind{cluster.UncordonNode}},
		"no way, in the middle of a hop":       {s: noWay, ran: mixed, want: true},
		"no way, and Kubernetes in the middle": {s: noWay, ran: Ran{"a": versions("", "v1.35.1"), "b": versions("", "v1.36.1")}, want: true},
		"no way, and all run the same":         {s: noWay, ran: same},
	} {
		if got := StandingOf(cluster.Desired{Snapshot: cluster.Snapshot{Spec: spec}}, c.s, Seen{Ran: c.ran}, c.begins, c.runs); got.Is != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestStuckSince: an upgrade is stuck since it stands where it does at this commit: not since the cluster is Stalled, nor since before
// a commit, and a retry in between is no progress. The next agent goes on from what it knows of the condition.
func TestStuckSince(t *testing.T) {
	start := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	var c Clock
	look := func(at int, revision cluster.Revision, upgraded int, condition cluster.Condition, runs ...cluster.Running) string {
		s := cluster.Status{Condition: condition, Reason: cluster.NodeUnreachable, Since: start.Add(-time.Hour), Upgrade: &cluster.UpgradeStatus{Upgraded: upgraded}}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Revision: revision}}
		c.Stamp(&s, StandingOf(d, s, Seen{}, nil, runs), start.Add(time.Duration(at)*time.Minute))
		if s.Upgrade.StuckSince.IsZero() {
			return "goes on"
		}
		return s.Upgrade.StuckSince.Sub(start).String()
	}
	drain := cluster.Running{ActionID: cluster.ActionID{Kind: cluster.DrainNode, Subject: "b"}, Node: "b"}
	for i, step := range []struct{ got, want string }{
		{look(0, "one", 1, cluster.Unknown), "goes on"},
		{look(1, "one", 1, cluster.Stalled), "-1h0m0s"}, // the agent before has seen it begin
		{look(2, "one", 1, cluster.Stalled, drain), "goes on"},
		{look(3, "one", 1, cluster.Stalled), "-1h0m0s"},
		{look(4, "two", 1, cluster.Stalled, drain), "goes on"},
		{look(5, "two", 1, cluster.Stalled), "5m0s"},
		{look(6, "two", 1, cluster.Stalled), "5m0s"},
		{look(7, "two", 2, cluster.Stalled), "7m0s"},
		{look(8, "two", 2, cluster.Reconciling), "goes on"},
	} {
		if step.got != step.want {
			t.Errorf("%d: %s, want %s", i, step.got, step.want)
		}
	}
	c = Clock{}
	s := cluster.Status{Condition: cluster.Stalled}
	c.Stamp(&s, Standing{}, start)
	if got := look(1, "one", 1, cluster.Stalled); got != "1m0s" {
		t.Errorf("pushed while the cluster is Stalled: %s", got)
	}
}

// TestStatusOfATurn: who runs the version of a hop and is in its turn still is not counted, and named for that.
func TestStatusOfATurn(t *testing.T) {
	machine := func(talos string) cluster.Machine { return cluster.Machine{Reach: cluster.Configured, Talos: talos} }
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "a"}, {Name: "b"}, {Name: "c"}}}},
		Way: cluster.Way{Hops: []cluster.Hop{{Kind: cluster.HopTalos, To: "v1.14.1"}}}}
	old, now := cluster.Versions{Talos: "v1.13.9"}, cluster.Versions{Talos: "v1.14.1"}
	for want, ran := range map[string]Ran{
		"a runs it, and its turn has not ended":       {"a": old, "b": now, "c": old},
		"a, b run it, and their turns have not ended": {"a": old, "b": old, "c": old},
		"": {"a": now, "b": now, "c": old},
	} {
		o := cluster.Observed{Machines: map[string]cluster.Machine{"a": machine("v1.14.1"), "b": machine("v1.14.1"), "c": machine("v1.13.9")}}
		if u := StatusOf(d, cluster.Policy{}, nil, o.Facts, Seen{Observed: o, Ran: ran}); u == nil || u.Progress != want {
			t.Errorf("%+v, want %q", u, want)
		}
	}
}

// TestHeldExtensions: the switch that holds other extensions with the same versions is named where the plan blocks them for it.
func TestHeldExtensions(t *testing.T) {
	const asked, has = "613e1592b2da7ae7d4e8789e78f62e0c4d5d3e4ac8e3a2f4c5f8c5b1e6ba2dbb", "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
	for name, c := range map[string]struct {
		off    cluster.Switches
		host   cluster.Switches
		reason cluster.Reason
		field  string
		want   string
	}{
		"by nothing":                     {},
		"by the inventory":               {off: cluster.Switches{Upgrade: cluster.UpgradeOff}, reason: cluster.ApplyingOff, want: "upgrade is off"},
		"by all changes being off":       {off: cluster.Switches{ApplyOff: true}, reason: cluster.ApplyingOff, want: "apply is off"},
		"until approved":                 {off: cluster.Switches{Upgrade: cluster.UpgradeApproved}, reason: cluster.ChangeUnapproved, want: "upgrade is approve"},
		"approved":                       {off: cluster.Switches{Upgrade: cluster.UpgradeApproved}},
		"for something else":             {off: cluster.Switches{Upgrade: cluster.UpgradeOff}, reason: cluster.WaitingForSnapshot},
		"while another change is held":   {off: cluster.Switches{ApplyOff: true}, reason: cluster.ApplyingOff, field: "memory"},
		"by a window that there is not":  {off: cluster.Switches{Upgrade: cluster.UpgradeInWindow}, reason: cluster.ApplyingOff, want: "upgrade is window, and neither"},
		"by the host":                    {host: cluster.Switches{Upgrade: cluster.UpgradeOff}, reason: cluster.ApplyingOff, want: "the cluster asks for auto, and the host allows off"},
		"somebody has installed another": {off: cluster.Switches{Upgrade: cluster.UpgradeOff}},
	} {
		spec := cluster.Spec{Nodes: []cluster.Node{{Name: "a"}}, Versions: cluster.Versions{Talos: "v1.14.1"}, Switches: c.off}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: spec}, Schematic: asked}
		o := cluster.Observed{Machines: map[string]cluster.Machine{"a": {Reach: cluster.Configured, Talos: "v1.14.1", Schematic: has}}}
		blocked := []cluster.Block{{Reason: c.reason, Drift: []cluster.FieldDifference{{Field: cmp.Or(c.field, drift.FieldSchematic)}}}}
		u := StatusOf(d, cluster.Policy{Switches: c.host}, blocked, o.Facts, Seen{Observed: o})
		if u == nil || !strings.HasPrefix(u.Held, c.want) || c.want == "" && u.Held != "" {
			t.Errorf("%s: %+v", name, u)
		}
	}
}
