package capacity

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// host is a host of 32 GiB and 8 cores with one storage of 100 GiB, half of which is free.
func host(name string, thin, shared bool, volumes map[int]int64) cluster.Host {
	st := cluster.Storage{Active: true, TotalBytes: 100 << 30, FreeBytes: 50 << 30, Thin: thin, Shared: shared, Volumes: cluster.Saw(volumes)}
	return cluster.Host{Known: true, Name: name, Cores: 8, MemoryBytes: 32 << 30, Storages: cluster.Saw(map[string]cluster.Storage{"store": st})}
}

func node(name string, vmid int, memoryGiB, diskGiB int64) cluster.Node {
	return cluster.Node{Name: name, VMID: vmid, Cores: 4, MemoryMiB: memoryGiB << 10, DiskBytes: diskGiB << 30, Datastore: "store", CloudInitDatastore: "store"}
}

func never(cluster.Node) bool { return false }

// TestLedger: how large a second VM may be after a first one was given room.
func TestLedger(t *testing.T) {
	for _, c := range []struct {
		what       string
		thin       bool
		overcommit int // percent
		guests     []cluster.Guest
		volumes    map[int]int64
		memory     int64 // GiB of the second VM
		disk       int64 // GiB of the second VM
		want       cluster.Reason
	}{
		{what: "both fit", memory: 8, disk: 20},
		{what: "the disk takes all that is free", memory: 8, disk: 30},
		{what: "the disk takes more than is free", memory: 8, disk: 31, want: cluster.StorageShort},
		{what: "a thin storage may promise what it has", thin: true, memory: 8, disk: 30},
		{what: "a thin storage counts what others have written", thin: true, memory: 8, disk: 31, want: cluster.StorageShort},
		{what: "a thin storage counts what others were promised", thin: true, volumes: map[int]int64{900: 70 << 30}, memory: 8, disk: 11, want: cluster.StorageShort},
		{what: "a thin storage may promise more than it has", thin: true, overcommit: 150, memory: 8, disk: 80},
		{what: "a guest that runs takes memory", guests: []cluster.Guest{{VMID: 900, MemoryBytes: 16 << 30, Running: true}}, memory: 8, disk: 1, want: cluster.HostMemoryShort},
		{what: "a guest of somebody else that is stopped takes none", guests: []cluster.Guest{{VMID: 900, MemoryBytes: 16 << 30}}, memory: 8, disk: 1},
		{what: "a guest of the agent may run any time", guests: []cluster.Guest{{VMID: 900, MemoryBytes: 16 << 30, Agent: true}}, memory: 8, disk: 1, want: cluster.HostMemoryShort},
		{what: "a VM of the cluster that is listed although it was deleted takes none", guests: []cluster.Guest{{VMID: 501, MemoryBytes: 16 << 30, Running: true}}, memory: 8, disk: 1},
	} {
		h := host("pve1", c.thin, false, c.volumes)
		h.Guests = c.guests
		first, second := node("wk-1", 501, 8, 20), node("wk-2", 502, c.memory, c.disk)
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{first, second}}}}
		p := cluster.Policy{Capacity: cluster.Capacity{ThinPercent: c.overcommit}}
		l := NewLedger(d, cluster.Observed{Hosts: map[string]cluster.Host{"pve1": h}}, p, never, never)
		if lacks := l.TakeVM(first, "pve1"); len(lacks) > 0 {
			t.Errorf("%s: %v", c.what, lacks)
		}
		var got cluster.Reason
		if lacks := l.TakeVM(second, "pve1"); len(lacks) > 0 {
			got = lacks[0].Reason
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestSharedStorage: a storage that hosts share has its room once, and one that each has for
// itself has it on each.
func TestSharedStorage(t *testing.T) {
	for _, shared := range []bool{true, false} {
		o := cluster.Observed{Hosts: map[string]cluster.Host{"pve1": host("pve1", false, shared, nil), "pve2": host("pve2", false, shared, nil)}}
		l := NewLedger(cluster.Desired{}, o, cluster.Policy{}, never, never)
		if lacks := l.TakeVM(node("wk-1", 501, 1, 40), "pve1"); len(lacks) > 0 {
			t.Fatal(lacks)
		}
		if lacks := l.TakeVM(node("wk-2", 502, 1, 40), "pve2"); len(lacks) > 0 != shared {
			t.Errorf("shared: %v: %v", shared, lacks)
		}
	}
}

// TestGrowth: a VM that becomes larger is given what it needs more, once.
func TestGrowth(t *testing.T) {
	n := node("wk-1", 501, 8, 20)
	n.Cores = 9
	o := cluster.Observed{Hosts: map[string]cluster.Host{"pve1": host("pve1", false, false, nil)}}
	l := NewLedger(cluster.Desired{}, o, cluster.Policy{}, never, never)
	if b := l.LackCores(n, "pve1"); b.Reason != cluster.HostTooSmall {
		t.Errorf("9 cores of 8: %+v", b)
	}
	for i, want := range []cluster.Reason{"", cluster.HostMemoryShort} {
		if b := l.TakeMemory(n, "pve1", 16<<30); b.Reason != want {
			t.Errorf("16 GiB more, time %d: %+v", i+1, b)
		}
	}
	for i, want := range []cluster.Reason{"", cluster.StorageShort} {
		if b := l.TakeDisk(n, "pve1", "store", 30<<30); b.Reason != want {
			t.Errorf("30 GiB more, time %d: %+v", i+1, b)
		}
	}
}

// TestSuccessorOfOne: what another node was promised is not free for a successor.
func TestSuccessorOfOne(t *testing.T) {
	h := host("pve1", false, false, map[int]int64{501: 20 << 30})
	h.Guests = []cluster.Guest{{VMID: 501, MemoryBytes: 8 << 30, Running: true}}
	old, added := node("wk-1", 501, 8, 20), node("wk-2", 502, 16, 40)
	added.Placement.Pin = "pve1"
	for _, c := range []struct {
		memory, disk int64
		want         cluster.Reason
	}{
		{14, 30, ""},
		{15, 30, cluster.HostMemoryShort},
		{14, 31, cluster.StorageShort},
	} {
		next := node("wk-1", 501, c.memory, c.disk)
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{next, added}}}}
		o := cluster.Observed{Hosts: map[string]cluster.Host{"pve1": h}}
		l := NewLedger(d, o, cluster.Policy{}, func(n cluster.Node) bool { return n.Name == "wk-1" }, never)
		if lacks := l.TakeVM(added, "pve1"); len(lacks) > 0 {
			t.Fatal(lacks)
		}
		var got cluster.Reason
		if lacks := l.LackSuccessor(next, "pve1", cluster.VM{VMID: old.VMID, Node: old.Name}); len(lacks) > 0 {
			got = lacks[0].Reason
		}
		if got != c.want {
			t.Errorf("%d GiB and a disk of %d GiB: %q, want %q", c.memory, c.disk, got, c.want)
		}
	}
}

