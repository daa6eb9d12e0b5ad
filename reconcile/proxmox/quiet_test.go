package proxmox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
)

// settled makes running VMs of ours without the agent's help, one pass long
// known to the client.
func (s *stand) settled(d cluster.Desired) *Client {
	s.t.Helper()
	for _, n := range d.Spec.Nodes {
		p, err := hardware.CreateParams(d, n, testPool, d.Image)
		if err != nil {
			s.t.Fatal(err)
		}
		conf := map[string]string{}
		for k, v := range p {
			conf[k] = v
		}
		delete(conf, "vmid")
		delete(conf, "pool")
		delete(conf, "ide2")
		conf["efidisk0"] = fmt.Sprintf("local-lvm:vm-%d-disk-0,efitype=4m,pre-enrolled-keys=0,size=4M", n.VMID)
		conf["scsi0"] = fmt.Sprintf("local-lvm:vm-%d-disk-1,discard=on,iothread=1,serial=talos-sys,size=10G,ssd=1", n.VMID)
		conf["tags"] = "controlplane;dev;talos-agent"
		for i := range 2 {
			if err := s.host.AddFile(testHost, "local-lvm", fmt.Sprintf("vm-%d-disk-%d", n.VMID, i), 10<<30, world.Image{}); err != nil {
				s.t.Fatal(err)
			}
		}
		if err := s.host.CreateForeign(n.VMID, pve.Foreign{Pool: testPool, Config: conf, Running: true}); err != nil {
			s.t.Fatal(err)
		}
	}
	time.Sleep(11 * time.Second) // a round of statistics
	c := s.client()
	observe(c, d)
	return c
}

// TestQuietPassAsksLittle: a pass in which nothing changed asks for the list of
// everything and the running tasks, and for ten configurations, or one in ten.
func TestQuietPassAsksLittle(t *testing.T) {
	for _, n := range []int{3, 10, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				d := desired(n)
				c := s.settled(d)
				defer c.Close()
				const passes = 20
				read := map[string]int{}
				total := 0
				for range passes {
					s.world.ForgetCalls()
					time.Sleep(time.Minute)
					o := observe(c, d)
					for _, node := range d.Spec.Nodes {
						vm := o.VMs[node.Name]
						if vm.Owner != cluster.Ours || vm.Power != cluster.PowerRunning || !vm.Hardware.Known {
							t.Fatalf("%s: %+v", node.Name, vm)
						}
						if vm.ConfigAge > 10*time.Minute {
							t.Errorf("%s was not audited for %v", node.Name, vm.ConfigAge)
						}
					}
					calls := s.world.Calls()
					total += len(calls)
					if most := 2 + max(min(n, 10), (n+9)/10); len(calls) > most {
						t.Errorf("%d calls in one pass, want at most %d: %v", len(calls), most, s.calls())
					}
					for _, r := range calls {
						if r.Op == "GET /nodes/{node}/qemu/{vmid}/pending" {
							read[r.Subject]++
						}
					}
				}
				each := max(min(n, 10), n/10)
				if want := passes*2 + passes*each; total != want {
					t.Errorf("%d calls in %d passes over %d vms, want %d", total, passes, n, want)
				}
				for _, node := range d.Spec.Nodes {
					if read[fmt.Sprint(node.VMID)] != passes*each/n {
						t.Errorf("vm %d was audited %d times in %d passes", node.VMID, read[fmt.Sprint(node.VMID)], passes)
					}
				}
				s.checkRules()
			})
		})
	}
}

