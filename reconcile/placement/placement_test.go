package placement

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/cluster/usage"
)

// hostOf is a host that is seen, with so much memory beyond the reserve.
func hostOf(name string, gib int64) cluster.Host {
	st := cluster.Storage{Active: true, Content: []string{"images", "import"}, TotalBytes: 1 << 40, FreeBytes: 1 << 40, Volumes: cluster.Saw(map[int]int64{})}
	return cluster.Host{Known: true, Name: name, Cores: 64, MemoryBytes: gib<<30 + cluster.Capacity{}.Reserve(), Quorate: cluster.Saw(true),
		Storages: cluster.Saw(map[string]cluster.Storage{"local": st})}
}

// clusterOf is a cluster of cp-1.. and wk-1.., spread over hosts, of which nothing is made; VMs of 4 cores and 8 GiB.
func clusterOf(planes, workers int, hosts ...cluster.Host) (cluster.Desired, cluster.Observed) {
	o := cluster.Observed{Hosts: map[string]cluster.Host{}, VMs: map[string]cluster.VM{}}
	var among []string
	for _, h := range hosts {
		o.Hosts[h.Name] = h
		among = append(among, h.Name)
	}
	var d cluster.Desired
	for i := range planes + workers {
		n := cluster.Node{Name: fmt.Sprintf("cp-%d", i+1), Role: cluster.ControlPlane, VMID: 400 + i, Cores: 4, MemoryMiB: 8 << 10, DiskBytes: 10 << 30,
			Datastore: "local", ImageDatastore: "local", CloudInitDatastore: "local", Placement: cluster.Placement{Among: among}}
		if i >= planes {
			n.Name, n.Role = fmt.Sprintf("wk-%d", i-planes+1), cluster.Worker
		}
		d.Spec.Nodes = append(d.Spec.Nodes, n)
		o.VMs[n.Name] = cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Absent}
	}
	return d, o
}

// placed is where each node is, for comparing.
func placed(d cluster.Desired) string {
	var out []string
	for _, n := range d.Spec.Nodes {
		out = append(out, n.Name+"="+n.Placement.Pin)
	}
	return strings.Join(out, " ")
}

// under is a host on which work waits: for a core, for I/O and for memory, in percent of the time.
func under(h cluster.Host, cpu, io, memory float64) cluster.Host {
	h.Pressure = &usage.Pressure{CPU: cpu, IO: io, Memory: memory}
	return h
}

// edit changes a host of what is seen.
func edit(o *cluster.Observed, name string, f func(*cluster.Host)) {
	h := o.Hosts[name]
	f(&h)
	o.Hosts[name] = h
}

// put has the VM of a node on a host.
func put(o *cluster.Observed, name, host string) {
	vm := o.VMs[name]
	vm.Presence, vm.Owner, vm.Host = cluster.Present, cluster.Ours, host
	o.VMs[name] = vm
	edit(o, host, func(h *cluster.Host) {
		h.Guests = append(slices.Clone(h.Guests), cluster.Guest{VMID: vm.VMID, MemoryBytes: 8 << 30, Running: true, Agent: true})
	})
}

