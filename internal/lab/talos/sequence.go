package talos

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/protobuf/proto"

	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/services"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// sequence is a way down of a machine, phase by phase. Phases, tasks and their order are recorded.
type sequence struct {
	stage    runtime.MachineStage
	upgrade  *upgrade      // what it is for; nil: something else
	drains   bool          // its pods are moved away first
	graceful bool          // of a reset: it leaves etcd
	lingers  time.Duration // for how long its etcd outlives its API
	off      time.Duration // from when everything has ended until it is off
	then     func()
}

// goDown takes the machine down. It takes the place of whatever took it down before.
func (b *boot) goDown(d *sequence) {
	b.drain.Withdraw(b)
	b.sequence = d
	b.beginSequence(d.stage)
	b.stopping, b.stage = true, d.stage
	if d.stage == runtime.MachineStageShuttingDown {
		b.runPhase("storeShutdown", "storeShutdownEmergency")
	}
	if d.drains {
		b.drainNode(d)
		return
	}
	b.stopPods(d)
}

// drainNode has Kubernetes move the pods away, if the machine is a node of one.
func (b *boot) drainNode(d *sequence) {
	const phase, task = "drain", "cordonAndDrainNode"
	b.beginPhase(phase, task)
	over := func() {
		b.endPhase(phase, task)
		b.stopPods(d)
	}
	k, ok := b.f.kubernetes.(world.Drainer)
	if !ok || !b.nodeSeen {
		over()
		return
	}
	b.drain.SetWanted(b, &drain{b.set.kubeCA, b.set.kubelet.Node}, func(n drain, over func(bool)) func() {
		return k.DrainNode(n.ca, n.node, func() { over(true) })
	}, func(bool) { over() })
}

// drain is a node that is drained.
type drain struct{ ca, node string }

// stopPods stops the kubelet and what it runs.
func (b *boot) stopPods(d *sequence) {
	task := "stopAllPods"
	if d.graceful {
		task = "removeAllPods"
	}
	b.beginPhase("cleanup", task)
	b.kubelet.Withdraw(b)
	b.plane.Withdraw(b)
	b.apiReady = false
	b.endServices(d, func() {
		b.endPhase("cleanup", task)
		b.runPhase("dbus", "stopDBus")
		if d.graceful && b.set != nil && b.set.control {
			b.runLeave(d)
			return
		}
		b.stopServices(d)
	}, "kubelet")
}

// endServices ends services, all at once, and goes on when they have ended.
func (b *boot) endServices(d *sequence, then func(), ids ...string) {
	var ending []*services.Service
	for _, id := range ids {
		s := b.services[id]
		switch {
		case s == nil || s.HasEnded():
			continue
		case s.State == "Running":
			s.MoveTo("Stopping", s.Goodbye())
		}
		if s.ID == "etcd" {
			b.stopEtcd()
		}
		ending = append(ending, s)
	}
	over := func() {
		for _, s := range ending {
			s.MoveTo("Finished", "Service finished successfully")
		}
		then()
	}
	if !slices.ContainsFunc(ending, func(s *services.Service) bool { return s.State == "Stopping" }) {
		over()
		return
	}
	b.runDuring(d, b.f.stop, over)
}

// runLeave is the phase that leaves etcd, if it runs here.
func (b *boot) runLeave(d *sequence) {
	b.beginPhase("leave", "leaveEtcd")
	left := func(err error) {
		b.endPhase("leave", "leaveEtcd")
		if err != nil {
			b.failSequence("reset", 4, err)
			return
		}
		b.stopServices(d)
	}
	if b.m.disk().member == nil || !b.isRunning("etcd") {
		left(nil)
		return
	}
	b.leaveEtcd(func() bool { return b.sequence == d }, left)
}

// fatalStop is how long Talos takes to stop etcd when a sequence has failed (recorded).
const fatalStop = 6500 * time.Millisecond

// failSequence ends a sequence in which something failed: the machine reboots as it is (recorded of
// a reset that cannot leave etcd, as far as that; that it boots ten seconds later is from the source).
func (b *boot) failSequence(name string, phase int, why error) {
	b.publishStep(&machineapi.SequenceEvent{Sequence: name, Action: machineapi.SequenceEvent_STOP})
	b.publishStep(&machineapi.SequenceEvent{Sequence: name, Error: &common.Error{
		Message: fmt.Sprintf("sequence failed: error running phase %d in %s sequence: task 1/1: failed, %v", phase, name, why)}})
	b.f.world.Report(b.hostname(), "fatal sequencer error: %v", why)
	b.m.disk().slots.Fall()
	b.sequence = &sequence{stage: runtime.MachineStageRebooting, lingers: fatalStop, off: 10*time.Second - fatalStop, then: b.m.startAgain}
	b.stopping, b.stage = true, b.sequence.stage
	b.fallSilent(b.sequence, silence)
}