// TestUnsettledIsReadDirectly: whatever changes in a VM's row, or happens on
// it, has it looked at itself in the same pass.
func TestUnsettledIsReadDirectly(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(10)
		c := s.settled(d)
		defer c.Close()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		look := func(what string, vmid int, want bool, check func(cluster.VM) bool) {
			t.Helper()
			s.world.ForgetCalls()
			o := observe(c, d)
			direct := s.world.CountCalls(func(r world.CallRecord) bool {
				return r.Op == "GET /nodes/{node}/qemu/{vmid}/status/current" && r.Subject == fmt.Sprint(vmid)
			})
			if (direct == 1) != want {
				t.Errorf("%s: vm %d was looked at %d times", what, vmid, direct)
			}
			vm := o.VMs[fmt.Sprintf("dev-cp-%d", vmid-410)]
			if vm.Owner != cluster.Ours || check != nil && !check(vm) {
				t.Errorf("%s: %+v", what, vm)
			}
		}
		look("nothing", 411, false, nil)
		must(s.host.Edit(411, "tags", "controlplane;dev;somebody;talos-agent"))
		look("tags", 411, true, func(vm cluster.VM) bool { return len(vm.Tags) == 4 })
		look("tags, once more", 411, false, func(vm cluster.VM) bool { return len(vm.Tags) == 4 })
		must(s.host.Lock(412, "backup"))
		look("lock", 412, true, func(vm cluster.VM) bool { return vm.Lock == "backup" })
		look("still locked", 412, true, func(vm cluster.VM) bool { return vm.Lock == "backup" })
		must(s.host.Unlock(412))
		look("unlocked", 412, true, func(vm cluster.VM) bool { return vm.Lock == "" })
		must(s.host.Stop(413))
		time.Sleep(11 * time.Second)
		look("stopped", 413, true, func(vm cluster.VM) bool { return vm.Power == cluster.Stopped })
		must(s.host.Start(413))
		time.Sleep(11 * time.Second)
		look("started", 413, true, func(vm cluster.VM) bool { return vm.Power == cluster.PowerRunning })
		must(s.host.Edit(414, "name", "renamed"))
		time.Sleep(11 * time.Second)
		look("name", 414, true, func(vm cluster.VM) bool { return vm.Name == "renamed" })
		look("uptime goes on", 415, false, func(vm cluster.VM) bool { return vm.Uptime > 30*time.Second })
		must(s.host.Stop(415))
		must(s.host.Start(415))
		time.Sleep(11 * time.Second)
		look("started anew", 415, true, func(vm cluster.VM) bool { return vm.Uptime < 30*time.Second })
		s.checkRules()
	})
}

// TestBusyPassesReadNoMore: while something goes on there is a pass a second, and the
// configs of all others are read as often as by the clock.
func TestBusyPassesReadNoMore(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(30)
		c := s.settled(d)
		defer c.Close()
		time.Sleep(10 * time.Minute)
		observe(c, d)
		s.world.ForgetCalls()
		for range 300 {
			time.Sleep(time.Second)
			observe(c, d)
		}
		read := 0
		for _, r := range s.world.Calls() {
			if r.Op == "GET /nodes/{node}/qemu/{vmid}/pending" {
				read++
			}
		}
		if most := 300 / 50 * 10; read < most-10 || read > most {
			t.Errorf("%d configs were read in 300 passes of five minutes, and ten in 50 seconds are %d", read, most)
		}
	})
}

// TestPushComesBeforeAudits: of a larger cluster no config is read by the clock in the passes right
// after a push, and each of them is in the passes after those; pushes minute by minute put off one in two.
func TestPushComesBeforeAudits(t *testing.T) {
	for _, n := range []int{10, 30} {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			d := desired(n)
			d.Revision = "main@sha1:0000000000000000000000000000000000000001"
			c := s.settled(d)
			defer c.Close()
			pass := func(after time.Duration) (configs int) {
				time.Sleep(after)
				s.world.ForgetCalls()
				observe(c, d)
				return s.world.CountCalls(func(r world.CallRecord) bool { return r.Op == "GET /nodes/{node}/qemu/{vmid}/pending" })
			}
			push := func() { d.Revision += "0" }
			pass(time.Minute)
			var read []int
			push()
			for _, after := range []time.Duration{time.Minute, 20 * time.Millisecond, 8 * time.Second, 2 * time.Second, time.Second} {
				read = append(read, pass(after))
			}
			for range 4 {
				push()
				read = append(read, pass(time.Minute))
			}
			want := []int{10, 0, 0, 0, 0, 10, 10, 10, 10}
			if n > 10 {
				want = []int{0, 0, 0, 10, 0, 0, 10, 0, 10}
			}
			if !slices.Equal(read, want) {
				t.Errorf("%d vms: configs read after a push: %v, want %v", n, read, want)
			}
		})
	}
}

