package plan

import (
	"fmt"
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"net/netip"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWaysOutOfRefusals: what is not changed on a node that is there names what to do
// instead, and where that is a new machine it leads to a cluster as the inventory has it.
func TestWaysOutOfRefusals(t *testing.T) {
	for _, c := range []struct {
		what     string
		change   func(*cluster.Node)
		replaces bool
		hint     string
	}{
		{"a smaller system disk", func(n *cluster.Node) { n.DiskBytes = 20 << 30 }, true, ""},
		{"a smaller disk", func(n *cluster.Node) { n.Disks[0].Bytes = 5 << 30 }, true, ""},
		{"another storage", func(n *cluster.Node) { n.Datastore = "fast" }, true, "qm disk move"},
		{"another storage of a disk", func(n *cluster.Node) { n.Disks[0].Datastore = "fast" }, true, "qm disk move"},
		{"a disk less", func(n *cluster.Node) { n.Disks = nil }, true, "by hand"},
		{"another MAC", func(n *cluster.Node) { n.MAC = "BC:24:11:00:00:99" }, true, ""},
		{"another address", func(n *cluster.Node) { n.IP = netip.MustParseAddr("10.10.0.77") }, true, ""},
		{"another VMID", func(n *cluster.Node) { n.VMID = 599 }, false, "give the node another name, too"},
	} {
		for _, name := range []string{"cp-3", "wk-1"} {
			w := newWorld(3, 2)
			for i := range w.d.Spec.Nodes {
				w.d.Spec.Nodes[i].Disks = []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "local-lvm", Bytes: 10 << 30}}
			}
			h := w.o.Hosts["pve1"]
			h.Storages.Value["fast"] = cluster.Storage{Active: true, Content: []string{"images"}}
			w.o.Hosts["pve1"] = h
			for _, line := range []string{"image stored", "steps", "agree"} {
				w.run(t, line)
			}
			w.o = effect.Clone(w.o)
			was, _ := w.d.Spec.Node(name)
			for i := range w.d.Spec.Nodes {
				if w.d.Spec.Nodes[i].Name == name {
					c.change(&w.d.Spec.Nodes[i])
				}
			}
			n, _ := w.d.Spec.Node(name)
			if n.IP != was.IP { // it is asked at the address of the inventory
				w.o.Machines[name] = cluster.Machine{Reach: cluster.Silent}
			}
			if n.VMID != was.VMID {
				w.o.Orphans = cluster.Saw([]cluster.VM{w.o.VMs[name]})
				w.o.VMs[name] = cluster.VM{VMID: n.VMID, Node: name, Presence: cluster.Absent}
			}
			hint := ""
			for _, b := range Make(w.d, w.o, w.p).Blocked {
				hint += fmt.Sprintf("%s [%s]\n", b.Message, b.Hint)
			}
			if strings.Contains(hint, "`replace`") != c.replaces || !strings.Contains(hint, c.hint) {
				t.Errorf("%s of %s: %s", c.what, name, hint)
			}
			w.run(t, fmt.Sprintf("node %s replace=2026-11", name))
			out := w.run(t, "steps")
			if converges := strings.HasSuffix(out, "\nconverged\n") && strings.Contains(out, fmt.Sprintf("delete vm %d", was.VMID)); converges != c.replaces {
				t.Errorf("%s of %s: a new machine leads there: %v\n%s%s", c.what, name, converges, out, Make(w.d, w.o, w.p))
			}
		}
	}
}

// TestWayOutOfTheOnlyControlPlane: it cannot be replaced, and two more come first.
func TestWayOutOfTheOnlyControlPlane(t *testing.T) {
	w := newWorld(1, 0)
	for _, line := range []string{"image stored", "steps", "agree", "node cp-1 disk=20"} {
		w.run(t, line)
	}
	if p := Make(w.d, w.o, w.p); len(p.Blocked) != 1 || !strings.Contains(p.Blocked[0].Hint, "; or add two control planes, and then give it another `replace`") {
		t.Errorf("%s", p)
	}
}
