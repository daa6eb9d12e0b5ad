package quorum

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWhyADisruptionWaits: what a person reads when a node may not go down.
func TestWhyADisruptionWaits(t *testing.T) {
	three := []string{"cp-1", "cp-2", "cp-3"}
	for _, c := range []struct {
		e    Etcd
		want string
	}{
		{Etcd{voters: 3, Healthy: three, agreed: cluster.Saw(true)}, ""},
		{Etcd{voters: 3, Healthy: three[1:], agreed: cluster.Saw(true)}, ""},
		{Etcd{voters: 3, Healthy: []string{"cp-1", "cp-3"}, agreed: cluster.Saw(true)}, "with cp-1 down 1 of 3 members of etcd would be healthy, and 2 are needed"},
		{Etcd{voters: 1, Healthy: three[:1], agreed: cluster.Saw(true)}, "with cp-1 down 0 of 1 members of etcd would be healthy, and 1 are needed"},
		{Etcd{voters: 3, Healthy: three, learners: []cluster.Member{{Name: "cp-4"}}, agreed: cluster.Saw(true)}, "cp-4 is still a learner of etcd"},
		{Etcd{voters: 3, Healthy: three, agreed: cluster.Saw(false)}, "the members of etcd do not all name the same members"},
		{Etcd{voters: 3, Healthy: three}, "whether all members of etcd name the same members is not known"},
		{Etcd{unknown: "timeout"}, "the members of etcd are not known: timeout"},
	} {
		if got := c.e.Without("cp-1"); got != c.want {
			t.Errorf("%+v: %q, want %q", c.e, got, c.want)
		}
	}
}

// TestWhyARemovalWaits: what a person reads when a member may not be removed.
func TestWhyARemovalWaits(t *testing.T) {
	four := []string{"cp-1", "cp-2", "cp-3", "cp-4"}
	unknown := cluster.Unseen[bool]("one cannot be asked")
	learner := func(id uint64, name string) cluster.Member {
		return cluster.Member{ID: id, Name: name, Address: "10.0.0.4", Learner: true}
	}
	for _, c := range []struct {
		e    Etcd
		want string
	}{
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:3], agreed: cluster.Saw(true)}, ""},
		{Etcd{voters: 3, Healthy: four[1:3], asked: four[1:3], agreed: unknown}, ""},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[1:3], agreed: unknown}, ""},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:3], learners: []cluster.Member{learner(1, "cp-1")}, agreed: cluster.Saw(true)}, ""},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:3], learners: []cluster.Member{learner(1, "")}, agreed: cluster.Saw(true)}, ""},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:3], learners: []cluster.Member{learner(1, "cp-1"), learner(4, "cp-4")}, agreed: cluster.Saw(true)}, "cp-4 is still a learner of etcd"},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:3], learners: []cluster.Member{learner(4, "cp-1")}, agreed: cluster.Saw(true)}, "cp-1 is still a learner of etcd"},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:3], learners: []cluster.Member{learner(4, "")}, agreed: cluster.Saw(true)}, "the member without a name at 10.0.0.4, id 0000000000000004, is still a learner of etcd"},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:3], agreed: cluster.Saw(false)}, "the members of etcd do not all name the same members"},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:1], agreed: cluster.Unseen[bool]("")}, "1 of 3 members of etcd were asked, and 2 have to agree"},
		{Etcd{voters: 4, Healthy: four[1:3], asked: four, agreed: cluster.Saw(true)}, "2 of 4 members of etcd are healthy, and 3 are needed to remove one"},
		{Etcd{voters: 3, Healthy: four[:2], asked: four[:3], agreed: cluster.Saw(true)}, "without cp-1 1 of 2 members of etcd would be healthy, and 2 are needed"},
		{Etcd{voters: 3, Healthy: four[:3], asked: four[:2], agreed: unknown}, "without cp-1 1 of 2 members of etcd would be healthy, and 2 are needed"},
		{Etcd{voters: 1, Healthy: four[:1], asked: four[:1], agreed: cluster.Saw(true)}, "without cp-1 0 of 0 members of etcd would be healthy, and 1 are needed"},
		{Etcd{unknown: "timeout", voters: 3, Healthy: four[:3], asked: four[:3], agreed: cluster.Saw(true)}, "the members of etcd are not known: timeout"},
	} {
		if got := c.e.WithoutMember("cp-1", 1); got != c.want {
			t.Errorf("%+v: %q, want %q", c.e, got, c.want)
		}
	}
}

