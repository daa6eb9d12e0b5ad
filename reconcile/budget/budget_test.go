package budget

import (
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// world is what is seen of the only worker.
type world struct {
	o       cluster.Observed
	phase   cluster.Phase
	removed bool
}

func (w *world) see(kn cluster.KubeNode) {
	w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"wk-1": kn})
}

func (w *world) run(disrupts bool) {
	w.o.Running = []cluster.Running{{Node: "wk-1", Disrupts: disrupts}}
}

func (w *world) watch(node string, at time.Time) {
	w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendWatch, Node: node, At: at})
}

func (w *world) move(node string, at time.Time) { w.o.Facts.Moved = map[string]time.Time{node: at} }

// TestOf: a unit is spent by a node that is not Ready, that is under pressure, that somebody cordoned, on which
// something that disrupts it is under way, or that was changed a moment ago; and by one that is removed from its drain on.
func TestOf(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	node := cluster.Node{Name: "wk-1", Role: cluster.Worker}
	for name, c := range map[string]struct {
		edit  func(*world)
		spent bool
	}{
		"it does well":         {func(*world) {}, false},
		"it is not Ready":      {func(w *world) { w.phase = cluster.PhaseJoining }, true},
		"under pressure":       {func(w *world) { w.see(cluster.KubeNode{Pressure: "DiskPressure"}) }, true},
		"cordoned":             {func(w *world) { w.see(cluster.KubeNode{Cordoned: true}) }, true},
		"it is drained":        {func(w *world) { w.run(true) }, true},
		"it is looked at":      {func(w *world) { w.run(false) }, false},
		"changed a moment ago": {func(w *world) { w.watch("wk-1", now.Add(-action.WatchedFor/2)) }, true},
		"changed long ago":     {func(w *world) { w.watch("wk-1", now.Add(-action.WatchedFor)) }, false},
		"another was changed":  {func(w *world) { w.watch("wk-2", now) }, false},
		"moved a moment ago":   {func(w *world) { w.move("wk-1", now.Add(-action.WatchedFor/2)) }, true},
		"moved long ago":       {func(w *world) { w.move("wk-1", now.Add(-action.WatchedFor)) }, false},
		"moved in the future":  {func(w *world) { w.move("wk-1", now.Add(time.Second)) }, false},
		"another was moved":    {func(w *world) { w.move("wk-2", now) }, false},
		"it leaves":            {func(w *world) { w.removed = true }, false},
		"it leaves, drained":   {func(w *world) { w.removed = true; w.see(cluster.KubeNode{Turn: "t"}) }, true},
		"it leaves, in work":   {func(w *world) { w.removed = true; w.run(true) }, true},
	} {
		w := world{o: cluster.Observed{Now: now}, phase: cluster.PhaseReady}
		c.edit(&w)
		spec := cluster.Spec{MaxUnavailable: 2, Nodes: []cluster.Node{node}}
		var removed []cluster.Node
		if w.removed {
			spec.Nodes, removed = nil, []cluster.Node{node}
		}
		got := Of(spec, map[string]cluster.Phase{"wk-1": w.phase}, w.o, removed)
		if spent := slices.Contains(got[cluster.Worker].Unavailable, "wk-1"); spent != c.spent || len(got[cluster.ControlPlane].Unavailable) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
		if got[cluster.Worker].Allowed != 2 || got[cluster.ControlPlane].Allowed != 1 {
			t.Errorf("%s: %+v are allowed", name, got)
		}
	}
	if got := Of(cluster.Spec{}, nil, cluster.Observed{}, nil); got[cluster.Worker].Allowed != 1 {
		t.Errorf("by default: %+v", got)
	}
}

