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

// TestNoneGoesBackWithoutItsEtcd: where no control plane can go back, because all have the newer etcd, no worker does.
func TestNoneGoesBackWithoutItsEtcd(t *testing.T) {
	var d cluster.Desired
	d.Schematic = "376567988ad3"
	d.Spec.Nodes = []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "cp-2", Role: cluster.ControlPlane}, {Name: "wk-1", Role: cluster.Worker}}
	for name, c := range map[string]struct {
		second string // what the second control plane runs
		way    cluster.Way
		want   bool
	}{
		"all have the newer one": {second: "v1.14.1"}, "one has the older one": {second: "v1.13.9", want: true}, "one does not answer": {want: true},
		"none does, and it is refused":        {way: cluster.Way{NoWay: "all had the newer one"}},
		"Kubernetes is refused, and not this": {way: cluster.Way{NoWay: "another", Back: cluster.Back{Talos: true}}, want: true},
	} {
		d.Way = c.way
		var o cluster.Observed
		o.Machines = map[string]cluster.Machine{"cp-1": {Talos: "v1.14.1"}, "cp-2": {Talos: c.second}, "wk-1": {Talos: "v1.14.1"}}
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendConfig, Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.35.3"}})
		dr := Drift{Field: FieldTalos, Reason: cluster.TalosVersionDrift, Have: "v1.14.1", Want: "v1.13.9"}
		if got := IsUpgrade(d, o, d.Spec.Nodes[2], dr); got != c.want {
			t.Errorf("%s: goes back: %t", name, got)
		}
	}
}

// TestSameParts: a turn that brings a part of what another one brought is for the same where both bring nothing else.
func TestSameParts(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"want.p", "alone.p", true}, {"want.p", "other.p", true}, {"want.p.q", "alone.p.q", true}, {"want.p.q", "alone.p", false}, {"want.p", "want.q", false},
		{"digest", "digest", true}, {"digest", "other", false}, {"digest", "want.p", false}, {"", "", true},
	} {
		if got := SameParts(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %v", c.a, c.b, got)
		}
	}
}

// TestBetweenKubernetes: while nodes are between two versions of Kubernetes that comes first, and other extensions, or a Talos that is
// to go back, are no drift.
func TestBetweenKubernetes(t *testing.T) {
	hop := cluster.Hop{Kind: cluster.HopKubernetes, From: "v1.35.10", To: "v1.36.1"}
	for name, c := range map[string]struct {
		way    cluster.Way
		second cluster.Components
		want   bool
	}{
		"no hop":           {cluster.Way{}, cluster.Components{Kubelet: "v1.36.1"}, false},
		"it has begun":     {cluster.Way{Hops: []cluster.Hop{hop}}, cluster.Components{Kubelet: "v1.36.1"}, true},
		"of a server":      {cluster.Way{Hops: []cluster.Hop{hop}}, cluster.Components{APIServer: "v1.36.1", Kubelet: "v1.35.10"}, true},
		"of a manager":     {cluster.Way{Hops: []cluster.Hop{hop}}, cluster.Components{ControllerManager: "v1.36.1"}, true},
		"of a scheduler":   {cluster.Way{Hops: []cluster.Hop{hop}}, cluster.Components{Scheduler: "v1.36.1"}, true},
		"it has not begun": {cluster.Way{Hops: []cluster.Hop{hop}}, cluster.Components{Kubelet: "v1.35.10"}, false},
		"it is not known":  {cluster.Way{Hops: []cluster.Hop{hop}}, cluster.Components{}, false},
		"Talos is first":   {cluster.Way{Hops: []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}, hop}}, cluster.Components{Kubelet: "v1.36.1"}, false},
		"it goes back":     {cluster.Way{Back: cluster.Back{Kubernetes: true}}, cluster.Components{}, true},
	} {
		n := cluster.Node{Name: "b"}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1"}, Nodes: []cluster.Node{{Name: "a"}, {Name: "b", Components: c.second}}}}, Schematic: "s", Way: c.way}
		if got := IsBetweenKubernetes(d); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		for what, mach := range map[string]cluster.Machine{"other extensions": {Talos: "v1.13.9", Schematic: "other"}, "a newer Talos": {Talos: "v1.14.1", Schematic: "s"}} {
			if got := len(OfMachine(d, cluster.Observed{}, n, mach)) == 0; got != c.want {
				t.Errorf("%s, %s: left is %v", name, what, got)
			}
		}
		if len(OfMachine(d, cluster.Observed{}, n, cluster.Machine{Talos: "v1.12.11", Schematic: "s"})) != 1 {
			t.Errorf("%s: an older Talos is none", name)
		}
	}
}
