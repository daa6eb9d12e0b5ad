package inventory

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/inventory/subnets"
)

// drawn is a random valid cluster: lines of nodes.yaml by role.
type drawn struct{ planes, workers []string }

func drawNodes(t *rapid.T) drawn {
	hosts := rapid.SliceOfNDistinct(rapid.IntRange(2, 98), 1, 30, rapid.ID[int]).Draw(t, "hosts")
	planes := min(len(hosts), rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "planes"))
	var d drawn
	for i, h := range hosts {
		line := fmt.Sprintf("  - {name: n%d, ip: 10.10.0.%d, ram: %d}\n", h, h, rapid.IntRange(2048, 65536).Draw(t, "ram"))
		if i < planes {
			d.planes = append(d.planes, line)
		} else {
			d.workers = append(d.workers, line)
		}
	}
	return d
}

func (d drawn) load(t interface{ Fatalf(string, ...any) }) cluster.Spec {
	fsys := fstest.MapFS{
		"d/cluster.yaml": {Data: []byte(smallCluster)},
		"d/nodes.yaml":   {Data: []byte("controlplane:\n" + strings.Join(d.planes, "") + "workers:\n" + strings.Join(d.workers, ""))},
	}
	snap, problems := Load(fsys, "d", Options{})
	if problems.HasErrors() {
		t.Fatalf("%v", problems)
	}
	return snap.Spec
}

func byName(s cluster.Spec) map[string]cluster.Node {
	out := map[string]cluster.Node{}
	for _, n := range s.Nodes {
		out[n.Name] = n
	}
	return out
}

// TestNodesDoNotDependOnTheirPosition: another order of the lists changes no
// node at all.
func TestNodesDoNotDependOnTheirPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawNodes(t)
		before := byName(d.load(t))
		seed := rapid.Uint64().Draw(t, "seed")
		r := rand.New(rand.NewPCG(seed, 0))
		r.Shuffle(len(d.planes), func(i, j int) { d.planes[i], d.planes[j] = d.planes[j], d.planes[i] })
		r.Shuffle(len(d.workers), func(i, j int) { d.workers[i], d.workers[j] = d.workers[j], d.workers[i] })
		if after := byName(d.load(t)); !reflect.DeepEqual(before, after) {
			t.Fatalf("%v\nbecame\n%v", before, after)
		}
	})
}

// TestNodesDoNotDependOnEachOther: what is added or removed beside a node
// changes nothing about it.
func TestNodesDoNotDependOnEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawNodes(t)
		before := byName(d.load(t))
		kept := rapid.IntRange(0, len(d.workers)).Draw(t, "kept")
		d.workers = d.workers[len(d.workers)-kept:]
		for name, n := range byName(d.load(t)) {
			if !reflect.DeepEqual(n, before[name]) {
				t.Fatalf("%v\nbecame\n%v", before[name], n)
			}
		}
	})
}

// TestRowsGrowAtTheEnd: a larger count leaves the nodes that are there alone.
func TestRowsGrowAtTheEnd(t *testing.T) {
	load := func(count int) map[string]cluster.Node {
		fsys := fstest.MapFS{
			"d/cluster.yaml": {Data: []byte(smallCluster)},
			"d/nodes.yaml":   {Data: []byte(smallNodes + fmt.Sprintf("counted: [{role: worker, count: %d, name: 'wk-{n}', first_ip: 10.10.0.31}]\n", count))},
		}
		snap, problems := Load(fsys, "d", Options{})
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		return byName(snap.Spec)
	}
	var before map[string]cluster.Node
	for count := range 20 {
		after := load(count)
		if len(after) != count+1 {
			t.Fatalf("%d nodes for a count of %d", len(after), count)
		}
		for name, n := range before {
			if !reflect.DeepEqual(n, after[name]) {
				t.Errorf("count %d: %v became %v", count, n, after[name])
			}
		}
		before = after
	}
}

// placed is a random cluster whose nodes say where they are in every way there is, and which may
// be wrong: addresses and VMIDs may meet, and rows may leave the network.
type placed struct {
	cidr   netip.Prefix
	ranges [2]cluster.Range // of control planes and workers
	cidr6  string           // as it is written, "": none
	rows   []string         // of counted
	listed []string         // workers
}

