package talos

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const (
	installCall = "machine.LifecycleService/Upgrade"
	upgradeCall = "machine.MachineService/Upgrade"
)

// installerOf is the installer of a version.
func installerOf(version string) string {
	return "factory.talos.dev/metal-installer/" + schematic + ":" + version
}

// outcome is what is known of an installation from its error.
type outcome string

const (
	done     outcome = "done"
	failed   outcome = "failed"    // the installer, or there is none
	passing  outcome = "may pass"  // the installer failed, and may be tried again
	notBegun outcome = "not begun" // it may be asked for again
	unknown  outcome = "not known" // it may go on
)

func outcomeOf(err error) outcome {
	var bad *cluster.InstallError
	switch {
	case err == nil:
		return done
	case errors.As(err, &bad) && bad.MayPass():
		return passing
	case errors.As(err, &bad):
		return failed
	case errors.Is(err, cluster.ErrNotBegun):
		return notBegun
	}
	return unknown
}

// wantOutcome compares what an installation came to.
func (b *bench) wantOutcome(err error, want outcome, text string) {
	b.Helper()
	if got := outcomeOf(err); got != want || err != nil && !strings.Contains(err.Error(), text) {
		b.Errorf("%s, %v, want %s, %q", got, err, want, text)
	}
}

// answer is a fault by which a call is answered, once.
func answer(op string, code codes.Code, text string) world.Fault {
	return world.Fault{System: "talos", Op: op, Kind: world.Answer, Status: int(code), Text: text, Times: 1}
}

// TestInstallTalos: how an installer ended is known from its exit code, which comes last; without one it may have
// ended in any way, and may run still, unless Talos answers that it was not begun.
func TestInstallTalos(t *testing.T) {
	const next = "v1.14.1"
	for _, tc := range []struct {
		name   string
		to     string
		flaw   installer.Flaw
		fault  world.Fault
		within time.Duration
		want   outcome
		text   string
	}{
		{name: "it installs", want: done},
		{name: "it fails", flaw: installer.FailsInstall, want: failed, text: "the installer ended with exit code 7: "},
		{name: "an older one fails", to: "v1.13.10", flaw: installer.FailsInstall, want: failed, text: "the installer ended with exit code 1: "},
		{name: "it lacks what it gets from elsewhere", flaw: installer.LacksDependency, want: passing, text: "the installer ended with exit code 5: "},
		{name: "the request is lost", fault: world.Fault{Op: installCall, Kind: world.LoseRequest, Times: 1}, want: unknown},
		{name: "the end is lost", fault: world.Fault{Op: installCall, Kind: world.LoseReply, Times: 1}, want: unknown},
		{name: "nothing comes in time", fault: world.Fault{Op: installCall, Kind: world.Slow, Delay: time.Hour, Times: 1}, want: unknown},
		{name: "the caller gives up", within: 2 * time.Second, want: unknown},
		{name: "another is installed", fault: answer(installCall, codes.FailedPrecondition, "another installation/upgrade is already in progress"), want: notBegun, text: "already in progress"},
		{name: "it is refused", fault: answer(installCall, codes.PermissionDenied, "not authorized"), want: notBegun},
		{name: "the image is gone", fault: answer(installCall, codes.Internal, `upgrade failed: installer image "x" not found in containerd store: image "x": not found`), want: notBegun},
		{name: "there is no disk", fault: answer(installCall, codes.Internal, "system disk not found"), want: notBegun},
		{name: "it does not start", fault: answer(installCall, codes.Internal, "upgrade failed: failed to create task: context deadline exceeded"), want: notBegun},
		{name: "it is lost sight of", fault: answer(installCall, codes.Internal, "upgrade failed: failed to wait for task: ttrpc: closed"), want: unknown},
		{name: "it ends without a code", fault: answer(installCall, codes.Internal, "upgrade failed: task exited with error: unavailable"), want: unknown},
		{name: "the connection fails", fault: answer(installCall, codes.Internal, "stream terminated by RST_STREAM with error code: INTERNAL_ERROR"), want: unknown},
		{name: "the deadline ends", fault: answer(installCall, codes.DeadlineExceeded, "context deadline exceeded"), want: unknown},
		{name: "the boot is not shown", fault: answer("machine.MachineService/Read", codes.Internal, "no"), want: notBegun},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				image := installerOf(next)
				if tc.to != "" {
					image = installerOf(tc.to)
				}
				b.lab.SpoilImage(image[strings.LastIndex(image, ":")+1:], tc.flaw)
				if err := b.fleet.PullInstaller(within(time.Hour), b.desired, cp(1), image, nil); err != nil {
					t.Fatal(err)
				}
				if tc.fault.Kind != "" {
					tc.fault.System = "talos"
					b.world.Inject(tc.fault)
				}
				if tc.within == 0 {
					tc.within = time.Hour
				}
				boot := b.see(cp(1)).BootID
				b.wantOutcome(b.fleet.InstallTalos(within(tc.within), b.desired, cp(1), image, boot, nil), tc.want, tc.text)
				if m := b.see(cp(1)); m.BootID != boot || m.Talos != newest {
					t.Errorf("it did not run on: %+v", m)
				}
			})
		})
	}
}