// TestSuccessor: what a VM takes is free for the one that is made in its place, and nothing else is.
func TestSuccessor(t *testing.T) {
	for _, c := range []struct {
		what         string
		thin         bool
		memory, disk int64 // GiB of the successor
		want         cluster.Reason
	}{
		{what: "as large", memory: 16, disk: 40},
		{what: "all that is left", memory: 22, disk: 90},
		{what: "more memory than is left", memory: 23, disk: 40, want: cluster.HostMemoryShort},
		{what: "a disk larger than what is left", memory: 16, disk: 91, want: cluster.StorageShort},
		{what: "a thin disk that fits", thin: true, memory: 16, disk: 90},
		{what: "a thin disk larger than what may be promised", thin: true, memory: 16, disk: 91, want: cluster.StorageShort},
	} {
		h := host("pve1", c.thin, false, map[int]int64{501: 40 << 30, 502: 10 << 30})
		h.Guests = []cluster.Guest{{VMID: 501, MemoryBytes: 16 << 30, Running: true}, {VMID: 502, MemoryBytes: 8 << 30, Running: true}}
		old, other := node("wk-1", 501, 16, 40), node("wk-2", 502, 8, 10)
		next := node("wk-1", 501, c.memory, c.disk)
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{next, other}}}}
		o := cluster.Observed{Hosts: map[string]cluster.Host{"pve1": h}}
		l := NewLedger(d, o, cluster.Policy{}, func(cluster.Node) bool { return true }, never)
		var got cluster.Reason
		if lacks := l.LackSuccessor(next, "pve1", cluster.VM{VMID: old.VMID, Node: old.Name}); len(lacks) > 0 {
			got = lacks[0].Reason
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
		if r := l.memoryLeft("pve1"); r.promised != 24<<30 || len(h.Storages.Value["store"].Volumes.Value) != 2 {
			t.Errorf("%s: what is seen was changed: %s", c.what, r)
		}
	}
}
