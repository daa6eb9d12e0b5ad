package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	labha "github.com/talos-agent/talos-agent/internal/lab/pve/ha"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/ha"
)

// onManager runs a test on two hosts with n control planes that run, whose token may ask the HA manager for things, and against an
// administrator beside it.
func onManager(t *testing.T, flavour string, n int, test func(*testing.T, *stand, *Client, cluster.Desired, ha.Requests)) {
	t.Helper()
	inBubble(t, pve.Config{Flavour: flavour, Hosts: []pve.Host{{}, {}}}, func(t *testing.T, s *stand) {
		s.token = s.host.AgentToken(pve.AgentScope{Pool: testPool, Storages: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}, HA: true})
		d, image := desired(n), s.imageBytes()
		c := s.drive("bring-up", func(c *Client) (bool, error) { return s.next(c, d, image) }, nil)
		defer c.Close()
		d.Spec.Availability = true
		admin := s.wide()
		defer admin.Close()
		test(t, s, c, d, admin.haRequests())
	})
}

// held is what the HA manager is seen to hold.
func held(t *testing.T, c *Client, d cluster.Desired) availability.Manager {
	t.Helper()
	o := observe(c, d)
	if !o.Availability.Known {
		t.Fatalf("not seen: %s", o.Availability.Why)
	}
	return o.Availability.Value
}

func vmAt(d cluster.Desired, i int) cluster.VM {
	n := d.Spec.Nodes[i]
	return cluster.VM{VMID: n.VMID, Node: n.Name, Host: testHost}
}

func powerAt(s *stand, vmid int) pve.Power {
	vm, _ := s.host.VM(vmid)
	return vm.Power
}

// rounds lets rounds of the HA manager pass.
func rounds(n int) { time.Sleep(time.Duration(n)*labha.Every + time.Second) }

// TestAvailability: a VM is had managed, is switched off while it is ignored without being started again, and is taken out; each as often
// as it is asked for.
func TestAvailability(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onManager(t, flavour, 2, func(t *testing.T, s *stand, c *Client, d cluster.Desired, _ ha.Requests) {
				ctx, vm, n := t.Context(), vmAt(d, 0), d.Spec.Nodes[0]
				if m := held(t, c, d); len(m.Resources) > 0 || m.HasRules != (flavour == "9.2") || m.Apart != nil {
					t.Errorf("at first: %+v", m)
				}
				set := func(want availability.State) {
					t.Helper()
					for range 2 {
						s.must(c.SetAvailability(ctx, d, vm, want, nil))
					}
					if have := held(t, c, d).Resources[vm.VMID]; have != (availability.Resource{State: want, Own: want != availability.Removed}) {
						t.Errorf("wanted %q: %+v", want, have)
					}
				}
				set(availability.Started)
				rounds(1)
				if o := observe(c, d).VMs[n.Name]; !o.Managed || o.HA != "started" {
					t.Errorf("%+v", o)
				}
				if err := c.ShutDown(ctx, d, n, nil); err == nil || !strings.Contains(err.Error(), "managed by Proxmox VE's HA") {
					t.Errorf("shut down while it is managed: %v", err)
				}
				set(availability.Ignored)
				s.must(s.host.Stop(vm.VMID))
				rounds(3)
				if powerAt(s, vm.VMID) != pve.Stopped {
					t.Error("it was started while it is ignored")
				}
				if o := observe(c, d).VMs[n.Name]; o.Managed || o.HA != "ignored" || o.Power != cluster.Stopped {
					t.Errorf("%+v", o)
				}
				set(availability.Started)
				rounds(2)
				if powerAt(s, vm.VMID) != pve.Running {
					t.Error("it was not started")
				}
				set(availability.Ignored)
				set(availability.Removed)
				set(availability.Started)
				set(availability.Removed)
				if m := held(t, c, d); m.Resources[vm.VMID].Own {
					t.Errorf("%+v", m)
				}
				s.checkRules()
			})
		})
	}
}

