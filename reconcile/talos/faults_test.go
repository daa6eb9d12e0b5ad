package talos

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// reads are the calls that looking at a machine is made of.
var reads = []string{"cosi.resource.State/Get", "cosi.resource.State/List", "cosi.resource.State/Watch", "machine.MachineService/ServiceList", "machine.MachineService/Read"}

// TestReadFaults: one call out of those that looking is made of goes wrong, any
// of the first five of its kind. The machine is seen all the same, soon.
func TestReadFaults(t *testing.T) {
	kinds := map[string]world.Fault{
		"request lost": {Kind: world.LoseRequest},
		"reply lost":   {Kind: world.LoseReply},
		"refused":      {Kind: world.Answer, Status: int(codes.Internal), Text: "panic"},
		"slow":         {Kind: world.Slow, Delay: time.Hour},
	}
	for _, op := range reads {
		for kind, fault := range kinds {
			t.Run(op+" "+kind, func(t *testing.T) {
				inBubble(t, newest, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
					b.power(cp(1), wk(1))
					b.rawApply(cp(1), b.config(cp(1)))
					fault.System, fault.Op = "talos", op
					for nth := 1; nth <= 5; nth++ {
						fault.Nth = nth
						b.world.Inject(fault)
						start := time.Now()
						for _, n := range []struct {
							node cluster.Node
							want cluster.Reach
						}{{cp(1), cluster.Configured}, {wk(1), cluster.Maintenance}} {
							b.untilReach(n.node, n.want)
						}
						if took := time.Since(start); took > 2*settleWithin {
							t.Errorf("call %d: it took %v until both were seen", nth, took)
						}
						b.fleet.Close()
						b.fleet = b.newFleet()
					}
				})
			})
		}
	}
}

// TestAlwaysFaulty: a machine that never answers one of the calls is unknown,
// with the reason, and does not hold up the others.
func TestAlwaysFaulty(t *testing.T) {
	for _, op := range reads {
		for kind, fault := range map[string]world.Fault{
			"refused": {Kind: world.Answer, Status: int(codes.Internal), Text: "a panic"},
			"slow":    {Kind: world.Slow, Delay: time.Hour},
		} {
			t.Run(op+" "+kind, func(t *testing.T) {
				inBubble(t, newest, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
					b.bringUp(cp(1), wk(1))
					b.fleet.Close()
					b.fleet = b.newFleet()
					fault.System, fault.Op, fault.Subject = "talos", op, "wk-1"
					b.world.Inject(fault)
					b.calls()
					start := time.Now()
					b.observe()
					if took := time.Since(start); took > firstLook+100*time.Millisecond {
						t.Errorf("the first look took %v", took)
					}
					time.Sleep(time.Minute)
					o := b.observe()
					if m := o.Machines["wk-1"]; m.Reach != cluster.ReachUnknown || !strings.HasPrefix(m.Why, "it answers with this cluster's certificates, but cannot ") {
						t.Errorf("%+v", m)
					}
					if m := o.Machines["cp-1"]; m.Reach != cluster.Configured {
						t.Errorf("%+v", m)
					}
					n := b.world.CountCalls(func(c world.CallRecord) bool { return c.Subject == "wk-1" })
					if n > 200 {
						t.Errorf("a minute of trying cost %d calls", n)
					}
					before := b.reported.Load()
					time.Sleep(time.Minute)
					if now := b.reported.Load(); now != before {
						t.Errorf("nothing changed, and that was reported %d times, at last %q", now-before, b.see(wk(1)).Why)
					}
					if strings.Contains(o.Machines["wk-1"].Why, "rpc error") {
						t.Errorf("not for people: %s", o.Machines["wk-1"].Why)
					}
					b.world.Heal()
					b.untilReach(wk(1), cluster.Configured)
				})
			})
		}
	}
}

// TestListFailsLater: the services of a machine that was seen cannot be listed
// any more: the last list holds for a while, then the machine is unknown.
func TestListFailsLater(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.ready(cp(1))
		b.world.Inject(world.Fault{System: "talos", Op: "machine.MachineService/ServiceList", Times: listTries - 1, Kind: world.Answer, Status: int(codes.Internal), Text: "a panic"})
		time.Sleep(10 * time.Second)
		if m := b.see(cp(1)); m.Reach != cluster.Configured || m.Services["etcd"].State != "Preparing" {
			t.Errorf("%+v", m)
		}
		b.world.Inject(world.Fault{System: "talos", Op: "machine.MachineService/ServiceList", Kind: world.Answer, Status: int(codes.Internal), Text: "a panic"})
		m := b.untilReach(cp(1), cluster.ReachUnknown)
		if !strings.Contains(m.Why, "cannot list its services: a panic") || m.Services != nil {
			t.Errorf("%+v", m)
		}
	})
}

