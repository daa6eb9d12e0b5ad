package talos

import (
	"fmt"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const bootstrapCall = "machine.MachineService/Bootstrap"

// ready takes a control plane to where etcd waits to be founded.
func (b *bench) ready(n cluster.Node) {
	b.Helper()
	b.power(n)
	b.observe()
	b.apply(n)
	b.until("etcd waits", func(o cluster.Observed) bool { return o.Machines[n.Name].Services["etcd"].State == "Preparing" })
	b.calls()
}

func (b *bench) etcd(n cluster.Node) cluster.Service { return b.see(n).Services["etcd"] }

// TestBootstrapIsSeen: when Bootstrap returns, the next look does not show an
// etcd any more that waits to be founded.
func TestBootstrapIsSeen(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.ready(cp(1))
		if o := b.observe(); o.Members.Known || o.Members.Why != "no etcd runs on the control planes that answer" {
			t.Errorf("members before there is an etcd: %+v", o.Members)
		}
		if err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1)); err != nil {
			t.Fatal(err)
		}
		if s := b.etcd(cp(1)); s.State != "Running" {
			t.Errorf("etcd %+v", s)
		}
		if o := b.observe(); o.Members.Known || !strings.HasPrefix(o.Members.Why, "no etcd can be asked (cp-1: ") {
			t.Errorf("members while etcd starts: %+v", o.Members)
		}
		b.until("etcd is healthy", func(o cluster.Observed) bool { return o.Members.Known })
		// It is there: no machine is asked again.
		if err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1)); err != nil {
			t.Error(err)
		}
		calls := b.calls()
		if calls["Bootstrap"] != 1 {
			t.Errorf("calls %v", calls)
		}
		b.wantNoViolations()
	})
}

// TestPreparingIsSeenQuickly: between the config and an etcd that can be
// founded lies nothing that a watch reports.
func TestPreparingIsSeenQuickly(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.power(cp(1))
		b.observe()
		b.apply(cp(1))
		start := time.Now()
		b.until("etcd waits", func(o cluster.Observed) bool { return o.Machines["cp-1"].Services["etcd"].State == "Preparing" })
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("seen after %v", took)
		}
		b.calls()
		time.Sleep(time.Minute)
		if n := b.calls()["ServiceList"]; n > 35 {
			t.Errorf("a minute of waiting cost %d lists of services", n)
		}
	})
}

func TestBootstrapFaults(t *testing.T) {
	answer := func(c codes.Code, text string) world.Fault {
		return world.Fault{Kind: world.Answer, Status: int(c), Text: text}
	}
	for _, tc := range []struct {
		name  string
		fault world.Fault
		want  string // of the first error, "" : none
		hint  string
		sent  int // until it is founded
	}{
		{"request lost", world.Fault{Kind: world.LoseRequest}, "it was not carried out: error reading from server: EOF", "", 2},
		{"reply lost", world.Fault{Kind: world.LoseReply}, "", "", 1},
		{"slow", world.Fault{Kind: world.Slow, Delay: 8 * time.Second}, "", "", 1},
		{"too slow", world.Fault{Kind: world.Slow, Delay: time.Minute}, "it was not carried out: no answer in time", "", 2},
		{"too early", answer(codes.FailedPrecondition, "bootstrap is not available yet"), "it is too early: bootstrap is not available yet", "", 2},
		{"no time", answer(codes.FailedPrecondition, "time is not in sync yet"), "it is too early: time is not in sync yet", "the machine reaches no time server", 2},
		{"anything else that is early", answer(codes.FailedPrecondition, "etcd is not in the mood"), "it is too early: etcd is not", "", 2},
		{"already", answer(codes.AlreadyExists, "etcd data directory is not empty"), "", "", 2},
		{"collision", answer(codes.Unknown, "etcd data directory is not empty"), "it was not carried out: etcd data directory is not empty", "", 2},
		{"no etcd in the config", answer(codes.InvalidArgument, "etcd is not configured, bootstrap is not possible"), "the machine refuses: etcd is not configured", "its machine config has no etcd", 2},
		{"a worker", answer(codes.Unimplemented, "bootstrap is only available on control plane nodes"), "the machine refuses: bootstrap is only", "", 2},
		{"an old worker", answer(codes.FailedPrecondition, "bootstrap can only be performed on a control plane node"), "the machine refuses: bootstrap can only", "", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.ready(cp(1))
				tc.fault.System, tc.fault.Op, tc.fault.Nth = "talos", bootstrapCall, 1
				b.world.Inject(tc.fault)
				err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1))
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), "bootstrap cp-1 (10.5.0.11): "+tc.want)) {
					t.Errorf("error %v, want %q", err, tc.want)
				}
				if hint := fault.HintOf(err); !strings.HasPrefix(hint, tc.hint) || tc.hint == "" && hint != "" {
					t.Errorf("hint %q, want %q", hint, tc.hint)
				}
				if b.etcd(cp(1)).State == "Preparing" {
					if err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1)); err != nil {
						t.Error(err)
					}
				}
				b.until("etcd is healthy", func(o cluster.Observed) bool { return o.Members.Known })
				if n := b.calls()["Bootstrap"]; n != tc.sent {
					t.Errorf("%d calls, want %d", n, tc.sent)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestBootstrapWaitsForTheTime plays the machine's own refusal.
func TestBootstrapWaitsForTheTime(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.ready(cp(1))
		if err := b.lab.Desync(401, true); err != nil {
			t.Fatal(err)
		}
		err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1))
		if err == nil || !strings.Contains(fault.HintOf(err), "time server") {
			t.Errorf("%v (%s)", err, fault.HintOf(err))
		}
		if err := b.lab.Desync(401, false); err != nil {
			t.Fatal(err)
		}
		if err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1)); err != nil {
			t.Error(err)
		}
	})
}

