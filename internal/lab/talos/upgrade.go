package talos

import (
	"context"
	"errors"
	"fmt"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// upgrade is what the machine goes down for: to install an image on the way down, or, where it
// is staged, in the next boot.
type upgrade struct {
	image world.Image
	ref   string
	stage bool
	kexec bool // the next boot goes past the firmware
}

// name is that of the sequence.
func (u *upgrade) name() string {
	if u != nil && u.stage {
		return "stageUpgrade"
	}
	return "upgrade"
}

// SpoilImage gives a version of Talos a flaw on all machines, in the installers and boots to
// come; Sound takes it away.
func (f *Fleet) SpoilImage(version string, flaw installer.Flaw) {
	f.changeState(func() { f.flaws[version] = flaw })
}

// What package installer needs of a machine.

func (i inside) Outlast(d time.Duration) error {
	t := time.NewTimer(i.b.f.world.Scale(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-i.b.ended:
		return errDown
	}
}

func (i inside) InstallTime() time.Duration { return i.b.f.world.Latency.Install }

func (i inside) FindImage(ref string) (world.Image, installer.Flaw, bool) {
	image, ok := installer.Find(i.b.f.world, ref)
	i.b.f.mu.Lock()
	defer i.b.f.mu.Unlock()
	return image, i.b.f.flaws[image.Version], ok
}

func (i inside) ClearSlot() error {
	return i.b.alterFleet(func() error { i.b.m.disk().slots.Clear(); return nil })
}

func (i inside) WriteSlot(image world.Image) error {
	return i.b.alterFleet(func() error { i.b.writeSlot(image); return nil })
}

func (b *boot) writeSlot(image world.Image) {
	b.m.disk().slots.Write(image)
	b.f.world.Report(b.hostname(), "has Talos %s installed beside %s", image.Version, b.image.Version)
}

func (i inside) BeginUpgrade(actor string, in *machineapi.UpgradeRequest, image world.Image) error {
	b := i.b
	return b.alterFleet(func() error {
		u := &upgrade{image: image, ref: in.GetImage(), stage: in.GetStage(), kexec: in.GetRebootMode() == machineapi.UpgradeRequest_DEFAULT}
		if u.stage {
			b.m.disk().staged = u.ref // whatever comes of it now
		}
		if b.refuseSequence(u.name()) {
			return nil
		}
		b.actor = actor
		b.f.world.Report(b.hostname(), "upgrades to Talos %s", image.Version)
		b.goDown(&sequence{stage: runtime.MachineStageUpgrading, drains: !u.stage, upgrade: u, then: func() { b.m.startAfter(u.kexec && !b.verified) }})
		return nil
	})
}

func (i inside) Rollback() error {
	b := i.b
	return b.alterFleet(func() error {
		if !b.m.disk().slots.Revert() {
			return errors.New("previous UKI not found")
		}
		b.actor = ""
		b.f.world.Report(b.hostname(), "is rolled back")
		b.goDown(&sequence{stage: runtime.MachineStageRebooting, then: b.m.startAgain})
		return nil
	})
}

// memberPatience is for how long Talos asks a member of etcd whether it is healthy.
// Source: talos v1.13.9, etcd.QuorumCheckTimeout.
const memberPatience = 15 * time.Second

func (i inside) CheckEtcd(ctx context.Context) error {
	b := i.b
	var worker bool
	if err := b.readFleet(func() error { worker = b.set == nil || !b.set.control; return nil }); err != nil || worker {
		return err
	}
	var members []installer.Member
	err := b.askEtcd(ctx, "upgrade", func() error {
		e, err := b.reachEtcd()
		if err != nil {
			return err
		}
		members = nil
		for _, m := range e.members {
			members = append(members, installer.Member{ID: m.id, Started: !m.unnamed, Up: m.isUp(), Learner: m.learner, Healthy: m.isHealthy()})
		}
		return nil
	})
	if errors.As(err, new(noLeader)) {
		return fmt.Errorf("failed to acquire upgrade mutex: error establishing etcd concurrency session: %w", err)
	}
	if err != nil {
		return err
	}
	return installer.RefuseMembers(members, func() error { return i.Wait(ctx, memberPatience) })
}

// runUpgrade is what comes between the end of the services and that of everything in a
// sequence that upgrades.
// Source: talos v1.13.9, v1alpha1_sequencer.go: Upgrade, StageUpgrade.
func (b *boot) runUpgrade(d *sequence, then func()) {
	u := d.upgrade
	if u == nil {
		then()
		return
	}
	for _, p := range installer.ListUnmounts(u.stage) {
		b.runPhase(p.Name, p.Task)
	}
	over := func() {
		if u.kexec {
			b.runPhase("kexec", "kexecPrepare")
			b.stage = runtime.MachineStageRebooting
		}
		then()
	}
	if u.stage {
		over()
		return
	}
	b.beginPhase("upgrade", "upgrade")
	b.m.disk().slots.Clear()
	run := installer.Plan(b.image.Version, u.image, b.f.flaws[u.image.Version])
	b.runDuring(d, b.f.world.Latency.Install, func() {
		if run.ExitCode != 0 {
			b.failSequence("upgrade", installer.PhaseNumber, fmt.Errorf("task %q failed: exit code %d", "upgrade", run.ExitCode))
			return
		}
		b.writeSlot(u.image)
		b.endPhase("upgrade", "upgrade")
		b.runPhase("meta", "reloadMeta")
		over()
	})
}

// fatalPause is how long machined waits before it reboots after a fatal error.
// Source: talos v1.13.9, machined: handle.
const fatalPause = 10 * time.Second

// failBoot is the boot of a version whose machined cannot run. It reboots, into the other slot if
// this one has never been ready.
func (b *boot) failBoot() bool {
	if b.f.flaws[b.image.Version] != installer.CrashesOnBoot {
		return false
	}
	b.m.print(system.PrintFatal(time.Now())...)
	b.rebootAfter(fatalPause, func() {
		if b.m.disk().slots.Fall() {
			b.f.world.Report(b.m.name(), "goes back from Talos %s to %s", b.image.Version, b.m.disk().slots.Next(b.m.guest.Boot.Image).Version)
		}
	})
	return true
}

// installStaged carries out an upgrade that was staged, once, whatever comes of it. The API stays
// closed meanwhile, which is not so in life.
// Source: talos v1.13.9, the sequence install.
func (b *boot) installStaged() bool {
	d := b.m.disk()
	ref := d.staged
	d.staged = ""
	image, ok := installer.Find(b.f.world, ref)
	if !ok {
		return false
	}
	run := installer.Plan(b.image.Version, image, b.f.flaws[image.Version])
	d.slots.Clear()
	b.rebootAfter(b.f.world.Latency.Install, func() {
		if run.ExitCode == 0 {
			b.writeSlot(image)
		}
	})
	return true
}

// rebootAfter has the machine do one more thing in a while and boot again.
func (b *boot) rebootAfter(wait time.Duration, last func()) {
	b.runAfter(wait, func() {
		last()
		b.m.haltNow()
		b.m.startAgain()
	})
}
