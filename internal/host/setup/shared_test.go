package setup

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// datacenter is a cluster of Proxmox VE: what its hosts share, and what each has
// for itself.
type datacenter struct {
	shared Facts
	hosts  map[string]*member
}

// member is one host.
type member struct {
	files  map[string]File
	record Record
	unit   Unit
	ready  *Wishes // what it was set up for, to the end
}

func newDatacenter(hosts ...string) *datacenter {
	d := &datacenter{shared: installed(), hosts: map[string]*member{}}
	d.shared.Hosts = hosts
	for _, h := range hosts {
		d.hosts[h] = &member{files: map[string]File{}, record: Record{Version: 1}, unit: Unit{Installed: true}}
	}
	return d
}

// at is what is seen on a host.
func (d *datacenter) at(host string) Facts {
	f := d.shared
	f.Host, f.Files, f.Unit = host, d.hosts[host].files, d.hosts[host].unit
	return f
}

// carryOut does steps on a host.
func (d *datacenter) carryOut(host string, steps []Step) {
	m := d.hosts[host]
	f, r := carryOut(d.at(host), m.record, steps)
	m.record, m.unit = r, f.Unit
	d.shared.ACL, d.shared.Storages = f.ACL, f.Storages
}

// wishesOf are what a host is set up for when nobody says otherwise.
func (d *datacenter) wishesOf(host string) Wishes {
	if w := d.hosts[host].record.Wishes; w.Pool != "" {
		return w
	}
	return wished(d.at(host))
}

// init returns the steps of init on a host, and wishes for them in its record.
func (d *datacenter) init(t rapid.TB, host string, w Wishes, o Options) []Step {
	t.Helper()
	g := packaged(t)
	if problems := Check(d.at(host), w, d.hosts[host].record, g, o); problems.HasErrors() {
		t.Fatalf("%s: %v", host, problems)
	}
	plan := Make(d.at(host), w, g, d.hosts[host].record, o)
	if len(plan.Conflicts) > 0 {
		t.Fatalf("%s: %v", host, plan.Conflicts)
	}
	d.hosts[host].record = d.hosts[host].record.Begun(w, plan)
	return plan.Steps
}

// setUp sets a host up.
func (d *datacenter) setUp(t rapid.TB, host string, change func(*Wishes)) {
	t.Helper()
	w := d.wishesOf(host)
	if change != nil {
		change(&w)
	}
	d.carryOut(host, d.init(t, host, w, Options{Start: true}))
	d.hosts[host].ready = &w
}

// undo takes back what init made on a host, and returns what stays, in words.
func (d *datacenter) undo(t rapid.TB, host string) string {
	t.Helper()
	plan, problems := Undo(d.at(host), d.hosts[host].record, true)
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	d.carryOut(host, plan.Steps)
	d.hosts[host].record, d.hosts[host].ready = Record{Version: 1}, nil
	return strings.Join(plan.Notes, "\n")
}

// works complains of a host that was set up and whose agent could not work.
func (d *datacenter) works(t rapid.TB, host string) {
	t.Helper()
	m := d.hosts[host]
	if m.ready == nil {
		return
	}
	f := d.at(host)
	if !f.hasToken() || string(m.files[Credential(ProxmoxToken)].Data) != f.token()+"=secret\n" {
		t.Errorf("the token of %s is gone, or not the one it has", host)
	}
	if _, there := f.Pools[m.ready.Pool]; !there {
		t.Errorf("the pool %s of %s is gone", m.ready.Pool, host)
	}
	for _, g := range Grants(m.ready.Scope(f.Hosts)) {
		role, _ := RoleNamed(g.Role)
		if have := slices.Sorted(slices.Values(f.Roles[g.Role])); !slices.Equal(have, role.Names()) {
			t.Errorf("the role %s holds %v", g.Role, have)
		}
		for _, who := range []string{User, f.token()} {
			if !slices.Contains(f.ACL, Entry{g.Path, who, g.Role, g.Propagate}) {
				t.Errorf("%s lacks %s at %s", who, g.Role, g.Path)
			}
		}
	}
}

// joinNames complains of a step on a host that is about another's token.
func (d *datacenter) names(t rapid.TB, host string, steps []Step) {
	t.Helper()
	for _, s := range steps {
		if s.Call == nil {
			continue
		}
		for other := range d.hosts {
			path := strings.HasSuffix(s.Call.Path, "/token/"+TokenName(other))
			if other != host && (path || slices.Contains(s.Call.Options, Option{"tokens", string(Token(other))})) {
				t.Errorf("%s touches the token of %s: %v", host, other, s.Shown())
			}
		}
	}
}