// TestWhoDidNotAnswer: right before a member is removed, one whose machine still looks
// healthy did not answer. It is down, for all that is known.
func TestWhoDidNotAnswer(t *testing.T) {
	var nodes []cluster.Node
	var members []cluster.Member
	o := cluster.Observed{Machines: map[string]cluster.Machine{}}
	for i, name := range []string{"cp-1", "cp-2", "cp-3"} {
		nodes = append(nodes, cluster.Node{Name: name, Role: cluster.ControlPlane, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})})
		members = append(members, cluster.Member{ID: uint64(i + 1), Name: name})
		o.Machines[name] = cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}}}
	}
	o.Members, o.MembersAgree = cluster.Saw(members), cluster.Unseen[bool]("ask cp-2 for the members of etcd: no answer in time")
	o.MembersAsked = []string{"cp-1", "cp-3"}
	e := Of(nodes, o)
	if why := e.WithoutMember("cp-3", 3); why != "without cp-3 1 of 2 members of etcd would be healthy, and 2 are needed" {
		t.Errorf("cp-3: %q", why)
	}
	if why := e.WithoutMember("cp-2", 2); why != "" {
		t.Errorf("the one that did not answer: %q", why)
	}
	if words := e.DescribeRemoval("cp-2"); words != "2 of 3 members are healthy; without that of cp-2 2 of 2, and 2 are needed" {
		t.Errorf("%q", words)
	}
	if len(e.Healthy) != 3 {
		t.Errorf("what it was made from has %v", e.Healthy)
	}
}