// TestBootstrapIsNotSent: to whom and when the call is not even made.
func TestBootstrapIsNotSent(t *testing.T) {
	for _, tc := range []struct {
		name  string
		nodes []cluster.Node
		stage func(b *bench)
		on    cluster.Node
		want  string
	}{
		{"a worker", []cluster.Node{wk(1)}, func(b *bench) { b.power(wk(1)) }, wk(1), "it is a worker"},
		{"in maintenance mode", []cluster.Node{cp(1)}, func(b *bench) { b.power(cp(1)) }, cp(1), "it is still in maintenance mode"},
		{"nobody there", []cluster.Node{cp(1)}, func(*bench) {}, cp(1), "nothing answers at 10.5.0.11:50000"},
		{"no keys", []cluster.Node{cp(1)}, func(b *bench) { b.desired.Access = cluster.Access{} }, cp(1), "no keys"},
		{"broken keys", []cluster.Node{cp(1)}, func(b *bench) { b.desired.Access.Talos.CA = cluster.Secret{} }, cp(1), "no PEM certificate"},
		{"a cluster is there", []cluster.Node{cp(1), cp(2)}, func(b *bench) {
			b.bringUp(cp(1))
			b.power(cp(2))
			b.untilReach(cp(2), cluster.Maintenance)
			b.apply(cp(2))
		}, cp(2), "etcd runs on cp-1 already; a second one would split the cluster"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, tc.nodes, func(b *bench) {
				tc.stage(b)
				b.calls()
				err := b.fleet.Bootstrap(within(time.Minute), b.desired, tc.on)
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want %q", err, tc.want)
				}
				if n := b.calls()["Bootstrap"]; n > 0 {
					t.Errorf("%d calls", n)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestBootstrapTooEarly: etcd is not that far.
func TestBootstrapTooEarly(t *testing.T) {
	inBubbleAt(t, 10*time.Second, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.power(cp(1))
		b.apply(cp(1))
		err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1))
		if err == nil || !strings.Contains(err.Error(), "its etcd is not ready to be founded yet: it is Waiting (Waiting for") {
			t.Error(err)
		}
		if n := b.calls()["Bootstrap"]; n > 0 {
			t.Errorf("%d calls", n)
		}
	})
}

// TestBootstrapAtOnce: several at the same time on the same machine found one
// etcd.
func TestBootstrapAtOnce(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.ready(cp(1))
		errs := make(chan error)
		for range 5 {
			go func() { errs <- b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1)) }()
		}
		for range 5 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		b.wantNoViolations()
	})
}

// TestMachineDiesOverBootstrap: it reboots, or never comes back, with the call
// in flight.
func TestMachineDiesOverBootstrap(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprint("back ", back), func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.ready(cp(1))
				b.world.Inject(world.Fault{System: "talos", Op: bootstrapCall, Nth: 1, Kind: world.LoseReply})
				b.world.OnCall(func(r world.CallRecord) {
					if r.Op == bootstrapCall {
						time.AfterFunc(10*time.Millisecond, func() {
							if back {
								_ = b.lab.Reboot(401)
							} else {
								_ = b.lab.Kill(401)
							}
						})
					}
				})
				err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1))
				if err == nil || !strings.Contains(err.Error(), "the answer was lost") {
					t.Error(err)
				}
				b.world.OnCall(nil)
				if back {
					b.until("etcd is healthy", func(o cluster.Observed) bool { return o.Members.Known })
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestTwoEtcds: a cluster that was split by somebody else has no members.
func TestTwoEtcds(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2)}, func(b *bench) {
		b.power(cp(1), cp(2))
		b.observe()
		for _, n := range []cluster.Node{cp(1), cp(2)} {
			b.rawApply(n, render(b, b.secrets, n, newest))
			if _, err := b.raw(n).machine.Bootstrap(within(time.Minute), &machineapi.BootstrapRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		o := b.until("both are healthy", func(o cluster.Observed) bool {
			return o.Machines["cp-1"].Services["etcd"].Healthy && o.Machines["cp-2"].Services["etcd"].Healthy
		})
		if o.Members.Known || o.Members.Why != "there are two etcds: that of cp-1 does not have cp-2 as a member, whose own is healthy" {
			t.Errorf("%+v", o.Members)
		}
		// Whoever founded the cluster is asked first.
		if o := b.observeAs(cluster.Facts{Intents: []cluster.Intent{{Kind: cluster.IntendBootstrap, Node: "cp-2"}}}); !strings.Contains(o.Members.Why, "that of cp-2 does not have cp-1") {
			t.Errorf("%+v", o.Members)
		}
	})
}