// TestDisarmed: that somebody has disarmed the manager is seen, and how VMs are treated meanwhile, until it is armed again. Proxmox VE 8 has
// nothing of it.
func TestDisarmed(t *testing.T) {
	onManager(t, "9.2", 2, func(t *testing.T, s *stand, c *Client, d cluster.Desired, admin ha.Requests) {
		ctx, vm := t.Context(), vmAt(d, 0)
		wants := func(when string, want availability.Mode) {
			t.Helper()
			if m := held(t, c, d); m.Disarmed != want {
				t.Errorf("%s: %q, want %q", when, m.Disarmed, want)
			}
		}
		wants("nothing is managed", "")
		s.must(c.SetAvailability(ctx, d, vm, availability.Started, nil))
		rounds(1)
		wants("armed", "")
		for mode, managed := range map[availability.Mode]bool{availability.Freeze: true, availability.Ignore: false} {
			s.must(admin.Write(ctx, "POST", "/cluster/ha/status/disarm-ha", map[string]string{"resource-mode": string(mode)}))
			rounds(1)
			wants("being disarmed", mode)
			rounds(2)
			wants("disarmed", mode)
			if o := observe(c, d).VMs[vm.Node]; o.Managed != managed || o.HA != map[bool]string{true: "freeze", false: "started"}[managed] {
				t.Errorf("%s: %q, managed %v", mode, o.HA, o.Managed)
			}
			if err := c.SetAvailability(ctx, d, vm, availability.Ignored, nil); err == nil || !strings.Contains(fault.HintOf(err), "is disarmed") {
				t.Errorf("%s: a VM is not released before it is armed: %v (%s)", mode, err, fault.HintOf(err))
			}
			s.must(c.SetAvailability(ctx, d, vm, availability.Started, nil))
			s.must(admin.Write(ctx, "POST", "/cluster/ha/status/arm-ha", nil))
			rounds(3)
			wants("armed again", "")
			if o := observe(c, d).VMs[vm.Node]; !o.Managed || o.HA != "started" {
				t.Errorf("armed again: %q, managed %v", o.HA, o.Managed)
			}
		}
		s.checkRules()
	})
	onManager(t, "8.4", 1, func(t *testing.T, s *stand, c *Client, d cluster.Desired, _ ha.Requests) {
		if m := held(t, c, d); m.Disarmed != "" || s.count("GET /cluster/ha/status/current") > 0 {
			t.Errorf("%+v", m)
		}
	})
}

// TestAvailabilityOfOthers: what somebody else has made is seen as that, and left as it is; a VM that is not ours is, too.
func TestAvailabilityOfOthers(t *testing.T) {
	onManager(t, "9.2", 2, func(t *testing.T, s *stand, c *Client, d cluster.Desired, admin ha.Requests) {
		ctx, vm := t.Context(), vmAt(d, 0)
		other := cluster.Spec{ID: cluster.ClusterID("talos-agent", "prod"), Name: "dev"}
		s.must(ha.Set(ctx, admin, other, vm.VMID, vm.Node, availability.Started))
		if have := held(t, c, d).Resources[vm.VMID]; have != (availability.Resource{State: availability.Started}) {
			t.Errorf("%+v", have)
		}
		d.Spec.Availability = false
		rounds(1)
		if m := held(t, c, d); len(m.Resources) != 1 { // for it is managed
			t.Errorf("%+v", m)
		}
		for _, want := range []availability.State{availability.Started, availability.Ignored, availability.Removed} {
			err := c.SetAvailability(ctx, d, vm, want, nil)
			if err == nil || !strings.Contains(err.Error(), "somebody else has made the HA resource vm:411") || fault.HintOf(err) != "take it out of HA: `ha-manager remove vm:411`" {
				t.Errorf("%q: %v (%s)", want, err, fault.HintOf(err))
			}
		}
		s.must(ha.Set(ctx, admin, other, vm.VMID, vm.Node, availability.Removed))
		s.must(s.host.Edit(vm.VMID, "smbios1", "uuid=00000000-0000-4000-8000-000000000001"))
		if err := c.SetAvailability(ctx, d, vm, availability.Started, nil); !errors.As(err, new(*notOurs)) {
			t.Errorf("another's: %v", err)
		}
		s.checkRules()
	})
}

