package talos

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const rebootCall = "machine.MachineService/Reboot"

// TestReboot: when Reboot returns the machine runs in another boot and is seen so, and
// another one for the same boot sends nothing.
func TestReboot(t *testing.T) {
	for _, version := range []string{"v1.9.6", newest, "v1.14.1"} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
				b.bringUp(cp(1), wk(1))
				for _, n := range []cluster.Node{wk(1), cp(1)} {
					before := b.see(n).BootID
					b.calls()
					var progress []string
					start := time.Now()
					if err := b.fleet.Reboot(within(time.Hour), b.desired, n, before, func(p cluster.Progress) { progress = append(progress, p.Waits) }); err != nil {
						t.Fatal(err)
					}
					if m := b.see(n); m.BootID == before || m.BootID == "" || m.Stage != "running" {
						t.Errorf("%+v", m)
					}
					if took := time.Since(start); took > time.Minute {
						t.Errorf("it took %v", took)
					}
					if !slices.ContainsFunc(progress, func(s string) bool { return strings.HasPrefix(s, "boots: nothing answers at ") }) {
						t.Errorf("progress %q", progress)
					}
					if err := b.fleet.Reboot(within(time.Hour), b.desired, n, before, nil); err != nil {
						t.Error(err)
					}
					if calls := b.calls(); calls["Reboot"] != 1 {
						t.Errorf("calls %v", calls)
					}
				}
			})
		})
	}
}

// TestRebootFaults: what the answer is does not matter, only what becomes of the boot.
func TestRebootFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault world.Fault
		want  string // of the error, "" : none
		after time.Duration
	}{
		{"request lost", world.Fault{Kind: world.LoseRequest}, "it still runs in the boot of before 1m0s after it was asked to reboot, without a clear answer: error reading from server: EOF", time.Minute},
		{"reply lost", world.Fault{Kind: world.LoseReply}, "", 0},
		{"too slow", world.Fault{Kind: world.Slow, Delay: time.Hour}, "without a clear answer: no answer in time", time.Minute},
		{"unavailable", world.Fault{Kind: world.Answer, Status: int(codes.Unavailable), Text: "transport is closing"}, "without a clear answer: transport is closing", time.Minute},
		{"not authorized", world.Fault{Kind: world.Answer, Status: int(codes.PermissionDenied), Text: "not authorized"}, "the machine refuses: not authorized", 0},
		{"in a container", world.Fault{Kind: world.Answer, Status: int(codes.FailedPrecondition), Text: "method is not supported in container mode"}, "the machine refuses: method is not", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				before := b.see(cp(1)).BootID
				tc.fault.System, tc.fault.Op, tc.fault.Nth = "talos", rebootCall, 1
				b.world.Inject(tc.fault)
				b.calls()
				start := time.Now()
				err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), before, nil)
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "reboot cp-1 (10.5.0.11): ") || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				if took := time.Since(start); took < tc.after || took > tc.after+time.Minute {
					t.Errorf("it took %v", took)
				}
				if err != nil {
					if err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), before, nil); err != nil {
						t.Error(err)
					}
				}
				if m := b.see(cp(1)); m.BootID == before || m.Stage != "running" {
					t.Errorf("%+v", m)
				}
			})
		})
	}
}

// TestRebootWithoutReturn: a machine that does not come back is not waited for when it has been silent for five
// minutes.
func TestRebootWithoutReturn(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		before := b.see(cp(1)).BootID
		b.world.OnCall(func(r world.CallRecord) {
			if r.Op == rebootCall {
				time.AfterFunc(100*time.Millisecond, func() { _ = b.lab.Kill(401) })
			}
		})
		start := time.Now()
		err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), before, nil)
		if err == nil || !strings.Contains(err.Error(), "it has not answered for 5m0s on its way into another boot: nothing answers at ") {
			t.Error(err)
		}
		if took := time.Since(start); took < silentWithin || took > silentWithin+time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// TestRebootIntoMaintenance: a machine that has lost its config does not run.
func TestRebootIntoMaintenance(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		before := b.see(cp(1)).BootID
		b.world.OnCall(func(r world.CallRecord) {
			if r.Op == rebootCall {
				time.AfterFunc(time.Second, func() {
					b.lab.PowerOff(401)
					b.lab.PowerOn(guest(cp(1), newest))
				})
			}
		})
		err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), before, nil)
		if err == nil || !strings.Contains(err.Error(), "it does not run 10m0s after it was asked to reboot: it is still in maintenance mode") {
			t.Error(err)
		}
	})
}

// TestRebootNeedsToKnow: a boot that is not known, and a machine that does not show it.
func TestRebootNeedsToKnow(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		before := b.see(cp(1)).BootID
		b.calls()
		if err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), "", nil); err == nil {
			t.Error("without a boot id")
		}
		d := b.desired
		d.Access = cluster.Access{}
		if err := b.fleet.Reboot(within(time.Hour), d, cp(1), before, nil); err == nil {
			t.Error("without keys")
		}
		for _, code := range []codes.Code{codes.PermissionDenied, codes.Internal} {
			b.world.Inject(world.Fault{System: "talos", Op: "machine.MachineService/Read", Kind: world.Answer, Status: int(code), Text: "no", Times: 1})
			if err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), before, nil); err == nil || !strings.Contains(err.Error(), "boot id") {
				t.Error(err)
			}
		}
		if calls := b.calls(); calls["Reboot"] != 0 {
			t.Errorf("calls %v", calls)
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(5*time.Second, func() { cancel(errEnough) })
		if err := b.fleet.Reboot(ctx, b.desired, cp(1), before, nil); !errors.Is(err, errEnough) || !strings.Contains(err.Error(), "whether it runs again is not known") {
			t.Error(err)
		}
	})
}

var errEnough = errors.New("enough")
