package upgrade

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

func versions(talos, kubernetes string) cluster.Versions {
	return cluster.Versions{Talos: talos, Kubernetes: kubernetes}
}

// TestStages: what all nodes are to have now is at most one hop from what the one runs that is furthest behind.
func TestStages(t *testing.T) {
	for name, c := range map[string]struct {
		asked cluster.Versions
		ran   Ran
		want  cluster.Versions
		hops  string
		noWay bool
	}{
		"nothing runs":       {asked: versions("v1.14.1", "v1.36.1"), want: versions("v1.14.1", "v1.36.1")},
		"it is there":        {asked: versions("v1.14.1", "v1.36.1"), ran: Ran{"a": versions("v1.14.1", "v1.36.1")}, want: versions("v1.14.1", "v1.36.1")},
		"one version":        {asked: versions("v1.14.1", "v1.36.1"), ran: Ran{"a": versions("v1.13.9", "v1.36.1")}, want: versions("v1.14.1", "v1.36.1"), hops: "Talos v1.14.1"},
		"several":            {asked: versions("v1.14.1", "v1.36.1"), ran: Ran{"a": versions("v1.12.11", "v1.34.13")}, want: versions("v1.13.9", "v1.34.13"), hops: "Talos v1.13.9, then Talos v1.14.1, then Kubernetes v1.35.10, then Kubernetes v1.36.1"},
		"one is behind":      {asked: versions("v1.14.1", "v1.36.1"), ran: Ran{"a": versions("v1.13.9", "v1.36.1"), "b": versions("v1.12.11", "v1.36.1"), "c": versions("v1.14.1", "")}, noWay: true, want: versions("v1.14.1", "v1.36.1")},
		"one is behind, too": {asked: versions("v1.14.1", "v1.35.10"), ran: Ran{"a": versions("v1.13.9", "v1.35.10"), "b": versions("v1.12.11", "v1.35.10")}, want: versions("v1.13.9", "v1.35.10"), hops: "Talos v1.13.9, then Talos v1.14.1"},
		"only kubernetes":    {asked: versions("v1.13.9", "v1.36.1"), ran: Ran{"a": versions("v1.13.9", "v1.35.10"), "b": versions("v1.13.9", "v1.34.13")}, want: versions("v1.13.9", "v1.35.10"), hops: "Kubernetes v1.35.10, then Kubernetes v1.36.1"},
		"not known":          {asked: versions("v1.14.1", "v1.36.1"), ran: Ran{"a": versions("v1.13.9", "")}, want: versions("v1.14.1", "v1.36.1")},
		"back":               {asked: versions("v1.12.11", "v1.35.1"), ran: Ran{"a": versions("v1.13.9", "v1.35.1")}, want: versions("v1.12.11", "v1.35.1"), noWay: true},
	} {
		s := Of(c.asked, cluster.Spec{}, Seen{Ran: c.ran})
		if s.Versions != c.want || cluster.DescribeHops(s.Hops) != c.hops || (s.NoWay != "") != c.noWay {
			t.Errorf("%s: %+v", name, s)
		}
		snap := At(cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Versions: cluster.Versions{Talos: "v1.0.0", Contract: "v1.9"}}}, s)
		if v := snap.Spec.Versions; v.Talos != c.want.Talos || v.Kubernetes != c.want.Kubernetes || v.Contract != "v1.9" || snap.Spec.Name != "dev" {
			t.Errorf("%s: at %+v", name, v)
		}
	}
}

