package upgrade

import (
	"maps"
	"strings"
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
		"not known":                  {func(w *world) { w.o.Facts.Earlier = nil }, cluster.NothingToDo},
		"it does not answer": {func(w *world) {
			w.o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Silent, BootID: "b", Talos: "v1.14.1"}
		}, cluster.NodeUnknown},
		"it answers without a boot id":  {func(w *world) { w.o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Configured, Talos: "v1.14.1"} }, cluster.NodeUnknown},
		"what is installed comes first": {func(w *world) { w.o.Facts.Installs = map[string]cluster.Install{"wk-1": {Boot: "b", Done: true}} }, cluster.WaitingForTurn},
		"it is locked":                  {func(w *world) { w.n.Locked = true }, cluster.NodeLocked},
		"another one":                   {func(w *world) { w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendRollback, Node: "wk-2"}) }, cluster.RolledBack},
		"Kubernetes goes back":          {func(w *world) { w.d.Back.Kubernetes = true }, cluster.WaitingForHop},
		"a hop of Kubernetes has begun": {func(w *world) {
			w.d.Hops = []cluster.Hop{{Kind: cluster.HopKubernetes, From: "v1.35.10", To: "v1.36.1"}}
			w.d.Spec.Nodes[0].Components.APIServer = "v1.36.1"
		}, cluster.WaitingForHop},
		"a hop of Kubernetes is next": {func(w *world) {
			w.d.Hops = []cluster.Hop{{Kind: cluster.HopKubernetes, From: "v1.35.10", To: "v1.36.1"}}
		}, ""},
		"suspended":                    {func(w *world) { w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendSuspend}) }, cluster.SuspendedByAdmin},
		"its kubelet is too new":       {func(w *world) { w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"wk-1": {Kubelet: "v1.38.0"}}) }, cluster.KubernetesDrift},
		"what is asked for is too new": {func(w *world) { w.o.Facts.Earlier["wk-1"], w.d.Spec.Versions.Kubernetes = "v1.13.9", "v1.37.2" }, cluster.KubernetesDrift},
		"Kubernetes runs on both":      {func(w *world) { w.o.Facts.Earlier["wk-1"], w.d.Spec.Versions.Kubernetes = "v1.13.9", "v1.36.6" }, ""},
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
			if drifts := OfRollback(w.d, w.o, w.n); !IsRollback(drifts) || !AsksRollback(w.o, drifts) || !RollsBack(w.d, w.o, w.n) {
				t.Errorf("%s: %+v", name, drifts)
			}
			in.Done = true
			if w.o.Facts.Intend(in); AsksRollback(w.o, OfRollback(w.d, w.o, w.n)) {
				t.Errorf("%s: it is asked twice", name)
			}
		}
	}
}