// TestTokenName: a host's token has a name that Proxmox VE takes, and no other
// host's has it.
func TestTokenName(t *testing.T) {
	seen := map[string]string{}
	for host, want := range map[string]string{
		"pve1": "pve1", "pve": "pve", "PVE-A": "PVE-A", "x9": "x9", "1pve": "host_1pve", "01": "host_01", "7": "host_7", "a": "host_a", "host-a": "host-a", "Z": "host_Z",
	} {
		got := TokenName(host)
		if got != want || string(Token(host)) != "talos-agent@pve!"+want {
			t.Errorf("%s: %s, %s, want %s", host, got, Token(host), want)
		}
		if seen[got] != "" {
			t.Errorf("%s and %s have the same token", host, seen[got])
		}
		seen[got] = host
	}
}

// TestSecondHost: it gets a token and a pool of its own, and VMIDs that the first
// one has not been given.
func TestSecondHost(t *testing.T) {
	d := newDatacenter("pve1", "pve2", "pve3")
	d.setUp(t, "pve1", nil)
	w := Defaults(d.at("pve2"))
	if w.Pool != "talos-pve2" || fmt.Sprint(w.VMIDs) != "[600-799]" {
		t.Errorf("pool %s, VMIDs %v", w.Pool, w.VMIDs)
	}
	if again := Defaults(d.at("pve1")); again.Pool != "talos" || fmt.Sprint(again.VMIDs) != "[400-599]" {
		t.Errorf("the first one, its record lost: pool %s, VMIDs %v", again.Pool, again.VMIDs)
	}
	steps := d.init(t, "pve2", d.wishesOf("pve2"), Options{})
	d.names(t, "pve2", steps)
	for _, s := range steps {
		for _, made := range []string{userStep, roleStep(RoleVM), poolStep("talos")} {
			if s.Name == made {
				t.Errorf("it makes again: %s", s.Shown())
			}
		}
	}
	d.carryOut("pve2", steps)
	if got := d.shared.Users[User].Tokens; !slices.Equal(got, []string{"pve1", "pve2"}) {
		t.Errorf("the tokens are %v", got)
	}
	d.works(t, "pve1")
	// In one pool each would take the other's VMs for its own.
	w.Pool = "talos"
	const want = "warning: --pool: the pool talos is for the agent of pve1 too"
	if got := Check(d.at("pve2"), w, Record{}, packaged(t), Options{}).Error(); !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestCopiedToken: a token that lies where this host's goes, and is none that
// init put there, is not written over unasked.
func TestCopiedToken(t *testing.T) {
	d := newDatacenter("pve1", "pve2")
	d.setUp(t, "pve1", nil)
	copied := d.hosts["pve1"].files[Credential(ProxmoxToken)]
	d.hosts["pve2"].files[Credential(ProxmoxToken)] = copied
	for o, want := range map[Options]int{{}: 1, {Force: true}: 0, {RotateToken: true}: 0} {
		plan := Make(d.at("pve2"), d.wishesOf("pve2"), packaged(t), Record{}, o)
		if len(plan.Conflicts) != want || want > 0 && (plan.Conflicts[0].Path != Credential(ProxmoxToken) || !plan.Conflicts[0].Secret) {
			t.Errorf("%+v: %v", o, plan.Conflicts)
		}
	}
}

// TestRotateOneToken: a new token in the place of this host's leaves the others.
func TestRotateOneToken(t *testing.T) {
	d := newDatacenter("pve1", "pve2")
	d.setUp(t, "pve1", nil)
	d.setUp(t, "pve2", nil)
	before := slices.Clone(d.shared.ACL)
	steps := d.init(t, "pve2", d.wishesOf("pve2"), Options{RotateToken: true})
	if len(steps) < 2 || !strings.Contains(shown(steps), "delete /access/users/talos-agent@pve/token/pve2") {
		t.Errorf("steps\n%s", shown(steps))
	}
	d.names(t, "pve2", steps)
	d.carryOut("pve2", steps)
	d.works(t, "pve1")
	d.works(t, "pve2")
	if len(d.shared.ACL) != len(before) {
		t.Errorf("access was\n%v\nand is\n%v", before, d.shared.ACL)
	}
}

// TestUndoBesideAnother: what stays while there is another host's agent, which
// goes on working, and what goes with the last, whichever host made it.
func TestUndoBesideAnother(t *testing.T) {
	sharedPool := func(w *Wishes) { w.Pool = "talos" }
	for name, c := range map[string]struct {
		before func(*datacenter)
		second func(*Wishes)
		order  []string
		since  func(*datacenter) // before the last undo
		stays  []string          // said by the first
		pools  []string          // between both
		last   string            // said by the last
		left   func(Facts) bool  // nil: nothing of the agent's
	}{
		"the first one first": {order: []string{"pve1", "pve2"}, pools: []string{"talos-pve2"},
			stays: []string{"user talos-agent@pve and the roles stay: the agent of pve2 needs them"}},
		"the second one first":                {order: []string{"pve2", "pve1"}, pools: []string{"talos"}, stays: []string{"the agent of pve1 needs them"}},
		"in one pool, the first one first":    {second: sharedPool, order: []string{"pve1", "pve2"}, pools: []string{"talos"}, stays: []string{"pool talos stays: it is for the agent of pve2 too"}},
		"in one pool, the second one first":   {second: sharedPool, order: []string{"pve2", "pve1"}, pools: []string{"talos"}, stays: []string{"pool talos stays: it is for the agent of pve1 too"}},
		"another bridge, and the first first": {second: func(w *Wishes) { w.Bridges = []string{"vmbr1"} }, order: []string{"pve1", "pve2"}, pools: []string{"talos-pve2"}},
		"a user from before": {before: func(d *datacenter) { d.shared.Users[User] = Account{Comment: "made by hand"} }, order: []string{"pve2", "pve1"},
			pools: []string{"talos"}, last: "user talos-agent@pve stays: it was there before", left: func(f Facts) bool {
				return f.Users[User].Comment == "made by hand" && len(f.ACL) == 0 && len(f.Roles) == 1 && len(f.Pools) == 0
			}},
		"a role from before": {before: func(d *datacenter) { r, _ := RoleNamed(RoleBridge); d.shared.Roles[RoleBridge] = r.Names() }, order: []string{"pve1", "pve2"},
			pools: []string{"talos-pve2"}, last: "role TalosAgentBridge stays: it was there before", left: func(f Facts) bool {
				return len(f.Users) == 1 && len(f.ACL) == 0 && len(f.Roles) == 2 && len(f.Pools) == 0
			}},
		"a pool that somebody is let at": {second: sharedPool, order: []string{"pve1", "pve2"}, pools: []string{"talos"},
			since: func(d *datacenter) {
				d.shared.ACL = append(d.shared.ACL, Entry{"/pool/talos", "me@pve", "PVEVMAdmin", true})
			},
			last: "pool talos stays: me@pve has PVEVMAdmin there", left: func(f Facts) bool { return len(f.Pools) == 1 && len(f.ACL) == 1 && len(f.Users) == 1 }},
		"the comment of the user is somebody's now": {order: []string{"pve1", "pve2"}, pools: []string{"talos-pve2"},
			since: func(d *datacenter) {
				a := d.shared.Users[User]
				a.Comment = "mine now"
				d.shared.Users[User] = a
			},
			last: "user talos-agent@pve stays", left: func(f Facts) bool { return len(f.Users) == 2 && len(f.Users[User].Tokens) == 0 && len(f.Pools) == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatacenter("pve1", "pve2")
			if c.before != nil {
				c.before(d)
			}
			d.setUp(t, "pve1", nil)
			d.setUp(t, "pve2", c.second)
			said := d.undo(t, c.order[0])
			for _, words := range c.stays {
				if !strings.Contains(said, words) {
					t.Errorf("%q is not said: %q", words, said)
				}
			}
			d.works(t, c.order[1])
			if got := slices.Sorted(maps.Keys(d.shared.Pools)); !slices.Equal(got, c.pools) {
				t.Errorf("the pools are %v, want %v", got, c.pools)
			}
			if d.at(c.order[0]).hasToken() {
				t.Errorf("the token of %s is there still", c.order[0])
			}
			// Nothing is given for an agent that was removed.
			for _, e := range d.shared.ACL {
				if e.Who == User && len(d.at(c.order[0]).othersAt(e.Path, e.Role)) == 0 {
					t.Errorf("for nobody: %v", e)
				}
			}
			if c.since != nil {
				c.since(d)
			}
			if said = d.undo(t, c.order[1]); !strings.Contains(said, c.last) {
				t.Errorf("%q is not said: %q", c.last, said)
			}
			nothing := func(f Facts) bool { return len(f.Pools)+len(f.ACL) == 0 && len(f.Users) == 1 && len(f.Roles) == 1 }
			if c.left == nil {
				c.left = nothing
			}
			if !c.left(d.shared) {
				t.Errorf("left are %+v", d.shared)
			}
		})
	}
}

// TestUndoOfWhatWasCutOff: what a host made and has told nobody of yet, the last
// one takes away, and a pool that no host is set up for any more.
func TestUndoOfWhatWasCutOff(t *testing.T) {
	d := newDatacenter("pve1", "pve2")
	before := d.snapshot()
	steps := d.init(t, "pve1", d.wishesOf("pve1"), Options{})
	at := slices.IndexFunc(steps, func(s Step) bool { return s.Name == userStep })
	d.carryOut("pve1", steps[:at])
	d.setUp(t, "pve2", func(w *Wishes) { w.Pool = "talos" })
	d.setUp(t, "pve2", func(w *Wishes) { w.Pool = "lab" })
	d.undo(t, "pve1")
	d.works(t, "pve2")
	d.undo(t, "pve2")
	if after := d.snapshot(); !reflect.DeepEqual(before, after) {
		t.Errorf("before\n%+v\nafter\n%+v", before, after)
	}
}

// TestWithoutQuorum: with too few hosts up, neither init nor undo begins what it
// could not do.
func TestWithoutQuorum(t *testing.T) {
	d := newDatacenter("pve1", "pve2")
	d.setUp(t, "pve1", nil)
	d.shared.NoQuorum = true
	const want = "the Proxmox VE cluster of pve1 has no quorum, so nothing can be changed in it (bring the other hosts back; `pvecm status`"
	if got := Check(d.at("pve1"), d.wishesOf("pve1"), d.hosts["pve1"].record, packaged(t), Options{}).Error(); !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if plan, problems := Undo(d.at("pve1"), d.hosts["pve1"].record, false); !strings.HasPrefix(problems.Error(), want) || len(plan.Steps) > 0 {
		t.Errorf("%v\n%s", problems, shown(plan.Steps))
	}
}

// TestUndoInASharedPool: VMs in the pool may be another agent's; where they run is
// told, and that they stay.
func TestUndoInASharedPool(t *testing.T) {
	d := newDatacenter("pve1", "pve2")
	d.setUp(t, "pve1", nil)
	d.setUp(t, "pve2", func(w *Wishes) { w.Pool = "talos" })
	d.shared.VMs = []VM{{ID: 401, Name: "dev-cp-1", Pool: "talos", Host: "pve1"}, {ID: 601, Name: "prod-cp-1", Pool: "talos", Host: "pve2"}}
	_, problems := Undo(d.at("pve1"), d.hosts["pve1"].record, false)
	for _, words := range []string{"has 2 VMs: 401 dev-cp-1, 601 prod-cp-1 on pve2; the pool is for the agent of pve2 too", "with --leave-vms those of others stay as they are"} {
		if !strings.Contains(problems.Error(), words) {
			t.Errorf("%q is not said: %v", words, problems)
		}
	}
	if said := d.undo(t, "pve1"); !strings.Contains(said, "pool talos stays: it has 2 VMs") {
		t.Errorf("%q", said)
	}
	d.works(t, "pve2")
}

// TestBridgeOfTwo: a host that needs a bridge no more takes from the user only
// what no other host's token has there.
func TestBridgeOfTwo(t *testing.T) {
	d := newDatacenter("pve1", "pve2")
	d.setUp(t, "pve1", nil)
	d.setUp(t, "pve2", nil)
	d.setUp(t, "pve1", func(w *Wishes) { w.Bridges = []string{"vmbr1"} })
	at := func(who, bridge string) bool {
		return slices.Contains(d.shared.ACL, Entry{"/sdn/zones/localnetwork/" + bridge, who, RoleBridge, true})
	}
	d.works(t, "pve1")
	d.works(t, "pve2")
	if at(string(Token("pve1")), "vmbr0") || !at(User, "vmbr0") {
		t.Errorf("access is %v", d.shared.ACL)
	}
	// What pve1 had given the user first, pve2 has for its own token.
	d.setUp(t, "pve2", func(w *Wishes) { w.Bridges = []string{"vmbr1"} })
	if at(string(Token("pve2")), "vmbr0") {
		t.Errorf("access is %v", d.shared.ACL)
	}
	if d.setUp(t, "pve1", nil); at(User, "vmbr0") {
		t.Errorf("the user has kept what pve1 gave it: %v", d.shared.ACL)
	}
}

// TestHostsOfOneCluster: whatever is done on the hosts of a Proxmox VE cluster, in
// whichever order and interrupted wherever, no host touches another's token or keeps
// its agent from working; what people made stays; and when all is undone there is
// what was there before.
func TestHostsOfOneCluster(t *testing.T) {
	hosts := []string{"pve1", "pve2", "7"}
	rapid.Check(t, func(r *rapid.T) {
		d := newDatacenter(hosts...)
		made := d.byHand(r)
		before := d.snapshot()
		for range rapid.IntRange(1, 12).Draw(r, "deeds") {
			host := rapid.SampledFrom(hosts).Draw(r, "host")
			m := d.hosts[host]
			w := d.wishesOf(host)
			w.Pool = rapid.SampledFrom([]string{w.Pool, "talos", "lab"}).Draw(r, "pool")
			w.Bridges = rapid.SampledFrom([][]string{w.Bridges, {"vmbr0"}, {"vmbr0", "vmbr1"}}).Draw(r, "bridges")
			deed := rapid.SampledFrom([]string{"init", "init", "rotate", "undo"}).Draw(r, "deed")
			var steps []Step
			if deed == "undo" {
				plan, _ := Undo(d.at(host), m.record, true)
				steps = plan.Steps
			} else {
				steps = d.init(r, host, w, Options{RotateToken: deed == "rotate"})
			}
			d.names(r, host, steps)
			done := rapid.IntRange(0, len(steps)).Draw(r, "steps done")
			if rapid.Bool().Draw(r, "to the end") {
				done = len(steps)
			}
			m.ready = nil
			d.carryOut(host, steps[:done])
			switch {
			case done < len(steps):
			case deed == "undo":
				m.record = Record{Version: 1}
			default:
				m.ready = &w
			}
			for _, other := range hosts {
				d.works(r, other)
			}
			made(r)
			if r.Failed() {
				r.Fatalf("%s on %s, %d of\n%s", deed, host, done, shown(steps))
			}
		}
		for _, host := range rapid.Permutation(hosts).Draw(r, "undone") {
			d.undo(r, host)
			made(r)
		}
		if _, theirs := before.Users[User]; !theirs {
			if after := d.snapshot(); !reflect.DeepEqual(before, after) {
				r.Fatalf("before\n%+v\nafter\n%+v", before, after)
			}
		}
	})
}

// byHand makes some of what init would make, as people do. It returns what
// complains when any of it is missing.
func (d *datacenter) byHand(r *rapid.T) func(rapid.TB) {
	f := &d.shared
	f.ACL = []Entry{{"/", "me@pve", "Administrator", true}}
	theirs := func(what string) bool { return rapid.IntRange(0, 3).Draw(r, what+" by hand") == 0 }
	user, pool, role := theirs("user"), theirs("pool"), theirs("role")
	if user {
		f.Users[User] = Account{Comment: "mine", Tokens: []string{"mine"}}
		f.ACL = append(f.ACL, Entry{"/pool/talos", User + "!mine", RoleVM, true})
	}
	if pool {
		f.Pools["talos"] = ""
	}
	if role || user {
		vm, _ := RoleNamed(RoleVM)
		f.Roles[RoleVM] = vm.Names()
	}
	entries := slices.Clone(f.ACL)
	return func(t rapid.TB) {
		_, hasPool := f.Pools["talos"]
		_, hasRole := f.Roles[RoleVM]
		if user && !slices.Contains(f.Users[User].Tokens, "mine") || pool && !hasPool || (role || user) && !hasRole {
			t.Errorf("what people made is gone: %+v", f)
		}
		for _, e := range entries {
			if !slices.Contains(f.ACL, e) {
				t.Errorf("what people gave is gone: %v", e)
			}
		}
	}
}

// snapshot is what is of the whole Proxmox VE cluster.
func (d *datacenter) snapshot() Facts {
	return Facts{Pools: maps.Clone(d.shared.Pools), Roles: maps.Clone(d.shared.Roles), Users: maps.Clone(d.shared.Users), ACL: append([]Entry{}, d.shared.ACL...)}
}
