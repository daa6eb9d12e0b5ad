package scaffold

import "fmt"

// Size is what the nodes of a role get.
type Size struct {
	Cores     int
	MemoryMiB int64
	DiskGiB   int64
}

// pair is so much for a control plane and so much for a worker.
type pair struct{ control, worker int64 }

// What nodes get, from the usual down to the least that Talos runs on.
var (
	memories = []pair{{4096, 8192}, {4096, 6144}, {4096, 4096}, {3072, 3072}, {2048, 2048}, {2048, 1024}} // MiB
	disks    = []pair{{40, 60}, {40, 40}, {30, 30}, {20, 20}, {10, 10}}                                   // GiB
)

const usualCores = 4

// Sizes are what control planes and workers get: the usual, or less where the host is
// known and has not room for that. fits is false if it has not room for the least.
func (w Wishes) Sizes() (control, worker Size, fits bool) {
	o := w.offered()
	cores := usualCores
	if o.Cores > 0 {
		cores = min(cores, o.Cores)
	}
	memory, enough := w.largest(memories, o.MemoryMiB)
	disk, room := w.largest(disks, o.DiskGiB[w.Datastore])
	return Size{cores, memory.control, disk.control}, Size{cores, memory.worker, disk.worker}, enough && room
}

// offered is what is known of the host of the cluster.
func (w Wishes) offered() Offer {
	if w.Offer.Host != w.Host {
		return Offer{}
	}
	return w.Offer
}

// largest is the largest of some pairs of which all nodes together fit into what there
// is; 0 is not known.
func (w Wishes) largest(pairs []pair, there int64) (p pair, fits bool) {
	for _, p = range pairs {
		if there == 0 || w.together(p) <= there {
			return p, true
		}
	}
	return p, false
}

func (w Wishes) together(p pair) int64 {
	return int64(w.ControlPlanes)*p.control + int64(w.Workers)*p.worker
}

// checkRoom checks that the host has room for as many nodes, however small.
func (w Wishes) checkRoom() []*Wrong {
	if _, _, fits := w.Sizes(); fits {
		return nil
	}
	o, flag := w.offered(), "workers"
	if w.Workers == 0 {
		flag = "control-planes"
	}
	memory, disk := w.together(memories[len(memories)-1]), w.together(disks[len(disks)-1])
	return []*Wrong{{flag, fmt.Sprintf("%d nodes need %d MiB of memory and %d GiB on %s at least, and %s has %d MiB and %d GiB for VMs",
		w.ControlPlanes+w.Workers, memory, disk, w.Datastore, w.Host, o.MemoryMiB, o.DiskGiB[w.Datastore]), "ask for fewer nodes, or make room"}}
}
