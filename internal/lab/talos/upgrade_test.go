package talos_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// The instances of containerd that an installer can be in.
var (
	inmem = &common.ContainerdInstance{Driver: common.ContainerDriver_CONTAINERD, Namespace: common.ContainerdNamespace_NS_SYSTEM}
	onCRI = &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: common.ContainerdNamespace_NS_SYSTEM}
)

// otherSchematic is not the one that machines are made with.
const otherSchematic = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515"

func factoryInstaller(version string) string {
	return "factory.talos.dev/metal-installer/" + otherSchematic + ":" + version
}

// pull pulls an image to an instance of a machine's containerd.
func (l *lab) pull(n node, to *common.ContainerdInstance, ref string) error {
	_, err := receiveAll(l.admin(n).ImageClient.Pull(within(5*time.Minute), &machineapi.ImageServicePullRequest{Containerd: to, ImageRef: ref}))
	return err
}

// install runs an installer, and returns what it printed and how it ended.
func (l *lab) install(ctx context.Context, n node, from *common.ContainerdInstance, ref string) (output string, exit int32, err error) {
	l.t.Helper()
	s, err := l.admin(n).LifecycleClient.Upgrade(ctx, &machineapi.LifecycleServiceUpgradeRequest{
		Containerd: from, Source: &machineapi.InstallArtifactsSource{ImageName: ref},
	})
	if err != nil {
		return "", -1, err
	}
	exit = -1
	for {
		m, err := s.Recv()
		switch p := m.GetProgress().GetResponse().(type) {
		case *machineapi.LifecycleServiceInstallProgress_Message:
			if exit >= 0 {
				l.t.Errorf("output after the exit code: %q", p.Message)
			}
			output += p.Message
		case *machineapi.LifecycleServiceInstallProgress_ExitCode:
			exit = p.ExitCode
		}
		if errors.Is(err, io.EOF) {
			return output, exit, nil
		}
		if err != nil {
			return output, exit, err
		}
	}
}

// installed pulls and runs an installer that works.
func (l *lab) installed(n node, ref string) {
	l.t.Helper()
	if err := l.pull(n, inmem, ref); err != nil {
		l.t.Fatal(err)
	}
	output, exit, err := l.install(within(5*time.Minute), n, inmem, ref)
	if err != nil || exit != 0 {
		l.t.Fatalf("install %s: exit %d, %v\n%s", ref, exit, err, output)
	}
}

// rebooted reboots a machine and waits until it has had time to be ready.
func (l *lab) rebooted(n node) {
	l.t.Helper()
	if err := l.admin(n).Reboot(within(5 * time.Second)); err != nil {
		l.t.Fatal(err)
	}
	time.Sleep(3 * time.Minute)
}

// wantVersion looks at everything by which a machine shows its version.
func (l *lab) wantVersion(when string, n node, version, schematic string) {
	l.t.Helper()
	v := l.view(n)
	if v.Talos != version || v.Schematic != schematic {
		l.t.Errorf("%s: Talos %s with schematic %.8s, want %s with %.8s", when, v.Talos, v.Schematic, version, schematic)
	}
	c := l.admin(n)
	shown, err := c.Version(within(5 * time.Second))
	if err != nil {
		l.t.Errorf("%s: %v", when, err)
		return
	}
	if tag := shown.GetMessages()[0].GetVersion().GetTag(); tag != version {
		l.t.Errorf("%s: version %s, want %s", when, tag, version)
	}
	list, err := c.COSI.List(within(5*time.Second), runtime.NewExtensionStatus(runtime.NamespaceName, "").Metadata())
	if err != nil {
		l.t.Fatal(err)
	}
	found := ""
	for _, r := range list.Items {
		if m := r.(*runtime.ExtensionStatus).TypedSpec().Metadata; m.Name == "schematic" {
			found = m.Version
		}
	}
	if found != schematic {
		l.t.Errorf("%s: the schematic is shown as %.8s, want %.8s", when, found, schematic)
	}
	if k, ok := l.kube.kubelet(n.name); ok && k.Talos != version {
		l.t.Errorf("%s: Kubernetes knows Talos %s, want %s", when, k.Talos, version)
	}
}

