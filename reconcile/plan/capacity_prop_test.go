package plan

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// TestNeverMoreThanThereIs makes clusters on hosts that may be too small for them, step
// by step, beside guests of others: what is made never exceeds memory and storage, and a
// new cluster is made as a whole or not at all.
func TestNeverMoreThanThereIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 3).Draw(t, "control planes"), rapid.IntRange(0, 4).Draw(t, "workers"))
		h := w.o.Hosts["pve1"]
		h.MemoryBytes = rapid.Int64Range(0, 96).Draw(t, "memory") << 30
		thin := rapid.Bool().Draw(t, "thin")
		total := rapid.Int64Range(1, 400).Draw(t, "storage") << 30
		free := total * rapid.Int64Range(0, 100).Draw(t, "free") / 100
		st := cluster.Storage{Active: true, Content: []string{"images"}, TotalBytes: total, FreeBytes: free, Thin: thin}
		promised := int64(0)
		if rapid.Bool().Draw(t, "volumes seen") {
			others := rapid.Int64Range(0, 200).Draw(t, "volumes of others") << 30
			st.Volumes = cluster.Saw(map[int]int64{900: others})
			promised = others
		}
		h.Storages.Value["local-lvm"] = st
		taken := int64(0)
		for i := range rapid.IntRange(0, 3).Draw(t, "guests") {
			g := cluster.Guest{VMID: 100 + i, MemoryBytes: rapid.Int64Range(0, 32).Draw(t, "memory of a guest") << 30, Running: rapid.Bool().Draw(t, "running"), Agent: rapid.Bool().Draw(t, "agent")}
			h.Guests = append(h.Guests, g)
			if g.Running || g.Agent {
				taken += g.MemoryBytes
			}
		}
		h.Images = cluster.Saw(map[string]int64{imageName: 1})
		w.o.Hosts["pve1"] = h
		w.p.Capacity.ThinPercent = rapid.SampledFrom([]int{0, 50, 100, 200}).Draw(t, "overcommit")
		for i := range w.d.Spec.Nodes {
			n := &w.d.Spec.Nodes[i]
			n.MemoryMiB = rapid.Int64Range(2, 64).Draw(t, "ram") << 10
			n.DiskBytes = rapid.Int64Range(10, 200).Draw(t, "disk") << 30
		}
		used := total - free // what is written is taken, whoever wrote it
		before, half := 0, rapid.Bool().Draw(t, "one is there")
		if half { // it was made before, however little room there was
			n := w.d.Spec.Nodes[0]
			w.o.VMs[n.Name] = w.vm(n)
			before, taken, promised = 1, taken+n.MemoryMiB<<20, promised+n.DiskBytes
		}
		made := 0
		for range 60 {
			for _, a := range w.step().Actions {
				create, ok := a.(action.CreateVM)
				if !ok {
					continue
				}
				made++
				n := create.Node
				taken += n.MemoryMiB << 20
				promised += n.DiskBytes
				if h.MemoryBytes > 0 && taken+w.p.Capacity.Reserve() > h.MemoryBytes {
					t.Fatalf("%s makes %d GiB of memory on a host of %d", n.Name, taken>>30, h.MemoryBytes>>30)
				}
				if limit := total / 100 * int64(w.p.Capacity.Thin()); thin && max(promised, used+n.DiskBytes) > limit {
					t.Fatalf("%s makes %d GiB of disks on a storage that may promise %d", n.Name, promised>>30, limit>>30)
				}
				if free -= n.DiskBytes; !thin && free < 0 {
					t.Fatalf("%s makes a disk of %d GiB, %d more than are free", n.Name, n.DiskBytes>>30, -free>>30)
				}
			}
		}
		if all := len(w.d.Spec.Nodes); !half && made > 0 && made+before < all {
			t.Fatalf("%d of %d nodes of a new cluster are made", made, all)
		}
	})
}
