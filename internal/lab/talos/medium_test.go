package talos_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const installing = "installing"

// mediumGuest is a node's virtual machine with an empty disk, and a medium behind it.
func mediumGuest(n node, version string) world.Guest {
	g := n.guest(version, "siderolabs/iscsi-tools")
	medium := g.Boot.Image
	medium.Medium = true
	g.Boot, g.Medium = &world.Disk{Serial: "talos-sys", Bytes: 20 << 30}, &medium
	g.Disks = []*world.Disk{g.Boot, {Serial: "talos-data0", Bytes: 5 << 30}}
	return g
}

// otherInstaller is an installer of a version with another schematic than media have.
func otherInstaller(version string) string {
	return "factory.talos.dev/nocloud-installer/" + otherSchematic + ":" + version
}

// byConfig and unattended are the parts of a config that have a machine installed.
func byConfig(where, image string) string {
	if image != "" {
		image = ", image: " + image
	}
	return fmt.Sprintf("machine: {install: {%s%s}}", where, image)
}

func unattended(serial, installer string) string {
	return fmt.Sprintf("apiVersion: v1alpha1\nkind: UnattendedInstallConfig\n%sprovisioning: {diskSelector: {match: 'disk.serial == %q'}}\n", installer, serial)
}

func imageOf(ref string) string { return "installer: {image: " + ref + "}\n" }

// boot switches a guest on and waits until it is up.
func (l *lab) boot(g world.Guest) {
	l.fleet.PowerOn(g)
	time.Sleep(l.world.Latency.Boot + time.Second)
}

// wantMaintenance checks that a machine runs from its medium and waits for a config.
func (l *lab) wantMaintenance(when string, n node, version string) {
	l.t.Helper()
	if v := l.view(n); v.Stage != maintenance || !v.Medium || v.Configured || v.Talos != version {
		l.t.Errorf("%s: %+v", when, v)
		return
	}
	if _, err := safe.StateListAll[*block.Disk](within(5*time.Second), l.insecure(n).COSI); err != nil {
		l.t.Errorf("%s: %v", when, err)
	}
}

// wantNode checks that a machine runs from its disk with its config.
func (l *lab) wantNode(when string, n node, version, schematic string) {
	l.t.Helper()
	v := l.view(n)
	if v.Medium || !v.Configured || v.Talos != version || v.Schematic != schematic {
		l.t.Errorf("%s: %+v, want Talos %s with %.8s", when, v, version, schematic)
	}
	if _, saved := l.fleet.ConfigsOf(n.vmid); saved == "" {
		l.t.Errorf("%s: no config is saved", when)
	}
}

// wantHalted checks that a machine that was booted from its medium found Talos on a disk.
func (l *lab) wantHalted(when string, n node) {
	l.t.Helper()
	v := l.view(n)
	if printed := strings.Join(l.fleet.Console(n.vmid).Lines, "\n"); !v.Medium || v.Stage != "" || !strings.Contains(printed, "already installed to disk") {
		l.t.Errorf("%s: %+v", when, v)
	}
	if _, err := l.insecure(n).Version(within(time.Second)); err == nil {
		l.t.Errorf("%s: it answers", when)
	}
}

// phase is how an unattended installation is going.
func (l *lab) phase(n node) (phase, problem string) {
	l.t.Helper()
	r, err := safe.StateGetByID[*runtimeres.UnattendedInstallStatus](within(5*time.Second), l.admin(n).COSI, runtimeres.UnattendedInstallStatusID)
	if err != nil {
		l.t.Fatal(err)
	}
	return r.TypedSpec().Phase.String(), r.TypedSpec().Error
}