// made is the schematic that machines of these tests are made with.
const made = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

// TestLifecycleUpgrade: the installer writes the other slot, and the version changes with the reboot
// that somebody else asks for. It stays when the machine is off for a while.
func TestLifecycleUpgrade(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		guest := wk(1).guest("v1.13.8")
		l.fleet.PowerOn(guest)
		time.Sleep(l.world.Latency.Boot + time.Second)
		l.apply(wk(1), l.config(wk(1), "v1.13.8"))
		time.Sleep(3 * time.Minute)
		before := l.view(wk(1)).BootID
		if err := l.pull(wk(1), inmem, factoryInstaller("v1.13.9")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		output, exit, err := l.install(within(time.Minute), wk(1), inmem, factoryInstaller("v1.13.9"))
		if err != nil || exit != 0 || !strings.Contains(output, "host Talos version: v1.13.8") || !strings.HasSuffix(output, "installation of v1.13.9 complete\n") {
			t.Errorf("exit %d, %v\n%s", exit, err, output)
		}
		if took := time.Since(began); took < l.world.Latency.Install {
			t.Errorf("took %v", took)
		}
		l.wantVersion("before the reboot", wk(1), "v1.13.8", made)
		l.rebooted(wk(1))
		l.wantVersion("after it", wk(1), "v1.13.9", otherSchematic)
		if v := l.view(wk(1)); v.BootID == before || !v.Ready {
			t.Errorf("after the reboot: %+v", v)
		}
		l.fleet.PowerOff(501)
		l.fleet.PowerOn(guest)
		time.Sleep(3 * time.Minute)
		l.wantVersion("after a power cycle", wk(1), "v1.13.9", otherSchematic)
		l.fleet.PowerOff(501)
		l.fleet.PowerOn(wk(1).guest("v1.13.8"))
		time.Sleep(time.Minute)
		if v := l.view(wk(1)); v.Talos != "v1.13.8" || v.Configured {
			t.Errorf("with a new disk: %+v", v)
		}
		l.wantViolations()
	})
}

// TestInstallerIsAlone: only one installer runs at a time, and it runs to its end, whoever has
// given up waiting for it.
func TestInstallerIsAlone(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		if err := l.pull(cp(1), inmem, factoryInstaller("v1.13.10")); err != nil {
			t.Fatal(err)
		}
		if _, exit, err := l.install(within(4*time.Second), cp(1), inmem, factoryInstaller("v1.13.10")); client.StatusCode(err) != codes.DeadlineExceeded || exit != -1 {
			t.Errorf("with a short deadline: exit %d, %v", exit, err)
		}
		if _, _, err := l.install(within(time.Minute), cp(1), inmem, factoryInstaller("v1.13.10")); client.StatusCode(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "another installation/upgrade is already in progress") {
			t.Errorf("while it runs: %v", err)
		}
		time.Sleep(l.world.Latency.Install)
		l.rebooted(cp(1))
		l.wantVersion("after the reboot", cp(1), "v1.13.10", otherSchematic)
		if _, _, err := l.install(within(time.Minute), cp(1), inmem, factoryInstaller("v1.13.10")); client.StatusCode(err) != codes.Internal || !strings.Contains(err.Error(), "not found in containerd store") {
			t.Errorf("after the reboot: %v, want the image gone with the memory it was in", err)
		}
	})
}

