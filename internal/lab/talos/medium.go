package talos

import (
	"context"
	"errors"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// ChangeMedium implements world.MediumChanger. What runs from a medium runs in memory and goes on.
func (f *Fleet) ChangeMedium(vmid int, medium *world.Image, first bool) {
	// One that is off does not notice.
	_ = f.actOn(vmid, func(m *machine) { m.guest.Medium, m.guest.MediumFirst = medium, first })
}

// pickBoot is what the machine boots next, and whether that is its medium. kexec goes past the firmware, to the disk.
func (m *machine) pickBoot(kexec bool) (image world.Image, medium, ok bool) {
	g := m.guest
	g.MediumFirst = g.MediumFirst && !kexec
	return g.Pick(m.disk().bootable(g.Boot.Image))
}

// bootable is the Talos that a disk boots, which was made from an image; zero: none.
func (d *disk) bootable(made world.Image) world.Image {
	if d.wiped || d.partial || made.Medium && !d.slots.Adopted() {
		return world.Image{}
	}
	return d.slots.Next(made)
}

// findsTalos reports whether a disk has a META partition, by which Talos knows that it is installed.
// Source: talos, v1alpha1_state.go: Installed. An installer makes the partitions before anything else, so that one that is
// interrupted, or fails, leaves them.
func (m *machine) findsTalos() bool {
	for _, d := range m.drives {
		kept, ok := d.Contents.(*disk)
		if !ok {
			kept = &disk{}
		}
		if kept.partial || kept.bootable(d.Image).Version != "" {
			return true
		}
	}
	return false
}

// haltInstalled is the end of a boot from the medium though a disk has Talos: media have talos.halt_if_installed=1. It fails
// after a while, and boots again.
// Source: talos v1.8.4 and later, v1alpha1_sequencer.go: Initialize, before a config is looked for, so that no API answers;
// v1alpha1_sequencer_tasks.go: haltIfInstalled; pkg/imager: SupportsHaltIfInstalled; machined: handle.
func (b *boot) haltInstalled() {
	b.m.print(system.PrintHalt(time.Now()))
	b.f.world.Report(b.m.name(), "halts: it was booted from its installation medium, and Talos is on a disk")
	b.rebootAfter(constants.BootTimeout+fatalPause, func() {})
}

// beginInstall is reached when a machine that runs from its medium has a complete config. It is no node yet. Up to v1.12 the
// server of the maintenance mode is closed by then, and apid does not run yet; later apid has the certificates of the config.
// Source: talos v1.9.6 and later, machined: runEntrypoint; v1alpha1_sequencer.go: Initialize, Install.
func (b *boot) beginInstall(cfg config.Provider) {
	set := b.readConfig(cfg)
	if set == nil {
		return
	}
	b.publishSequence("initialize", machineapi.SequenceEvent_STOP)
	order, err := installer.ReadOrder(cfg, b.image)
	if order.Unattended {
		b.awaitsInstall, b.stage = true, runtime.MachineStageBooting
		b.publishSequence("boot", machineapi.SequenceEvent_START)
		b.adoptSettings(set)
		b.installUnattended(installRetry)
		return
	}
	if b.minor() >= 13 {
		b.adoptSettings(set)
	} else {
		b.closeAPI()
	}
	b.publishSequence("install", machineapi.SequenceEvent_START)
	b.runPhase("env", "setUserEnvVars")
	b.beginPhase("install", "install")
	d := &sequence{stage: runtime.MachineStageInstalling}
	b.sequence, b.stopping, b.stage = d, true, d.stage
	path := ""
	if err == nil {
		path, err = order.FindDisk(context.Background(), b.state)
	}
	over := func(err error) {
		if err != nil {
			b.failSequence("install", 2, err)
			return
		}
		b.endPhase("install", "install")
		for _, p := range [][2]string{{"meta", "reloadMeta"}, {"saveMeta", "flushMeta"}, {"volumeFinalize", "teardownLifecycle"}} {
			b.runPhase(p[0], p[1])
		}
		d.stage, d.then = runtime.MachineStageRebooting, b.startNext
		b.stage = d.stage
		b.fallSilent(d, silence)
	}
	if err != nil {
		over(err)
		return
	}
	b.f.world.Report(b.m.name(), "installs %s on %s", order.Image, path)
	order.Install(blank{b, d}, path, over)
}

// installRetry is how long a controller of Talos waits at first before it tries again.
// Source: cosi runtime, the controller runtime.
const installRetry = 500 * time.Millisecond

// installUnattended installs beside the boot sequence, which waits for a disk with the volumes of Talos. What fails is
// tried again by the config of then, but where a failed installer has left partitions, the machine takes itself for installed.
// Source: talos, controllers/runtime/unattended_install.go; v1alpha1_sequencer_tasks.go: DiskSizeCheck.
func (b *boot) installUnattended(pause time.Duration) {
	b.installs = false
	if b.m.findsTalos() {
		b.startInstalled()
		return
	}
	order, err := installer.ReadOrder(b.set.provider, b.image)
	if err != nil || !order.Unattended {
		b.writeInstall(runtime.UnattendedInstallPhaseFailed, err)
		return // until there is another config
	}
	path, err := order.FindDisk(context.Background(), b.state)
	if errors.Is(err, installer.ErrNoDisk) {
		b.writeInstall(runtime.UnattendedInstallPhasePending, errors.New("no disk matched the selector"))
		return // until there is another disk or config
	}
	b.installs = true
	over := func(err error) {
		switch {
		case err != nil:
			b.writeInstall(runtime.UnattendedInstallPhaseFailed, err)
			b.runDuring(nil, pause, func() { b.installUnattended(min(pause*3/2, time.Minute)) })
		case order.Reboots:
			b.writeInstall(runtime.UnattendedInstallPhaseWaitingForReboot, nil)
			b.rebootMachine()
		default:
			b.startInstalled()
		}
	}
	if err != nil {
		over(err)
		return
	}
	b.writeInstall(runtime.UnattendedInstallPhaseInstalling, nil)
	b.f.world.Report(b.m.name(), "installs %s on %s", order.Image, path)
	order.Install(blank{b, nil}, path, over)
}

// startInstalled has a machine that was installed go on as a node in this run, from memory.
func (b *boot) startInstalled() {
	b.bare, b.awaitsInstall = false, false
	b.m.disk().config = b.held
	b.writeDisks()
	b.writeConfigured()
	b.startNode()
}

// writeInstall shows how an unattended installation is going, or that there is nothing left to install.
func (b *boot) writeInstall(phase runtime.UnattendedInstallPhase, err error) {
	const owner = "runtime.UnattendedInstallController"
	wanted := b.set.provider.UnattendedInstallConfig()
	if wanted == nil {
		dropResource(b, owner, runtime.NewUnattendedInstallStatus().Metadata())
		return
	}
	putResource(b, owner, runtime.NewUnattendedInstallStatus(), func(r *runtime.UnattendedInstallStatus) {
		s := r.TypedSpec()
		s.Image, s.Phase, s.Error = wanted.InstallerImage(), phase, ""
		if err != nil {
			s.Error = err.Error()
		}
	})
	if err != nil {
		b.f.world.Report(b.m.name(), "is not installed: %v", err)
	}
}

// blank is a machine that runs from its medium, as package installer looks at it.
type blank struct {
	b *boot
	d *sequence // that installs; nil: a controller does
}

// RunAfter implements installer.Blank.
func (m blank) RunAfter(wait time.Duration, do func()) { m.b.runDuring(m.d, wait, do) }

// Durations implements installer.Blank.
func (m blank) Durations() (pull, install time.Duration) {
	l := m.b.f.world.Latency
	return l.ImagePull, l.Install
}

// Ask implements installer.Blank. Kubernetes, which knows which registries answer, is asked without the lock.
func (m blank) Ask(ref string, answer func(world.Image, installer.Flaw, error)) {
	m.b.f.queueEffect(func() {
		err := m.b.f.refusePull(ref)
		image, _ := installer.Find(m.b.f.world, ref)
		m.b.f.changeState(func() {
			m.b.runDuring(m.d, 0, func() { answer(image, m.b.f.flaws[image.Version], err) })
		})
	})
}

// Partition implements installer.Blank.
func (m blank) Partition(path string) {
	kept := m.find(path)
	*kept = disk{id: kept.id, partial: true}
}

// Write implements installer.Blank.
func (m blank) Write(path string, image world.Image) {
	b, kept := m.b, m.find(path)
	image.Platform = b.image.Platform // it is what the installer is started with
	kept.slots.Install(image)
	kept.partial, kept.config = false, b.held
	pull, install := m.Durations()
	b.f.world.Spend("install", b.m.subject(), pull+install, "apply/"+b.m.subject())
	b.f.world.Report(b.m.name(), "has Talos %s installed on %s", image.Version, path)
}

// find returns what a machine keeps on a disk from now on.
func (m blank) find(path string) *disk {
	d := system.FindDisk(m.b.m.drives, path)
	if _, ok := d.Contents.(*disk); !ok {
		d.Contents = &disk{id: system.NewUUID()}
	}
	return d.Contents.(*disk)
}