// TestInstall: a machine that was booted from a medium shows what that holds, installs what its config names, is no node
// meanwhile, and is one once it has booted from its disk.
func TestInstall(t *testing.T) {
	for _, c := range []struct{ medium, installed, stage, install string }{
		{"v1.9.6", "v1.9.6", installing, byConfig("diskSelector: {serial: talos-sys}", otherInstaller("v1.9.6"))},
		{"v1.12.7", "v1.12.11", installing, byConfig("disk: /dev/sda", otherInstaller("v1.12.11"))},
		{"v1.13.9", "v1.13.8", installing, byConfig("disk: /dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_talos-sys", otherInstaller("v1.13.8"))},
		{"v1.14.0", "v1.14.1", installing, byConfig("diskSelector: {serial: talos-sys}", otherInstaller("v1.14.1"))},
		{"v1.14.0", "v1.14.1", booting, unattended("talos-sys", imageOf(otherInstaller("v1.14.1")))},
	} {
		t.Run(c.medium+" "+c.stage, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				began := time.Now()
				l.boot(mediumGuest(cp(1), c.medium))
				l.wantMaintenance("at first", cp(1), c.medium)
				disk, err := safe.StateListAll[*block.SystemDisk](within(5*time.Second), l.insecure(cp(1)).COSI)
				if err != nil || disk.Len() != 0 {
					t.Errorf("it shows a system disk: %v, %v", disk.Len(), err)
				}
				names := map[string]bool{}
				extensions, err := safe.StateListAll[*runtimeres.ExtensionStatus](within(5*time.Second), l.insecure(cp(1)).COSI)
				if err != nil {
					t.Fatal(err)
				}
				for e := range extensions.All() {
					names[e.TypedSpec().Metadata.Name] = true
				}
				if !names["iscsi-tools"] || !names["schematic"] {
					t.Errorf("it has the extensions %v", names)
				}
				l.apply(cp(1), l.config(cp(1), c.medium, c.install))
				time.Sleep(l.world.Latency.Apply + l.world.Latency.ImagePull)
				l.wantStage(cp(1), c.stage)
				if _, joined := l.kube.kubelet("cp1"); joined || len(l.kube.serving()) > 0 {
					t.Error("it is a node before it is installed")
				}
				if installer.MinorOf(c.medium) < 13 {
					if _, err := l.insecure(cp(1)).Version(within(time.Second)); grpcstatus.Code(err) != codes.Unavailable {
						t.Errorf("its API is open: %v", err)
					}
				} else if s := status(t, l.admin(cp(1))); s.Stage.String() != c.stage {
					t.Errorf("it shows %+v", s)
				} else if err := l.admin(cp(1)).Bootstrap(within(10*time.Second), &machineapi.BootstrapRequest{}); grpcstatus.Code(err) != codes.FailedPrecondition {
					t.Errorf("it is bootstrapped: %v", err)
				}
				for !l.view(cp(1)).Configured || l.view(cp(1)).Medium {
					time.Sleep(time.Second)
					if time.Since(began) > 10*time.Minute {
						t.Fatalf("it is not installed: %+v", l.view(cp(1)))
					}
				}
				// The two seconds that the test waits after a boot and looks before it applies.
				best, chain := l.world.LongestChain()
				if took := time.Since(began); best < 2*l.world.Latency.Boot+l.world.Latency.ImagePull+l.world.Latency.Install || took-best > 6*time.Second {
					t.Errorf("it took %v, the longest chain is %v: %v", took, best, chain)
				}
				l.wantNode("when it is installed", cp(1), c.installed, otherSchematic)
				time.Sleep(3 * time.Second)
				l.bootstrap(cp(1))
				time.Sleep(3 * time.Minute)
				l.wantStage(cp(1), running)
				l.wantVersion("in the end", cp(1), c.installed, otherSchematic)
				l.fleet.ChangeMedium(cp(1).vmid, nil, false)
				if err := l.admin(cp(1)).Reboot(within(5 * time.Second)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(3 * time.Minute)
				l.wantNode("after a reboot", cp(1), c.installed, otherSchematic)
				l.wantStage(cp(1), running)
				if c.stage == booting {
					if phase, problem := l.phase(cp(1)); phase != "installed" || problem != "" {
						t.Errorf("after a reboot it is %s: %s", phase, problem)
					}
				}
				l.wantViolations()
			})
		})
	}
}