// TestOnlyMember: every clause counts, or a cluster of several would be taken down as one
// that has no other to ask.
func TestOnlyMember(t *testing.T) {
	only := Etcd{voters: 1, Healthy: []string{"cp-1"}, agreed: cluster.Saw(true)}
	for name, c := range map[string]struct {
		change func(*Etcd)
		want   bool
	}{
		"only":         {func(*Etcd) {}, true},
		"unknown":      {func(e *Etcd) { e.unknown = "timeout" }, false},
		"not asked":    {func(e *Etcd) { e.agreed = cluster.Unseen[bool]("timeout") }, false},
		"another list": {func(e *Etcd) { e.agreed = cluster.Saw(false) }, false},
		"two voters":   {func(e *Etcd) { e.voters = 2 }, false},
		"a learner":    {func(e *Etcd) { e.learners = []cluster.Member{{Name: "cp-2"}} }, false},
		"not healthy":  {func(e *Etcd) { e.Healthy = nil }, false},
		"another node": {func(e *Etcd) { e.Healthy = []string{"cp-2"} }, false},
		"lost agreement": {func(e *Etcd) {
			e.agreed = cluster.Unseen[bool]("timeout")
			e.agreed.Value = true // of before
		}, false},
	} {
		e := only
		if c.change(&e); e.IsOnly("cp-1") != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}

// TestPair: every clause counts, or an etcd of which less is known would be disrupted as one that
// cannot be asked for better.
func TestPair(t *testing.T) {
	pair := Etcd{voters: 2, Healthy: []string{"cp-1", "cp-2"}, agreed: cluster.Saw(true)}
	for name, c := range map[string]struct {
		change func(*Etcd)
		want   bool
	}{
		"pair":         {func(*Etcd) {}, true},
		"unknown":      {func(e *Etcd) { e.unknown = "timeout" }, false},
		"another list": {func(e *Etcd) { e.agreed = cluster.Saw(false) }, false},
		"three voters": {func(e *Etcd) { e.voters = 3 }, false},
		"a learner":    {func(e *Etcd) { e.learners = []cluster.Member{{Name: "cp-3"}} }, false},
		"one healthy":  {func(e *Etcd) { e.Healthy = e.Healthy[:1] }, false},
		"lost agreement": {func(e *Etcd) {
			e.agreed = cluster.Unseen[bool]("timeout")
			e.agreed.Value = true // of before
		}, false},
	} {
		e := pair
		if c.change(&e); e.IsPair() != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
	if unknown := (Etcd{unknown: "timeout", voters: 3, Healthy: []string{"cp-1", "cp-2", "cp-3"}}); unknown.Spares("cp-1") {
		t.Error("an etcd that is not known spares a node")
	}
	if way := (Etcd{unknown: "timeout", agreed: cluster.Saw(true)}).WayOut("dev"); !strings.Contains(way, "that do not answer") {
		t.Errorf("of an etcd that is not known: %q", way)
	}
}

// TestOf: a voter is healthy only as the one member of a control plane that reports it
// itself. What a worker reports of an etcd does not count.
func TestOf(t *testing.T) {
	node := func(name string, role cluster.Role) cluster.Node { return cluster.Node{Name: name, Role: role} }
	healthy := cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}}}
	silent := healthy
	silent.Reach = cluster.Silent
	sick := cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {State: "Running"}}}
	nodes := []cluster.Node{node("cp-1", cluster.ControlPlane), node("cp-2", cluster.ControlPlane), node("cp-3", cluster.ControlPlane), node("cp-4", cluster.ControlPlane), node("wk-1", cluster.Worker)}
	o := cluster.Observed{
		Machines:     map[string]cluster.Machine{"cp-1": healthy, "cp-2": silent, "cp-3": sick, "cp-4": healthy, "wk-1": healthy},
		MembersAgree: cluster.Saw(true), MembersAsked: []string{"cp-1", "cp-2", "cp-3", "cp-4"},
		Members: cluster.Saw([]cluster.Member{{ID: 1, Name: "cp-1"}, {ID: 2, Name: "cp-2"}, {ID: 3, Name: "cp-3"}, {ID: 4, Name: "cp-4"}, {ID: 5, Name: "cp-4"}, {ID: 6, Name: "wk-1"}, {ID: 7, Name: "cp-9", Learner: true}}),
	}
	for i := range nodes { // or an address would be that of every member without one
		nodes[i].IP = netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
	}
	e := Of(nodes, o)
	if e.voters != 6 || !slices.Equal(e.Healthy, []string{"cp-1"}) || len(e.learners) != 1 || e.learners[0].Name != "cp-9" || len(e.asked) != 4 || e.unknown != "" {
		t.Errorf("%+v", e)
	}
	if !slices.Equal(e.down, []string{"cp-2", "cp-3", "cp-4", "cp-4", "wk-1"}) {
		t.Errorf("down are %v", e.down)
	}
	o.Members.Value[0].Learner = true
	if e := Of(nodes, o); e.voters != 5 || len(e.Healthy) != 0 || len(e.learners) != 2 {
		t.Errorf("a learner votes: %+v", e)
	}
	o.Members = cluster.Unseen[[]cluster.Member]("timeout")
	if e := Of(nodes, o); e.unknown != "timeout" || len(e.Healthy) != 0 {
		t.Errorf("%+v", e)
	}
	o.Members.Why = ""
	if e := Of(nodes, o); e.unknown == "" {
		t.Errorf("%+v", e)
	}
	o.Members.Value = []cluster.Member{{ID: 1, Name: "cp-1"}} // of before
	if e := Of(nodes, o); e.unknown == "" || e.voters != 0 || len(e.Healthy) != 0 {
		t.Errorf("%+v", e)
	}
}

// TestGoingDown: the etcd of a machine that is taken down is healthy until its pods are drained, and
// is not counted on; that of one that boots is.
func TestGoingDown(t *testing.T) {
	nodes := []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}}
	for stage, healthy := range map[string]bool{
		"": true, "booting": true, "running": true,
		"rebooting": false, "shutting down": false, "resetting": false, "upgrading": false,
	} {
		m := cluster.Machine{Reach: cluster.Configured, Stage: stage, Services: map[string]cluster.Service{"etcd": {Healthy: true}}}
		o := cluster.Observed{Members: cluster.Saw([]cluster.Member{{ID: 1, Name: "cp-1"}}), Machines: map[string]cluster.Machine{"cp-1": m}}
		if got := len(Of(nodes, o).Healthy) == 1; got != healthy {
			t.Errorf("%q: %v", stage, got)
		}
	}
}

