package leases

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

var (
	a, b, c = netip.MustParseAddr("10.0.0.101"), netip.MustParseAddr("10.0.0.102"), netip.MustParseAddr("10.0.0.103")
	none    netip.Addr
)

// leasedNode is a worker without an address in the inventory.
func leasedNode(name string) cluster.Node {
	return cluster.Node{Name: name, Role: cluster.Worker, UUID: "uuid of " + name, MAC: "BC:24:11:00:00:" + name[len(name)-2:], Leased: true}
}

func specOf(nodes ...cluster.Node) cluster.Spec {
	return cluster.Spec{Nodes: nodes, Network: cluster.Network{Mode: cluster.AddressDiscovered, CIDR: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1"), VIP: netip.MustParseAddr("10.0.0.5")}}
}

// world plays passes over a book: what answers at which address.
type world struct {
	book  Book
	spec  cluster.Spec
	now   time.Time
	seen  Seen
	reach map[netip.Addr]map[string]cluster.Reach // by address and node; missing: silent
	why   map[string]string                       // of machines, after the pass
}

func newWorld(s cluster.Spec) *world {
	return &world{spec: s, now: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), seen: Seen{Addresses: map[string][]netip.Addr{}, Where: "a file"}, reach: map[netip.Addr]map[string]cluster.Reach{}, why: map[string]string{}}
}

// at has a node's machine answer at an address, as its own machine and as another's of all others.
func (w *world) at(ip netip.Addr, node string, reach cluster.Reach) {
	w.reach[ip] = map[string]cluster.Reach{}
	for _, n := range w.spec.Nodes {
		w.reach[ip][n.Name] = cluster.Unexpected
	}
	if node != "" {
		w.reach[ip][node] = reach
	}
}

// pass looks once, and returns whether the book changed.
func (w *world) pass(p cluster.Policy) bool {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: w.book.Complete(w.spec)}}
	o := cluster.Observed{Now: w.now, Machines: map[string]cluster.Machine{}}
	for _, n := range d.Spec.Nodes {
		m := cluster.Machine{Reach: cluster.Silent}
		if all, answers := w.reach[n.IP]; answers {
			m.Reach = all[n.Name]
		}
		if !n.IP.IsValid() {
			m.Reach = cluster.ReachUnknown
		}
		o.Machines[n.Name] = m
	}
	changed := w.book.Learn(d, &o, w.seen, p)
	for name, m := range o.Machines {
		w.why[name] = m.Why
	}
	w.now = w.now.Add(5 * time.Second)
	return changed
}

// ip is where a node is looked for now.
func (w *world) ip(node string) netip.Addr {
	n, _ := w.book.Complete(w.spec).Node(node)
	return n.IP
}