// TestInstallFails: a sequence that cannot install reboots after ten seconds, and the config is gone; a controller tries again
// and keeps it.
func TestInstallFails(t *testing.T) {
	for name, c := range map[string]struct {
		install string
		after   time.Duration // from when the config is active
	}{
		"no such disk":          {byConfig("diskSelector: {serial: elsewhere}", otherInstaller("v1.13.9")), 0},
		"no such path":          {byConfig("disk: /dev/sdx", otherInstaller("v1.13.9")), 0},
		"no install section":    {"", 35 * time.Second},
		"no installer in there": {byConfig("disk: /dev/sda", "ghcr.io/siderolabs/kubelet:v1.36.1"), 20 * time.Second},
		"no such installer":     {byConfig("disk: /dev/sda", strings.Replace(otherInstaller("v1.13.9"), "v1.13.9", "v1.13.77", 1)), 130 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.world.ServeInstallers(func(schematic, version string) (world.Image, bool) {
					return world.Image{Version: version, Schematic: schematic}, version != "v1.13.77"
				})
				l.boot(mediumGuest(cp(1), "v1.13.9"))
				before := l.view(cp(1)).BootID
				var patches []string
				if c.install != "" {
					patches = append(patches, c.install)
				}
				l.apply(cp(1), l.config(cp(1), "v1.13.9", patches...))
				time.Sleep(l.world.Latency.Apply + c.after + 9*time.Second)
				if v := l.view(cp(1)); v.BootID != before {
					t.Errorf("it boots too early: %+v", v)
				}
				time.Sleep(4*time.Second + l.world.Latency.Boot)
				if v := l.view(cp(1)); v.BootID == before {
					t.Errorf("it has not booted: %+v", v)
				}
				l.wantMaintenance("afterwards", cp(1), "v1.13.9")
				l.apply(cp(1), l.config(cp(1), "v1.13.9", byConfig("disk: /dev/sda", otherInstaller("v1.13.9"))))
				time.Sleep(2 * time.Minute)
				l.wantNode("with a config that is right", cp(1), "v1.13.9", otherSchematic)
			})
		})
	}
}

// TestUnattendedInstallFails: the machine stays as it is, with its config, and shows why.
func TestUnattendedInstallFails(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		published := false
		l.world.ServeInstallers(func(schematic, version string) (world.Image, bool) {
			return world.Image{Version: version, Schematic: schematic}, published
		})
		l.boot(mediumGuest(cp(1), "v1.14.1"))
		l.apply(cp(1), l.config(cp(1), "v1.14.1", unattended("talos-sys", imageOf(otherInstaller("v1.14.1")))))
		l.boot(mediumGuest(cp(2), "v1.14.1"))
		l.apply(cp(2), l.config(cp(2), "v1.14.1", unattended("elsewhere", imageOf(otherInstaller("v1.14.1")))))
		boot := l.view(cp(1)).BootID
		time.Sleep(time.Minute)
		if phase, problem := l.phase(cp(1)); phase != installing || problem != "" {
			t.Errorf("while it pulls: %s, %s", phase, problem)
		}
		time.Sleep(30 * time.Minute)
		if v := l.view(cp(1)); v.BootID != boot || v.Stage != booting {
			t.Errorf("it does not stay as it is: %+v", v)
		}
		if phase, problem := l.phase(cp(2)); phase != "pending" || problem != "no disk matched the selector" {
			t.Errorf("without a disk: %s, %s", phase, problem)
		}
		l.wantStage(cp(2), booting)
		if err := l.applyConfigured(cp(2), l.config(cp(2), "v1.14.1", unattended("talos-data0", imageOf(otherInstaller("v1.14.1")))), machineapi.ApplyConfigurationRequest_AUTO); err != nil {
			t.Fatal(err)
		}
		if phase, problem := l.phase(cp(2)); phase != installing || problem != "" {
			t.Errorf("with another selector: %s, %s", phase, problem)
		}
		l.world.ServeInstallers(func(schematic, version string) (world.Image, bool) {
			return world.Image{Version: version, Schematic: schematic}, true
		})
		time.Sleep(5 * time.Minute)
		l.wantNode("when there is an installer", cp(1), "v1.14.1", otherSchematic)
		l.wantHalted("installed on a disk that it does not boot from", cp(2))
	})
}