// TestWhoseMembers: of several members that may be a control plane's, its own is the only
// one with its name and its address, if there is one.
func TestWhoseMembers(t *testing.T) {
	exact := cluster.Member{ID: 1, Name: "cp-1", Address: "10.10.0.11"}
	moved := cluster.Member{ID: 2, Name: "cp-1", Address: "10.10.0.99"}
	renamed := cluster.Member{ID: 3, Name: "cp-9", Address: "10.10.0.11"}
	again := cluster.Member{ID: 4, Name: "cp-1", Address: "10.10.0.11"}
	other := cluster.Member{ID: 5, Name: "cp-2", Address: "10.10.0.12"}
	for _, c := range []struct {
		what    string
		mem     cluster.Member
		members []cluster.Member
		owner   string
		sure    bool
	}{
		{"the only one", moved, []cluster.Member{moved, other}, "cp-1", true},
		{"the right one, beside one elsewhere", exact, []cluster.Member{exact, moved}, "cp-1", true},
		{"the one elsewhere", moved, []cluster.Member{exact, moved}, "cp-1", false},
		{"the right one, beside one of another name", exact, []cluster.Member{renamed, exact}, "cp-1", true},
		{"one of two that are right", exact, []cluster.Member{exact, again}, "cp-1", false},
		{"one of none of them", other, []cluster.Member{exact, other}, "", false},
	} {
		owner, sure := OwnerOf(c.members, c.mem, []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.10.0.11")}})
		if owner != c.owner || sure != c.sure {
			t.Errorf("%s: %q, %v", c.what, owner, sure)
		}
	}
}

// TestSparesANode: a node counts for nothing where the others are healthy and a majority of all; one
// that cannot be asked whether they agree, such as the node itself, makes no difference.
func TestSparesANode(t *testing.T) {
	planes := func(healthy ...string) (nodes []cluster.Node, o cluster.Observed) {
		o.Machines = map[string]cluster.Machine{}
		var members []cluster.Member
		for i, name := range []string{"cp-1", "cp-2", "cp-3"} {
			nodes = append(nodes, cluster.Node{Name: name, Role: cluster.ControlPlane})
			members = append(members, cluster.Member{ID: uint64(i + 1), Name: name})
		}
		for _, name := range healthy {
			o.Machines[name] = cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {Healthy: true}}}
		}
		o.Members = cluster.Saw(members)
		return nodes, o
	}
	for _, c := range []struct {
		node    string
		healthy []string
		want    bool
	}{
		{"cp-3", []string{"cp-1", "cp-2"}, true},
		{"cp-3", []string{"cp-1", "cp-2", "cp-3"}, true},
		{"cp-2", []string{"cp-1", "cp-2"}, false},
		{"cp-3", []string{"cp-1"}, false},
		{"cp-9", []string{"cp-1", "cp-2"}, true},
	} {
		nodes, o := planes(c.healthy...)
		if got := Of(nodes, o).Spares(c.node); got != c.want {
			t.Errorf("%s, with %v healthy: %v", c.node, c.healthy, got)
		}
		o.Members.Known = false
		if Of(nodes, o).Spares(c.node) {
			t.Errorf("%s is spared by an etcd of which nothing is known", c.node)
		}
	}
}

// TestKeepsAMember: the VM of a control plane is kept while its member is in etcd, or may be.
func TestKeepsAMember(t *testing.T) {
	n := cluster.Node{Name: "cp-1", IP: netip.MustParseAddr("10.10.0.11")}
	for _, c := range []struct {
		what    string
		members cluster.Seen[[]cluster.Member]
		kept    bool
	}{
		{"not seen", cluster.Unseen[[]cluster.Member]("timeout"), true},
		{"not asked", cluster.Seen[[]cluster.Member]{}, true},
		{"a member", cluster.Saw([]cluster.Member{{Name: "cp-1", Address: "10.10.0.11"}}), true},
		{"a learner that has no name yet", cluster.Saw([]cluster.Member{{Address: "10.10.0.11", Learner: true}}), true},
		{"a learner without a name elsewhere", cluster.Saw([]cluster.Member{{Address: "10.10.0.12", Learner: true}}), false},
		{"another node's, at its address", cluster.Saw([]cluster.Member{{Name: "cp-2", Address: "10.10.0.11"}}), false},
		{"none", cluster.Saw([]cluster.Member{}), false},
	} {
		if why := Keeps(c.members, n); (why != "") != c.kept {
			t.Errorf("%s: %q", c.what, why)
		}
	}
}