// TestBack: what is set back to what all nodes ran leads there, Kubernetes first, and by one minor version at a time; what
// they did not all run is no way back.
func TestBack(t *testing.T) {
	old, between, now := versions("v1.13.9", "v1.34.13"), versions("v1.13.9", "v1.35.10"), versions("v1.14.1", "v1.36.1")
	for name, c := range map[string]struct {
		goal, a, b, previous cluster.Versions // a and b are what two nodes run
		want                 cluster.Versions
		back                 cluster.Back
		noWay                bool
	}{
		"talos, in the middle of a hop":       {goal: old, a: versions("v1.14.1", "v1.34.13"), b: old, previous: old, want: old, back: cluster.Back{Talos: true}},
		"talos, after it":                     {goal: between, a: versions("v1.14.1", "v1.35.10"), b: versions("v1.14.1", "v1.35.10"), previous: between, want: between, back: cluster.Back{Talos: true}, noWay: true},
		"talos, which they did not run":       {goal: versions("v1.13.8", "v1.36.1"), a: now, b: now, previous: between, want: versions("v1.13.8", "v1.36.1"), noWay: true},
		"kubernetes, in the middle of a hop":  {goal: old, a: between, b: old, previous: old, want: old, back: cluster.Back{Kubernetes: true}},
		"kubernetes, after it":                {goal: old, a: between, b: between, previous: old, want: old, back: cluster.Back{Kubernetes: true}},
		"kubernetes, over two hops":           {goal: old, a: versions("v1.13.9", "v1.36.1"), b: between, previous: old, want: between, back: cluster.Back{Kubernetes: true}},
		"kubernetes, which they did not run":  {goal: old, a: versions("v1.13.9", "v1.36.1"), b: between, previous: between, want: old, noWay: true},
		"both: kubernetes first":              {goal: versions("v1.13.9", "v1.35.10"), a: now, b: versions("v1.14.1", "v1.35.10"), previous: between, want: versions("v1.14.1", "v1.35.10"), back: cluster.Back{Kubernetes: true}},
		"talos, for the kubernetes before":    {goal: versions("v1.12.11", "v1.30.14"), a: versions("v1.13.9", "v1.31.14"), b: versions("v1.13.9", "v1.31.14"), previous: versions("v1.12.11", "v1.30.14"), want: versions("v1.12.11", "v1.31.14"), back: cluster.Back{Talos: true}, noWay: true},
		"kubernetes, and another talos first": {goal: versions("v1.14.1", "v1.35.10"), a: versions("v1.13.9", "v1.36.1"), b: between, previous: between, want: between, back: cluster.Back{Kubernetes: true}},
		"nothing is set back":                 {goal: now, a: between, b: between, previous: old, want: versions("v1.14.1", "v1.35.10")},
	} {
		nodes := []cluster.Node{{Name: "a"}, {Name: "b"}}
		ran := Ran{"a": c.a, "b": c.b}
		o := cluster.Observed{Machines: map[string]cluster.Machine{}}
		kubelets := map[string]cluster.KubeNode{}
		for name, v := range ran {
			o.Machines[name] = cluster.Machine{Reach: cluster.Configured, Talos: v.Talos}
			kubelets[name] = cluster.KubeNode{Kubelet: v.Kubernetes}
		}
		o.Nodes = cluster.Saw(kubelets)
		s := Of(c.goal, cluster.Spec{Nodes: nodes}, Seen{Ran: ran, Observed: o}, c.previous)
		if s.Versions != c.want || s.Back != c.back || (s.NoWay != "") != c.noWay {
			t.Errorf("%s: %+v", name, s)
		}
		held, _ := s.Hold(cluster.Snapshot{Spec: cluster.Spec{Switches: cluster.Switches{Upgrade: cluster.UpgradeOff}}}, cluster.Policy{}, cluster.Facts{})
		if isBack := c.back != (cluster.Back{}); isBack && held != "" {
			t.Errorf("%s: it is held: %s", name, held)
		}
	}
}