// TestAvailabilityIsNotAsked: of a cluster that has nothing to do with it, and of one whose manager does not let itself be asked, it is known
// why.
func TestAvailabilityIsNotAsked(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(2)
		c := s.settled(d)
		defer c.Close()
		s.calls()
		o := observe(c, d)
		if calls := strings.Join(s.calls(), "\n"); strings.Contains(calls, "/ha/") || o.Availability.Known || o.Availability.Why != "" {
			t.Errorf("%+v after\n%s", o.Availability, calls)
		}
		d.Spec.Availability = true
		o = observe(c, d)
		const how = "`pveum acl modify / --propagate 0 --roles TalosAgentHA --users talos-agent@pve --tokens 'talos-agent@pve!pve1'`"
		if o.Availability.Known || !strings.Contains(o.Availability.Why, "(/, Sys.Audit)") || !strings.Contains(o.Availability.Why, how) {
			t.Errorf("%+v", o.Availability)
		}
		if err := c.SetAvailability(t.Context(), d, vmAt(d, 0), availability.Started, nil); !errors.Is(err, errForbidden) || !strings.Contains(fault.HintOf(err), how) {
			t.Errorf("%v (%s)", err, fault.HintOf(err))
		}
		s.world.Inject(world.Fault{System: "pve", Op: "GET /cluster/resources", Kind: world.LoseReply, Times: 10})
		if o := observe(c, d); o.Availability.Known || !strings.Contains(o.Availability.Why, "cannot be asked") {
			t.Errorf("without a list: %+v", o.Availability)
		}
	})
}

// TestQuietAvailability: a quiet pass over a cluster in HA asks for two lists more.
func TestQuietAvailability(t *testing.T) {
	onManager(t, "9.2", 2, func(t *testing.T, s *stand, c *Client, d cluster.Desired, _ ha.Requests) {
		for i := range d.Spec.Nodes {
			s.must(c.SetAvailability(t.Context(), d, vmAt(d, i), availability.Started, nil))
		}
		rounds(2)
		observe(c, d)
		s.calls()
		observe(c, d)
		var asked []string
		for _, call := range s.calls() {
			if strings.Contains(call, "/ha/") {
				asked = append(asked, call)
			}
		}
		slices.Sort(asked)
		if !slices.Equal(asked, []string{"GET /cluster/ha/resources", "GET /cluster/ha/rules", "GET /cluster/ha/status/current"}) {
			t.Errorf("%v", asked)
		}
	})
}