// TestFollowRollback: a command ends with the boot that was asked for, another revision, and what makes it impossible while it waits;
// a machine that has booted by itself is asked in that boot.
func TestFollowRollback(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(d *cluster.Desired, o *cluster.Observed, in *cluster.Intent)
		ended bool
		boot  string
		why   string
	}{
		"it waits": {func(*cluster.Desired, *cluster.Observed, *cluster.Intent) {}, false, "b", ""},
		"it has booted by itself": {func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Intent) {
			o.Machines["cp-1"] = cluster.Machine{Reach: cluster.Configured, BootID: "c", Talos: "v1.14.1"}
		}, false, "c", ""},
		"it has booted for it": {func(_ *cluster.Desired, o *cluster.Observed, in *cluster.Intent) {
			in.Done = true
			o.Machines["cp-1"] = cluster.Machine{Reach: cluster.Configured, BootID: "c", Talos: "v1.13.9"}
		}, true, "b", ""},
		"it is on its way down": {func(_ *cluster.Desired, o *cluster.Observed, in *cluster.Intent) {
			in.Done = true
			o.Machines["cp-1"] = cluster.Machine{Reach: cluster.Silent}
		}, false, "b", ""},
		"it does not answer": {func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Intent) {
			o.Machines["cp-1"] = cluster.Machine{Reach: cluster.Silent}
		}, false, "b", ""},
		"another revision":     {func(d *cluster.Desired, _ *cluster.Observed, _ *cluster.Intent) { d.Revision = "main@sha1:2" }, true, "b", ""},
		"the node was removed": {func(d *cluster.Desired, _ *cluster.Observed, _ *cluster.Intent) { d.Spec.Nodes = d.Spec.Nodes[1:] }, true, "b", ""},
		"the slot was written": {func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Intent) { o.Facts.Earlier = nil }, true, "b", "another Talos was installed on it since"},
		"the last older etcd went": {func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Intent) {
			o.Machines["cp-2"] = cluster.Machine{Reach: cluster.Configured, BootID: "d", Talos: "v1.14.1"}
		}, true, "b", "it runs Talos v1.14.1 and ran v1.13.9 before, whose etcd does not read the data of the newer one, or which is too far back"},
		"Kubernetes went on": {func(d *cluster.Desired, _ *cluster.Observed, _ *cluster.Intent) {
			d.Spec.Versions.Kubernetes = "v1.37.2"
		}, true, "b", "Kubernetes v1.37.2 does not run on Talos v1.13.9, which it ran before"},
		"that no longer counts": {func(_ *cluster.Desired, o *cluster.Observed, in *cluster.Intent) {
			in.Done = true
			o.Facts.Earlier = nil
		}, false, "b", ""},
		"another patch of the rest": {func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Intent) {
			o.Machines["cp-2"] = cluster.Machine{Reach: cluster.Configured, BootID: "d", Talos: "v1.14.0"}
		}, true, "b", "it runs Talos v1.14.1 and ran v1.13.9 before, whose etcd does not read the data of the newer one, or which is too far back"},
	} {
		var d cluster.Desired
		d.Revision = "main@sha1:1"
		d.Spec.Nodes = []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "cp-2", Role: cluster.ControlPlane}}
		o := cluster.Observed{Machines: map[string]cluster.Machine{"cp-1": {Reach: cluster.Configured, BootID: "b", Talos: "v1.14.1"}, "cp-2": {Reach: cluster.Configured, BootID: "d", Talos: "v1.13.9"}}}
		o.Facts.Earlier = map[string]string{"cp-1": "v1.13.9"}
		in, refused := JudgeRollback(d, o, d.Spec.Nodes[0])
		if refused.Reason != "" {
			t.Fatalf("%+v", refused)
		}
		c.edit(&d, &o, &in)
		if now, ended, refused := FollowRollback(d, o, in); ended != c.ended || now.Target != c.boot || refused.Message != c.why || (refused.Hint == "") != (c.why == "") {
			t.Errorf("%s: ended: %t, in boot %s: %+v", name, ended, now.Target, refused)
		}
	}
}

// TestHintsOfRollback: talos_version set back is advised where that leads somewhere, and not where every control plane runs a newer etcd
// than that of the Talos of before.
func TestHintsOfRollback(t *testing.T) {
	for name, c := range map[string]struct {
		first, second string // what the control planes run; the first one was rolled back, or is to be
		before        string
		advised       bool
	}{
		"both have the newer etcd":       {"v1.14.1", "v1.14.1", "v1.13.9", false},
		"one has the older etcd":         {"v1.14.1", "v1.13.9", "v1.13.9", true},
		"it went back, and has it":       {"v1.13.9", "v1.14.1", "v1.13.9", true},
		"the same etcd":                  {"v1.14.1", "v1.14.1", "v1.14.0", true},
		"one is not known":               {"v1.14.1", "", "v1.13.9", true},
		"a newer etcd than that of both": {"v1.13.9", "v1.13.9", "v1.14.1", true},
	} {
		d := cluster.Desired{Schematic: "s"}
		d.Revision = "main@sha1:1"
		d.Spec.Versions.Talos = "v1.14.1"
		d.Spec.Nodes = []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "cp-2", Role: cluster.ControlPlane}, {Name: "wk-1", Role: cluster.Worker}, {Name: "wk-2", Role: cluster.Worker}}
		o := cluster.Observed{Machines: map[string]cluster.Machine{
			"cp-1": {Reach: cluster.Configured, BootID: "b", Talos: c.first, Schematic: "s"}, "cp-2": {Reach: cluster.Configured, BootID: "c", Talos: c.second, Schematic: "s"},
			"wk-1": {Reach: cluster.Configured, BootID: "b", Talos: c.before, Schematic: "s"}}}
		if got := strings.HasPrefix(hintOfEtcd(d, o, c.before), "set talos_version back"); got != c.advised {
			t.Errorf("%s: of one that is refused it is advised: %t", name, got)
		}
		o.Facts.Installs = map[string]cluster.Install{"wk-1": {Image: Installer(d), Boot: "a", Revision: "main@sha1:1", Back: true, Failed: "by order of ann"}}
		if c.before == d.Spec.Versions.Talos {
			continue // it was not rolled back
		}
		o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.1", Schematic: "s"}
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendConfig, Previous: cluster.Versions{Talos: c.before}})
		if blocks := BlockRollbacks(d, o); len(blocks) != 1 || strings.Contains(blocks[0].Hint, "talos_version set back to "+c.before) != c.advised {
			t.Errorf("%s: of a worker that did not go back: %+v", name, blocks)
		}
		if _, refused := JudgeRollback(d, ahead(o, c.before), d.Spec.Nodes[2]); refused.Reason != cluster.TalosVersionDrift || strings.HasPrefix(refused.Hint, "set talos_version back") != c.advised {
			t.Errorf("%s: of a worker that another node would be ahead of: %+v", name, refused)
		}
		o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: c.before, Schematic: "s"}
		if _, _, hint := DescribeFailed(d, o, d.Spec.Nodes[2]); strings.Contains(hint, "set back") != c.advised || hint == "" {
			t.Errorf("%s: of a worker that went back: %s", name, hint)
		}
	}
}