// TestOwnTaskIsSeenOnce: a VM that we switch on or off is looked at once while that goes on, and
// again when it has ended. One with another task is looked at in each pass.
func TestOwnTaskIsSeenOnce(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(3)
		c := s.settled(d)
		defer c.Close()
		n := d.Spec.Nodes[1]
		looks := func() (vm cluster.VM, states int) {
			s.world.ForgetCalls()
			for range 3 {
				time.Sleep(100 * time.Millisecond)
				vm = observe(c, d).VMs[n.Name]
			}
			count := func(op string) int {
				return s.world.CountCalls(func(r world.CallRecord) bool { return strings.HasSuffix(r.Op, op) && r.Subject == fmt.Sprint(n.VMID) })
			}
			if states = count("/status/current"); states != count("/pending") {
				t.Errorf("%d states were read with %d configs", states, count("/pending"))
			}
			return vm, states
		}
		for _, ours := range []bool{true, false} {
			s.must(s.host.Stop(n.VMID))
			time.Sleep(11 * time.Second) // a round of statistics
			observe(c, d)
			started := make(chan error, 1)
			go func() {
				if ours {
					started <- c.Start(t.Context(), d, n, nil)
				} else {
					started <- s.host.Start(n.VMID)
				}
			}()
			time.Sleep(50 * time.Millisecond)
			want := 3
			if ours {
				want = 1
			}
			if vm, states := looks(); vm.Task == nil || vm.Task.Type != "qmstart" || vm.Task.Ours != ours || vm.Power != cluster.Stopped || states != want {
				t.Errorf("being started: %d looks, %+v", states, vm)
			}
			s.must(<-started)
			time.Sleep(11 * time.Second)
			if vm, states := looks(); vm.Task != nil || vm.Power != cluster.PowerRunning || states != 1 {
				t.Errorf("started: %d looks, %+v", states, vm)
			}
		}
	})
}

// TestTwoClustersShareAHost: what belongs to another cluster is remembered as
// such and not read over and over.
func TestTwoClustersShareAHost(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d, prod := desired(10), desired(20)
		c := s.settled(d)
		defer c.Close()
		prod.Spec.ID, prod.Spec.Name = cluster.ClusterID("talos-agent", "prod"), "prod"
		prod.Spec.Nodes = prod.Spec.Nodes[10:]
		for i := range prod.Spec.Nodes {
			n := &prod.Spec.Nodes[i]
			n.Name = fmt.Sprintf("prod-cp-%d", i)
			n.UUID = cluster.NodeUUID(prod.Spec.ID, n.Name)
		}
		s.settled(prod).Close()
		c = s.client()
		observe(c, d)
		observe(c, prod)
		for range 10 {
			for _, one := range []cluster.Desired{d, prod} {
				s.world.ForgetCalls()
				o := observe(c, one)
				if n := len(s.world.Calls()); n != 2 { // no time goes by, so nothing is read again
					t.Errorf("%s: %d calls: %v", one.Spec.Name, n, s.calls())
				}
				if !o.Orphans.Known || len(o.Orphans.Value) != 0 {
					t.Errorf("%s: orphans %+v", one.Spec.Name, o.Orphans)
				}
			}
		}
		c.Close()
	})
}

// TestWhatIsToBeDeletedIsReadDirectly: what forbids a deletion is seen at once, of
// VMs too that are remembered as settled.
func TestWhatIsToBeDeletedIsReadDirectly(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(3)
		c := s.settled(d)
		defer c.Close()
		s.must(s.host.Edit(411, "protection", "1"))
		s.must(s.host.Edit(412, "unused0", "local-lvm:vm-412-disk-7"))
		s.host.Manage("vm:413")
		o := cluster.Observed{Facts: cluster.Facts{Intents: []cluster.Intent{{Kind: cluster.IntendDestroy}}}}
		observeLater(t.Context(), c, d, &o)
		for i, n := range d.Spec.Nodes {
			vm := o.VMs[n.Name]
			if vm.Protected != (i == 0) || (len(vm.Others) == 1) != (i == 1) || vm.Managed != (i == 2) {
				t.Errorf("%+v", vm)
			}
		}
	})
}