func drawPlaced(t *rapid.T) placed {
	bits := rapid.IntRange(16, 28).Draw(t, "bits")
	hosts := 1<<(32-bits) - 2
	base := rapid.SampledFrom([]string{"10.10.0.0", "172.16.0.0", "192.168.64.0"}).Draw(t, "base")
	p := placed{cidr: netip.PrefixFrom(netip.MustParseAddr(base), bits).Masked()}
	if rapid.Bool().Draw(t, "dual stack") {
		p.cidr6 = fmt.Sprintf(", cidr6: \"fd00:10:10::/%d\"", rapid.IntRange(48, 112).Draw(t, "bits of cidr6"))
	}
	width := rapid.IntRange(40, 1200)
	p.ranges[0] = cluster.Range{First: 1000, Last: 1000 + width.Draw(t, "control planes' VMIDs")}
	p.ranges[1] = cluster.Range{First: 5000, Last: 5000 + width.Draw(t, "workers' VMIDs")}
	place := func(name, ip string) string {
		offset := rapid.IntRange(2, hosts).Draw(t, name)
		if rapid.Bool().Draw(t, name+" is written") {
			addr, _ := subnets.After(p.cidr.Addr(), offset)
			return fmt.Sprintf(", %s: %s", ip, addr)
		}
		return fmt.Sprintf(", offset: %d", offset)
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "listed") {
		name := fmt.Sprintf("n%d", i)
		p.listed = append(p.listed, fmt.Sprintf("  - {name: %s%s}\n", name, place(name, "ip")))
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "rows") {
		name, at := fmt.Sprintf("r%d", i), ""
		if rapid.Bool().Draw(t, name+" is placed") {
			at = place(name, "first_ip")
		}
		p.rows = append(p.rows, fmt.Sprintf("  - {role: worker, count: %d, name: \"%s-{n}\"%s, first_vmid: %d}\n", rapid.IntRange(0, 5).Draw(t, "count"), name, at, 6000+100*i))
	}
	return p
}

func (p placed) load() (cluster.Snapshot, cluster.Problems) {
	gateway, _ := subnets.After(p.cidr.Addr(), 1)
	return Load(fstest.MapFS{
		"d/cluster.yaml": {Data: fmt.Appendf(nil, "cluster_name: dev\ntalos_version: v1.13.9\nkubernetes_version: v1.36.1\nnetwork: {cidr: %s, gateway: %s%s}\nproxmox: {node: pve1, vmid_ranges: {controlplane: %s, worker: %s}}\n",
			p.cidr, gateway, p.cidr6, p.ranges[0], p.ranges[1])},
		"d/nodes.yaml": {Data: []byte("workers:\n" + strings.Join(p.listed, "") + "counted:\n  - {role: controlplane, count: 1, name: \"cp-{n}\"}\n" + strings.Join(p.rows, ""))},
	}, "d", Options{})
}

// TestPlacesAreInTheNetwork: the nodes of a valid inventory have addresses of their own in the
// network, and derived VMIDs in the range of their role; and what is not valid is so for nodes that
// meet or leave the network alone, each of which is named.
func TestPlacesAreInTheNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlaced(t)
		snap, problems := p.load()
		for _, problem := range problems {
			if problem.Severity == cluster.Error && !strings.Contains(problem.Message, " is the address of ") && !strings.Contains(problem.Message, ", which is that of ") &&
				!strings.Contains(problem.Message, "beyond network.cidr") && !strings.Contains(problem.Message, "broadcast address") {
				t.Fatalf("%v in %+v", problem, p)
			}
		}
		ips, ids := map[netip.Addr]bool{}, map[int]bool{}
		broadcast, _ := subnets.After(p.cidr.Addr(), 1<<(32-p.cidr.Bits())-1)
		for _, n := range snap.Spec.Nodes {
			if !p.cidr.Contains(n.IP) || n.IP == p.cidr.Addr() || n.IP == broadcast || n.IP == snap.Spec.Network.Gateway || ips[n.IP] {
				t.Fatalf("%s has %s in %+v", n.Name, n.IP, p)
			}
			listed := strings.HasPrefix(n.Name, "n")
			if ids[n.VMID] || n.Role == cluster.ControlPlane && !p.ranges[0].Contains(n.VMID) || listed && !p.ranges[1].Contains(n.VMID) {
				t.Fatalf("%s has VMID %d in %+v", n.Name, n.VMID, p)
			}
			if host := subnets.HostPart(n.IP, p.cidr); listed && host <= p.ranges[1].Last-p.ranges[1].First && n.VMID != p.ranges[1].First+host {
				t.Fatalf("%s at %s has VMID %d in %+v", n.Name, n.IP, n.VMID, p)
			}
			ips[n.IP], ids[n.VMID] = true, true
		}
	})
}