// TestInstallerThatIsNotNamed: a sequence installs the one without extensions, a controller what runs already, after which the
// machine goes on without a reboot.
func TestInstallerThatIsNotNamed(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.boot(mediumGuest(cp(1), "v1.13.9"))
		l.apply(cp(1), l.config(cp(1), "v1.13.9", byConfig("disk: /dev/sda", "")))
		time.Sleep(2 * time.Minute)
		l.wantNode("by a sequence", cp(1), "v1.13.9", "")
	})
	inBubble(t, world.Config{}, func(l *lab) {
		l.boot(mediumGuest(cp(1), "v1.14.1"))
		boot, schematic := l.view(cp(1)).BootID, l.view(cp(1)).Schematic
		l.apply(cp(1), l.config(cp(1), "v1.14.1", unattended("talos-sys", "")))
		time.Sleep(2 * time.Minute)
		l.bootstrap(cp(1))
		time.Sleep(3 * time.Minute)
		if v := l.view(cp(1)); v.BootID != boot || !v.Medium || !v.Configured || v.Stage != running {
			t.Errorf("it does not go on: %+v", v)
		}
		if phase, _ := l.phase(cp(1)); phase != "installed" {
			t.Errorf("it is %s", phase)
		}
		if err := l.admin(cp(1)).Reboot(within(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		l.wantNode("after a reboot", cp(1), "v1.14.1", schematic)
		l.wantStage(cp(1), running)
		l.wantMembers(cp(1), "cp1")
	})
}

// TestInstallIsCut: a machine whose power goes before its disk has partitions comes back in maintenance mode. One that has some
// boots from its medium, which halts for Talos is installed, and does so again.
func TestInstallIsCut(t *testing.T) {
	for _, written := range []bool{false, true} {
		inBubble(t, world.Config{}, func(l *lab) {
			g := mediumGuest(cp(1), "v1.13.9")
			l.boot(g)
			l.apply(cp(1), l.config(cp(1), "v1.13.9", byConfig("disk: /dev/sda", otherInstaller("v1.13.9"))))
			time.Sleep(l.world.Latency.Apply + l.world.Latency.ImagePull/2)
			if written {
				time.Sleep(l.world.Latency.ImagePull/2 + l.world.Latency.Install/2)
			}
			l.fleet.PowerOff(cp(1).vmid)
			time.Sleep(time.Minute)
			l.boot(g)
			if !written {
				l.wantMaintenance("cut before it writes", cp(1), "v1.13.9")
				return
			}
			l.wantHalted("cut while it writes", cp(1))
			boot := l.view(cp(1)).BootID
			time.Sleep(70 * time.Minute)
			if l.view(cp(1)).BootID != boot {
				t.Error("it booted early")
			}
			time.Sleep(time.Minute)
			if l.view(cp(1)).BootID == boot {
				t.Error("it did not boot again")
			}
			l.wantHalted("after that", cp(1))
		})
	}
}

// TestInstallerFails: what an installer has begun stays on the disk. By a controller the machine takes itself for installed
// then, until it boots.
func TestInstallerFails(t *testing.T) {
	for version, install := range map[string]string{
		"v1.13.9": byConfig("disk: /dev/sda", otherInstaller("v1.13.9")),
		"v1.14.1": unattended("talos-sys", imageOf(otherInstaller("v1.14.1"))),
	} {
		inBubble(t, world.Config{}, func(l *lab) {
			l.fleet.SpoilImage(version, installer.FailsInstall)
			l.boot(mediumGuest(cp(1), version))
			l.apply(cp(1), l.config(cp(1), version, install))
			time.Sleep(2 * time.Minute)
			if version == "v1.14.1" {
				if v := l.view(cp(1)); !v.Medium || !v.Configured {
					t.Errorf("it is %+v", v)
				}
				if phase, problem := l.phase(cp(1)); phase != "installed" || problem != "" {
					t.Errorf("it is %s: %s", phase, problem)
				}
				if err := l.fleet.Reboot(cp(1).vmid); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
			}
			l.wantHalted(version, cp(1))
		})
	}
}

// TestMediumFirst: a machine that boots from its medium first is installed like any other, for Talos boots what it has
// installed past the firmware. What goes by the firmware afterwards halts, until the medium is removed.
func TestMediumFirst(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		g := mediumGuest(cp(1), "v1.13.9")
		g.MediumFirst = true
		l.boot(g)
		l.apply(cp(1), l.config(cp(1), "v1.13.9", byConfig("disk: /dev/sda", otherInstaller("v1.13.9"))))
		time.Sleep(2 * time.Minute)
		l.wantNode("when it is installed", cp(1), "v1.13.9", otherSchematic)
		if err := l.admin(cp(1)).Reboot(within(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.wantNode("after a reboot", cp(1), "v1.13.9", otherSchematic)
		l.fleet.PowerOff(cp(1).vmid)
		l.boot(g)
		l.wantHalted("after a power cycle", cp(1))
		l.fleet.ChangeMedium(cp(1).vmid, nil, false)
		if err := l.fleet.Reboot(cp(1).vmid); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.wantNode("without the medium", cp(1), "v1.13.9", otherSchematic)
	})
}

// TestResetWithMedium: a machine that is wiped boots from its medium again, as long as it has one.
func TestResetWithMedium(t *testing.T) {
	for _, ejected := range []bool{false, true} {
		inBubble(t, world.Config{}, func(l *lab) {
			l.boot(mediumGuest(cp(1), "v1.13.9"))
			l.apply(cp(1), l.config(cp(1), "v1.13.9", byConfig("disk: /dev/sda", otherInstaller("v1.13.8"))))
			time.Sleep(2 * time.Minute)
			if ejected {
				l.fleet.ChangeMedium(cp(1).vmid, nil, false)
			}
			if err := l.admin(cp(1)).Reset(within(5*time.Second), false, true); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if !ejected {
				l.wantMaintenance("after the reset", cp(1), "v1.13.9")
			} else if v := l.view(cp(1)); v.BootID != "" {
				t.Errorf("it boots: %+v", v)
			}
		})
	}
}

// TestSecureMedium: a medium for Secure Boot has a firmware take its keys, after which that boots nothing else: past a system
// that is not signed it boots the medium again.
func TestSecureMedium(t *testing.T) {
	for _, signed := range []bool{true, false} {
		inBubble(t, world.Config{}, func(l *lab) {
			g := mediumGuest(cp(1), "v1.13.9")
			g.Firmware, g.Medium.Signed, g.Medium.Enrolls = &world.Firmware{}, true, true
			l.boot(g)
			l.wantVerified("in maintenance mode", l.insecure(cp(1)), true)
			image := otherInstaller("v1.13.9")
			if signed {
				image = strings.Replace(image, "-installer/", "-installer-secureboot/", 1)
			}
			l.apply(cp(1), l.config(cp(1), "v1.13.9", byConfig("disk: /dev/sda", image)))
			time.Sleep(2 * time.Minute)
			if !signed {
				l.wantHalted("with an installer that is not signed", cp(1))
				return
			}
			l.wantVerified("when it is installed", l.admin(cp(1)), true)
			l.wantNode("when it is installed", cp(1), "v1.13.9", otherSchematic)
		})
	}
	inBubble(t, world.Config{}, func(l *lab) {
		g := mediumGuest(cp(1), "v1.13.9")
		g.Firmware, g.Medium.Signed, g.Medium.Enrolls = &world.Firmware{Legacy: true}, true, true
		l.boot(g)
		if v := l.view(cp(1)); v.BootID != "" {
			t.Errorf("a BIOS boots a medium for Secure Boot: %+v", v)
		}
	})
}

// TestUpgradeWithoutInstallation: there is nothing to upgrade.
func TestUpgradeWithoutInstallation(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.boot(mediumGuest(cp(1), "v1.14.1"))
		l.apply(cp(1), l.config(cp(1), "v1.14.1", unattended("elsewhere", imageOf(otherInstaller("v1.14.1")))))
		time.Sleep(time.Minute)
		//lint:ignore SA1019 the legacy call is the one asked for
		_, err := l.admin(cp(1)).UpgradeWithOptions(within(5*time.Second), client.WithUpgradeImage(otherInstaller("v1.14.1")))
		if grpcstatus.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "Talos is not installed") {
			t.Errorf("got %v", err)
		}
	})
}