// TestRebootEndsTheInstaller: what it was about to write is not booted, and what was there before
// is not, either.
func TestRebootEndsTheInstaller(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		l.installed(cp(1), factoryInstaller("v1.13.10"))
		l.rebooted(cp(1))
		if err := l.pull(cp(1), inmem, factoryInstaller("v1.13.11")); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(5*time.Second, func() { l.rebooted(cp(1)) })
		if _, exit, err := l.install(within(time.Minute), cp(1), inmem, factoryInstaller("v1.13.11")); client.StatusCode(err) != codes.Unavailable || exit != -1 {
			t.Errorf("while it goes down: exit %d, %v", exit, err)
		}
		time.Sleep(4 * time.Minute)
		l.wantVersion("afterwards", cp(1), "v1.13.10", otherSchematic)
		if err := l.rollback(cp(1)); err == nil || !strings.Contains(err.Error(), "previous UKI not found") {
			t.Errorf("rollback: %v", err)
		}
	})
}

// TestInstallersOfAnInstance: an installer is looked for where the request names it. CRI keeps its
// images over a reboot.
func TestInstallersOfAnInstance(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		ref := factoryInstaller("v1.13.10")
		if err := l.pull(cp(1), onCRI, ref); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			from *common.ContainerdInstance
			ref  string
			code codes.Code
			want string
		}{
			{inmem, ref, codes.Internal, `upgrade failed: installer image "` + ref + `" not found in containerd store: image "` + ref + `": not found`},
			{nil, ref, codes.Internal, "upgrade failed: rpc error: code = InvalidArgument desc = invalid containerd namespace NS_UNKNOWN"},
			{inmem, "", codes.InvalidArgument, "installer image name is required"},
		} {
			if _, _, err := l.install(within(time.Minute), cp(1), tc.from, tc.ref); client.StatusCode(err) != tc.code || !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("%q in %v: %v, want %s", tc.ref, tc.from, err, tc.want)
			}
		}
		l.rebooted(cp(1))
		if _, exit, err := l.install(within(time.Minute), cp(1), onCRI, ref); exit != 0 || err != nil {
			t.Errorf("from CRI: exit %d, %v", exit, err)
		}
		if err := l.pull(cp(1), onCRI, "docker.io/library/nginx:1"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.install(within(time.Minute), cp(1), onCRI, "docker.io/library/nginx:1"); client.StatusCode(err) != codes.Internal || !strings.Contains(err.Error(), "/bin/installer: no such file") {
			t.Errorf("without an installer in it: %v", err)
		}
	})
}

// TestPullOfAnInstaller: what is not published is not found, and a registry that does not answer is
// asked until the caller gives up.
func TestPullOfAnInstaller(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		for ref, want := range map[string]codes.Code{
			factoryInstaller("v1.13.10"):                       codes.OK,
			"mirror.example:5000/siderolabs/installer:v1.13.1": codes.OK,
			"ghcr.io/siderolabs/installer:v1.13.10":            codes.OK,
			"ghcr.io/siderolabs/installer:v1.14.1":             codes.NotFound, // no longer published there
			"ghcr.io/siderolabs/installer:v9.9.9":              codes.NotFound,
			"installer:v1.13.10":                               codes.DeadlineExceeded,
			"dead.example/siderolabs/installer:v1.13.10":       codes.DeadlineExceeded,
		} {
			if err := l.pull(cp(1), inmem, ref); client.StatusCode(err) != want {
				t.Errorf("%s: %v, want %v", ref, err, want)
			}
		}
	})
}