// TestBook: the stories of a node's address.
func TestBook(t *testing.T) {
	n := leasedNode("wk-11")
	w := newWorld(specOf(cluster.Node{Name: "cp", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.0.0.11")}, n))
	expect := func(what string, ip netip.Addr, changed bool) {
		t.Helper()
		if got := w.pass(cluster.Policy{}); got != changed || w.ip(n.Name) != ip {
			t.Errorf("%s: it is looked for at %v (changed: %v), want %v (%v)", what, w.ip(n.Name), got, ip, changed)
		}
	}
	expect("nothing is seen", none, false)
	if want := "its address is not known: no address of BC:24:11:00:00:11 that it could have is in a file"; w.why[n.Name] != want {
		t.Errorf("%q", w.why[n.Name])
	}
	w.seen.Addresses[n.MAC] = []netip.Addr{a}
	expect("a lease", a, true)
	expect("it boots", a, false)
	w.at(a, n.Name, cluster.Maintenance)
	expect("it answers", a, false)
	w.seen.Addresses[n.MAC] = []netip.Addr{b, a}
	expect("another lease, and it answers", a, false)
	w.at(a, n.Name, cluster.Configured)
	expect("configured", a, false)

	delete(w.reach, a)
	expect("silent, with another lease", b, true)
	expect("silent there, too: nothing is new for a minute", b, false)
	w.now = w.now.Add(tryAgain)
	expect("it may be back at the old one", a, true)
	w.now = w.now.Add(tryAgain)
	expect("or not", b, true)
	w.at(b, n.Name, cluster.Configured)
	expect("there it is", b, false)

	w.seen.Addresses = nil
	delete(w.reach, b)
	for range 3 {
		w.now = w.now.Add(tryAgain)
		expect("silent, and nothing else is known", b, false)
	}
	w.at(b, "", 0)
	expect("another machine has its address", none, true)
	if !strings.HasPrefix(w.why[n.Name], "its address is not known: another machine answers at 10.0.0.102,") {
		t.Errorf("%q", w.why[n.Name])
	}
	w.now = w.now.Add(tryAgain)
	expect("and it is no longer its own", none, false)
	w.seen.Addresses = map[string][]netip.Addr{n.MAC: {b}}
	expect("by its lease it still is", b, true)
	expect("and is not", none, true)
	w.seen.Unread = "cannot read the leases: no such file"
	expect("no news", none, false)
	if !strings.HasSuffix(w.why[n.Name], "; cannot read the leases: no such file") {
		t.Errorf("%q", w.why[n.Name])
	}
	w.spec.Nodes[1].UUID = "another"
	w.seen.Addresses[n.MAC] = []netip.Addr{c}
	expect("a new machine", c, true)
	if w.book.Proven(w.spec) {
		t.Error("it is proven before it has answered")
	}
	w.at(c, n.Name, cluster.Maintenance)
	expect("it answers", c, false)
	if !w.book.Proven(w.spec) {
		t.Error("it is not proven although it answers")
	}
}

// TestKeysThatWereRotated: a machine that was proven, and shows another authority now, is its own still, which is for the
// planner to report.
func TestKeysThatWereRotated(t *testing.T) {
	n := leasedNode("wk-11")
	w := newWorld(specOf(n))
	w.seen.Addresses[n.MAC] = []netip.Addr{a}
	w.at(a, n.Name, cluster.Configured)
	w.pass(cluster.Policy{})
	w.pass(cluster.Policy{})
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: w.book.Complete(w.spec)}}
	o := cluster.Observed{Now: w.now, Machines: map[string]cluster.Machine{n.Name: {Reach: cluster.Unexpected, OtherAuthority: true}}}
	if w.book.Learn(d, &o, w.seen, cluster.Policy{}) || w.ip(n.Name) != a || o.Machines[n.Name].Reach != cluster.Unexpected {
		t.Errorf("%v, %+v", w.ip(n.Name), o.Machines[n.Name])
	}
	delete(w.seen.Addresses, n.MAC)
	fresh := Book{}
	if fresh.Learn(d, &o, w.seen, cluster.Policy{}); o.Machines[n.Name].Reach != cluster.ReachUnknown {
		t.Errorf("a machine that was never proven is %+v", o.Machines[n.Name])
	}
}

// TestCandidates: what is another's, or lies where nodes may not be, is never tried.
func TestCandidates(t *testing.T) {
	n, other := leasedNode("wk-11"), leasedNode("wk-12")
	fixed := cluster.Node{Name: "cp", IP: c}
	for name, x := range map[string]struct {
		seen   []netip.Addr
		policy cluster.Policy
		want   netip.Addr
	}{
		"a lease":                    {seen: []netip.Addr{a}, want: a},
		"that of a node":             {seen: []netip.Addr{c}},
		"that of a leased node":      {seen: []netip.Addr{b}},
		"the VIP":                    {seen: []netip.Addr{netip.MustParseAddr("10.0.0.5")}},
		"the gateway":                {seen: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		"elsewhere":                  {seen: []netip.Addr{netip.MustParseAddr("10.0.1.7")}},
		"IPv6":                       {seen: []netip.Addr{netip.MustParseAddr("fe80::1")}},
		"the host's own":             {seen: []netip.Addr{a}, policy: cluster.Policy{Taken: []netip.Addr{a}}},
		"where the host allows none": {seen: []netip.Addr{a}, policy: cluster.Policy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28")}}},
		"where the host allows them": {seen: []netip.Addr{a}, policy: cluster.Policy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28"), netip.MustParsePrefix("10.0.0.96/28")}}, want: a},
		"the first that it may have": {seen: []netip.Addr{c, b, a}, want: a},
	} {
		w := newWorld(specOf(fixed, n, other))
		w.seen.Addresses[other.MAC] = []netip.Addr{b}
		w.at(b, other.Name, cluster.Configured)
		w.pass(x.policy)
		w.pass(x.policy)
		w.seen.Addresses[n.MAC] = x.seen
		w.pass(x.policy)
		if got := w.ip(n.Name); got != x.want {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
}

// TestNothingIsLookedFor: where nobody looks nodes without an address wait, and those with one are as they were.
func TestNothingIsLookedFor(t *testing.T) {
	w := newWorld(specOf(cluster.Node{Name: "cp", IP: c}, leasedNode("wk-11")))
	w.seen = Seen{}
	if w.pass(cluster.Policy{}); w.ip("wk-11") != none || w.ip("cp") != c || !strings.Contains(w.why["wk-11"], "does not look for addresses here") || w.why["cp"] != "" {
		t.Errorf("%v, %v, %v", w.ip("wk-11"), w.ip("cp"), w.why)
	}
}

// TestBookOfAnyWorld: whatever is seen and answers, a node that answers is not moved, no two are proven at one address, and
// none is looked for where it must not be; and when the world stays as it is, who answers somewhere that is seen is found.
func TestBookOfAnyWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := []cluster.Node{{Name: "cp", IP: c}, leasedNode("wk-11"), leasedNode("wk-12")}
		w := newWorld(specOf(nodes...))
		pool := []netip.Addr{a, b, c, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.104")}
		draw := func() {
			for _, n := range nodes[1:] {
				w.seen.Addresses[n.MAC] = rapid.SliceOfNDistinct(rapid.SampledFrom(pool), 0, 4, rapid.ID[netip.Addr]).Draw(t, "seen")
			}
			clear(w.reach)
			for _, ip := range rapid.SliceOfNDistinct(rapid.SampledFrom(pool), 0, 4, rapid.ID[netip.Addr]).Draw(t, "answering") {
				w.at(ip, rapid.SampledFrom([]string{"", "wk-11", "wk-12"}).Draw(t, "who"), rapid.SampledFrom([]cluster.Reach{cluster.Maintenance, cluster.Configured}).Draw(t, "how"))
			}
		}
		check := func() {
			before := map[string]netip.Addr{"wk-11": w.ip("wk-11"), "wk-12": w.ip("wk-12")}
			w.pass(cluster.Policy{})
			for name, ip := range before {
				if r := w.reach[ip][name]; ip.IsValid() && (r == cluster.Maintenance || r == cluster.Configured) && w.ip(name) != ip {
					t.Fatalf("%s answers at %v, and is looked for at %v", name, ip, w.ip(name))
				}
				if now := w.ip(name); now == c || now == netip.MustParseAddr("10.0.0.1") {
					t.Fatalf("%s is looked for at %v", name, now)
				}
			}
			if one, two := w.book.nodes["wk-11"].proven, w.book.nodes["wk-12"].proven; one.IsValid() && one == two {
				t.Fatalf("both are proven at %v", one)
			}
		}
		for range rapid.IntRange(1, 5).Draw(t, "worlds") {
			draw()
			for range rapid.IntRange(1, 4).Draw(t, "passes") {
				check()
			}
		}
		for range 200 { // several minutes in which nothing changes
			check()
		}
		for _, n := range nodes[1:] {
			for _, ip := range w.seen.Addresses[n.MAC] {
				if r := w.reach[ip][n.Name]; (r == cluster.Maintenance || r == cluster.Configured) && ip != c && ip != netip.MustParseAddr("10.0.0.1") {
					if at := w.ip(n.Name); w.reach[at][n.Name] != cluster.Maintenance && w.reach[at][n.Name] != cluster.Configured {
						t.Fatalf("%s answers at %v, which is seen, and is looked for at %v", n.Name, ip, at)
					}
				}
			}
		}
	})
}

// TestCompleteChangesNoOther: the spec that is completed is another one.
func TestCompleteChangesNoOther(t *testing.T) {
	w := newWorld(specOf(leasedNode("wk-11")))
	w.seen.Addresses[w.spec.Nodes[0].MAC] = []netip.Addr{a}
	w.pass(cluster.Policy{})
	before := slices.Clone(w.spec.Nodes)
	if got := w.book.Complete(w.spec); got.Nodes[0].IP != a || w.spec.Nodes[0].IP != before[0].IP {
		t.Errorf("%v, %v", got.Nodes[0].IP, w.spec.Nodes[0].IP)
	}
}
