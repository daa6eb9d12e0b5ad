package plan

import (
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/settled"
)

// TestSettledNodes: a node is as the inventory has it when all of it is seen to be so.
func TestSettledNodes(t *testing.T) {
	for _, c := range []struct {
		what  string
		lines []string
		want  bool
	}{
		{"as it should be", nil, true},
		{"not Ready", []string{"node-is wk-1 ready=false"}, false},
		{"hardware not read", []string{"vm wk-1 running configless"}, false},
		{"config not read", []string{"edit wk-1 config="}, false},
		{"no system disk", []string{"vm wk-1 running diskless"}, false},
		{"other hardware", []string{"edit wk-1 onboot=0"}, false},
		{"another config", []string{"edit wk-1 config=edited"}, false},
		{"what it should be is not known", []string{"schematic"}, false},
	} {
		w := newWorld(1, 0)
		w.run(t, "made cps=1 workers=1")
		edits(c.lines...)(t, w)
		if _, got := settled.FindNodes(w.d, w.o)["wk-1"]; got != c.want {
			t.Errorf("%s: settled: %v", c.what, got)
		}
	}
}

// TestKept: a new node gets what the cluster runs, where that is other than what the
// repository has.
func TestKept(t *testing.T) {
	runs := cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1", Contract: "v1.13"}
	for _, c := range []struct {
		what string
		edit func(d, asked *cluster.Desired)
		want action.Kept
	}{
		{"the same", func(d, _ *cluster.Desired) { d.Base = "main@1" }, action.Kept{}},
		{"another Talos", func(_, asked *cluster.Desired) { asked.Spec.Versions.Talos = "v1.14.0" }, action.Kept{Versions: runs}},
		{"another Kubernetes", func(_, asked *cluster.Desired) { asked.Spec.Versions.Kubernetes = "v1.37.0" }, action.Kept{Versions: runs}},
		{"another config", func(d, asked *cluster.Desired) {
			d.Base = "main@1"
			asked.Configs = map[string]cluster.Config{"wk-1": {Digest: "new"}}
		}, action.Kept{Config: "main@1"}},
		{"another config, of no earlier revision", func(_, asked *cluster.Desired) {
			asked.Configs = map[string]cluster.Config{"wk-1": {Digest: "new"}}
		}, action.Kept{}},
	} {
		w := newWorld(1, 1)
		asked := w.d
		c.edit(&w.d, &asked)
		w.d.Asked = &asked
		if got := newPlanner(w.d, w.o, w.p).keptFor(w.d.Spec.Nodes[1]); got != c.want {
			t.Errorf("%s: %+v", c.what, got)
		}
	}
}

// TestTaskOfNoVM: a task about no VM is not taken for one about a VM that was not looked at.
func TestTaskOfNoVM(t *testing.T) {
	w := newWorld(1, 0)
	w.o.VMs["cp-1"] = cluster.VM{}
	edits("task aptupdate 0 3h")(t, w)
	for _, x := range Make(w.d, w.o, w.p).Waiting {
		if x.Reason == cluster.TaskOverdue {
			t.Errorf("%+v", x)
		}
	}
}

// TestUnseenHostIsNotJudged: whether a host has the room that the inventory bounds is asked
// when the host is seen.
func TestUnseenHostIsNotJudged(t *testing.T) {
	w := newWorld(1, 0)
	edits("bound 7")(t, w)
	for _, seen := range []bool{true, false} {
		if !seen {
			w.run(t, "host unknown")
		}
		m := newPlanner(w.d, w.o, w.p)
		if m.judgeCapacity(); len(m.lacks) > 0 != seen {
			t.Errorf("seen: %v: %v", seen, m.lacks)
		}
	}
}

// TestForecastNamesWhatIsApproved: the VMs of a forecast are those that an approval is for,
// and none where none is needed.
func TestForecastNamesWhatIsApproved(t *testing.T) {
	w := newWorld(1, 2)
	edits("made cps=1 workers=2", "remove wk-2")(t, w)
	if f := Forecast(w.d, w.o, w.p); f.Unapproved || len(f.VMs) > 0 {
		t.Errorf("wk-2 may be removed without approval: %v", f.VMs)
	}
	w.run(t, "switches approve")
	if f := Forecast(w.d, w.o, w.p); !f.Unapproved || !slices.Equal(f.VMs, []int{522}) {
		t.Errorf("wk-2 may not be removed without approval: %v", f.VMs)
	}
}

// TestForecastWithoutAHost: a VM that is being created on a host whose storages are not seen, or
// that is not seen at all, takes nothing from them.
func TestForecastWithoutAHost(t *testing.T) {
	for _, hosts := range []map[string]cluster.Host{{}, {"pve1": {Name: "pve1", Known: true}}} {
		w := newWorld(1, 0)
		w.run(t, "running create-vm cp-1")
		w.o.Hosts = hosts
		for _, step := range Forecast(w.d, w.o, w.p).Steps {
			if step.Action == cluster.CreateVM {
				t.Errorf("%v: it is created again", hosts)
			}
		}
	}
}