// TestWayOutOfQuorum: what a person can do follows from what is seen, and names who is down.
func TestWayOutOfQuorum(t *testing.T) {
	var nodes []cluster.Node
	o := cluster.Observed{Machines: map[string]cluster.Machine{}, MembersAgree: cluster.Saw(true)}
	var members []cluster.Member
	for i, name := range []string{"cp-1", "cp-2"} {
		n := cluster.Node{Name: name, Role: cluster.ControlPlane, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}
		nodes = append(nodes, n)
		members = append(members, cluster.Member{ID: uint64(i + 1), Name: name, Address: n.IP.String()})
		o.Machines[name] = cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {Healthy: true}}}
	}
	o.Members = cluster.Saw(members)
	with := func(change func(*cluster.Observed)) Etcd {
		c := o
		change(&c)
		return Of(nodes, c)
	}
	for _, c := range []struct {
		e     Etcd
		hint  string
		pair  bool
		which string
	}{
		{with(func(*cluster.Observed) {}), "no member is down, and an etcd of 2 can spare none: add a control plane", true, "a pair"},
		{with(func(*cluster.Observed) {}).Down("cp-2"), "bring cp-2 back: `talos-agent status dev` shows", false, "one goes down"},
		{with(func(o *cluster.Observed) {
			o.Members = cluster.Saw(append(slices.Clone(members), cluster.Member{ID: 10, Name: "cp-3"}))
		}), "bring cp-3 back", false, "one is down"},
		{with(func(o *cluster.Observed) {
			o.Members = cluster.Saw(append(slices.Clone(members), cluster.Member{ID: 10}))
		}), "bring 000000000000000a back", false, "one has no name"},
		{with(func(o *cluster.Observed) {
			o.Members = cluster.Saw(append(slices.Clone(members), cluster.Member{ID: 10, Name: "cp-3", Learner: true}))
		}), "has become a voter", false, "one joins"},
		{with(func(o *cluster.Observed) { o.MembersAgree = cluster.Saw(false) }), "compare `talosctl etcd members`", false, "they do not agree"},
		{with(func(o *cluster.Observed) { o.MembersAgree = cluster.Seen[bool]{} }), "that do not answer", false, "one cannot be asked"},
		{with(func(o *cluster.Observed) { o.Members = cluster.Seen[[]cluster.Member]{} }), "that do not answer", false, "they are not known"},
	} {
		if got := c.e.WayOut("dev"); !strings.Contains(got, c.hint) || c.e.IsPair() != c.pair {
			t.Errorf("%s: %q, pair %v", c.which, got, c.e.IsPair())
		}
	}
}