// TestServicesAreSeen: what the HA manager is about to do with a VM is seen in the next pass, also of one that is remembered as
// settled, and of one that was taken out of HA of which the manager does not know that yet.
func TestServicesAreSeen(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(2)
		c := s.settled(d)
		defer c.Close()
		wants := func(when, state string, managed bool) {
			t.Helper()
			vm := observe(c, d).VMs[d.Spec.Nodes[1].Name]
			if vm.HA != state || vm.Managed != managed {
				t.Errorf("%s: state %q, managed %v", when, vm.HA, vm.Managed)
			}
		}
		wants("without HA", "", false)
		s.host.Manage("vm:412")
		wants("in HA", "started", true)
		s.host.SetService("vm:412", "request_start_balance")
		wants("balanced", "request_start_balance", true)
		s.host.Manage()
		s.host.SetService("vm:412", "request_stop")
		wants("taken out", "request_stop", false)
		s.host.SetService("vm:412", "")
		wants("a round later", "", false)
	})
}

// TestForgotten: after Forget every config is read in the next pass, once.
func TestForgotten(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(5)
		c := s.settled(d)
		defer c.Close()
		configs := func() int {
			s.world.ForgetCalls()
			observe(c, d)
			return s.world.CountCalls(func(r world.CallRecord) bool { return r.Op == "GET /nodes/{node}/qemu/{vmid}/pending" })
		}
		c.Forget(cluster.ClusterID("talos-agent", "another"))
		if n := configs(); n > 1 {
			t.Errorf("another cluster is forgotten, and %d configs are read", n)
		}
		c.Forget(d.Spec.ID)
		if n := configs(); n != 5 {
			t.Errorf("%d of 5 configs are read", n)
		}
		if n := configs(); n > 1 {
			t.Errorf("%d configs are read in the pass after that", n)
		}
	})
}

// TestSilentMachineIsLookedAtNowAndThen: the VM of a machine that does not answer is
// looked at directly, because a paused one is listed as running, and not in every pass.
func TestSilentMachineIsLookedAtNowAndThen(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(3)
		c := s.settled(d)
		defer c.Close()
		n := d.Spec.Nodes[1]
		d.Silent = []string{n.Name}
		s.world.ForgetCalls()
		for range 300 { // a minute
			observe(c, d)
			time.Sleep(200 * time.Millisecond)
		}
		direct := 0
		for _, call := range s.world.Calls() {
			if call.Op == "GET /nodes/{node}/qemu/{vmid}/status/current" && call.Subject == fmt.Sprint(n.VMID) {
				direct++
			}
		}
		if direct < 5 || direct > 8 {
			t.Errorf("it was looked at %d times in a minute", direct)
		}
		if err := s.host.Pause(n.VMID, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(silentEvery)
		if o := observe(c, d); o.VMs[n.Name].Power != cluster.Paused {
			t.Errorf("it is %v", o.VMs[n.Name].Power)
		}
	})
}

// TestLookAfterForget: what was read before everything was to be read again is not shown,
// although another look reads it at the same time.
func TestLookAfterForget(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(3)
		c := s.settled(d)
		defer c.Close()
		node := d.Spec.Nodes[0]
		time.Sleep(time.Second)
		if err := s.host.Edit(node.VMID, "onboot", "0"); err != nil {
			t.Fatal(err)
		}
		s.world.Inject(world.Fault{System: "pve", Op: "GET /nodes/{node}/qemu/{vmid}/pending", Times: len(d.Spec.Nodes), Kind: world.Slow, Delay: 10 * time.Second})
		c.Forget(d.Spec.ID)
		other := make(chan struct{})
		go func() {
			defer close(other)
			observe(c, d)
		}()
		time.Sleep(time.Second) // it waits for its answers
		if o := observe(c, d); o.VMs[node.Name].Hardware.Value.OnBoot {
			t.Error("it shows what was read before")
		}
		<-other
		s.world.ForgetCalls()
		time.Sleep(time.Second)
		observe(c, d)
		if n := len(s.world.Calls()); n != 2 {
			t.Errorf("%d calls in the look after: %v", n, s.calls())
		}
	})
}