// TestInstallerRefuses: an installer that fails is an answer whose code depends on the version that
// is installed, and the machine goes on with what it has.
func TestInstallerRefuses(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		exit     int32
		want     string
	}{
		{"v1.13.9", "v1.13.12", 1, "no space left on device"},
		{"v1.13.9", "v1.14.0", 7, "no space left on device"},
		{"v1.13.9", "v1.10.9", 1, "pre-flight checks failed: host version 1.13.9 is too new to downgrade to Talos 1.10.9"},
	} {
		t.Run(tc.from+" to "+tc.to, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.fleet.SpoilImage("v1.13.12", installer.FailsInstall)
				l.fleet.SpoilImage("v1.14.0", installer.FailsInstall)
				l.bring(tc.from, cp(1))
				if err := l.pull(cp(1), inmem, factoryInstaller(tc.to)); err != nil {
					t.Fatal(err)
				}
				output, exit, err := l.install(within(time.Minute), cp(1), inmem, factoryInstaller(tc.to))
				if err != nil || exit != tc.exit || !strings.Contains(output, tc.want) {
					t.Errorf("exit %d, %v\n%s", exit, err, output)
				}
				l.rebooted(cp(1))
				l.wantVersion("afterwards", cp(1), tc.from, made)
			})
		})
	}
}

// rollback asks a machine to boot the other slot.
func (l *lab) rollback(n node) error {
	_, err := l.admin(n).MachineClient.Rollback(within(5*time.Second), &machineapi.RollbackRequest{})
	return err
}

// TestRollback: it boots what is in the other slot, forth and back, and needs something there.
func TestRollback(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		if err := l.rollback(cp(1)); client.StatusCode(err) != codes.Unknown || !strings.HasSuffix(err.Error(), "previous UKI not found") {
			t.Errorf("on a new disk: %v", err)
		}
		l.installed(cp(1), factoryInstaller("v1.13.10"))
		l.rebooted(cp(1))
		for _, want := range [][2]string{{"v1.13.9", made}, {"v1.13.10", otherSchematic}} {
			if err := l.rollback(cp(1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Minute)
			l.wantVersion("after a rollback", cp(1), want[0], want[1])
		}
	})
}

// TestTwoInstallersWithoutAReboot: the second one writes over what runs.
func TestTwoInstallersWithoutAReboot(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		l.installed(cp(1), factoryInstaller("v1.13.10"))
		l.installed(cp(1), factoryInstaller("v1.13.11"))
		l.rebooted(cp(1))
		l.wantVersion("after the reboot", cp(1), "v1.13.11", otherSchematic)
		if err := l.rollback(cp(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		l.wantVersion("after the rollback", cp(1), "v1.13.10", otherSchematic)
	})
}

// TestBadVersion: a version that ends with a fatal error goes back to the one before, until it
// has once been ready. One that hangs stays so, also after a power cycle.
func TestBadVersion(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		l.fleet.SpoilImage("v1.13.10", installer.CrashesOnBoot)
		before := l.view(cp(1)).BootID
		l.installed(cp(1), factoryInstaller("v1.13.10"))
		l.rebooted(cp(1))
		l.wantVersion("after it crashed", cp(1), "v1.13.9", made)
		if v := l.view(cp(1)); v.BootID == before || !v.Ready {
			t.Errorf("after it crashed: %+v", v)
		}
		printed := strings.Join(l.fleet.Console(401).Lines, "\n")
		crashed, back := strings.Index(printed, "booting Talos v1.13.10"), strings.LastIndex(printed, "booting Talos v1.13.9")
		if why := strings.Index(printed, "rebooting in 0 seconds"); crashed < 0 || why < crashed || back < why {
			t.Errorf("it printed, with a boot that ended:\n%s", printed)
		}

		l.installed(cp(1), factoryInstaller("v1.13.11"))
		l.rebooted(cp(1))
		l.fleet.SpoilImage("v1.13.11", installer.CrashesOnBoot)
		l.rebooted(cp(1))
		if v := l.view(cp(1)); v.Talos != "v1.13.11" || v.Stage != "" {
			t.Errorf("a version that was ready before: %+v, want it to crash for ever", v)
		}
		l.fleet.SpoilImage("v1.13.11", installer.Sound)
		time.Sleep(3 * time.Minute)

		l.fleet.SpoilImage("v1.13.12", installer.HangsOnBoot)
		l.installed(cp(1), factoryInstaller("v1.13.12"))
		l.rebooted(cp(1))
		if v := l.view(cp(1)); v.Talos != "v1.13.12" || v.Stage != "" || v.BootID != "" {
			t.Errorf("one that hangs: %+v", v)
		}
		if p := l.fleet.Console(401); len(p.Lines) == 0 || !strings.HasSuffix(p.Lines[len(p.Lines)-1], "booting Talos v1.13.12") || len(p.Again) > 0 {
			t.Errorf("its console: %+v", p)
		}
		l.wantViolations()
	})
}

