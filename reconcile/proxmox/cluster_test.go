package proxmox

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/pve/history"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestVMOnAnotherHost: which host carries a VM is observed, not assumed; people
// migrate VMs.
func TestVMOnAnotherHost(t *testing.T) {
	inBubble(t, pve.Config{Hosts: []pve.Host{{Name: "pve1"}, {Name: "pve2"}}}, func(t *testing.T, s *stand) {
		s.token = s.host.AgentToken(pve.AgentScope{Pool: testPool, Storages: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}, SeeQuorum: true})
		d := desired(2)
		c := s.settled(cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{ID: d.Spec.ID, Name: "dev", Network: d.Spec.Network, Nodes: d.Spec.Nodes[:1]}}, Image: d.Image})
		defer c.Close()
		n := d.Spec.Nodes[1]
		s.must(s.host.CreateForeign(n.VMID, pve.Foreign{Host: "pve2", Pool: testPool, Running: true, Config: map[string]string{"name": n.Name, "smbios1": "uuid=" + n.UUID}}))
		for range 2 {
			o := observe(c, d)
			if vm := o.VMs[n.Name]; vm.Host != "pve2" || vm.Owner != cluster.Ours || vm.Power != cluster.PowerRunning {
				t.Errorf("%+v", vm)
			}
			for _, name := range []string{"pve1", "pve2"} {
				h := o.Hosts[name]
				if !h.Known || !h.Quorate.Known || !h.Quorate.Value || !h.Tasks.Known || h.Cores == 0 {
					t.Errorf("%s: %+v", name, h)
				}
			}
			time.Sleep(11 * time.Second)
		}
		// The listed host is where a change goes, whatever the caller thinks.
		s.must(c.Start(context.Background(), d, n, nil))
		s.must(c.Delete(context.Background(), d, cluster.VM{VMID: n.VMID, Node: n.Name, Host: "pve1"}, nil))
		if _, ok := s.host.VM(n.VMID); ok {
			t.Error("it is still there")
		}
	})
}

// TestPressureOfHosts: how much work waits on hosts is asked where a VM may be made on one or another, and is not there: once a minute
// of each, whoever looks and whatever comes of it. What is not known delays no look by much.
func TestPressureOfHosts(t *testing.T) {
	const histories = "GET /nodes/{node}/rrddata"
	for _, flavour := range flavours {
		inBubble(t, pve.Config{Flavour: flavour, Hosts: []pve.Host{{Name: "pve1"}, {Name: "pve2"}, {Name: "pve3"}}}, func(t *testing.T, s *stand) {
			d := desired(3)
			c := s.settled(cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{ID: d.Spec.ID, Name: "dev", Network: d.Spec.Network, Nodes: d.Spec.Nodes[:1]}}, Image: d.Image})
			defer c.Close()
			s.host.SetPressure("pve2", history.Pressure{CPU: 3, IO: 42, Memory: 7})
			asked := func(d cluster.Desired) (cluster.Observed, int) {
				s.world.ForgetCalls()
				o := observe(c, d)
				return o, s.count(histories)
			}
			wants := func(what string, d cluster.Desired, want int) {
				t.Helper()
				if _, n := asked(d); n != want {
					t.Errorf("%s: %d histories were asked for, want %d", what, n, want)
				}
			}
			among := func(hosts ...string) cluster.Desired {
				spread := d
				spread.Spec.Nodes = slices.Clone(d.Spec.Nodes)
				for i := range spread.Spec.Nodes {
					spread.Spec.Nodes[i].Placement = cluster.Placement{Among: hosts}
				}
				return spread
			}
			spread := among("pve1", "pve2")
			wants("all name their hosts", d, 0)
			wants("there is one host", among("pve2"), 0)
			o, n := asked(spread)
			if n != 2 || o.Hosts["pve3"].Pressure != nil {
				t.Errorf("%d histories were asked for: %+v", n, o.Hosts["pve3"].Pressure)
			}
			calm, busy := o.Hosts["pve1"].Pressure, o.Hosts["pve2"].Pressure
			if nine := flavour == "9.2"; (calm != nil) != nine || (busy != nil) != nine || nine && (calm.IO != 2.5 || busy.CPU != 3 || busy.IO != 42 || busy.Memory != 7 || time.Since(busy.At) > 2*time.Minute) {
				t.Errorf("%s: %+v and %+v", flavour, calm, busy)
			}
			time.Sleep(50 * time.Second)
			wants("less than a minute later", spread, 0)
			time.Sleep(10 * time.Second)
			s.world.Inject(world.Fault{System: "pve", Op: histories, Kind: world.Slow, Delay: 10 * time.Second, Times: 10})
			began := time.Now()
			if o, n = asked(spread); n != 2 || o.Hosts["pve2"].Pressure != nil || !o.Hosts["pve2"].Known || time.Since(began) > 5*time.Second {
				t.Errorf("%d histories were asked for, in %v: %+v", n, time.Since(began), o.Hosts["pve2"])
			}
			wants("right after it did not answer", spread, 0)
			time.Sleep(time.Minute)
			one := among("pve1", "pve2")
			one.Spec.Nodes = one.Spec.Nodes[:1]
			wants("all VMs are there", one, 0)
			s.checkRules()
		})
	}
}

