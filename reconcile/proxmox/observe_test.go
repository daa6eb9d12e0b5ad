package proxmox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// image puts the test's image onto the host, as if uploaded before.
func (s *stand) image() {
	s.t.Helper()
	if err := s.host.AddFile(testHost, "local", "import/"+imageName, 64<<20, world.Image{Platform: "nocloud"}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stand) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// wide makes a token that sees and may do everything.
func (s *stand) wide() *Client {
	s.t.Helper()
	c, err := New(Config{URL: s.host.URL(), Token: cluster.SecretString(s.host.AdminToken()), CA: s.world.PKI.PEM, Pool: testPool, Dial: s.world.Net.DialContext})
	s.must(err)
	return c
}

// revoke takes the agent's privileges on its pool from its token or its user.
func (s *stand) revoke(kind, who string) {
	s.t.Helper()
	c := s.wide()
	defer c.Close()
	s.must(c.put(context.Background(), "/access/acl", params{"path": "/pool/" + testPool, "roles": "TalosAgentVM", kind: who, "delete": "1"}, nil))
}

// TestWhatIsBehindAVMID looks at every kind of thing that can be behind the
// VMID of a node, with a token that sees its pool and one that sees everything.
func TestWhatIsBehindAVMID(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	ours := map[string]string{"smbios1": "uuid=" + n.UUID, "name": n.Name}
	with := func(more ...string) map[string]string {
		m := map[string]string{}
		for k, v := range ours {
			m[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	create := func(s *stand) {
		s.image()
		c := s.client()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if err := c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil); err == nil {
			s.t.Fatal("the creation was not interrupted")
		}
		c.Close()
	}
	kill := func(s *stand) {
		create(s)
		tasks := s.host.Tasks()
		s.must(s.host.KillTask(tasks[len(tasks)-1].UPID))
	}
	foreign := func(f pve.Foreign) func(*stand) {
		return func(s *stand) { s.must(s.host.CreateForeign(n.VMID, f)) }
	}
	type want struct {
		presence cluster.Presence
		owner    cluster.Owned
		power    cluster.Power
		lock     string
		task     string
		why      string // contained
		moved    bool
		pool     string
		others   bool // by its UUID and its mark
	}
	for _, tc := range []struct {
		name  string
		stage func(*stand)
		want  want
		wide  want // zero: the same
	}{
		{name: "nothing", stage: func(*stand) {}, want: want{presence: cluster.Absent}},
		{name: "ours, stopped", stage: foreign(pve.Foreign{Pool: testPool, Config: ours}),
			want: want{presence: cluster.Present, owner: cluster.Ours, power: cluster.Stopped}},
		{name: "ours, running", stage: foreign(pve.Foreign{Pool: testPool, Config: ours, Running: true}),
			want: want{presence: cluster.Present, owner: cluster.Ours, power: cluster.PowerRunning}},
		{name: "ours, UUID in capitals", stage: foreign(pve.Foreign{Pool: testPool, Config: with("smbios1", "uuid="+strings.ToUpper(n.UUID))}),
			want: want{presence: cluster.Present, owner: cluster.Ours, power: cluster.Stopped}},
		{name: "ours, locked", stage: foreign(pve.Foreign{Pool: testPool, Config: with("lock", "backup")}),
			want: want{presence: cluster.Present, owner: cluster.Ours, power: cluster.Stopped, lock: "backup"}},
		{name: "another's in our pool", stage: foreign(pve.Foreign{Pool: testPool, Config: map[string]string{"name": n.Name}}),
			want: want{presence: cluster.Present, owner: cluster.Foreign, power: cluster.Stopped, why: "SMBIOS UUID", others: true}},
		{name: "with our mark and another UUID", stage: foreign(pve.Foreign{Pool: testPool, Config: map[string]string{"name": n.Name, "description": cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: n.Name}.String()}}),
			want: want{presence: cluster.Present, owner: cluster.Foreign, power: cluster.Stopped, why: "SMBIOS UUID"}},
		{name: "ours, and its UUID was removed", stage: func(s *stand) {
			foreign(pve.Foreign{Pool: testPool, Config: ours})(s)
			s.must(s.host.Edit(n.VMID, "smbios1", ""))
		}, want: want{presence: cluster.Present, owner: cluster.Foreign, power: cluster.Stopped, why: "no SMBIOS UUID"}},
		{name: "another's in no pool", stage: foreign(pve.Foreign{Config: map[string]string{"name": n.Name}, Running: true}),
			want: want{presence: cluster.Present, owner: cluster.Foreign, why: "outside pool talos-dev"},
			wide: want{presence: cluster.Present, owner: cluster.Foreign, why: "not in pool talos-dev", others: true}},
		{name: "a copy of ours in another pool", stage: foreign(pve.Foreign{Pool: "other", Config: ours}),
			want: want{presence: cluster.Present, owner: cluster.Foreign, why: "outside pool talos-dev"},
			wide: want{presence: cluster.Present, owner: cluster.Foreign, why: "in pool other", moved: true, pool: "other"}},
		{name: "ours in no pool", stage: foreign(pve.Foreign{Config: ours, Running: true}),
			want: want{presence: cluster.Present, owner: cluster.Foreign, why: "outside pool talos-dev"},
			wide: want{presence: cluster.Present, owner: cluster.Foreign, why: "not in pool talos-dev", moved: true}},
		{name: "being created", stage: create,
			want: want{presence: cluster.Present, task: "qmcreate", why: "being created"}},
		{name: "left locked by a creation that died", stage: kill,
			want: want{presence: cluster.Present, owner: cluster.Ours, power: cluster.Stopped, lock: "create", why: "qm unlock"}},
		{name: "left locked, and nobody can tell what happened since", stage: func(s *stand) {
			kill(s)
			s.host.Role("TalosAgentHost", "Sys.Syslog")
		}, want: want{why: "no Sys.Audit on /nodes/pve1"},
			wide: want{presence: cluster.Present, owner: cluster.Ours, power: cluster.Stopped, lock: "create", why: "qm unlock"}},
		{name: "another's after a creation of ours that died", stage: func(s *stand) {
			kill(s)
			s.must(s.host.Remove(n.VMID))
			s.must(s.host.CreateForeign(n.VMID, pve.Foreign{}))
		}, want: want{presence: cluster.Present, owner: cluster.Foreign, why: "outside pool"},
			wide: want{presence: cluster.Present, owner: cluster.Foreign, why: "not in pool", others: true}},
		{name: "another's creation", stage: func(s *stand) {
			s.image()
			c := s.wide()
			defer c.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			if err := c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil); err == nil {
				s.t.Fatal("the creation was not interrupted")
			}
		}, want: want{presence: cluster.Present, owner: cluster.Foreign, why: "outside pool"},
			// To root's own token it is its own.
			wide: want{presence: cluster.Present, task: "qmcreate", why: "being created"}},
	} {
		for _, flavour := range flavours {
			for _, wide := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/wide=%v", tc.name, flavour, wide), func(t *testing.T) {
					onStand(t, flavour, func(t *testing.T, s *stand) {
						tc.stage(s)
						s.world.ForgetCalls()
						c, expect := s.client(), tc.want
						if wide {
							c.Close()
							c = s.wide()
							if tc.wide != (want{}) {
								expect = tc.wide
							}
							// A creation by the agent is another's to root's token.
							if strings.Contains(tc.name, "being created") || strings.Contains(tc.name, "left locked") {
								c.token = "talos-agent@pve!pve1"
							}
						}
						defer c.Close()
						vm := observe(c, d).VMs[n.Name]
						if vm.Presence != expect.presence || vm.Owner != expect.owner || vm.Power != expect.power || vm.Lock != expect.lock || !strings.Contains(vm.Why, expect.why) ||
							vm.Moved != expect.moved || vm.Disproven != expect.others || vm.Pool != expect.pool || (vm.Task == nil) != (expect.task == "") || vm.Task != nil && vm.Task.Type != expect.task {
							t.Errorf("got %+v\nwant %+v", vm, expect)
						}
						if vm.VMID != n.VMID || vm.Node != n.Name || vm.Presence == cluster.Present && vm.Host != testHost {
							t.Errorf("got %+v", vm)
						}
					})
				})
			}
		}
	}
}