// ahead is a cluster whose last worker ran some version before, and another node runs one that is two minor versions newer than it.
func ahead(o cluster.Observed, before string) cluster.Observed {
	o.Machines = maps.Clone(o.Machines)
	o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.1"}
	o.Machines["wk-2"] = cluster.Machine{Reach: cluster.Configured, Talos: "v1.16.0"}
	o.Facts.Installs, o.Facts.Earlier = nil, map[string]string{"wk-1": before}
	return o
}

// TestRollbackNotTaken: a machine that runs after its rollback what it ran before that is named until another commit comes, is not
// upgraded for this one, and is not asked again; one that went back, or is on its way, is none.
func TestRollbackNotTaken(t *testing.T) {
	for name, c := range map[string]struct {
		mach     cluster.Machine
		revision cluster.Revision
		asked    string // what the inventory asks for
		want     cluster.Reason
		about    cluster.Reason // why it is not upgraded
		ended    bool
	}{
		"it runs the same":               {cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.1", Schematic: "s"}, "main@sha1:1", "v1.14.1", cluster.RollbackNotTaken, cluster.RolledBack, false},
		"it runs the same, and is late":  {cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.1", Schematic: "s"}, "main@sha1:1", "v1.15.0", cluster.RollbackNotTaken, cluster.RolledBack, false},
		"it went back":                   {cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.0", Schematic: "s"}, "main@sha1:1", "v1.14.1", "", cluster.RolledBack, false},
		"it has not booted":              {cluster.Machine{Reach: cluster.Configured, BootID: "a", Talos: "v1.14.1", Schematic: "s"}, "main@sha1:1", "v1.14.1", "", cluster.RolledBack, false},
		"it does not answer":             {cluster.Machine{Reach: cluster.Silent}, "main@sha1:1", "v1.14.1", "", cluster.RolledBack, false},
		"what it runs is not known":      {cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.1"}, "main@sha1:1", "v1.14.1", "", cluster.RolledBack, false},
		"another commit":                 {cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.1", Schematic: "s"}, "main@sha1:2", "v1.14.1", "", "", true},
		"another commit, and it is back": {cluster.Machine{Reach: cluster.Configured, BootID: "b", Talos: "v1.14.0", Schematic: "s"}, "main@sha1:2", "v1.14.1", "", "", true},
	} {
		d := cluster.Desired{Schematic: "s"}
		d.Revision, d.Spec.Versions.Talos, d.Spec.Nodes = c.revision, "v1.14.1", []cluster.Node{{Name: "wk-1", Role: cluster.Worker}}
		image := Installer(d)
		d.Spec.Versions.Talos = c.asked
		o := cluster.Observed{Machines: map[string]cluster.Machine{"wk-1": c.mach}, VMs: map[string]cluster.VM{"wk-1": {Presence: cluster.Present}}}
		o.Facts.Installs = map[string]cluster.Install{"wk-1": {Image: image, Boot: "a", Revision: "main@sha1:1", Back: true, Failed: "by order of ann"}}
		blocks := BlockRollbacks(d, o)
		var got cluster.Reason
		if len(blocks) == 1 {
			got = blocks[0].Reason
		}
		reason, message, hint := DescribeFailed(d, o, d.Spec.Nodes[0])
		if len(blocks) > 1 || got != c.want || reason != c.about || (reason == "") != (message == "" && hint == "") {
			t.Errorf("%s: %+v; it is not upgraded for %q: %s", name, blocks, reason, message)
		}
		if ended := len(EndedInstalls(d, o)) > 0; ended != c.ended {
			t.Errorf("%s: ended: %t", name, ended)
		}
	}
}

// TestNoteEarlier: what a machine ran before what was installed on it is noted when it is seen to run that, and kept while it is the
// same machine, until it has gone back.
func TestNoteEarlier(t *testing.T) {
	var d cluster.Desired
	d.Schematic, d.Spec.Versions.Talos = "s", "v1.14.1"
	image := Installer(d)
	runs := func(boot, talos string) cluster.Machine {
		return cluster.Machine{Reach: cluster.Configured, BootID: boot, Talos: talos, Schematic: "s"}
	}
	for name, c := range map[string]struct {
		has  string
		in   cluster.Install
		mach cluster.Machine
		vm   []cluster.Presence // none: it is there
		want string
	}{
		"it runs it":               {in: cluster.Install{Image: image, Boot: "a", From: "v1.13.9", Done: true}, mach: runs("b", "v1.14.1"), want: "v1.13.9"},
		"it has not booted":        {in: cluster.Install{Image: image, Boot: "a", From: "v1.13.9", Done: true}, mach: runs("a", "v1.13.9")},
		"it fell back":             {in: cluster.Install{Image: image, Boot: "a", From: "v1.13.9", Done: true}, mach: runs("b", "v1.13.9")},
		"from what is not known":   {in: cluster.Install{Image: image, Boot: "a", Done: true}, mach: runs("b", "v1.14.1")},
		"nothing is known":         {has: "v1.13.9", in: cluster.Install{Image: image, Boot: "a", From: "v1.14.0"}, mach: cluster.Machine{Reach: cluster.Silent}, want: "v1.13.9"},
		"it went back":             {has: "v1.13.9", in: cluster.Install{Image: image, Boot: "a", Back: true, Failed: "by order"}, mach: runs("b", "v1.13.9")},
		"it was asked to":          {has: "v1.13.9", in: cluster.Install{Image: image, Boot: "a", Back: true, Failed: "by order"}, mach: runs("a", "v1.14.1"), want: "v1.13.9"},
		"the machine is deleted":   {has: "v1.13.9", vm: []cluster.Presence{cluster.Absent}},
		"its vm cannot be seen":    {has: "v1.13.9", vm: []cluster.Presence{cluster.PresenceUnknown}, want: "v1.13.9"},
		"nothing was installed":    {has: "v1.13.9", mach: runs("b", "v1.14.1"), want: "v1.13.9"},
		"the same version, larger": {in: cluster.Install{Image: image, Boot: "a", From: "v1.14.1", Done: true}, mach: runs("b", "v1.14.1"), want: "v1.14.1"},
	} {
		d.Spec.Nodes = []cluster.Node{{Name: "wk-1"}}
		f := cluster.Facts{Installs: map[string]cluster.Install{}, Earlier: map[string]string{"wk-9": "v1.12.1"}}
		if c.in != (cluster.Install{}) {
			f.Installs["wk-1"] = c.in
		}
		if c.has != "" {
			f.Earlier["wk-1"] = c.has
		}
		o := cluster.Observed{Machines: map[string]cluster.Machine{"wk-1": c.mach}, VMs: map[string]cluster.VM{"wk-1": {Presence: append(c.vm, cluster.Present)[0]}}}
		NoteEarlier(&f, d, o)
		if _, left := f.Earlier["wk-9"]; left || f.Earlier["wk-1"] != c.want {
			t.Errorf("%s: %v", name, f.Earlier)
		}
	}
}
