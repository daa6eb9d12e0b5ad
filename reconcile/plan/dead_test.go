package plan

import (
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/lost"
)

// TestDeadNode: what has to be seen before a node that does not answer gets a new machine.
// Each row takes one thing away, or has another node or the host be the reason.
func TestDeadNode(t *testing.T) {
	for _, c := range []struct {
		what        string
		edit        func(*testing.T, *world)
		looks, dead bool
	}{
		{"dead", func(*testing.T, *world) {}, true, true},
		{"Ready", edits("node-is wk-2 ready"), false, false},
		{"not Ready since nobody knows when", func(_ *testing.T, w *world) {
			effect.EditNode(&w.o, "wk-2", func(kn *cluster.KubeNode) { kn.NotReadySince = time.Time{} })
		}, false, false},
		{"Kubernetes does not answer", edits("kubernetes-before"), false, false},
		{"the Node of another machine", edits("node-is wk-2 uuid=11111111-2222-3333-4444-555555555555"), false, false},
		{"being deleted for its removal", edits("vm wk-2 deleting", "node-is wk-2 turn=removal"), true, true},
		{"being deleted for that, and not seen for long", func(t *testing.T, w *world) {
			edits("vm wk-2 deleting", "node-is wk-2 turn=removal")(t, w)
			w.o.DeadSince = nil
		}, true, true},
		{"not seen for long", func(_ *testing.T, w *world) { w.o.DeadSince = nil }, true, false},
		{"being deleted otherwise", edits("vm wk-2 deleting"), false, false},
		{"protected", edits("node wk-2 protect"), true, false},
		{"locked", edits("node wk-2 locked"), true, false},
		{"not to be replaced", edits("replace-dead 0s 30m"), true, false},
		{"another is being replaced", edits("node-is wk-1 turn=removal"), true, false},
		{"many are", edits("node-is wk-1 ready=false", "node-is cp-1 ready=false"), false, false},
		{"its host is not seen", func(_ *testing.T, w *world) {
			h := w.o.Hosts["pve1"]
			h.Known = false
			w.o.Hosts["pve1"] = h
		}, false, false},
		{"its host has no quorum", edits("host noquorum"), false, false},
		{"whether its host has one is not known", edits("host unasked"), true, true},
		{"nothing else on its host works", func(_ *testing.T, w *world) {
			vm := w.o.VMs["wk-2"]
			vm.Host = "pve2"
			w.o.VMs["wk-2"] = vm
			w.o.Hosts["pve2"] = w.o.Hosts["pve1"]
		}, false, false},
	} {
		w := newWorld(1, 1)
		edits("made cps=3 workers=2", "replace-dead 15m 30m", "dead wk-2 1h")(t, w)
		w.o = effect.Clone(w.o)
		c.edit(t, w)
		if got := slices.Contains(lost.DeadNodes(w.d, w.o), "wk-2"); got != c.looks {
			t.Errorf("%s: looks dead: %v", c.what, got)
		}
		if got := lost.DeadNode(w.d, w.o) == "wk-2"; got != c.dead {
			t.Errorf("%s: gets a new machine: %v", c.what, got)
		}
	}
}

// edits runs commands of scenarios.
func edits(lines ...string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		t.Helper()
		for _, line := range lines {
			w.run(t, line)
		}
	}
}