// legacy is the older call.
func (l *lab) legacy(ctx context.Context, n node, in *machineapi.UpgradeRequest) error {
	//lint:ignore SA1019 the legacy call is the one asked for
	resp, err := l.admin(n).MachineClient.Upgrade(ctx, in)
	if err == nil && (resp.GetMessages()[0].GetAck() != "Upgrade request received" || resp.GetMessages()[0].GetActorId() == "") {
		l.t.Errorf("answer %v", resp)
	}
	return err
}

// TestLegacyUpgrade: it drains, installs and reboots by itself. A second one is answered as if it
// did something.
func TestLegacyUpgrade(t *testing.T) {
	for _, tc := range []struct {
		name  string
		in    *machineapi.UpgradeRequest
		want  string
		after string // the stage that is shown last
	}{
		{"plain", &machineapi.UpgradeRequest{}, "drain cleanup dbus stopServices unmount unmountBind unmountSystem volumeFinalize upgrade meta kexec stopEverything", "REBOOTING true"},
		{"power cycle", &machineapi.UpgradeRequest{RebootMode: machineapi.UpgradeRequest_POWERCYCLE}, "drain cleanup dbus stopServices unmount unmountBind unmountSystem volumeFinalize upgrade meta stopEverything", "UPGRADING true"},
		{"staged", &machineapi.UpgradeRequest{Stage: true}, "cleanup dbus stopServices umount unmountBind unmountSystem volumeFinalize kexec stopEverything", "REBOOTING true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.cluster(cp(1), wk(1))
				l.kube.forgetDrains()
				events := l.watchEvents(wk(1))
				before := l.view(wk(1)).BootID
				tc.in.Image = factoryInstaller("v1.13.10")
				if err := l.legacy(within(time.Minute), wk(1), tc.in); err != nil {
					t.Fatal(err)
				}
				if err := l.admin(wk(1)).Reboot(within(time.Second)); err != nil {
					t.Error(err)
				}
				var phases []string
				last, refused := "", 0
				for _, e := range events() {
					if phase, ok := strings.CutPrefix(e, "phase "); ok && strings.HasSuffix(e, " START") {
						phases = append(phases, strings.TrimSuffix(phase, " START"))
					}
					if strings.HasSuffix(e, " true") {
						last = e
					}
					if strings.HasSuffix(e, " LOCKED") {
						refused++
					}
				}
				if got := strings.Join(phases, " "); got != tc.want || last != tc.after || refused != 1 {
					t.Errorf("phases %s, want %s; last %s, want %s; %d refused", got, tc.want, last, tc.after, refused)
				}
				if drained := len(l.kube.forgetDrains()) > 0; drained == tc.in.GetStage() {
					t.Errorf("drained: %v", drained)
				}
				time.Sleep(4 * time.Minute)
				l.wantVersion("afterwards", wk(1), "v1.13.10", otherSchematic)
				if v := l.view(wk(1)); v.BootID == before || !v.Ready {
					t.Errorf("afterwards: %+v", v)
				}
			})
		})
	}
}