// TestCreationEndsBetweenTwoLooks: a creation that ends after the list was read
// is not taken for somebody else's VM.
func TestCreationEndsBetweenTwoLooks(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		n := d.Spec.Nodes[0]
		s.image()
		c := s.client()
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if err := c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil); err == nil {
			t.Fatal("the creation was not interrupted")
		}
		s.world.OnCall(func(r world.CallRecord) {
			// The list has been read, without the VM: let its creation end.
			if r.Op == "GET /nodes/{node}/tasks" && r.N == 1 {
				time.Sleep(8 * time.Second)
			}
		})
		// The running tasks are asked for, and by then nothing runs any more.
		o := cluster.Observed{}
		observeLater(context.Background(), c, d, &o)
		s.world.OnCall(nil)
		if vm := o.VMs[n.Name]; vm.Owner != cluster.Ours || !unfinished(vm) {
			t.Errorf("%+v", vm)
		}
		if vm := observe(c, d).VMs[n.Name]; vm.Owner != cluster.Ours || !unfinished(vm) {
			t.Errorf("%+v", vm)
		}
	})
}

// TestLookingWhileActing observes two clusters from several sides while VMs
// are made and deleted; the race detector watches.
func TestLookingWhileActing(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(4)
		other := desired(8)
		other.Spec.ID, other.Spec.Name = cluster.ClusterID("talos-agent", "other"), "other"
		other.Spec.Nodes = other.Spec.Nodes[4:]
		s.image()
		c := s.client()
		defer c.Close()
		ctx, cancel := context.WithCancel(context.Background())
		var looking, acting sync.WaitGroup
		for _, one := range []cluster.Desired{d, d, other} {
			looking.Go(func() {
				for ctx.Err() == nil {
					for _, vm := range observe(c, one).VMs {
						if vm.Owner == cluster.Foreign {
							t.Errorf("%+v", vm)
						}
					}
					time.Sleep(700 * time.Millisecond)
				}
			})
		}
		for _, n := range d.Spec.Nodes {
			acting.Go(func() {
				bg := context.Background()
				for _, do := range []func() error{
					func() error { return c.Create(bg, d, n, n.Placement.Pin, d.Image, nil) }, func() error { return c.Start(bg, d, n, nil) },
					func() error {
						return c.Delete(bg, d, cluster.VM{VMID: n.VMID, Node: n.Name, Host: n.Placement.Pin}, nil)
					},
				} {
					if err := do(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		acting.Wait()
		cancel()
		looking.Wait()
		for _, n := range d.Spec.Nodes {
			if vm := observe(c, d).VMs[n.Name]; vm.Presence != cluster.Absent {
				t.Errorf("%+v", vm)
			}
		}
		s.checkRules()
	})
}