// TestPlacesDoNotDependOnEachOther: with nodes and rows less, in another order, and with an
// address instead of the offset that leads to it, the nodes that are left are the same.
func TestPlacesDoNotDependOnEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlaced(t)
		snap, problems := p.load()
		if problems.HasErrors() {
			t.Skip("nodes meet")
		}
		before := byName(snap.Spec)
		p.listed = rapid.Permutation(p.listed).Draw(t, "listed")[:rapid.IntRange(0, len(p.listed)).Draw(t, "kept")]
		p.rows = rapid.Permutation(p.rows).Draw(t, "rows")[:rapid.IntRange(0, len(p.rows)).Draw(t, "kept rows")]
		for i, line := range p.listed {
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "  - {name: "), ",")
			p.listed[i] = fmt.Sprintf("  - {name: %s, ip: %s}\n", name, before[name].IP)
		}
		snap, problems = p.load()
		if problems.HasErrors() {
			t.Fatalf("%v in %+v", problems, p)
		}
		for name, n := range byName(snap.Spec) {
			if !reflect.DeepEqual(n, before[name]) {
				t.Fatalf("%v\nbecame\n%v", before[name], n)
			}
		}
	})
}

// TestRowsKeepTheirPlaces: a row that grows leaves the nodes that are there alone, also where
// nothing is written of its addresses.
func TestRowsKeepTheirPlaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.SampledFrom([]string{"", ", offset: 40", ", first_ip: 10.10.0.40"}).Draw(t, "at")
		role := rapid.SampledFrom([]string{"controlplane", "worker"}).Draw(t, "role")
		count := rapid.IntRange(1, 8).Draw(t, "count")
		load := func(count int) map[string]cluster.Node {
			snap, problems := Load(fstest.MapFS{
				"d/cluster.yaml": {Data: []byte(smallCluster)},
				"d/nodes.yaml":   {Data: fmt.Appendf(nil, "controlplane: [{name: cp, ip: 10.10.0.99, vmid: 900}]\ncounted: [{role: %s, count: %d, name: 'x-{n}'%s}]\n", role, count, at)},
			}, "d", Options{})
			if problems.HasErrors() {
				t.Fatal(problems)
			}
			return byName(snap.Spec)
		}
		before, after := load(count), load(count+1)
		if len(after) != count+2 {
			t.Fatalf("%d nodes", len(after))
		}
		for name, n := range before {
			if !reflect.DeepEqual(n, after[name]) {
				t.Fatalf("%v\nbecame\n%v", n, after[name])
			}
		}
	})
}

// TestLoadIsDeterministic: the same files give the same snapshot and the same
// problems, and owners and hosts' defaults show where they should.
func TestLoadIsDeterministic(t *testing.T) {
	fsys := bigInventory(50)
	opts := Options{Owner: "a", Pool: "p", ImageDatastore: "img", Mirrors: map[string]string{"docker.io": "https://m.example.org"}}
	one, problems1 := Load(fsys, "d", opts)
	two, problems2 := Load(fsys, "d", opts)
	if !reflect.DeepEqual(one, two) || !reflect.DeepEqual(problems1, problems2) {
		t.Error("two loads differ")
	}
	other, _ := Load(fsys, "d", Options{Owner: "b"})
	for i, n := range one.Spec.Nodes {
		o := other.Spec.Nodes[i]
		if n.UUID == o.UUID || n.VMID != o.VMID || (n.MAC == o.MAC) != (n.Role == cluster.Worker) {
			t.Errorf("owners a and b: %v and %v", n, o) // the workers' MACs are written down
		}
		if n.Pool != "p" || n.ImageDatastore != "img" || o.Pool != "" || o.ImageDatastore != "local" {
			t.Errorf("host defaults: %+v and %+v", n, o)
		}
	}
	if !maps.Equal(one.Spec.Mirrors, opts.Mirrors) {
		t.Error("mirrors", one.Spec.Mirrors)
	}
}

// TestWhere: every field that is written can be pointed at, in both files and
// in addons.
func TestWhere(t *testing.T) {
	snap, problems := Load(bigInventory(1), "d", Options{})
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	for field, want := range map[string]cluster.Position{
		"":                        {File: "d/cluster.yaml"},
		"cluster_name":            {File: "d/cluster.yaml", Line: 1, Column: 15},
		"network.cidr":            {File: "d/cluster.yaml", Line: 4, Column: 17},
		"nodes":                   {File: "d/nodes.yaml"},
		"nodes.controlplane[0]":   {File: "d/nodes.yaml", Line: 2, Column: 5},
		"nodes.workers[0].ip":     {File: "d/nodes.yaml", Line: 4, Column: 20},
		"nodes.w0":                {File: "d/nodes.yaml", Line: 4, Column: 5},
		"addons[0].chart.version": {File: "d/addons/a.yaml", Line: 2, Column: 62},
	} {
		if got := snap.Where[field]; got != want {
			t.Errorf("%q stands at %v, want %v", field, got, want)
		}
	}
}