// TestLegacyUpgradeThatFails: the installer fails when all has been stopped already; the machine
// reboots as it is.
func TestLegacyUpgradeThatFails(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), wk(1))
		l.fleet.SpoilImage("v1.13.12", installer.FailsInstall)
		events := l.watchEvents(wk(1))
		before := l.view(wk(1)).BootID
		if err := l.legacy(within(time.Minute), wk(1), &machineapi.UpgradeRequest{Image: factoryInstaller("v1.13.12")}); err != nil {
			t.Fatal(err)
		}
		if all := events(); !slices.Contains(all, "upgrade NOOP FATAL") {
			t.Errorf("events %q", all)
		}
		time.Sleep(4 * time.Minute)
		l.wantVersion("afterwards", wk(1), "v1.13.9", made)
		if v := l.view(wk(1)); v.BootID == before || !v.Ready {
			t.Errorf("afterwards: %+v", v)
		}
	})
}

// TestLegacyUpgradeAsksFirst: what it refuses before it takes anything down.
func TestLegacyUpgradeAsksFirst(t *testing.T) {
	ref := factoryInstaller("v1.13.10")
	for _, tc := range []struct {
		name  string
		nodes []node
		dead  int
		in    *machineapi.UpgradeRequest
		code  codes.Code
		want  string // how the answer ends
		after time.Duration
	}{
		{"no such image", []node{cp(1)}, 0, &machineapi.UpgradeRequest{Image: "ghcr.io/siderolabs/installer:v9.9.9"}, codes.Unknown,
			"ghcr.io/siderolabs/installer:v9.9.9: not found", 5 * time.Second},
		{"no image", []node{cp(1)}, 0, &machineapi.UpgradeRequest{}, codes.Unknown, `error validating installer image "": failed to parse image reference "": invalid reference format`, 0},
		{"two members", []node{cp(1), cp(2)}, 0, &machineapi.UpgradeRequest{Image: ref}, codes.Unknown,
			"error validating etcd for upgrade: etcd member count(2) is insufficient to maintain quorum if upgrade commences", 0},
		{"two members, forced", []node{cp(1), cp(2)}, 0, &machineapi.UpgradeRequest{Image: ref, Force: true}, codes.OK, "", 0},
		{"a dead member", []node{cp(1), cp(2), cp(3)}, 403, &machineapi.UpgradeRequest{Image: ref}, codes.DeadlineExceeded,
			"is not healthy; all members must be healthy to perform an upgrade: context deadline exceeded", 15 * time.Second},
		{"a dead member, preserve", []node{cp(1), cp(2), cp(3)}, 403, &machineapi.UpgradeRequest{Image: ref, Preserve: true}, codes.OK, "", 0},
		{"no quorum", []node{cp(1), cp(2)}, 402, &machineapi.UpgradeRequest{Image: ref}, codes.Unknown, "etcdserver: no leader", 0},
		{"three members", []node{cp(1), cp(2), cp(3)}, 0, &machineapi.UpgradeRequest{Image: ref}, codes.OK, "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.cluster(tc.nodes...)
				if tc.dead != 0 {
					l.fleet.PowerOff(tc.dead)
					time.Sleep(10 * time.Second)
				}
				began := time.Now()
				err := l.legacy(within(time.Minute), cp(1), tc.in)
				if client.StatusCode(err) != tc.code || err != nil && !strings.HasSuffix(err.Error(), tc.want) {
					t.Errorf("%v, want %v %s", err, tc.code, tc.want)
				}
				if took := time.Since(began); took < tc.after {
					t.Errorf("after %v", took)
				}
				time.Sleep(time.Millisecond)
				if upgrading := l.stage(cp(1)) == "upgrading"; upgrading != (tc.code == codes.OK) {
					t.Errorf("stage %s", l.stage(cp(1)))
				}
			})
		})
	}
}

// TestPreserveInOldVersions: up to v1.12.8 it asks etcd all the same.
func TestPreserveInOldVersions(t *testing.T) {
	for version, want := range map[string]codes.Code{"v1.12.7": codes.Unknown, "v1.12.11": codes.OK} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.bring(version, cp(1))
				l.bootstrap(cp(1))
				time.Sleep(2 * time.Minute)
				l.bring(version, cp(2))
				time.Sleep(2 * time.Minute)
				in := &machineapi.UpgradeRequest{Image: factoryInstaller("v1.13.9"), Preserve: true}
				if err := l.legacy(within(time.Minute), cp(1), in); client.StatusCode(err) != want {
					t.Errorf("%v, want %v", err, want)
				}
			})
		})
	}
}