// TestResolve: where VMs are to be made.
func TestResolve(t *testing.T) {
	a, b, c := hostOf("a", 64), hostOf("b", 64), hostOf("c", 64)
	for what, tt := range map[string]struct {
		planes, workers int
		hosts           []cluster.Host
		change          func(*cluster.Desired, *cluster.Observed)
		want            string
	}{
		"one after the other": {3, 4, []cluster.Host{a, b, c}, nil, "cp-1=a cp-2=b cp-3=c wk-1=a wk-2=b wk-3=c wk-4=a"},
		"each host its first worker, although one has more room": {0, 4, []cluster.Host{hostOf("a", 640), b, c}, nil,
			"wk-1=a wk-2=b wk-3=c wk-4=a"},
		"the most memory first": {0, 3, []cluster.Host{a, hostOf("b", 128), hostOf("c", 256)}, nil, "wk-1=c wk-2=b wk-3=a"},
		"workers go where no control plane is, where that is all the same": {1, 1, []cluster.Host{hostOf("a", 640), b}, nil, "cp-1=a wk-1=b"},
		"a host that is full": {0, 4, []cluster.Host{hostOf("a", 8), b, c}, nil, "wk-1=b wk-2=c wk-3=a wk-4=b"},
		"two control planes on one host where another has no room": {3, 0, []cluster.Host{a, b, hostOf("c", 7)}, nil,
			"cp-1=a cp-2=b cp-3=a"},
		"a third control plane waits for a host that is not seen": {3, 0, []cluster.Host{a, b, c}, func(_ *cluster.Desired, o *cluster.Observed) {
			edit(o, "c", func(h *cluster.Host) { h.Known, h.Why = false, "it is offline" })
		}, "cp-1=a cp-2=b cp-3=c"},
		"and a worker does not": {0, 3, []cluster.Host{a, b, c}, func(_ *cluster.Desired, o *cluster.Observed) {
			edit(o, "c", func(h *cluster.Host) { h.Quorate = cluster.Saw(false) })
		}, "wk-1=a wk-2=b wk-3=a"},
		"unless no other has room": {0, 3, []cluster.Host{hostOf("a", 8), hostOf("b", 8), c}, func(_ *cluster.Desired, o *cluster.Observed) {
			edit(o, "c", func(h *cluster.Host) { h.Known = false })
		}, "wk-1=a wk-2=b wk-3=c"},
		"a host without the storage": {1, 2, []cluster.Host{a, b}, func(_ *cluster.Desired, o *cluster.Observed) {
			edit(o, "a", func(h *cluster.Host) { h.Storages = cluster.Saw(map[string]cluster.Storage{}) })
		}, "cp-1=b wk-1=b wk-2=b"},
		"a host whose storages are not seen": {0, 1, []cluster.Host{a, b}, func(_ *cluster.Desired, o *cluster.Observed) {
			edit(o, "a", func(h *cluster.Host) { h.Storages = cluster.Unseen[map[string]cluster.Storage]("timeout") })
		}, "wk-1=b"},
		"what is there stays where it is": {3, 1, []cluster.Host{a, b, c}, func(_ *cluster.Desired, o *cluster.Observed) {
			put(o, "cp-1", "c")
			put(o, "cp-2", "c")
		}, "cp-1=c cp-2=c cp-3=a wk-1=b"},
		"one that somebody migrated to a host of no inventory": {1, 0, []cluster.Host{a, b}, func(_ *cluster.Desired, o *cluster.Observed) {
			put(o, "cp-1", "z")
		}, "cp-1=z"},
		"a VM that was deleted is placed anew": {2, 0, []cluster.Host{a, b}, func(_ *cluster.Desired, o *cluster.Observed) {
			put(o, "cp-1", "b")
			o.VMs["cp-2"] = cluster.VM{VMID: 401, Node: "cp-2", Presence: cluster.Absent, Host: "b"}
		}, "cp-1=b cp-2=a"},
		"one that is being made has its host": {2, 0, []cluster.Host{a, b}, func(d *cluster.Desired, o *cluster.Observed) {
			o.Running = []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.CreateVM, Subject: "cp-1"}, Claims: []cluster.Claim{cluster.ClaimStorage("b", "local")}}}
		}, "cp-1=b cp-2=a"},
		"nodes that name their host count": {3, 2, []cluster.Host{a, b}, func(d *cluster.Desired, _ *cluster.Observed) {
			d.Spec.Nodes[0].Placement = cluster.Placement{Pin: "b"}
			d.Spec.Nodes[4].Placement = cluster.Placement{Pin: "a"}
		}, "cp-1=b cp-2=a cp-3=b wk-1=b wk-2=a"},
		"the room of a node that names its host is not for others": {0, 2, []cluster.Host{hostOf("a", 15), hostOf("b", 8)}, func(d *cluster.Desired, _ *cluster.Observed) {
			d.Spec.Nodes[1].Placement = cluster.Placement{Pin: "b"}
		}, "wk-1=a wk-2=b"},
		"a host under pressure after one that is not, whatever its memory": {0, 1, []cluster.Host{under(hostOf("a", 640), 0, 10, 0), b}, nil, "wk-1=b"},
		"waits for a core and for memory": {0, 2, []cluster.Host{under(hostOf("a", 640), 25, 0, 0), under(hostOf("b", 320), 0, 0, 5), c, hostOf("d", 64)}, nil,
			"wk-1=c wk-2=d"},
		"pressure below what is noticeable": {0, 3, []cluster.Host{under(hostOf("a", 640), 24.9, 9.9, 4.9), under(hostOf("b", 320), 0, 0, 0), c}, nil,
			"wk-1=a wk-2=b wk-3=c"},
		"hosts under much and little pressure are one as good as the other": {0, 1, []cluster.Host{under(a, 0, 11, 0), under(hostOf("b", 128), 80, 90, 70)}, nil,
			"wk-1=b"},
		"pressure does not take the spread of workers away": {0, 4, []cluster.Host{under(a, 0, 99, 0), b}, nil, "wk-1=b wk-2=a wk-3=b wk-4=a"},
		"nor of control planes":                             {2, 1, []cluster.Host{under(a, 0, 99, 0), b}, nil, "cp-1=b cp-2=a wk-1=b"},
		"nor does it make a worker share a host with a control plane": {1, 1, []cluster.Host{hostOf("a", 640), under(b, 0, 99, 0)}, func(_ *cluster.Desired, o *cluster.Observed) {
			put(o, "cp-1", "a")
		}, "cp-1=a wk-1=b"},
		"room is needed more": {0, 1, []cluster.Host{hostOf("a", 7), under(b, 0, 99, 0)}, nil, "wk-1=b"},
		"cores that the inventory gives": {0, 3, []cluster.Host{a, b}, func(d *cluster.Desired, _ *cluster.Observed) {
			d.Spec.Capacity = map[string]cluster.HostCapacity{"a": {Cores: 4}}
		}, "wk-1=a wk-2=b wk-3=b"},
	} {
		t.Run(what, func(t *testing.T) {
			d, o := clusterOf(tt.planes, tt.workers, tt.hosts...)
			if tt.change != nil {
				tt.change(&d, &o)
			}
			if got := placed(Resolve(d, o, cluster.Policy{})); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestWhy: a choice has its numbers, and what is there has none.
func TestWhy(t *testing.T) {
	d, o := clusterOf(2, 1, hostOf("a", 64), hostOf("b", 4))
	put(&o, "cp-1", "a")
	edit(&o, "b", func(h *cluster.Host) { h.MemoryBytes = 0 })
	d = Resolve(d, o, cluster.Policy{})
	if d.Spec.Nodes[0].Placement.Why != "" {
		t.Errorf("what is there: %+v", d.Spec.Nodes[0].Placement)
	}
	if got := d.Spec.Nodes[1].Placement; got.Why != "it has 0 of 2 control planes" || got.Pin != "b" || got.Full {
		t.Errorf("unknown memory: %+v", got)
	}
	if got := d.Spec.Nodes[2].Placement; got.Why != "it has 0 of 1 workers" || got.Pin != "b" {
		t.Errorf("a worker: %+v", got)
	}
	d, o = clusterOf(0, 2, hostOf("a", 20), hostOf("b", 4))
	d = Resolve(d, o, cluster.Policy{})
	if got := d.Spec.Nodes[1].Placement; got.Why != "it has 1 of 2 workers and 12 GiB of memory left" || got.Full {
		t.Errorf("%+v", got)
	}
	d, o = clusterOf(0, 1, hostOf("a", 20), under(hostOf("b", 64), 31.4, 12.4, 0), under(hostOf("c", 64), 0, 3, 5))
	if got := Resolve(d, o, cluster.Policy{}).Spec.Nodes[0].Placement.Why; got != "it has 0 of 1 workers and 20 GiB of memory left"+
		"; work on b waits for I/O 12 % and for a core 31 % of the time; work on c waits for memory 5 % of the time" {
		t.Error(got)
	}
	d, o = clusterOf(0, 2, under(hostOf("a", 20), 0, 50, 0), hostOf("b", 64))
	if got := Resolve(d, o, cluster.Policy{}).Spec.Nodes[1].Placement.Why; got != "it has 0 of 2 workers and 20 GiB of memory left; work on a waits for I/O 50 % of the time" {
		t.Errorf("one that is under pressure itself: %s", got)
	}
	d, o = clusterOf(0, 1, hostOf("a", 3), hostOf("b", 4))
	if got := Resolve(d, o, cluster.Policy{}).Spec.Nodes[0].Placement; !got.Full || got.Pin != "b" {
		t.Errorf("no room: %+v", got)
	}
}

// drawn is a cluster on hosts of any size, some of them not seen, part of which is made.
func drawn(t *rapid.T) (cluster.Desired, cluster.Observed) {
	var hosts []cluster.Host
	for i := range rapid.IntRange(1, 5).Draw(t, "hosts") {
		h := hostOf(fmt.Sprintf("h%d", i), int64(rapid.IntRange(0, 80).Draw(t, "GiB")))
		h.Known = rapid.IntRange(0, 5).Draw(t, "seen") > 0
		if rapid.Bool().Draw(t, "pressure is known") {
			share := rapid.Float64Range(0, 100)
			h = under(h, share.Draw(t, "CPU"), share.Draw(t, "I/O"), share.Draw(t, "memory"))
		}
		hosts = append(hosts, h)
	}
	d, o := clusterOf(rapid.IntRange(0, 5).Draw(t, "planes"), rapid.IntRange(0, 8).Draw(t, "workers"), hosts...)
	for i := range d.Spec.Nodes {
		n := &d.Spec.Nodes[i]
		host := hosts[rapid.IntRange(0, len(hosts)-1).Draw(t, "host")].Name
		switch rapid.IntRange(0, 3).Draw(t, "state") {
		case 0:
			put(&o, n.Name, host)
		case 1:
			n.Placement = cluster.Placement{Pin: host}
		}
	}
	return d, o
}

// TestPlacementRules: of any cluster every node has a host, what is there stays, nothing that is asked for is changed, and no
// control plane is put beside another one while a host that can have it has none.
func TestPlacementRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, o := drawn(t)
		before := placed(d)
		got := Resolve(d, o, cluster.Policy{})
		if placed(d) != before {
			t.Fatal("what it was given has changed")
		}
		if again := Resolve(got, o, cluster.Policy{}); !reflect.DeepEqual(placed(again), placed(got)) {
			t.Fatalf("placed again: %s\nbefore: %s", placed(again), placed(got))
		}
		planes := map[string]int{}
		for _, n := range got.Spec.Nodes {
			if n.Role == cluster.ControlPlane {
				planes[n.Placement.Pin]++
			}
		}
		for i, n := range got.Spec.Nodes {
			asked, vm := d.Spec.Nodes[i].Placement, o.VMs[n.Name]
			switch {
			case n.Placement.Pin == "":
				t.Fatalf("%s has no host", n.Name)
			case len(asked.Among) == 0 && n.Placement.Pin != asked.Pin:
				t.Fatalf("%s is on %s, and names %s", n.Name, n.Placement.Pin, asked.Pin)
			case len(asked.Among) > 0 && vm.Presence == cluster.Present && n.Placement.Pin != vm.Host:
				t.Fatalf("%s is on %s, and would be on %s", n.Name, vm.Host, n.Placement.Pin)
			case len(asked.Among) > 0 && !slices.Contains(asked.Among, n.Placement.Pin) && vm.Presence != cluster.Present:
				t.Fatalf("%s is to be on %s, which it is not left", n.Name, n.Placement.Pin)
			}
		}
		checkShared(t, d, o, got, planes)
	})
}