// TestMembersOfNodes: a member is that of a node by its name, or by its address while it has none; what
// has the address and another name is at its place only.
func TestMembersOfNodes(t *testing.T) {
	n := cluster.Node{Name: "cp-1", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.0.0.1")}
	at := func(name, ip string) cluster.Member {
		return cluster.Member{ID: 7, Name: name, Address: ip}
	}
	for name, c := range map[string]struct {
		members []cluster.Member
		is, own bool
	}{
		"none":            {nil, false, false},
		"its own":         {[]cluster.Member{at("cp-2", "10.0.0.2"), at("cp-1", "10.0.0.1")}, true, true},
		"no name yet":     {[]cluster.Member{at("", "10.0.0.1")}, true, true},
		"of another":      {[]cluster.Member{at("cp-9", "10.0.0.1")}, true, false},
		"no name, beside": {[]cluster.Member{at("", "10.0.0.2")}, false, false},
	} {
		o := cluster.Observed{Members: cluster.Saw(c.members)}
		mem, is := MemberOf(o, n)
		if own := HasMember(o, n); is != c.is || own != c.own || is != (mem.ID == 7) {
			t.Errorf("%s: a member is %t, its own %t: %+v", name, is, own, mem)
		}
	}
}

// TestAlarms: what etcd holds against its members, and what is not known of that.
func TestAlarms(t *testing.T) {
	with := func(alarms ...string) Etcd { return Etcd{state: cluster.Saw(cluster.Etcd{Alarms: alarms})} }
	lost := with()
	lost.unknown = "timeout"
	for name, c := range map[string]struct {
		e                  Etcd
		alarms, why, hints string
	}{
		"none":            {with(), "", "", ""},
		"one":             {with("NOSPACE"), "etcd has the alarm NOSPACE", "etcd has the alarm NOSPACE", "etcd defrag"},
		"corrupt":         {with("CORRUPT"), "etcd has the alarm CORRUPT", "etcd has the alarm CORRUPT", "another `replace`"},
		"both":            {with("CORRUPT", "NOSPACE"), "etcd has the alarms CORRUPT and NOSPACE", "etcd has the alarms CORRUPT and NOSPACE", "another `replace`"},
		"members unknown": {lost, "", "the members of etcd are not known: timeout", ""},
		"unknown":         {Etcd{state: cluster.Unseen[cluster.Etcd]("no answer")}, "", "whether etcd has an alarm is not known: no answer", ""},
		"not asked":       {Etcd{}, "", "whether etcd has an alarm is not known", ""},
	} {
		if got := c.e.Alarms(); got != c.alarms {
			t.Errorf("%s: %q, want %q", name, got, c.alarms)
		}
		if got := c.e.Alarmed(); got != c.why {
			t.Errorf("%s: %q, want %q", name, got, c.why)
		}
		if hint := c.e.AlarmHint(); !strings.Contains(hint, c.hints) || strings.Contains(hint, "etcd defrag") == strings.Contains(hint, "another `replace`") {
			t.Errorf("%s: %q", name, hint)
		}
	}
}

// TestLeaderLast: the control plane whose member leads comes after the other ones, and before the workers behind them.
func TestLeaderLast(t *testing.T) {
	node := func(name string, role cluster.Role, last byte) cluster.Node {
		return cluster.Node{Name: name, Role: role, IP: netip.AddrFrom4([4]byte{10, 0, 0, last})}
	}
	nodes := []cluster.Node{node("cp-1", cluster.ControlPlane, 1), node("wk-1", cluster.Worker, 4), node("cp-2", cluster.ControlPlane, 2), node("cp-3", cluster.ControlPlane, 3), node("wk-2", cluster.Worker, 5)}
	members := []cluster.Member{{ID: 1, Name: "cp-1"}, {ID: 2, Name: "cp-2"}, {ID: 3, Name: "cp-3"}}
	for leader, want := range map[uint64]string{
		1: "wk-1 cp-2 cp-3 cp-1 wk-2", 2: "cp-1 wk-1 cp-3 cp-2 wk-2", 3: "cp-1 wk-1 cp-2 cp-3 wk-2",
		0: "cp-1 wk-1 cp-2 cp-3 wk-2", 7: "cp-1 wk-1 cp-2 cp-3 wk-2",
	} {
		o := cluster.Observed{Members: cluster.Saw(members), Etcd: cluster.Saw(cluster.Etcd{Leader: leader})}
		var got []string
		for _, n := range SortLeaderLast(nodes, o) {
			got = append(got, n.Name)
		}
		if words := strings.Join(got, " "); words != want {
			t.Errorf("%d leads: %s, want %s", leader, words, want)
		}
	}
	if nodes[0].Name != "cp-1" || nodes[3].Name != "cp-3" {
		t.Errorf("the inventory is %v now", nodes)
	}
	unseen := cluster.Observed{Etcd: cluster.Saw(cluster.Etcd{})} // no member is known, and none leads
	if got := SortLeaderLast(nodes, unseen); got[0].Name != "cp-1" {
		t.Errorf("%v", got)
	}
}
