package upgrade

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestJudgeRollback: a machine goes back to what it ran before if that is known and its older etcd can read its data, one at a time.
func TestJudgeRollback(t *testing.T) {
	type world struct {
		d cluster.Desired
		o cluster.Observed
		n cluster.Node
	}
	for name, c := range map[string]struct {
		edit func(*world)
		want cluster.Reason // "" : it goes back
	}{
		"a worker":                   {func(*world) {}, ""},
		"a worker over another etcd": {func(w *world) { w.o.Facts.Earlier["wk-1"] = "v1.13.9" }, ""},
		"two minors back":            {func(w *world) { w.o.Facts.Earlier["wk-1"] = "v1.12.11" }, cluster.TalosVersionDrift},
		"other extensions":           {func(w *world) { w.o.Facts.Earlier["wk-1"] = "v1.14.1" }, ""},
		"not known":                  {func(w *world) { w.o.Facts.Earlier = nil }, cluster.NothingToAccept},
		"it does not answer": {func(w *world) {
			w.o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Silent, BootID: "b", Talos: "v1.14.1"}
		}, cluster.NodeUnknown},
		"it answers without a boot id":  {func(w *world) { w.o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Configured, Talos: "v1.14.1"} }, cluster.NodeUnknown},
		"what is installed comes first": {func(w *world) { w.o.Facts.Installs = map[string]cluster.Install{"wk-1": {Boot: "b", Done: true}} }, cluster.WaitingForTurn},
		"an installation has failed":    {func(w *world) { w.o.Facts.Installs = map[string]cluster.Install{"wk-1": {Boot: "b", Failed: "code 7"}} }, ""},
		"another one":                   {func(w *world) { w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendRollback, Node: "wk-2"}) }, cluster.RolledBack},
		"suspended":                     {func(w *world) { w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendSuspend}) }, cluster.SuspendedByAdmin},
		"its kubelet is too new":        {func(w *world) { w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"wk-1": {Kubelet: "v1.38.0"}}) }, cluster.KubernetesDrift},
		"what is asked for is too new":  {func(w *world) { w.o.Facts.Earlier["wk-1"], w.d.Spec.Versions.Kubernetes = "v1.13.9", "v1.37.2" }, cluster.KubernetesDrift},
		"Kubernetes runs on both":       {func(w *world) { w.o.Facts.Earlier["wk-1"], w.d.Spec.Versions.Kubernetes = "v1.13.9", "v1.36.6" }, ""},
		"another one is ahead": {func(w *world) {
			w.o.Facts.Earlier["wk-1"], w.o.Machines["wk-1"] = "v1.12.11", cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.13.9"}
		}, cluster.TalosVersionDrift},
		"a control plane": {func(w *world) { w.n = w.d.Spec.Nodes[0] }, ""},
		"a control plane over another etcd": {func(w *world) {
			w.n, w.o.Facts.Earlier["cp-1"] = w.d.Spec.Nodes[0], "v1.13.9"
		}, cluster.TalosVersionDrift},
		"the first control plane over another etcd": {func(w *world) {
			w.n, w.o.Facts.Earlier["cp-1"] = w.d.Spec.Nodes[0], "v1.13.9"
			w.o.Machines["cp-2"] = cluster.Machine{Reach: cluster.Configured, BootID: "c", Talos: "v1.13.9"}
		}, ""},
	} {
		var w world
		w.d.Revision = "main@sha1:1"
		w.o.Machines = map[string]cluster.Machine{}
		w.o.Facts.Earlier = map[string]string{}
		for _, n := range []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "cp-2", Role: cluster.ControlPlane}, {Name: "wk-1", Role: cluster.Worker}} {
			w.d.Spec.Nodes, w.n = append(w.d.Spec.Nodes, n), n
			w.o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.1"}
			w.o.Facts.Earlier[n.Name] = "v1.14.0"
		}
		c.edit(&w)
		in, refused := JudgeRollback(w.d, w.o, w.n)
		switch {
		case refused.Reason != c.want:
			t.Errorf("%s: %+v; want %q", name, refused, c.want)
		case c.want == "" && (in.Node != w.n.Name || in.Target != "b" || in.Versions.Talos != w.o.Facts.Earlier[w.n.Name] || in.Revision != w.d.Revision):
			t.Errorf("%s: %+v", name, in)
		case c.want == "":
			w.o.Facts.Intend(in)
			if drifts := OfRollback(w.d, w.o, w.n); !IsRollback(drifts) || !AsksRollback(w.o, drifts) || RollbackEnded(w.d, w.o, in) {
				t.Errorf("%s: %+v", name, drifts)
			}
			in.Done = true
			if w.o.Facts.Intend(in); AsksRollback(w.o, OfRollback(w.d, w.o, w.n)) {
				t.Errorf("%s: it is asked twice", name)
			}
			w.o.Machines[in.Node] = cluster.Machine{Reach: cluster.Silent}
			if RollbackEnded(w.d, w.o, in) || OfRollback(w.d, w.o, w.n) != nil {
				t.Errorf("%s: on its way down", name)
			}
			w.o.Machines[in.Node] = cluster.Machine{Reach: cluster.Configured, BootID: "c"}
			if !RollbackEnded(w.d, w.o, in) {
				t.Errorf("%s: it has booted", name)
			}
			w.d.Revision = "main@sha1:2"
			w.o.Machines[in.Node] = cluster.Machine{Reach: cluster.Configured, BootID: "b"}
			if !RollbackEnded(w.d, w.o, in) || OfRollback(w.d, w.o, w.n) != nil {
				t.Errorf("%s: another revision", name)
			}
		}
	}
}

// TestNoteEarlier: what a machine ran before what was installed on it is kept while it is the same machine, until it has gone back.
func TestNoteEarlier(t *testing.T) {
	var d cluster.Desired
	var f cluster.Facts
	o := cluster.Observed{VMs: map[string]cluster.VM{"wk-3": {Presence: cluster.Absent}, "wk-4": {Presence: cluster.PresenceUnknown}}}
	for _, name := range []string{"wk-1", "wk-2", "wk-3", "wk-4"} {
		d.Spec.Nodes = append(d.Spec.Nodes, cluster.Node{Name: name})
	}
	f.Earlier = map[string]string{"wk-2": "v1.12.1", "wk-3": "v1.12.1", "wk-4": "v1.12.1", "wk-5": "v1.12.1"}
	f.Installs = map[string]cluster.Install{"wk-1": {From: "v1.13.9"}, "wk-2": {Back: true}, "wk-4": {From: "v1.13.9"}}
	NoteEarlier(&f, d, o, []string{"wk-1", "wk-2"})
	if len(f.Earlier) != 2 || f.Earlier["wk-1"] != "v1.13.9" || f.Earlier["wk-4"] != "v1.12.1" {
		t.Errorf("%v", f.Earlier)
	}
}