// TestPressureComesAfterRoomAndSpread: of any cluster one VM that is missing is made where it would be without any pressure, or on
// another host that has room as that has, as many nodes of its role and control planes, and, as that has not, no noticeable pressure.
func TestPressureComesAfterRoomAndSpread(t *testing.T) {
	calm := func(o cluster.Observed) cluster.Observed {
		o.Hosts = maps.Clone(o.Hosts)
		for name := range o.Hosts {
			edit(&o, name, func(h *cluster.Host) { h.Pressure = nil })
		}
		return o
	}
	rapid.Check(t, func(t *rapid.T) {
		d, o := drawn(t)
		missing := -1
		for i, n := range d.Spec.Nodes {
			switch {
			case len(n.Placement.Among) == 0 || o.VMs[n.Name].Presence == cluster.Present:
			case missing < 0:
				missing = i
			default:
				put(&o, n.Name, rapid.SampledFrom(n.Placement.Among).Draw(t, "on"))
			}
		}
		if missing < 0 {
			return
		}
		name := d.Spec.Nodes[missing].Name
		before, got := Resolve(d, calm(o), cluster.Policy{}), Resolve(d, o, cluster.Policy{})
		was, is := before.Spec.Nodes[missing].Placement, got.Spec.Nodes[missing].Placement
		if was.Pin == is.Pin {
			return
		}
		on := func(host string) (same, planes int) {
			for i, n := range got.Spec.Nodes {
				if i == missing || n.Placement.Pin != host {
					continue
				}
				if n.Role == got.Spec.Nodes[missing].Role {
					same++
				}
				if n.Role == cluster.ControlPlane {
					planes++
				}
			}
			return same, planes
		}
		wasSame, wasPlanes := on(was.Pin)
		isSame, isPlanes := on(is.Pin)
		if was.Full != is.Full || o.Hosts[was.Pin].Known != o.Hosts[is.Pin].Known || wasSame != isSame || wasPlanes != isPlanes {
			t.Fatalf("%s is to be on %s, and without pressure on %s: %d and %d of its role, %d and %d control planes: %s", name, is.Pin, was.Pin, isSame, wasSame, isPlanes, wasPlanes, placed(got))
		}
		if describeWaits(o.Hosts[was.Pin].Pressure) == "" || describeWaits(o.Hosts[is.Pin].Pressure) != "" {
			t.Fatalf("%s is to be on %s with %+v, and not on %s with %+v", name, is.Pin, o.Hosts[is.Pin].Pressure, was.Pin, o.Hosts[was.Pin].Pressure)
		}
	})
}