// TestOldMachines: what a machine does not have is left out.
func TestOldMachines(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault world.Fault
		check func(cluster.Machine) bool
	}{
		{"no extensions", world.Fault{Op: "cosi.resource.State/List", Nth: 1, Kind: world.Answer, Status: int(codes.PermissionDenied), Text: `resource type "ExtensionStatuses.runtime.talos.dev" is not supported`},
			func(m cluster.Machine) bool { return m.Schematic == "" && m.Talos == newest }},
		{"config not to be read", world.Fault{Op: "cosi.resource.State/Watch", Nth: 3, Kind: world.Answer, Status: int(codes.PermissionDenied), Text: "not authorized"},
			func(m cluster.Machine) bool { return m.ConfigDigest == "" && m.Talos == newest }},
		{"config too large", world.Fault{Op: "cosi.resource.State/Watch", Nth: 3, Kind: world.Answer, Status: int(codes.ResourceExhausted), Text: "grpc: received message larger than max"},
			func(m cluster.Machine) bool { return m.ConfigDigest == "" && m.Talos == newest }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.power(cp(1))
				b.rawApply(cp(1), b.config(cp(1)))
				tc.fault.System = "talos"
				b.world.Inject(tc.fault)
				if m := b.see(cp(1)); m.Reach != cluster.Configured || !tc.check(m) {
					t.Errorf("%+v", m)
				}
				before := b.calls()
				time.Sleep(time.Minute)
				b.wantReach(cp(1), cluster.Configured, "")
				if after := b.calls(); after["Watch"] > 0 {
					t.Errorf("it was looked at again: %v, then %v", before, after)
				}
			})
		})
	}
}

// TestWatchLoss: the connection breaks under the watches; what changed in the
// meantime is seen all the same.
func TestWatchLoss(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		before := b.reported.Load()
		b.link.Load().Cut()
		next := render(t, b.secrets, cp(1), newest, "machine: {nodeLabels: {a: b}}")
		b.rawApply(cp(1), next)
		b.untilReach(cp(1), cluster.ReachUnknown)
		if b.reported.Load() == before {
			t.Error("no one was notified")
		}
		b.link.Store(world.NewLink(b.world.Net)) // a new cable
		m := b.untilReach(cp(1), cluster.Configured)
		if m.ConfigDigest != next.Digest {
			t.Errorf("%+v", m)
		}
	})
}

// TestNeverDialledAgain: a link is one connection. When it breaks, nothing is
// sent to whoever answers then.
func TestNeverDialledAgain(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.power(cp(1))
		dials := 0
		f := &Fleet{dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			return b.dial(ctx, network, addr)
		}}
		l, err := f.connect(within(time.Minute), cp(1).IP, keys{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		if err := l.prove(within(time.Minute), cp(1)); err != nil {
			t.Fatal(err)
		}
		b.lab.PowerOff(401)
		b.boot(guest(cp(1), newest))
		b.calls()
		for range 10 {
			if _, err := l.machine.Version(within(time.Second), &emptypb.Empty{}); err == nil {
				t.Error("a broken link answers")
			}
			time.Sleep(time.Minute)
		}
		if calls := b.calls(); dials != 1 || len(calls) > 0 {
			t.Errorf("%d dials, calls %v", dials, calls)
		}
	})
}

// TestSlowMachine: every answer takes a second, and the machine is seen.
func TestSlowMachine(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.power(cp(1))
		b.world.Inject(world.Fault{System: "talos", Kind: world.Slow, Delay: time.Second})
		start := time.Now()
		b.wantReach(cp(1), cluster.ReachUnknown, "there is no answer yet")
		b.untilReach(cp(1), cluster.Maintenance)
		b.apply(cp(1))
		b.untilReach(cp(1), cluster.Configured)
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestCloseInTheMiddle: whatever is under way ends.
func TestCloseInTheMiddle(t *testing.T) {
	for _, op := range append([]string{"", applyCall}, reads...) {
		t.Run(op, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
				b.power(cp(1), wk(1))
				b.rawApply(cp(1), b.config(cp(1)))
				if op == "" {
					b.world.Net.(*world.Memory).Darken("10.5.0.11", true)
				} else {
					b.world.Inject(world.Fault{System: "talos", Op: op, Kind: world.Slow, Delay: time.Hour})
				}
				ended := make(chan struct{}, 2)
				go func() { b.observe(); ended <- struct{}{} }()
				go func() {
					_ = b.fleet.Apply(context.Background(), b.desired, wk(1), b.config(wk(1)))
					ended <- struct{}{}
				}()
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				start := time.Now()
				b.fleet.Close()
				<-ended
				<-ended
				if took := time.Since(start); took > 0 {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