// TestUnknownIsNeverAbsent: whatever keeps the agent from seeing leaves what it
// would see unknown.
func TestUnknownIsNeverAbsent(t *testing.T) {
	d := desired(2)
	fault := func(f world.Fault) func(*stand) {
		return func(s *stand) {
			f.System = "pve"
			s.world.Inject(f)
		}
	}
	for _, tc := range []struct {
		name  string
		cause func(*stand)
		why   string
	}{
		{"empty list", fault(world.Fault{Op: "GET /cluster/resources", Kind: world.EmptyList}), "no host in it"},
		{"refused", fault(world.Fault{Op: "GET /cluster/resources", Kind: world.Answer, Status: 500, Text: "got no worker upid - start worker failed"}), "start worker failed"},
		{"dead peer", fault(world.Fault{Op: "GET /cluster/resources", Kind: world.Answer, Status: 595, Text: "No route to host"}), "No route to host"},
		{"no answer", fault(world.Fault{Op: "GET /cluster/resources", Kind: world.LoseReply}), "EOF"},
		{"slow", fault(world.Fault{Op: "GET /cluster/resources", Kind: world.Slow, Delay: time.Hour}), "it does not answer in time"},
		{"token without rights", func(s *stand) { s.revoke("tokens", "talos-agent@pve!pve1") }, "no VM.Audit on /pool/talos-dev"},
		{"user without rights", func(s *stand) { s.revoke("users", "talos-agent@pve") }, "no VM.Audit on /pool/talos-dev"},
		{"no Pool.Audit", func(s *stand) { s.host.Role("TalosAgentVM", "VM.Audit") }, "no Pool.Audit on /pool/talos-dev"},
		{"token replaced", func(s *stand) { s.host.Token("talos-agent@pve", "pve1", true) }, "Authentication failed!"},
		{"host dark", func(s *stand) { s.world.Net.(*world.Memory).Darken("127.0.0.1", true) }, "it does not answer in time"},
		{"host down", func(s *stand) { s.host.Close() }, "no route to host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				c := s.settled(d)
				defer c.Close()
				tc.cause(s)
				for range 2 {
					o := observe(c, d)
					for _, n := range d.Spec.Nodes {
						vm := o.VMs[n.Name]
						if vm.Owner != cluster.OwnerUnknown || vm.Presence == cluster.Absent || !strings.Contains(vm.Why, tc.why) || vm.Hardware.Known {
							t.Errorf("%s: %+v", n.Name, vm)
						}
					}
					if o.Orphans.Known || !strings.Contains(o.Orphans.Why, tc.why) {
						t.Errorf("orphans: %+v", o.Orphans)
					}
				}
			})
		})
	}
}