// TestOldMachinesHaveNoLifecycle: up to v1.12 there is the older call alone, and it goes up to v1.13.
func TestOldMachinesHaveNoLifecycle(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.12.7", cp(1))
		l.bootstrap(cp(1))
		time.Sleep(2 * time.Minute)
		if _, _, err := l.install(within(time.Second), cp(1), inmem, factoryInstaller("v1.13.9")); client.StatusCode(err) != codes.Unimplemented {
			t.Errorf("%v", err)
		}
		if err := l.legacy(within(time.Minute), cp(1), &machineapi.UpgradeRequest{Image: factoryInstaller("v1.13.9")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		l.wantVersion("afterwards", cp(1), "v1.13.9", otherSchematic)
		l.installed(cp(1), factoryInstaller("v1.14.1"))
		l.rebooted(cp(1))
		l.wantVersion("two minors later", cp(1), "v1.14.1", otherSchematic)
		if v := l.view(cp(1)); !v.Ready || !v.Healthy {
			t.Errorf("two minors later: %+v", v)
		}
	})
}

// TestExtensionsFollowTheSchematic: what the factory builds into an installer runs after the reboot,
// and what it does not build cannot be pulled.
func TestExtensionsFollowTheSchematic(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.world.ServeInstallers(func(schematic, version string) (world.Image, bool) {
			return world.Image{Version: version, Schematic: schematic, Extensions: []string{"siderolabs/tailscale"}}, schematic == otherSchematic
		})
		l.cluster(cp(1), wk(1))
		if err := l.pull(wk(1), inmem, "factory.talos.dev/metal-installer/"+made+":v1.13.10"); client.StatusCode(err) != codes.NotFound {
			t.Errorf("a schematic that the factory does not know: %v", err)
		}
		l.installed(wk(1), factoryInstaller("v1.13.9"))
		l.rebooted(wk(1))
		l.wantVersion("after the reboot", wk(1), "v1.13.9", otherSchematic)
		if state := l.serviceState(wk(1), "ext-tailscale"); state != "Waiting" {
			t.Errorf("the service of the extension is %q, want it to wait for its config", state)
		}
		if v := l.view(wk(1)); v.Stage != booting {
			t.Errorf("%+v, want a boot that waits for the extension", v)
		}
		if err := l.rollback(wk(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		if v := l.view(wk(1)); !v.Ready || v.Schematic != made {
			t.Errorf("after the rollback: %+v", v)
		}
	})
}

// TestCopiesOfADiskHaveTheirOwnSlots, as a snapshot has them.
func TestCopiesOfADiskHaveTheirOwnSlots(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		guest := cp(1).guest("v1.13.9")
		l.fleet.PowerOn(guest)
		time.Sleep(l.world.Latency.Boot + time.Second)
		l.apply(cp(1), l.config(cp(1), "v1.13.9"))
		time.Sleep(l.world.Latency.Apply + 3*time.Second)
		kept := l.fleet.CopyContents(guest.Boot)
		l.installed(cp(1), factoryInstaller("v1.13.10"))
		l.fleet.PowerOff(401)
		now := guest.Boot.Contents
		for _, tc := range []struct {
			contents any
			want     string
		}{{kept, "v1.13.9"}, {now, "v1.13.10"}} {
			guest.Boot.Contents = tc.contents
			l.fleet.PowerOn(guest)
			time.Sleep(time.Minute)
			if v := l.view(cp(1)); v.Talos != tc.want {
				t.Errorf("Talos %s, want %s", v.Talos, tc.want)
			}
			l.fleet.PowerOff(401)
		}
	})
}