// checkShared: a control plane that was placed beside another one finds room on no host without one.
func checkShared(t *rapid.T, d cluster.Desired, o cluster.Observed, got cluster.Desired, planes map[string]int) {
	for i, n := range got.Spec.Nodes {
		open := len(d.Spec.Nodes[i].Placement.Among) > 0 && o.VMs[n.Name].Presence == cluster.Absent
		if !open || n.Role != cluster.ControlPlane || planes[n.Placement.Pin] < 2 {
			continue
		}
		for _, host := range n.Placement.Among {
			h := o.Hosts[host]
			used := int64(0)
			for _, other := range got.Spec.Nodes {
				if other.Placement.Pin == host && (other.Role == cluster.ControlPlane || o.VMs[other.Name].Presence == cluster.Present || len(other.Placement.Among) == 0) {
					used += 8 << 30
				}
			}
			if planes[host] == 0 && (!h.Known || used+8<<30 <= h.MemoryBytes-cluster.Capacity{}.Reserve()) {
				t.Fatalf("%s shares %s, and %s has no control plane (%d of %d bytes used): %s", n.Name, n.Placement.Pin, host, used, h.MemoryBytes, placed(got))
			}
		}
	}
}

// TestPlacementLasts: made one after the other, in any order, nodes come where they were to be when nothing was made, or
// at least as many hosts have control planes.
func TestPlacementLasts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var hosts []cluster.Host
		for i := range rapid.IntRange(1, 5).Draw(t, "hosts") {
			hosts = append(hosts, hostOf(fmt.Sprintf("h%d", i), 400))
		}
		d, o := clusterOf(rapid.IntRange(1, 5).Draw(t, "planes"), rapid.IntRange(0, 8).Draw(t, "workers"), hosts...)
		count := func(role cluster.Role) (most int, used map[string]int) {
			used = map[string]int{}
			for _, n := range d.Spec.Nodes {
				if vm := o.VMs[n.Name]; n.Role == role && vm.Presence == cluster.Present {
					used[vm.Host]++
				}
			}
			return slices.Max(append(slices.Collect(maps.Values(used)), 0)), used
		}
		var names []string
		for _, n := range d.Spec.Nodes {
			names = append(names, n.Name)
		}
		for _, name := range rapid.Permutation(names).Draw(t, "order") {
			now := Resolve(d, o, cluster.Policy{})
			n, _ := now.Spec.Node(name)
			put(&o, name, n.Placement.Pin)
		}
		for _, role := range []cluster.Role{cluster.ControlPlane, cluster.Worker} {
			total := 0
			for _, n := range d.Spec.Nodes {
				if n.Role == role {
					total++
				}
			}
			if most, used := count(role); most > (total+len(hosts)-1)/len(hosts) {
				t.Fatalf("%ss are not spread: %v", role, used)
			}
		}
	})
}

// TestDevices: nodes with a device of a mapping are made on hosts that have one, one on each.
func TestDevices(t *testing.T) {
	d, o := clusterOf(0, 4, hostOf("a", 64), hostOf("b", 128), hostOf("c", 64))
	for _, name := range []string{"a", "c"} {
		edit(&o, name, func(h *cluster.Host) {
			h.Offers = map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"gpu"})}
		})
	}
	edit(&o, "b", func(h *cluster.Host) {
		h.Offers = map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string(nil))}
	})
	for i := range 2 {
		d.Spec.Nodes[i].Options = map[cluster.VMField]string{"PCI device hostpci0": "mapping=gpu,pcie=1"}
	}
	if got := placed(Resolve(d, o, cluster.Policy{})); got != "wk-1=a wk-2=c wk-3=b wk-4=b" {
		t.Error(got)
	}
	d.Spec.Nodes[2].Options = d.Spec.Nodes[0].Options
	if third := Resolve(d, o, cluster.Policy{}).Spec.Nodes[2]; !third.Placement.Full {
		t.Errorf("%+v", third.Placement)
	}
}