// TestInstallCutOff: a connection that breaks while the installer prints does not stop it. It runs to its end, no
// other is begun meanwhile, and what it has installed boots next.
func TestInstallCutOff(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		image := installerOf("v1.14.1")
		if err := b.fleet.PullInstaller(within(time.Hour), b.desired, cp(1), image, nil); err != nil {
			t.Fatal(err)
		}
		boot := b.see(cp(1)).BootID
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		printed := false
		err := b.fleet.InstallTalos(ctx, b.desired, cp(1), image, boot, func(cluster.Progress) {
			if !printed {
				printed = true
				b.link.Swap(world.NewLink(b.world.Net)).Cut()
			}
		})
		if !printed {
			t.Error("it has printed nothing")
		}
		b.wantOutcome(err, unknown, "")
		b.until("it answers again", func(o cluster.Observed) bool { return o.Machines["cp-1"].Reach == cluster.Configured })
		b.wantOutcome(b.fleet.InstallTalos(ctx, b.desired, cp(1), image, boot, nil), notBegun, "already in progress")
		time.Sleep(b.world.Latency.Install)
		if err := b.fleet.Reboot(ctx, b.desired, cp(1), boot, nil); err != nil {
			t.Fatal(err)
		}
		if m := b.see(cp(1)); m.Talos != "v1.14.1" {
			t.Errorf("%+v", m)
		}
	})
}

// TestInstallInAnotherBoot: what was noted of one boot is not asked for in another.
func TestInstallInAnotherBoot(t *testing.T) {
	for _, version := range []string{"v1.12.3", newest} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				b.calls()
				b.wantOutcome(b.fleet.InstallTalos(within(time.Hour), b.desired, cp(1), installerOf(newest), "another", nil), notBegun, "it is in another boot")
				b.wantOutcome(b.fleet.UpgradeTalos(within(time.Hour), b.desired, cp(1), installerOf(newest), "another", nil), notBegun, "it is in another boot")
				if calls := b.calls(); calls["Upgrade"] != 0 {
					t.Errorf("calls %v", calls)
				}
			})
		})
	}
}

// TestUpgradeTalos: the older call answers before anything is installed, and OK means received: what became of it is
// what runs after that.
func TestUpgradeTalos(t *testing.T) {
	const old = "v1.12.3"
	for _, tc := range []struct {
		name  string
		image string
		flaw  installer.Flaw
		fault world.Fault
		want  outcome
		text  string
		runs  string // afterwards; "": what it ran before, in the same boot
	}{
		{name: "it installs", want: done, runs: newest},
		{name: "the answer is lost", fault: world.Fault{Op: upgradeCall, Kind: world.LoseReply, Times: 1}, want: done, runs: newest},
		{name: "the installer fails", flaw: installer.FailsInstall, want: done, runs: old},
		{name: "there is no such image", image: "ghcr.io/siderolabs/installer:v1.14.1", want: failed, text: "error validating installer image"},
		{name: "there is no installer in it", fault: answer(upgradeCall, codes.Unknown, `error validating installer image "x": exec: "/bin/installer": stat /bin/installer: no such file or directory`), want: failed},
		{name: "the registry does not answer", fault: answer(upgradeCall, codes.Unknown, `error validating installer image "x": failed to pull image: dial tcp 10.0.0.1:443: i/o timeout`), want: notBegun},
		{name: "etcd is not healthy", fault: answer(upgradeCall, codes.DeadlineExceeded, "error validating etcd for upgrade: etcd member 1 is not healthy"), want: notBegun},
		{name: "another is upgraded", fault: answer(upgradeCall, codes.Unknown, "failed to acquire upgrade lock: mutex: Locked by another session"), want: notBegun},
		{name: "etcd has no leader", fault: answer(upgradeCall, codes.Unknown, "failed to acquire upgrade mutex: etcdserver: no leader"), want: notBegun},
		{name: "it is refused", fault: answer(upgradeCall, codes.PermissionDenied, "not authorized"), want: notBegun},
		{name: "the request is lost", fault: world.Fault{Op: upgradeCall, Kind: world.LoseRequest, Times: 1}, want: unknown, text: "without a clear answer"},
		{name: "the connection fails", fault: answer(upgradeCall, codes.Internal, "stream terminated by RST_STREAM with error code: INTERNAL_ERROR"), want: unknown, text: "without a clear answer"},
		{name: "nothing comes in time", fault: world.Fault{Op: upgradeCall, Kind: world.Slow, Delay: time.Hour, Times: 1}, want: unknown, text: "without a clear answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, old, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				b.lab.SpoilImage(newest, tc.flaw)
				if tc.image == "" {
					tc.image = installerOf(newest)
				}
				if tc.fault.Kind != "" {
					tc.fault.System = "talos"
					b.world.Inject(tc.fault)
				}
				boot := b.see(cp(1)).BootID
				b.wantOutcome(b.fleet.UpgradeTalos(within(time.Hour), b.desired, cp(1), tc.image, boot, nil), tc.want, tc.text)
				o := b.until("it runs", func(o cluster.Observed) bool {
					m := o.Machines["cp-1"]
					return m.Reach == cluster.Configured && m.Stage == "running" && (m.BootID != boot) == (tc.runs != "")
				})
				if m := o.Machines["cp-1"]; m.Talos != tc.runs && (tc.runs != "" || m.Talos != old) {
					t.Errorf("it runs %s", m.Talos)
				}
			})
		})
	}
}