// TestAvailabilityIsCrossed: a change that another's crossed is planned again; one whose answer was lost is done once; and what the manager
// refuses is an error.
func TestAvailabilityIsCrossed(t *testing.T) {
	onManager(t, "9.2", 2, func(t *testing.T, s *stand, c *Client, d cluster.Desired, admin ha.Requests) {
		ctx, vm := t.Context(), vmAt(d, 0)
		s.world.Inject(world.Fault{System: "pve", Op: "POST /cluster/ha/resources", Kind: world.LoseReply, Times: 1})
		s.must(c.SetAvailability(ctx, d, vm, availability.Started, nil))
		s.world.Inject(world.Fault{System: "pve", Op: "PUT /cluster/ha/resources/{sid}", Kind: world.LoseReply, Times: 1})
		s.must(c.SetAvailability(ctx, d, vm, availability.Ignored, nil))
		s.world.Inject(world.Fault{System: "pve", Op: "DELETE /cluster/ha/resources/{sid}", Kind: world.LoseReply, Times: 1})
		s.must(c.SetAvailability(ctx, d, vm, availability.Removed, nil))
		s.must(c.SetAvailability(ctx, d, vm, availability.Started, nil))

		crossing, crossed := c.haRequests(), 0
		write := crossing.Write
		crossing.Write = func(ctx context.Context, method, path string, in map[string]string) error {
			if crossed++; crossed == 1 { // the file is another one by now
				s.must(ha.Set(ctx, admin, d.Spec, 412, "dev-cp-2", availability.Started))
			}
			return write(ctx, method, path, in)
		}
		s.must(ha.Set(ctx, crossing, d.Spec, vm.VMID, vm.Node, availability.Ignored))
		if crossed != 2 {
			t.Errorf("written %d times", crossed)
		}
		s.must(c.SetAvailability(ctx, d, vm, availability.Started, nil))
		rounds(2)
		s.host.SetService("vm:411", "error")
		err := c.SetAvailability(ctx, d, vm, availability.Ignored, nil)
		if err == nil || !strings.Contains(err.Error(), "in error state") || !strings.Contains(fault.HintOf(err), "ha-manager set vm:411 --state disabled") {
			t.Errorf("given up: %v (%s)", err, fault.HintOf(err))
		}
		s.must(c.SetAvailability(ctx, d, vm, availability.Removed, nil))
		s.checkRules()
	})
}

// TestReleaseIsAwaited: while the manager still has a state of a VM, that is not released, and it is not waited for for ever.
func TestReleaseIsAwaited(t *testing.T) {
	onManager(t, "9.2", 1, func(t *testing.T, s *stand, c *Client, d cluster.Desired, _ ha.Requests) {
		s.host.SetService("vm:411", "migrate") // there is no resource, so that no round forgets it
		var waits string
		err := c.SetAvailability(t.Context(), d, vmAt(d, 0), availability.Removed, func(p cluster.Progress) { waits = p.Waits })
		if err == nil || !strings.Contains(err.Error(), `it has it as "migrate"`) || !strings.Contains(waits, "has released it") {
			t.Errorf("%v, after %q", err, waits)
		}
	})
}

// TestGroupOfHosts: the group of the inventory is set where a VM is to be started, and changed where it differs.
func TestGroupOfHosts(t *testing.T) {
	onManager(t, "8.4", 1, func(t *testing.T, s *stand, c *Client, d cluster.Desired, _ ha.Requests) {
		s.host.KeepGroups("g1", "g2")
		for _, group := range []string{"g1", "g2", "", "g1"} {
			d.Spec.HAGroup = group
			s.must(c.SetAvailability(t.Context(), d, vmAt(d, 0), availability.Started, nil))
			if have := held(t, c, d).Resources[411]; have.Group != group {
				t.Errorf("%q: %+v", group, have)
			}
		}
		d.Spec.HAGroup = "g3"
		s.must(c.SetAvailability(t.Context(), d, vmAt(d, 0), availability.Ignored, nil))
		if err := c.SetAvailability(t.Context(), d, vmAt(d, 0), availability.Started, nil); err == nil || !strings.Contains(err.Error(), "HA group 'g3' does not exist") {
			t.Errorf("%v", err)
		}
	})
	onManager(t, "9.2", 1, func(t *testing.T, s *stand, c *Client, d cluster.Desired, _ ha.Requests) {
		s.host.KeepGroups("g1")
		d.Spec.HAGroup = "g1"
		s.must(c.SetAvailability(t.Context(), d, vmAt(d, 0), availability.Started, nil))
		if m := held(t, c, d); m.HasRules {
			t.Errorf("groups are left: %+v", m)
		}
	})
}