// limitBoot ends a boot whose services do not come up in time.
// Source: talos v1.13.9, StartAllServices, which is the ninth phase of a boot from a disk; what
// follows is in runEntrypoint and handle of machined.
func (b *boot) limitBoot() {
	b.runAfter(constants.BootTimeout, func() {
		if !b.sequenced && !b.stopping {
			b.failSequence("boot", 9, context.DeadlineExceeded)
		}
	})
}

// stopServices stops everything else: first what depends on CRI or on nothing, then CRI.
func (b *boot) stopServices(d *sequence) {
	if d.stage == runtime.MachineStageResetting {
		b.runPhase("preReset", "sendResetSignal")
	}
	const phase, task = "stopServices", "stopServicesForUpgrade"
	b.beginPhase(phase, task)
	over := func() {
		b.endPhase(phase, task)
		b.runUpgrade(d, func() {
			b.beginPhase("stopEverything", "stopAllServices")
			b.fallSilent(d, silence/4)
		})
	}
	if !b.isRunning("etcd") {
		b.endServices(d, over, "etcd", "trustd", "cri")
		return
	}
	b.endServices(d, func() { b.endServices(d, over, "cri") }, "trustd", "etcd")
}

// fallSilent closes the API after a while, and is off some time later.
func (b *boot) fallSilent(d *sequence, wait time.Duration) {
	b.runDuring(d, wait*3/4, b.events.Close)
	b.runDuring(d, wait, func() {
		b.closeAPI()
		b.runDuring(d, d.lingers, func() {
			b.withdrawBoot()
			b.runDuring(d, d.off, func() {
				b.m.haltNow()
				d.then()
			})
		})
	})
}

// runDuring is runAfter, unless another way down took the place of this one meanwhile.
func (b *boot) runDuring(d *sequence, wait time.Duration, do func()) {
	b.runAfter(wait, func() {
		if b.sequence == d {
			do()
		}
	})
}

// startAgain boots the machine if there is something to boot.
func (m *machine) startAgain() { m.startAfter(false) }

func (m *machine) startAfter(kexec bool) {
	if image, _, ok := m.pickBoot(kexec); ok && !m.guest.Dead && m.f.flaws[image.Version] != installer.HangsOnReboot {
		m.startBoot(kexec)
	}
}

// startNext boots the machine at the end of a sequence that has loaded the kernel of its disk, past the firmware, unless
// that verifies what it boots.
// Source: talos, v1alpha1_sequencer_tasks.go: KexecPrepare.
func (b *boot) startNext() { b.m.startAfter(!b.verified) }

// rebootMachine restarts the machine in good order, unless it goes down already.
func (b *boot) rebootMachine() {
	if !b.refuseSequence("reboot") {
		b.goDown(&sequence{stage: runtime.MachineStageRebooting, then: b.startNext})
	}
}

// powerDown has a sequence end with the virtual machine switched off from inside, after a
// last deed.
func (b *boot) powerDown(d *sequence, last func()) {
	vmid := b.m.guest.VMID
	d.off, d.then = max(b.f.world.Latency.Stop-silence, 0), func() {
		last()
		b.m.switchOff()
		b.f.world.After(0, func() { b.f.off(vmid) })
	}
	b.goDown(d)
}

// beginSequence reports that the machine goes down, and that the boot it interrupts
// ends (recorded).
func (b *boot) beginSequence(stage runtime.MachineStage) {
	if b.set != nil && !b.sequenced && !b.stopping {
		publish := func(payload proto.Message) { b.events.Publish(b.f.world.GuestNow(), "", payload) }
		publish(&machineapi.TaskEvent{Task: "startAllServices", Action: machineapi.TaskEvent_STOP})
		publish(&machineapi.PhaseEvent{Phase: "startEverything", Action: machineapi.PhaseEvent_STOP})
		b.publishSequence("boot", machineapi.SequenceEvent_STOP)
		b.stage = runtime.MachineStageRunning // for a moment
		b.writeStatus()
		publish(&machineapi.SequenceEvent{Sequence: "boot", Error: &common.Error{Code: common.Code_CANCELED,
			Message: "sequence failed: error running phase 8 in boot sequence: task 1/1: failed, context canceled"}})
	}
	names := map[runtime.MachineStage]string{
		runtime.MachineStageRebooting: "reboot", runtime.MachineStageResetting: "reset", runtime.MachineStageShuttingDown: "shutdown",
		runtime.MachineStageUpgrading: b.sequence.upgrade.name(),
	}
	b.publishStep(&machineapi.SequenceEvent{Sequence: names[stage], Action: machineapi.SequenceEvent_START})
}