// TestPartsThatCannotBeSeen: a refusal of one thing leaves the rest seen.
func TestPartsThatCannotBeSeen(t *testing.T) {
	d := desired(2)
	for _, tc := range []struct {
		op, subject string
		check       func(o cluster.Observed) bool
	}{
		{"GET /nodes/{node}/tasks", "", func(o cluster.Observed) bool {
			h := o.Hosts[testHost]
			return !h.Known && !h.Tasks.Known && h.Why != "" && o.VMs["dev-cp-1"].Owner == cluster.Ours
		}},
		{"GET /nodes/{node}/qemu/{vmid}/pending", "411", func(o cluster.Observed) bool {
			vm := o.VMs["dev-cp-1"]
			return vm.Presence == cluster.Present && vm.Owner == cluster.OwnerUnknown && vm.Why != "" && !vm.Hardware.Known && o.Hosts[testHost].Known && o.VMs["dev-cp-2"].Owner == cluster.Ours
		}},
		{"GET /nodes/{node}/qemu/{vmid}/status/current", "411", func(o cluster.Observed) bool {
			vm := o.VMs["dev-cp-1"]
			return vm.Presence == cluster.Present && vm.Owner == cluster.OwnerUnknown && vm.Why != "" && o.VMs["dev-cp-2"].Owner == cluster.Ours
		}},
		{"GET /version", "", func(o cluster.Observed) bool {
			return o.Hosts[testHost].Known && o.Hosts[testHost].PVE == "" && o.VMs["dev-cp-1"].Owner == cluster.Ours
		}},
		{"GET /cluster/status", "", func(o cluster.Observed) bool {
			q := o.Hosts[testHost].Quorate
			return o.Hosts[testHost].Known && !q.Known && q.Why != ""
		}},
	} {
		t.Run(tc.op, func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				s.settled(d).Close()
				s.world.Inject(world.Fault{System: "pve", Op: tc.op, Subject: tc.subject, Kind: world.Answer, Status: 500, Text: "it did not work"})
				c := s.client()
				defer c.Close()
				o := observe(c, d)
				if !tc.check(o) {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}

func TestHostForMaking(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		c := s.client()
		defer c.Close()
		h := observe(c, d).Hosts[testHost]
		if !h.Images.Known || len(h.Images.Value) != 0 {
			t.Errorf("images: %+v", h.Images)
		}
		if h.Quorate.Known {
			t.Errorf("quorum is seen without the privilege: %+v", h.Quorate)
		}
		s.image()
		if h = observe(c, d).Hosts[testHost]; h.Images.Value[imageName] == 0 {
			t.Errorf("images: %+v", h.Images)
		}
		s.host.AgentToken(pve.AgentScope{Pool: testPool, SeeQuorum: true})
		c.Close()
		s.token = s.host.AgentToken(pve.AgentScope{Pool: testPool, SeeQuorum: true})
		c = s.client()
		if h = observe(c, d).Hosts[testHost]; !h.Quorate.Known || !h.Quorate.Value {
			t.Errorf("quorum of a host by itself: %+v", h.Quorate)
		}
		d.Spec.Nodes[0].Placement.Pin = "pve9"
		if h = observe(c, d).Hosts["pve9"]; h.Known || h.Why == "" {
			t.Errorf("a host that is not there: %+v", h)
		}
	})
}

func TestOrphans(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(3)
		c := s.settled(d)
		defer c.Close()
		other := cluster.ClusterID("talos-agent", "other")
		mark := func(cl, node string) string { return cluster.Mark{Version: 1, Cluster: cl, Node: node}.String() }
		for vmid, f := range map[int]pve.Foreign{
			// A node that is not in the inventory any more, known by its mark.
			511: {Pool: testPool, Running: true, Config: map[string]string{"name": "renamed", "description": mark(d.Spec.ID, "dev-wk-1"), "smbios1": "uuid=" + cluster.NodeUUID(d.Spec.ID, "dev-wk-1")}},
			// One whose description is deleted, known by its name.
			512: {Pool: testPool, Config: map[string]string{"name": "dev-wk-2", "smbios1": "uuid=" + cluster.NodeUUID(d.Spec.ID, "dev-wk-2")}},
			// A mark that lies.
			513: {Pool: testPool, Config: map[string]string{"name": "dev-wk-3", "description": mark(d.Spec.ID, "dev-wk-3")}},
			// One whose description claims another cluster: its UUID proves that it is of this one.
			518: {Pool: testPool, Config: map[string]string{"name": "renamed", "description": mark(other, "dev-wk-8"), "smbios1": "uuid=" + cluster.NodeUUID(d.Spec.ID, "renamed")}},
			// Another cluster's.
			514: {Pool: testPool, Running: true, Config: map[string]string{"name": "o", "description": mark(other, "o"), "smbios1": "uuid=" + cluster.NodeUUID(other, "o")}},
			// A mark that names no cluster at all.
			515: {Pool: testPool, Config: map[string]string{"name": "x", "description": mark("nonsense", "x")}},
			// Ours, outside the pool.
			516: {Config: map[string]string{"name": "dev-wk-6", "smbios1": "uuid=" + cluster.NodeUUID(d.Spec.ID, "dev-wk-6")}},
			// A node that moved to another VMID in the inventory.
			517: {Pool: testPool, Config: map[string]string{"name": "dev-cp-3", "smbios1": "uuid=" + cluster.NodeUUID(d.Spec.ID, "dev-cp-3")}},
		} {
			s.must(s.host.CreateForeign(vmid, f))
		}
		check := func(what string, want ...string) {
			t.Helper()
			o := observe(c, d)
			var got []string
			for _, vm := range o.Orphans.Value {
				got = append(got, fmt.Sprintf("%d %s", vm.VMID, vm.Node))
				if vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Host != testHost || !vm.Hardware.Known {
					t.Errorf("%s: %+v", what, vm)
				}
			}
			if !o.Orphans.Known || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: got %v, %s; want %v", what, got, o.Orphans.Why, want)
			}
		}
		check("new", "511 dev-wk-1", "512 dev-wk-2", "517 dev-cp-3", "518 renamed")
		check("known", "511 dev-wk-1", "512 dev-wk-2", "517 dev-cp-3", "518 renamed")
		time.Sleep(11 * time.Second)
		check("seen by statistics", "511 dev-wk-1", "512 dev-wk-2", "517 dev-cp-3", "518 renamed")

		// The plan of another directory does not make the agent forget.
		s.world.ForgetCalls()
		half := desired(1)
		if o := observe(c, half); len(o.Orphans.Value) != 6 {
			t.Errorf("with one node in the inventory: %+v", o.Orphans)
		}
		check("after another inventory was looked at", "511 dev-wk-1", "512 dev-wk-2", "517 dev-cp-3", "518 renamed")

		// A list that lost one of them proves nothing.
		s.must(s.host.Remove(512))
		check("one is gone", "511 dev-wk-1", "517 dev-cp-3", "518 renamed")
		s.world.Inject(world.Fault{System: "pve", Op: "GET /cluster/nextid", Kind: world.Answer, Status: 500, Text: "it did not work", Times: 1})
		s.must(s.host.Remove(517))
		if o := observe(c, d); o.Orphans.Known {
			t.Errorf("orphans are known although it is unknown where 517 is: %+v", o.Orphans)
		}
		check("another one is gone", "511 dev-wk-1", "518 renamed")

		// Tear-down takes them too, and nothing else.
		for _, vm := range observeWith(c, d, cluster.Facts{Intents: []cluster.Intent{{Kind: cluster.IntendDestroy}}}).Orphans.Value {
			s.must(c.Delete(context.Background(), d, vm, nil))
		}
		check("after the tear-down")
		for _, vmid := range []int{513, 514, 515, 516} {
			if _, ok := s.host.VM(vmid); !ok {
				t.Errorf("vm %d is deleted", vmid)
			}
		}
	})
}