// TestAllows: a node that is unavailable already spends nothing more.
func TestAllows(t *testing.T) {
	b := Budget{Allowed: 2}.Spent("a")
	if !b.Allows("b") || !b.Allows("a") {
		t.Errorf("%+v does not allow another one", b)
	}
	full := b.Spent("b").Spent("a")
	if full.Allows("c") || !full.Allows("a") || len(full.Unavailable) != 2 {
		t.Errorf("%+v", full)
	}
	if over := full.Spent("c"); over.Allows("a") {
		t.Errorf("%+v allows one of its own", over)
	}
	if len(b.Unavailable) != 1 {
		t.Errorf("what was spent later is in %+v", b)
	}
}

// TestDescribe: what a node waits for is named, and which nodes are only watched.
func TestDescribe(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	node := cluster.Node{Name: "wk-1", Role: cluster.Worker}
	ready := func(w *world) { w.see(cluster.KubeNode{Ready: true}) }
	const alone, watched = "waits until no node like it is unavailable: wk-1", "waits until no node like it is unavailable: wk-1 (watched after a change)"
	for name, c := range map[string]struct {
		edit    func(*world)
		allowed int
		want    string
	}{
		"it is watched":               {func(w *world) { w.watch("wk-1", now) }, 1, watched},
		"it is watched, and of two":   {func(w *world) { w.watch("wk-1", now) }, 2, "waits until fewer than 2 nodes like it are unavailable: wk-1 (watched after a change)"},
		"it is cordoned":              {func(w *world) { w.see(cluster.KubeNode{Ready: true, Cordoned: true}) }, 1, alone},
		"it is watched, and cordoned": {func(w *world) { w.watch("wk-1", now); w.see(cluster.KubeNode{Ready: true, Cordoned: true}) }, 1, alone},
		"it is short of memory":       {func(w *world) { w.watch("wk-1", now); w.see(cluster.KubeNode{Ready: true, Pressure: "memory"}) }, 1, alone},
		"it does not answer":          {func(w *world) { w.watch("wk-1", now); w.phase = cluster.PhaseUnreachable }, 1, alone},
		"something is under way":      {func(w *world) { w.watch("wk-1", now); w.run(true) }, 1, alone},
	} {
		w := world{phase: cluster.PhaseReady}
		w.o.Now = now
		ready(&w)
		c.edit(&w)
		b := Of(cluster.Spec{Nodes: []cluster.Node{node}, MaxUnavailable: c.allowed}, map[string]cluster.Phase{"wk-1": w.phase}, w.o, nil)[cluster.Worker]
		if got := b.Describe(); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestAwaitWatch: a control plane is not given the next component within a minute after the last one, where no action of ours watches it.
func TestAwaitWatch(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	drifts := []cluster.FieldDifference{{Field: "machine config"}}
	for name, c := range map[string]struct {
		edit  func(*world)
		waits bool
	}{
		"given nothing":                 {func(*world) {}, false},
		"given something a moment ago":  {func(w *world) { w.watch("wk-1", now.Add(-time.Second)) }, true},
		"given something a minute ago":  {func(w *world) { w.watch("wk-1", now.Add(-action.WatchedFor)) }, false},
		"given something in the future": {func(w *world) { w.watch("wk-1", now.Add(time.Second)) }, false},
		"another was":                   {func(w *world) { w.watch("wk-2", now.Add(-time.Second)) }, false},
		"it is watched by an action":    {func(w *world) { w.watch("wk-1", now.Add(-time.Second)); w.run(true) }, false},
		"another action is under way":   {func(w *world) { w.watch("wk-1", now.Add(-time.Second)); w.run(false) }, true},
		"moved a moment ago":            {func(w *world) { w.move("wk-1", now.Add(-time.Second)) }, false},
	} {
		w := world{o: cluster.Observed{Now: now}}
		c.edit(&w)
		got, waits := AwaitWatch(w.o, cluster.Node{Name: "wk-1"}, drifts)
		if waits != c.waits || waits && (got.Subject != "wk-1" || got.Reason != cluster.WaitingForHop || got.Within != action.WatchedFor || len(got.Drift) != 1) {
			t.Errorf("%s: %v, %+v", name, waits, got)
		}
	}
}