// refuseSequence reports whether another sequence runs. The call is answered as if
// it did something, and only an event shows that it did not (recorded).
func (b *boot) refuseSequence(name string) bool {
	if b.stopping {
		b.events.Publish(b.f.world.GuestNow(), "", &machineapi.SequenceEvent{Sequence: name,
			Error: &common.Error{Code: common.Code_LOCKED, Message: "sequence not started: locked"}})
	}
	return b.stopping
}

// publishStep reports a step of the way down, as caused by the call that began it.
func (b *boot) publishStep(payload proto.Message) {
	b.events.Publish(b.f.world.GuestNow(), b.actor, payload)
}

func (b *boot) beginPhase(phase, task string) {
	b.publishStep(&machineapi.PhaseEvent{Phase: phase, Action: machineapi.PhaseEvent_START})
	b.publishStep(&machineapi.TaskEvent{Task: task, Action: machineapi.TaskEvent_START})
}

func (b *boot) endPhase(phase, task string) {
	b.publishStep(&machineapi.TaskEvent{Task: task, Action: machineapi.TaskEvent_STOP})
	b.publishStep(&machineapi.PhaseEvent{Phase: phase, Action: machineapi.PhaseEvent_STOP})
}

// runPhase is a phase that takes no time.
func (b *boot) runPhase(phase, task string) {
	b.beginPhase(phase, task)
	b.endPhase(phase, task)
}

// Reboot answers at once; the API is closed a moment later.
func (s *machineService) Reboot(context.Context, *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	b, actor := s.b, system.NewUUID()
	err := b.alterFleet(func() error {
		if !b.stopping {
			b.actor = actor
			b.f.world.Report(b.hostname(), "reboots")
		}
		b.rebootMachine()
		return nil
	})
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: actor}}}, err
}

// Shutdown switches the virtual machine off from inside. It takes over from whatever takes
// the machine down already (recorded).
func (s *machineService) Shutdown(_ context.Context, in *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	b, actor := s.b, system.NewUUID()
	err := b.alterFleet(func() error {
		b.actor = actor
		b.f.world.Report(b.hostname(), "shuts down")
		b.powerDown(&sequence{stage: runtime.MachineStageShuttingDown, drains: !in.GetForce()}, func() {})
		return nil
	})
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: actor}}}, err
}

// Reset implements machine.MachineService: it answers at once. A graceful one drains the node
// and leaves etcd first. Without partitions the whole system disk is wiped, Talos with it: a
// machine made from a disk image has nothing to boot afterwards.
func (s *machineService) Reset(_ context.Context, in *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	b, actor := s.b, system.NewUUID()
	err := b.alterFleet(func() error {
		if b.refuseSequence("reset") {
			return nil
		}
		b.actor = actor
		b.f.world.Report(b.hostname(), "is reset")
		d := &sequence{stage: runtime.MachineStageResetting, drains: in.GetGraceful(), graceful: in.GetGraceful()}
		if !in.GetReboot() {
			b.powerDown(d, func() { b.m.disk().wipe(in) })
			return nil
		}
		d.then = func() {
			b.m.disk().wipe(in)
			b.m.startAgain()
		}
		b.goDown(d)
		return nil
	})
	return &machineapi.ResetResponse{Messages: []*machineapi.Reset{{ActorId: actor}}}, err
}

// wipe empties what a reset asks to.
func (d *disk) wipe(in *machineapi.ResetRequest) {
	if in.GetMode() == machineapi.ResetRequest_USER_DISKS {
		return
	}
	if len(in.GetSystemPartitionsToWipe()) == 0 {
		*d = disk{id: d.id, wiped: true}
		return
	}
	for _, p := range in.GetSystemPartitionsToWipe() {
		switch {
		case !p.GetWipe():
		case p.GetLabel() == constants.StatePartitionLabel:
			d.config = nil
		case p.GetLabel() == constants.EphemeralPartitionLabel:
			d.member, d.debris, d.upload, d.images = nil, false, nil, nil
		}
	}
}