// TestForeignInTheWay: neither a creation, nor a start, nor a deletion touches
// a VM that is not ours, whatever it looks like.
func TestForeignInTheWay(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	for _, f := range []pve.Foreign{
		{}, {Pool: testPool}, {Pool: testPool, Running: true}, {Config: map[string]string{"smbios1": "uuid=" + n.UUID, "name": n.Name}}, {Pool: "other", Config: map[string]string{"smbios1": "uuid=" + n.UUID, "name": n.Name}},
		{Pool: testPool, Config: map[string]string{"name": n.Name, "description": cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: n.Name, Deleting: true}.String()}},
	} {
		for _, wide := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v/wide=%v", f, wide), func(t *testing.T) {
				onStand(t, "9.2", func(t *testing.T, s *stand) {
					s.image()
					s.must(s.host.CreateForeign(n.VMID, f))
					before, _ := s.host.VM(n.VMID)
					c := s.client()
					if wide {
						c.Close()
						c = s.wide()
					}
					defer c.Close()
					s.world.ForgetCalls()
					ctx := context.Background()
					vm := cluster.VM{VMID: n.VMID, Node: n.Name, Host: testHost, Presence: cluster.Present, Owner: cluster.Ours}
					for what, err := range map[string]error{
						"create": c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil), "start": c.Start(ctx, d, n, nil), "delete": c.Delete(ctx, d, vm, nil),
					} {
						if err == nil {
							t.Errorf("%s succeeded", what)
						} else {
							t.Logf("%v [%s]", err, fault.HintOf(err))
						}
					}
					for _, r := range s.world.Calls() {
						if r.Mutating {
							t.Errorf("the agent changed something: %+v", r)
						}
					}
					if after, _ := s.host.VM(n.VMID); after.Digest != before.Digest || after.Power != before.Power {
						t.Errorf("before %+v\nafter %+v", before, after)
					}
					s.checkRules()
				})
			})
		}
	}
}

// TestConnectionRefused: where Proxmox VE does not run, what is unknown is reported
// with a hint.
func TestConnectionRefused(t *testing.T) {
	// Port 1 is closed, and the system never assigns it.
	c, err := New(Config{URL: "https://127.0.0.1:1", Token: cluster.SecretString("talos-agent@pve!pve1=00000000-0000-0000-0000-000000000000"), Pool: "talos"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var o cluster.Observed
	observeLater(t.Context(), c, cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "cp-1", Placement: cluster.Placement{Pin: "pve1"}, VMID: 411}}}}}, &o)
	if why := o.VMs["cp-1"].Why; !strings.Contains(why, "connection refused (does it run? `systemctl status pveproxy`") {
		t.Errorf("reported: %s", why)
	}
}
