package plan

import (
	"fmt"
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// TestLawsOfDeadNodes kills nodes of a cluster that works, to different degrees: whatever
// else is wrong, a node loses its machine only when all shows that it is the node.
func TestLawsOfDeadNodes(t *testing.T) {
	type shape struct{ cps, workers int }
	working := map[shape]*world{}
	for _, s := range []shape{{1, 1}, {1, 3}, {3, 1}, {3, 3}} {
		w := newWorld(s.cps, s.workers)
		w.run(t, "image stored")
		w.run(t, "steps")
		w.run(t, "agree")
		working[s] = w
	}
	replaced := 0
	rapid.Check(t, func(t *rapid.T) {
		from := working[rapid.SampledFrom([]shape{{3, 3}, {1, 3}, {3, 1}, {1, 1}}).Draw(t, "shape")]
		w := &world{d: from.d, o: effect.Clone(from.o), p: from.p}
		minutes := func(label string, from, to int) time.Duration {
			return time.Duration(to-rapid.IntRange(0, to-from).Draw(t, label)) * time.Minute // it prefers small numbers
		}
		w.d.Spec.Nodes = append([]cluster.Node(nil), w.d.Spec.Nodes...)
		for i := range w.d.Spec.Nodes {
			n := &w.d.Spec.Nodes[i]
			n.Protect, n.Locked = rapid.IntRange(0, 9).Draw(t, "protect") == 9, rapid.IntRange(0, 9).Draw(t, "locked") == 9
			effect.EditNode(&w.o, n.Name, func(kn *cluster.KubeNode) { kn.Created = w.o.Now.Add(-2 * time.Hour) })
		}
		effect.EditNode(&w.o, rapid.SampledFrom(w.d.Spec.Nodes).Draw(t, "last").Name, func(kn *cluster.KubeNode) { kn.Created = w.o.Now.Add(-minutes("age", 50, 120)) })
		if rapid.IntRange(0, 4).Draw(t, "wanted") < 4 {
			w.d.Spec.ReplaceDead = cluster.ReplaceDead{Worker: 15 * time.Minute, ControlPlane: 20 * time.Minute}
		}
		w.d.Spec.ObserveOnly, w.p.ObserveOnly = rapid.IntRange(0, 5).Draw(t, "observe") == 5, rapid.IntRange(0, 5).Draw(t, "policy") == 5
		if rapid.IntRange(0, 5).Draw(t, "no host") == 5 {
			h := w.o.Hosts["pve1"]
			h.Known = false
			w.o.Hosts["pve1"] = h
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "dead") {
			w.dead(rapid.SampledFrom(w.d.Spec.Nodes).Draw(t, fmt.Sprint("dead ", i)).Name, minutes(fmt.Sprint("since ", i), 10, 50))
		}
		for name := range w.o.DeadSince {
			w.o.DeadSince[name] = w.o.Now.Add(-minutes("seen "+name, 8, 30))
		}
		if rapid.IntRange(0, 5).Draw(t, "one to come") == 5 {
			w.unregister(rapid.SampledFrom(w.d.Spec.Nodes).Draw(t, "to come").Name)
		}
		if rapid.Bool().Draw(t, "one begun") {
			name := rapid.SampledFrom(w.d.Spec.Nodes).Draw(t, "begun").Name
			effect.EditNode(&w.o, name, func(kn *cluster.KubeNode) { kn.Cordoned, kn.Turn, kn.Drained = true, cluster.TurnRemoval, kn.BootID })
		}
		for _, a := range Make(w.d, w.o, w.p).Actions {
			switch a := a.(type) {
			case action.DrainNode:
				lawOfDead(t, w, a, a.Node, w.o.VMs[a.Node.Name])
				replaced++
			case action.RemoveMember:
				lawOfDead(t, w, a, a.Node, w.o.VMs[a.Node.Name])
			case action.DeleteVM:
				n, _ := w.d.Spec.Node(a.VM.Node)
				lawOfDead(t, w, a, n, a.VM)
			}
		}
	})
	t.Logf("a node was replaced in %d of these worlds", replaced) // few checks may meet none
}
