package plan

import (
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
)

// TestLeftOversUnderTheSwitches: the member of etcd and the Node object that a removed node
// left are removed under observe, and not where apply is off. The member of a node that the
// inventory has, and whose VM somebody deleted, is an edit: it stays under observe alone.
func TestLeftOversUnderTheSwitches(t *testing.T) {
	for _, c := range []struct {
		switches        cluster.Switches
		left, inventory bool // what is removed: of the removed node, of the one that the inventory has
	}{
		{cluster.Switches{}, true, true},
		{cluster.Switches{ObserveOnly: true}, true, false},
		{cluster.Switches{ApplyOff: true}, false, true},
		{cluster.Switches{ObserveOnly: true, ApplyOff: true}, false, false},
	} {
		for _, byHost := range []bool{false, true} {
			for _, stays := range []bool{false, true} {
				w := newWorld(5, 0)
				for _, line := range []string{"image stored", "steps", "agree", "facts was-ready", "settled"} {
					w.run(t, line)
				}
				w.o = effect.Clone(w.o)
				lost := ""
				for _, mem := range w.o.Members.Value {
					if mem.Name == "cp-5" {
						w.o.LostSince = map[uint64]time.Time{mem.ID: w.o.Now.Add(-leftover.LostFor)}
						lost = mem.HexID()
					}
				}
				effect.EditNode(&w.o, "cp-5", func(kn *cluster.KubeNode) { kn.Ready, kn.NotReadySince = false, w.o.Now.Add(-repairAfter) })
				w.o.Machines["cp-5"], w.o.VMs["cp-5"] = cluster.Machine{Reach: cluster.Silent}, cluster.VM{VMID: 415, Node: "cp-5", Presence: cluster.Absent}
				want := c.inventory
				if !stays {
					want = c.left
					w.d.Spec.AllowEven = true
					w.remove("cp-5")
					w.o.Machines["cp-5"] = cluster.Machine{Reach: cluster.Silent}
				}
				if byHost {
					w.p.Switches = c.switches
				} else {
					w.d.Spec.Switches = c.switches
				}
				p := w.step()
				if got := strings.Contains(p.String(), "do     remove member "+lost); got != want || lost == "" {
					t.Errorf("%+v, by host %v, in the inventory %v: its member is removed: %v\n%s", c.switches, byHost, stays, got, p)
				}
				if stays {
					continue
				}
				w.run(t, "members-only cp-1 10.10.0.11 cp-2 10.10.0.12")
				if p := Make(w.d, w.o, w.p); strings.Contains(p.String(), "do     delete the Node object of cp-5") != want {
					t.Errorf("%+v, by host %v: its Node object, want %v\n%s", c.switches, byHost, want, p)
				}
			}
		}
	}
}
