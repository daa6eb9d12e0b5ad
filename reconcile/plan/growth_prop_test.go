package plan

import (
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// TestNothingGrowsPastWhatThereIs lets disks of clusters that run grow, and adds nodes, on
// storages that may be too small for it: what is given never exceeds the storage, no node is
// drained in vain, and in the end none is out of service.
func TestNothingGrowsPastWhatThereIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 3).Draw(t, "control planes"), rapid.IntRange(1, 3).Draw(t, "workers"))
		h := w.o.Hosts["pve1"]
		h.Images = cluster.Saw(map[string]int64{imageName: 1})
		w.o.Hosts["pve1"] = h
		for idle := 0; idle < 6; idle++ { // it is made
			if len(w.step().Actions) > 0 {
				idle = 0
			}
		}
		w.o.MembersAgree, w.o.MembersAsked = cluster.Saw(true), namesOf(w.o.Members.Value)
		thin := rapid.Bool().Draw(t, "thin")
		total := rapid.Int64Range(1, 800).Draw(t, "storage") << 30
		st := cluster.Storage{Active: true, Content: []string{"images"}, TotalBytes: total, FreeBytes: total * rapid.Int64Range(0, 100).Draw(t, "free") / 100, Thin: thin}
		st.Volumes = cluster.Saw(map[int]int64{})
		promised := int64(0)
		for i := range w.d.Spec.Nodes {
			n := &w.d.Spec.Nodes[i]
			st.Volumes.Value[n.VMID] = n.DiskBytes
			promised += n.DiskBytes
			n.DiskBytes += rapid.Int64Range(0, 3).Draw(t, "growth") * 30 << 30
			if rapid.Bool().Draw(t, "a disk more") {
				n.Disks = []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "local-lvm", Bytes: 20 << 30}}
			}
		}
		w.o = effect.Clone(w.o)
		h = w.o.Hosts["pve1"]
		h.Storages.Value["local-lvm"] = st
		w.o.Hosts["pve1"] = h
		used := total - st.FreeBytes // what is written is taken, whoever wrote it
		free, drained := st.FreeBytes, ""
		for idle := 0; idle < 6; idle++ { // it settles meanwhile
			for _, a := range w.step().Actions {
				idle = 0
				switch a := a.(type) {
				case action.DrainNode:
					drained = a.Node.Name
				case action.ChangeVM:
					more := int64(0)
					for _, dr := range a.Drifts {
						if dr.Field == string(cluster.FieldSystemSize) {
							more += a.Node.DiskBytes - 40<<30
						}
						if dr.Field == string(cluster.FieldDisk("talos-data")) {
							more += 20 << 30
						}
					}
					if a.Node.Name == drained && more > 0 {
						drained = ""
					}
					promised, free = promised+more, free-more
					if more > 0 && thin && max(promised, used+more) > total || !thin && free < 0 {
						t.Fatalf("%s gets %d GiB more than there are", a.Node.Name, more>>30)
					}
				}
			}
		}
		if drained != "" {
			t.Fatalf("%s was drained, and did not grow", drained)
		}
		for name, kn := range w.o.Nodes.Value {
			if kn.Cordoned || kn.Turn != "" {
				t.Fatalf("%s is left out of service", name)
			}
		}
	})
}

// TestDrainedNodeKeepsItsRoom: what a node was drained for is not given to one that stands before
// it in the inventory, and for which there was no room when it was drained.
func TestDrainedNodeKeepsItsRoom(t *testing.T) {
	w := newWorld(2, 1)
	h := w.o.Hosts["pve1"]
	h.Images = cluster.Saw(map[string]int64{imageName: 1})
	w.o.Hosts["pve1"] = h
	for idle := 0; idle < 6; idle++ { // it is made
		if len(w.step().Actions) > 0 {
			idle = 0
		}
	}
	w.o.MembersAgree, w.o.MembersAsked = cluster.Saw(true), namesOf(w.o.Members.Value)
	st := cluster.Storage{Active: true, Content: []string{"images"}, TotalBytes: 500 << 30, FreeBytes: 80 << 30, Thin: true, Volumes: cluster.Saw(map[int]int64{})}
	for i, more := range []int64{0, 60, 30} { // of cp-1, cp-2, wk-1
		n := &w.d.Spec.Nodes[i]
		st.Volumes.Value[n.VMID] = n.DiskBytes
		n.DiskBytes += more << 30
		if n.Role == cluster.ControlPlane {
			n.Disks = []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "local-lvm", Bytes: 20 << 30}}
		}
	}
	w.o = effect.Clone(w.o)
	h = w.o.Hosts["pve1"]
	h.Storages.Value["local-lvm"] = st
	w.o.Hosts["pve1"] = h
	var did []string
	for range 20 {
		for _, a := range w.step().Actions {
			if i := a.Info(); i.Subject == "wk-1" {
				did = append(did, string(i.Kind))
			}
		}
	}
	if got := strings.Join(did, ", "); got != "drain node, shut down vm, change vm, start vm, uncordon node" {
		t.Errorf("wk-1: %s", got)
	}
}