// TestLimitsOfAnnotations: a long value is refused, and so are many together; what fits is
// not.
func TestLimitsOfAnnotations(t *testing.T) {
	for _, c := range []struct {
		values []int // their lengths
		want   string
	}{
		{[]int{maxNodeAnnotation, maxNodeAnnotation, maxNodeAnnotation}, ""},
		{[]int{maxNodeAnnotation + 1}, "inventory/dev/nodes.yaml:7:11: nodes.workers[0].annotations.k0: the value is 16385 bytes long, of at most 16384 (shorten it, or keep it in a ConfigMap and write the ConfigMap's name here)"},
		{[]int{maxNodeAnnotation, maxNodeAnnotation, maxNodeAnnotation, maxNodeAnnotation}, "inventory/dev/nodes.yaml:6:5: nodes.workers[0].annotations: the annotations of the node are together 65544 bytes long, of at most 65536 (shorten them)"},
	} {
		nodes := smallNodes + "workers:\n  - name: wk-1\n    ip: 10.10.0.21\n    annotations:\n"
		for i, n := range c.values {
			nodes += fmt.Sprintf("      k%d: %s\n", i, strings.Repeat("x", n))
		}
		got := loadArchive(&txtar.Archive{Files: []txtar.File{{Name: "inventory/dev/nodes.yaml", Data: []byte(nodes)}}})
		if refused := strings.Contains(got, "bytes long"); refused != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%v: %.400s", c.values, got)
		}
	}
}

// TestManyWarnings: warnings never make an inventory invalid, however many, and so many are shown.
func TestManyWarnings(t *testing.T) {
	fsys := bigInventory(1000)
	fsys["d/nodes.yaml"].Data = []byte(strings.ReplaceAll(string(fsys["d/nodes.yaml"].Data), "cpu: 4, ram: 8192, disk: 60G", "cpu: 1, ram: 1024, disk: 60G"))
	snap, problems := Load(fsys, "d", Options{})
	last := snap.Warnings[len(snap.Warnings)-1]
	if problems.HasErrors() || len(snap.Warnings) != yamlschema.MaxErrors+1 || !strings.Contains(last.Message, "more warnings and notes are not shown") {
		t.Errorf("%d warnings, the last being %v, %v", len(snap.Warnings), last, problems.First())
	}
}

// bigInventory is a cluster of one control plane and n workers.
func bigInventory(n int) fstest.MapFS {
	var nodes strings.Builder
	nodes.WriteString("controlplane:\n  - {name: cp, ip: 10.10.255.1, vmid: 100000, cpu: 4, ram: 8192, disk: 40G}\nworkers:\n")
	for i := range n {
		fmt.Fprintf(&nodes, "  - {name: w%d, ip: 10.10.%d.%d, vmid: %d, mac: \"02:00:00:00:%02X:%02X\", cpu: 4, ram: 8192, disk: 60G, labels: {zone: z%d}, tags: [a], disks: [{name: data, size: 100G}]}\n",
			i, i/200, i%200+10, 1000+i, i>>8, i&255, i%3)
	}
	return fstest.MapFS{
		"d/cluster.yaml": {Data: []byte(`cluster_name: big
talos_version: v1.13.9
kubernetes_version: v1.36.1
network: {cidr: 10.10.0.0/16, gateway: 10.10.255.254, pod_cidr: 10.128.0.0/12}
proxmox: {node: pve1}
patches: {all: [patches/common.yaml], worker: [patches/worker.yaml]}
addons: [addons/a.yaml]
`)},
		"d/nodes.yaml":          {Data: []byte(nodes.String())},
		"d/patches/common.yaml": {Data: []byte("machine: {sysctls: {vm.max_map_count: \"262144\"}}\n")},
		"d/patches/worker.yaml": {Data: []byte("machine: {kernel: {modules: [{name: nbd}]}}\n")},
		"d/addons/a.yaml":       {Data: []byte("name: a\nchart: {repository: https://x.example.org, name: a, version: 1.0.0}\n")},
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		fsys := bigInventory(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, problems := Load(fsys, "d", Options{}); problems.HasErrors() {
					b.Fatal(slices.Values(problems))
				}
			}
		})
	}
}