// TestGoesBackFromWhatWasAsked: only a version that the inventory has asked for is taken back, and not one that somebody has
// upgraded the nodes to by hand. Where that is not known, as an older agent wrote it nowhere, it is.
func TestGoesBackFromWhatWasAsked(t *testing.T) {
	old, talos, both := versions("v1.13.9", "v1.35.10"), versions("v1.14.1", "v1.35.10"), versions("v1.14.1", "v1.36.1")
	for name, c := range map[string]struct {
		goal, runs, asked cluster.Versions
		back              cluster.Back
	}{
		"both were asked for":             {old, both, both, cluster.Back{Kubernetes: true}},
		"it is not known":                 {old, both, cluster.Versions{}, cluster.Back{Kubernetes: true}},
		"neither was":                     {old, both, old, cluster.Back{}},
		"of kubernetes alone":             {talos, both, talos, cluster.Back{}},
		"talos was asked for":             {old, talos, talos, cluster.Back{Talos: true}},
		"and is not, and was set by hand": {old, talos, old, cluster.Back{}},
	} {
		kubelets := map[string]cluster.KubeNode{"a": {Kubelet: c.runs.Kubernetes}}
		o := cluster.Observed{Machines: map[string]cluster.Machine{"a": {Reach: cluster.Configured, Talos: c.runs.Talos}}, Nodes: cluster.Saw(kubelets)}
		s := Of(c.goal, cluster.Spec{Nodes: []cluster.Node{{Name: "a"}}}, Seen{Ran: Ran{"a": c.runs}, Observed: o, Asked: c.asked}, old, talos)
		if s.Back != c.back || c.back == (cluster.Back{}) && s.NoWay == "" {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestEtcdThatDoesNotGoBack: where all control planes have a newer etcd than that of the Talos that is asked for again, nothing goes back,
// Kubernetes and workers neither; as long as one has the older etcd, or may have it, all do.
func TestEtcdThatDoesNotGoBack(t *testing.T) {
	old, now := versions("v1.13.9", "v1.35.10"), versions("v1.14.1", "v1.36.1")
	talos := versions("v1.14.1", "v1.35.10")
	const noWay = "Talos does not go back to v1.13.9, because all control planes have the etcd of a newer one, up to v1.14.1, and the older etcd does not read its data"
	for name, c := range map[string]struct {
		goal, a, b, wk cluster.Versions
		silent         bool // the second control plane
		noWay          string
		want           cluster.Versions
		back           cluster.Back
	}{
		"both, after it":                    {goal: old, a: now, b: now, wk: now, noWay: noWay, want: versions("v1.13.9", "v1.36.1")},
		"Talos, after it":                   {goal: old, a: talos, b: talos, wk: talos, noWay: noWay, want: old},
		"a worker has the older Talos":      {goal: old, a: now, b: now, wk: versions("v1.13.9", "v1.36.1"), noWay: noWay, want: versions("v1.13.9", "v1.36.1")},
		"and the older Kubernetes":          {goal: old, a: now, b: now, wk: old, noWay: noWay, want: old},
		"one does not answer":               {goal: old, a: now, b: now, wk: now, silent: true, noWay: noWay, want: versions("v1.13.9", "v1.36.1")},
		"one has the older etcd":            {goal: old, a: now, b: old, wk: old, want: old, back: cluster.Back{Kubernetes: true}},
		"and does not answer":               {goal: old, a: now, b: old, wk: old, silent: true, want: old, back: cluster.Back{Kubernetes: true}},
		"the same etcd":                     {goal: versions("v1.12.11", "v1.35.10"), a: old, b: old, wk: old, want: versions("v1.12.11", "v1.35.10"), back: cluster.Back{Talos: true}, noWay: "a downgrade of Talos, from v1.13.9 to v1.12.11, is not made"},
		"Kubernetes alone, with any etcd":   {goal: talos, a: now, b: now, wk: now, want: talos, back: cluster.Back{Kubernetes: true}},
		"which some of the nodes have left": {goal: talos, a: now, b: talos, wk: talos, want: talos, back: cluster.Back{Kubernetes: true}},
	} {
		ran := Ran{"a": c.a, "b": c.b, "wk": c.wk}
		spec := cluster.Spec{Nodes: []cluster.Node{{Name: "a", Role: cluster.ControlPlane}, {Name: "b", Role: cluster.ControlPlane}, {Name: "wk", Role: cluster.Worker}}}
		o, kubelets := cluster.Observed{Machines: map[string]cluster.Machine{}}, map[string]cluster.KubeNode{}
		for name, v := range ran {
			if name != "b" || !c.silent {
				o.Machines[name] = cluster.Machine{Reach: cluster.Configured, Talos: v.Talos}
			}
			kubelets[name] = cluster.KubeNode{Kubelet: v.Kubernetes}
		}
		o.Nodes = cluster.Saw(kubelets)
		if s := Of(c.goal, spec, Seen{Ran: ran, Observed: o}, c.goal); s.NoWay != c.noWay || s.Back != c.back || s.Versions != c.want {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestNoteAsked: the newest versions count that were asked for since all nodes ran what is asked for, each kind by itself.
func TestNoteAsked(t *testing.T) {
	now, next := versions("v1.13.9", "v1.35.10"), versions("v1.14.1", "v1.36.1")
	var asked cluster.Versions
	for i, c := range []struct {
		runs, goal cluster.Versions
		all        bool
		back       cluster.Back
		want       cluster.Versions
	}{
		{runs: now, goal: next, all: true}, // it was never at rest
		{runs: now, goal: now},
		{runs: now, goal: now, all: true, want: now},
		{runs: now, goal: versions("v1.14.1", "v1.35.10"), all: true, want: versions("v1.14.1", "v1.35.10")},
		{runs: now, goal: versions("v1.13.9", "v1.36.1"), all: true, want: next},
		{runs: versions("v1.14.1", "v1.35.10"), goal: now, all: true, want: next}, // in the middle, and set back
		{runs: now, goal: now, all: true, back: cluster.Back{Kubernetes: true}, want: next},
		{runs: now, goal: now, all: true, back: cluster.Back{Talos: true}, want: next},
		{runs: now, goal: now, all: true, want: now},
		{runs: next, goal: now, all: true, want: now}, // by hand
		{runs: versions("v1.13.9", "v1.36.1"), goal: next, all: true, want: next},
		{runs: next, goal: next, all: true, want: next},
	} {
		asked = NoteAsked(asked, cluster.Desired{Way: cluster.Way{Goal: c.goal, Back: c.back}}, c.runs, c.all)
		if asked != c.want {
			t.Errorf("step %d: %+v, want %+v", i, asked, c.want)
		}
	}
}

// TestOneKindAtATime: what nodes are in the middle of is ended before Talos, its extensions or Kubernetes are changed besides.
func TestOneKindAtATime(t *testing.T) {
	type node struct{ talos, kubernetes, schematic string }
	old := node{"v1.13.9", "v1.35.10", "s"}
	before := versions("v1.13.9", "v1.35.10")
	for name, c := range map[string]struct {
		goal      cluster.Versions
		a, b      node
		locked    bool // the second one
		installed string
		previous  cluster.Versions
		want      cluster.Versions
		hops      string
		waits     string
		back      cluster.Back
		noWay     bool
	}{
		"Talos while Kubernetes is in the middle":              {goal: versions("v1.14.1", "v1.36.1"), a: node{"v1.13.9", "v1.36.1", "s"}, b: old, want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1, then Talos v1.14.1"},
		"and a newer Kubernetes":                               {goal: versions("v1.14.1", "v1.36.2"), a: node{"v1.13.9", "v1.36.1", "s"}, b: old, want: versions("v1.13.9", "v1.36.2"), hops: "Kubernetes v1.36.2, then Talos v1.14.1"},
		"and one that needs the newer Talos":                   {goal: versions("v1.13.9", "v1.36.1"), a: node{"v1.12.11", "v1.35.10", "s"}, b: node{"v1.12.11", "v1.34.13", "s"}, want: versions("v1.12.11", "v1.35.10"), hops: "Kubernetes v1.35.10, then Talos v1.13.9, then Kubernetes v1.36.1"},
		"where only the newer Talos runs it":                   {goal: versions("v1.13.9", "v1.36.1"), a: node{"v1.12.11", "v1.36.1", "s"}, b: node{"v1.12.11", "v1.35.10", "s"}, want: versions("v1.13.9", "v1.35.10"), hops: "Talos v1.13.9, then Kubernetes v1.36.1"},
		"Kubernetes while Talos goes back":                     {goal: versions("v1.13.9", "v1.36.1"), a: node{"v1.14.1", "v1.35.10", "s"}, b: old, previous: before, want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1", waits: "Talos goes back to v1.13.9 first", back: cluster.Back{Talos: true}},
		"Kubernetes while one runs a newer Talos":              {goal: versions("v1.13.9", "v1.36.1"), a: node{"v1.14.1", "v1.35.10", "s"}, b: old, want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1", waits: "a runs a newer Talos than v1.13.9, which others run"},
		"Kubernetes while one has other extensions":            {goal: versions("v1.13.9", "v1.36.1"), a: old, b: node{"v1.13.9", "v1.35.10", "other"}, want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1", waits: "a and b do not run the same extensions of Talos"},
		"which is locked":                                      {goal: versions("v1.13.9", "v1.36.1"), a: old, b: node{"v1.13.9", "v1.35.10", "other"}, locked: true, want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1"},
		"which is in the middle":                               {goal: versions("v1.13.9", "v1.36.1"), a: node{"v1.13.9", "v1.36.1", "s"}, b: node{"v1.13.9", "v1.35.10", "other"}, want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1"},
		"Kubernetes while another Talos is installed":          {goal: versions("v1.13.9", "v1.36.1"), a: old, b: old, installed: "factory/nocloud-installer/s:v1.14.1", want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1", waits: "a has another Talos installed, which it does not run yet"},
		"Kubernetes while other extensions are":                {goal: versions("v1.13.9", "v1.36.1"), a: old, b: old, installed: "factory/nocloud-installer/other:v1.13.9", want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1", waits: "a has another Talos installed, which it does not run yet"},
		"Kubernetes while what runs is installed":              {goal: versions("v1.13.9", "v1.36.1"), a: old, b: old, installed: "factory/nocloud-installer/s:v1.13.9", want: versions("v1.13.9", "v1.36.1"), hops: "Kubernetes v1.36.1"},
		"both back, and Talos is in the middle":                {goal: before, a: node{"v1.14.1", "v1.36.1", "s"}, b: node{"v1.13.9", "v1.36.1", "s"}, previous: before, want: versions("v1.13.9", "v1.36.1"), back: cluster.Back{Talos: true}},
		"both back, and both are":                              {goal: before, a: node{"v1.14.1", "v1.36.1", "s"}, b: old, previous: before, want: before, back: cluster.Back{Kubernetes: true}},
		"both back, and Talos cannot":                          {goal: versions("v1.11.6", "v1.34.13"), a: node{"v1.13.9", "v1.35.10", "s"}, b: node{"v1.13.9", "v1.34.13", "s"}, previous: versions("v1.12.11", "v1.34.13"), want: versions("v1.11.6", "v1.34.13"), noWay: true},
		"both back, and Talos cannot by more than one version": {goal: versions("v1.11.6", "v1.34.13"), a: node{"v1.13.9", "v1.35.10", "s"}, b: node{"v1.13.9", "v1.34.13", "s"}, previous: versions("v1.11.6", "v1.34.13"), want: versions("v1.11.6", "v1.34.13"), back: cluster.Back{Talos: true}, noWay: true},
	} {
		s := cluster.Spec{Nodes: []cluster.Node{{Name: "a", Role: cluster.Worker}, {Name: "b", Role: cluster.Worker, Locked: c.locked}}}
		o := cluster.Observed{Machines: map[string]cluster.Machine{}, SystemPods: cluster.Saw(map[string]cluster.SystemPod{})}
		ran, kubelets := Ran{}, map[string]cluster.KubeNode{}
		for name, n := range map[string]node{"a": c.a, "b": c.b} {
			o.Machines[name] = cluster.Machine{Reach: cluster.Configured, Talos: n.talos, Schematic: n.schematic, BootID: "boot"}
			ran[name], kubelets[name] = versions(n.talos, n.kubernetes), cluster.KubeNode{Kubelet: n.kubernetes}
		}
		o.Nodes = cluster.Saw(kubelets)
		if c.installed != "" {
			o.Facts.Installs = map[string]cluster.Install{"a": {Image: c.installed, Boot: "boot", Done: true}}
		}
		got := Of(c.goal, s, Seen{Ran: ran, Observed: o}, c.previous)
		if got.Waits.Subject == "a" || got.Waits.Subject == "b" {
			got.Waits = cluster.Wait{} // of the readiness of nodes
		}
		if got.Versions != c.want || cluster.DescribeHops(got.Hops) != c.hops || got.Waits.Message != c.waits || got.Back != c.back || (got.NoWay != "") != c.noWay {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestEveryStageEnds: whatever the nodes run, in whichever order they get what is asked of them, and with
// every crash in between, each goes over every hop, and all end at what the inventory has.
func TestEveryStageEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		talos := []string{"v1.10.2", "v1.10.9", "v1.11.6", "v1.12.11", "v1.13.2", "v1.13.9", "v1.14.1"}
		from := rapid.IntRange(0, len(talos)-1).Draw(t, "from")
		to := rapid.IntRange(from, len(talos)-1).Draw(t, "to")
		asked := versions(talos[to], "v1.33.1")
		ran := Ran{}
		for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
			ran[fmt.Sprint("n", i)] = versions(talos[from], "v1.33.1")
		}
		for rounds := 0; ; rounds++ {
			s := Of(asked, cluster.Spec{}, Seen{Ran: ran})
			if s.NoWay != "" {
				if _, err := ladder.Find(versions(talos[from], "v1.33.1"), asked); err == nil {
					t.Fatalf("no way from %v: %s", ran, s.NoWay)
				}
				return
			}
			var behind []string
			for name, v := range ran {
				if v.Talos != s.Versions.Talos {
					behind = append(behind, name)
				}
			}
			if len(s.Hops) == 0 {
				if len(behind) > 0 {
					t.Fatalf("%v at the end", ran)
				}
				return
			}
			if len(behind) == 0 || rounds > 100 {
				t.Fatalf("%v stays at %v", ran, s.Hops)
			}
			slices.Sort(behind)
			next := rapid.SampledFrom(behind).Draw(t, "next")
			if hops, err := ladder.Find(ran[next], versions(s.Versions.Talos, "v1.33.1")); err != nil || len(hops) != 1 {
				t.Fatalf("%s goes from %v to %v: %v, %v", next, ran[next], s.Versions, hops, err)
			}
			ran[next] = versions(s.Versions.Talos, "v1.33.1")
		}
	})
}

// TestCountAt: nodes that run what a hop leads to, or newer, have it.
func TestCountAt(t *testing.T) {
	ran := Ran{"a": versions("v1.13.9", "v1.35.1"), "b": versions("v1.14.1", "v1.36.1"), "c": versions("v1.12.11", ""), "d": versions("", "v1.34.13")}
	for _, c := range []struct {
		hop  cluster.Hop
		want int
	}{
		{cluster.Hop{Kind: cluster.HopTalos, To: "v1.13.9"}, 2},
		{cluster.Hop{Kind: cluster.HopTalos, To: "v1.14.1"}, 1},
		{cluster.Hop{Kind: cluster.HopKubernetes, To: "v1.35.1"}, 2},
	} {
		if got := ran.CountAt(c.hop); got != c.want {
			t.Errorf("%s: %d, want %d", c.hop, got, c.want)
		}
	}
}

// TestWayBack: versions that go back are on the way, first, and a node has them when nothing newer is seen on it.
func TestWayBack(t *testing.T) {
	var d cluster.Desired
	d.Spec.Nodes = []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "wk-1", Role: cluster.Worker}, {Name: "wk-2", Role: cluster.Worker}}
	d.Spec.Versions, d.Goal = versions("v1.14.1", "v1.35.10"), versions("v1.13.9", "v1.35.10")
	o := cluster.Observed{Machines: map[string]cluster.Machine{"cp-1": {Reach: cluster.Configured, Talos: "v1.14.1"}, "wk-1": {Reach: cluster.Configured, Talos: "v1.13.9"}},
		Nodes: cluster.Saw(map[string]cluster.KubeNode{"cp-1": {Kubelet: "v1.35.10"}, "wk-1": {Kubelet: "v1.36.1"}})}
	ran := Ran{"cp-1": versions("v1.14.1", "v1.35.10"), "wk-1": versions("v1.13.9", "v1.36.1")} // wk-2 was not seen
	later := []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}}
	for name, c := range map[string]struct {
		way  cluster.Way
		want string
	}{
		"no way":                         {cluster.Way{}, "[] 0 false"},
		"forth":                          {cluster.Way{Hops: later}, "[Talos v1.14.1] 1 false"},
		"Talos":                          {cluster.Way{Back: cluster.Back{Talos: true}}, "[Talos v1.13.9] 1 true"},
		"Kubernetes, and Talos after it": {cluster.Way{Back: cluster.Back{Kubernetes: true}}, "[Kubernetes v1.35.10 Talos v1.13.9] 1 true"},
		"both":                           {cluster.Way{Back: cluster.Back{Kubernetes: true, Talos: true}}, "[Kubernetes v1.35.10 Talos v1.13.9] 1 true"},
		"Kubernetes before Talos":        {cluster.Way{Back: cluster.Back{Kubernetes: true}, Hops: later}, "[Kubernetes v1.35.10 Talos v1.14.1] 1 true"},
	} {
		c.way.Goal = d.Goal
		d.Way = c.way
		hops, upgraded, back := wayOf(d, Seen{Ran: ran, Observed: o})
		if got := fmt.Sprint(hops, upgraded, back); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestWatch: what does not answer runs what it ran, and one that is out of service for its turn has not ended it.
func TestWatch(t *testing.T) {
	old, now := versions("v1.13.9", "v1.36.1"), versions("v1.14.1", "v1.36.1")
	seen := func(talos string, reach cluster.Reach) cluster.Machine {
		return cluster.Machine{Reach: reach, Talos: talos}
	}
	for name, c := range map[string]struct {
		had   Ran
		vm    cluster.Presence
		mach  cluster.Machine
		kn    cluster.KubeNode
		blind bool // the Node objects are not seen
		want  Ran
	}{
		"seen":                  {vm: cluster.Present, mach: seen("v1.14.1", cluster.Configured), kn: cluster.KubeNode{Kubelet: "v1.36.1"}, want: Ran{"a": now}},
		"silent":                {had: Ran{"a": old}, vm: cluster.Present, mach: seen("", cluster.Silent), blind: true, want: Ran{"a": old}},
		"in its turn":           {had: Ran{"a": old}, vm: cluster.Present, mach: seen("v1.14.1", cluster.Configured), kn: cluster.KubeNode{Kubelet: "v1.36.1", Turn: "x"}, want: Ran{"a": old}},
		"in its turn, and new":  {vm: cluster.Present, mach: seen("v1.14.1", cluster.Configured), kn: cluster.KubeNode{Kubelet: "v1.36.1", Turn: "x"}, want: Ran{"a": now}},
		"its VM is not there":   {had: Ran{"a": old}, vm: cluster.Absent, want: Ran{}},
		"it is in maintenance":  {had: Ran{"a": old}, vm: cluster.Present, mach: seen("v1.14.1", cluster.Maintenance), want: Ran{}},
		"nothing was ever seen": {vm: cluster.Present, blind: true, want: Ran{}},
		"silent since a start":  {vm: cluster.Present, mach: seen("", cluster.Silent), kn: cluster.KubeNode{Kubelet: "v1.36.1"}, want: Ran{"a": old}},
		"silent, its VM unseen": {vm: cluster.PresenceUnknown, mach: seen("", cluster.Silent), kn: cluster.KubeNode{Kubelet: "v1.36.1"}, want: Ran{"a": old}},
		"it shows no version":   {vm: cluster.Present, mach: seen("", cluster.Configured), kn: cluster.KubeNode{Kubelet: "v1.36.1"}, want: Ran{"a": old}},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "a"}}}}}
		o := cluster.Observed{VMs: map[string]cluster.VM{"a": {Presence: c.vm}}, Machines: map[string]cluster.Machine{"a": c.mach}, Nodes: cluster.Saw(map[string]cluster.KubeNode{"a": c.kn})}
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendConfig, Versions: old})
		if c.blind {
			o.Nodes.Known = false
		}
		if got := c.had.Watch(d, o); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestHold: which switch holds the hops, and that an approval is for what is left of the way it was given for.
func TestHold(t *testing.T) {
	hops := []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}, {Kind: cluster.HopKubernetes, From: "v1.36.1", To: "v1.37.0"}}
	var approved cluster.Facts
	approved.Intend(cluster.Intent{Kind: cluster.IntendApproved, Revision: "r", Changes: []string{cluster.ApprovableHops(hops)}})
	for name, c := range map[string]struct {
		hops     []cluster.Hop
		switches cluster.Switches
		host     cluster.Switches
		facts    cluster.Facts
		revision cluster.Revision
		want     cluster.Reason
		by       string
	}{
		"nothing holds them":         {hops: hops},
		"no hop":                     {switches: cluster.Switches{Upgrade: cluster.UpgradeOff}},
		"off":                        {hops: hops, switches: cluster.Switches{Upgrade: cluster.UpgradeOff}, facts: approved, revision: "r", want: cluster.ApplyingOff, by: "upgrade is off"},
		"nothing is applied":         {hops: hops, switches: cluster.Switches{ApplyOff: true}, facts: approved, revision: "r", want: cluster.ApplyingOff, by: "apply is off"},
		"the host applies nothing":   {hops: hops, host: cluster.Switches{ApplyOff: true}, want: cluster.ApplyingOff, by: "apply is off"},
		"approve":                    {hops: hops, switches: cluster.Switches{Upgrade: cluster.UpgradeApproved}, want: cluster.ChangeUnapproved, by: "upgrade is approve"},
		"approved":                   {hops: hops, switches: cluster.Switches{Upgrade: cluster.UpgradeApproved}, facts: approved, revision: "r"},
		"approved, and half done":    {hops: hops[1:], switches: cluster.Switches{Upgrade: cluster.UpgradeApproved}, facts: approved, revision: "r"},
		"approved before a push":     {hops: hops, switches: cluster.Switches{Upgrade: cluster.UpgradeApproved}, facts: approved, revision: "s", want: cluster.ChangeUnapproved, by: "upgrade is approve"},
		"every change is approved":   {hops: hops, switches: cluster.Switches{ApplyApproved: true}, want: cluster.ChangeUnapproved, by: "apply is approve"},
		"the host approves":          {hops: hops, host: cluster.Switches{ApplyApproved: true}, want: cluster.ChangeUnapproved, by: "apply is approve"},
		"a window that is not there": {hops: hops, switches: cluster.Switches{Upgrade: cluster.UpgradeInWindow}, want: cluster.ApplyingOff, by: "upgrade is window, and neither cluster.yaml nor the host's policy has a window"},
	} {
		snap := cluster.Snapshot{Revision: c.revision, Spec: cluster.Spec{Switches: c.switches}}
		if got, by := (Stage{Hops: c.hops}).Hold(snap, cluster.Policy{Switches: c.host}, c.facts); got != c.want || by != c.by {
			t.Errorf("%s: %q, %q", name, got, by)
		}
	}
}

// TestIsEnded: an upgrade has ended when every node is seen to run what the inventory has, and not while one is not seen.
func TestIsEnded(t *testing.T) {
	goal, old, same := versions("v1.14.1", "v1.36.1"), versions("v1.13.9", "v1.36.1"), cluster.Saw(cluster.Manifests{})
	for name, c := range map[string]struct {
		ran             Ran
		reach           cluster.Reach
		hops            []cluster.Hop
		underWay, ended bool
		manifests       cluster.Seen[cluster.Manifests]
	}{
		"it runs that":            {manifests: same, ran: Ran{"a": goal}, reach: cluster.Configured, ended: true},
		"a hop is left":           {manifests: same, ran: Ran{"a": old}, reach: cluster.Configured, hops: []cluster.Hop{{Kind: cluster.HopTalos}}, underWay: true},
		"it does not answer":      {manifests: same, ran: Ran{"a": goal}, reach: cluster.Silent},
		"it is not known":         {manifests: same, reach: cluster.Configured},
		"there is no way":         {manifests: same, ran: Ran{"a": old}, reach: cluster.Configured},
		"kubernetes is not seen":  {manifests: same, ran: Ran{"a": versions("v1.14.1", "")}, reach: cluster.Configured},
		"manifests are to follow": {manifests: cluster.Saw(cluster.Manifests{Changes: []cluster.ObjectChange{{}}}), ran: Ran{"a": goal}, reach: cluster.Configured, underWay: true},
		"manifests are not seen":  {ran: Ran{"a": goal}, reach: cluster.Configured},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Versions: goal, Nodes: []cluster.Node{{Name: "a"}}}}, Way: cluster.Way{Goal: goal, Hops: c.hops}}
		o := cluster.Observed{Manifests: c.manifests, Machines: map[string]cluster.Machine{"a": {Reach: c.reach, Talos: c.ran["a"].Talos}}}
		if got := IsEnded(d, o, c.ran); got != c.ended {
			t.Errorf("%s: ended %v", name, got)
		}
		if got := IsUnderWay(d, o); got != c.underWay {
			t.Errorf("%s: under way %v", name, got)
		}
	}
}

// TestAwaitsManifests: what differs keeps the next hop from its beginning, and what cannot be compared does, but while the
// nodes are on their way. One that is locked stays behind.
func TestAwaitsManifests(t *testing.T) {
	differ := cluster.Saw(cluster.Manifests{Changes: []cluster.ObjectChange{{Object: "ConfigMap kube-system/a"}}})
	unseen := cluster.Unseen[cluster.Manifests]("cp-1 does not answer")
	for name, c := range map[string]struct {
		talos, kubelet string // of the second node
		locked         bool
		seen           cluster.Seen[cluster.Manifests]
		want           cluster.Reason
	}{
		"not looked at":     {"v1.14.1", "v1.36.1", false, cluster.Seen[cluster.Manifests]{}, ""},
		"the same":          {"v1.14.1", "v1.36.1", false, cluster.Saw(cluster.Manifests{Left: []string{"a"}}), ""},
		"others":            {"v1.14.1", "v1.36.1", false, differ, cluster.ManifestsOutdated},
		"not known":         {"v1.14.1", "v1.36.1", false, unseen, cluster.ManifestsUnknown},
		"it is silent":      {"", "", false, differ, cluster.ManifestsOutdated},
		"another Talos":     {"v1.13.9", "v1.36.1", false, unseen, ""},
		"another kubelet":   {"v1.14.1", "v1.35.10", false, differ, ""},
		"behind, by a lock": {"v1.13.9", "v1.35.10", true, differ, cluster.ManifestsOutdated},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "a"}, {Name: "b", Locked: c.locked}}}}}
		o := cluster.Observed{Manifests: c.seen, Machines: map[string]cluster.Machine{"a": {Talos: "v1.14.1"}, "b": {Talos: c.talos}},
			Nodes: cluster.Saw(map[string]cluster.KubeNode{"a": {Kubelet: "v1.36.1"}, "b": {Kubelet: c.kubelet}})}
		if got, why := AwaitsManifests(d, o); got != c.want || (got == "") != (why == "") {
			t.Errorf("%s: %q, %q", name, got, why)
		}
	}
}

// TestWaitForKubernetes: other extensions that wait for Kubernetes are named.
func TestWaitForKubernetes(t *testing.T) {
	for name, c := range map[string]struct {
		has, asked string
		reach      cluster.Reach
		back       bool
		waits      bool
	}{
		"others":              {"old", "new", cluster.Configured, true, true},
		"no hop":              {"old", "new", cluster.Configured, false, false},
		"the same":            {"new", "new", cluster.Configured, true, false},
		"not known":           {"", "new", cluster.Configured, true, false},
		"not known, of those": {"old", "", cluster.Configured, true, false},
		"it is silent":        {"old", "new", cluster.Silent, true, false},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "a"}}}}, Schematic: c.asked, Way: cluster.Way{Back: cluster.Back{Kubernetes: c.back}}}
		w := waitForKubernetes(d, cluster.Observed{Machines: map[string]cluster.Machine{"a": {Reach: c.reach, Schematic: c.has}}})
		if (w.Reason == cluster.WaitingForHop && w.Subject == "dev" && strings.Contains(w.Message, "which a lacks")) != c.waits {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