// TestApart: the rule of a cluster's control planes is made, follows them, is removed when it has nothing to keep apart, and is not taken
// from another.
func TestApart(t *testing.T) {
	onManager(t, "9.2", 3, func(t *testing.T, s *stand, c *Client, d cluster.Desired, admin ha.Requests) {
		ctx := t.Context()
		for i := range d.Spec.Nodes {
			s.must(c.SetAvailability(ctx, d, vmAt(d, i), availability.Started, nil))
		}
		if err := c.SetApart(ctx, d, []int{411, 412}, nil); err != nil { // it is refused until the manager has had a round
			t.Errorf("before the manager knows the hosts: %v", err)
		}
		apart := func(vmids ...int) {
			t.Helper()
			for range 2 {
				s.must(c.SetApart(ctx, d, vmids, nil))
			}
			var want *availability.Rule
			if len(vmids) > 1 {
				want = &availability.Rule{VMs: slices.Sorted(slices.Values(vmids))}
			}
			if have := held(t, c, d).Apart; fmt.Sprintf("%+v", have) != fmt.Sprintf("%+v", want) {
				t.Errorf("%v: %+v", vmids, have)
			}
		}
		apart(412, 411)
		apart(413, 411)
		apart(411)
		apart()
		if err := c.SetApart(ctx, d, []int{411, 412, 413}, nil); err == nil || !strings.Contains(err.Error(), "more resources than available nodes") {
			t.Errorf("more than there are hosts: %v", err)
		}
		apart(411, 412)
		name := "/cluster/ha/rules/" + ha.RuleName("dev")
		s.must(admin.Write(ctx, "PUT", name, map[string]string{"type": "resource-affinity", "disable": "1"}))
		s.must(c.SetApart(ctx, d, []int{411, 413}, nil))
		if have := held(t, c, d).Apart; have == nil || !have.Disabled || !slices.Equal(have.VMs, []int{411, 413}) {
			t.Errorf("disabled: %+v", have)
		}
		s.must(admin.Write(ctx, "PUT", name, map[string]string{"type": "resource-affinity", "delete": "disable"}))
		s.must(c.SetAvailability(ctx, d, vmAt(d, 2), availability.Removed, nil))
		if have := held(t, c, d).Apart; have == nil || have.Broken != "rule is ineffective as there are less than two resources" {
			t.Errorf("broken: %+v", have)
		}
		s.must(admin.Write(ctx, "PUT", name, map[string]string{"type": "resource-affinity", "comment": "mine", "resources": "vm:411,vm:412"}))
		if have := held(t, c, d).Apart; have != nil {
			t.Errorf("another's: %+v", have)
		}
		s.must(c.SetApart(ctx, d, nil, nil))
		if err := c.SetApart(ctx, d, []int{411, 412}, nil); err == nil || !strings.Contains(fault.HintOf(err), "ha-manager rules remove talos-agent-dev-control-planes") {
			t.Errorf("another's: %v (%s)", err, fault.HintOf(err))
		}
	})
}

// TestManagedVMIsDeleted: a VM whose resource is ours is deleted when it is released, and its resource and the rule go with it.
func TestManagedVMIsDeleted(t *testing.T) {
	onManager(t, "9.2", 2, func(t *testing.T, s *stand, c *Client, d cluster.Desired, _ ha.Requests) {
		ctx, vm := t.Context(), vmAt(d, 0)
		for i := range d.Spec.Nodes {
			s.must(c.SetAvailability(ctx, d, vmAt(d, i), availability.Started, nil))
		}
		rounds(1)
		s.must(c.SetApart(ctx, d, []int{411, 412}, nil))
		if err := c.Delete(ctx, d, vm, nil); err == nil || !strings.Contains(err.Error(), "managed by Proxmox VE's HA") {
			t.Errorf("managed: %v", err)
		}
		s.must(c.SetAvailability(ctx, d, vm, availability.Ignored, nil))
		s.must(c.Delete(ctx, d, vm, nil))
		m := held(t, c, d)
		if _, there := m.Resources[vm.VMID]; there || m.Apart == nil || !slices.Equal(m.Apart.VMs, []int{412}) {
			t.Errorf("%+v, %+v", m.Resources, m.Apart)
		}
		s.checkRules()
	})
}
