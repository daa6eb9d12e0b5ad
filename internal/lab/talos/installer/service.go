package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Machine is what an upgrade needs of the machine that it is asked of.
type Machine interface {
	system.Machine
	// Outlast waits for a time of the world, whoever has asked; it fails where this run of the
	// machine ends before.
	Outlast(time.Duration) error
	// FindImage returns the Talos in an installer image that the machine has; false: there is no
	// installer in it.
	FindImage(ref string) (image world.Image, flaw Flaw, ok bool)
	// InstallTime is how long an installer takes.
	InstallTime() time.Duration
	// ClearSlot and WriteSlot change the slot that does not boot next, see Slots.
	ClearSlot() error
	WriteSlot(world.Image) error
	// CheckEtcd refuses where a member of etcd is not healthy, and does nothing on a worker.
	CheckEtcd(context.Context) error
	// BeginUpgrade takes the machine down to install an image, or does nothing where it goes down
	// already.
	BeginUpgrade(actor string, in *machineapi.UpgradeRequest, image world.Image) error
	// Rollback boots the other slot; it takes over from whatever takes the machine down already.
	Rollback() error
}

// UpgradeService answers the calls of machine.MachineService that change the version.
type UpgradeService struct{ Machine Machine }

// validation is how long Talos takes to try whether an image holds an installer (recorded).
const validation = 1650 * time.Millisecond

// noProgram is how containerd fails to run an installer in an image that holds none (from its
// source, not recorded).
const noProgram = `failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: ` +
	`error during container init: exec: "/bin/installer": stat /bin/installer: no such file or directory`

// Upgrade is the upgrade of up to v1.12, which later versions have as well. It pulls and tries the
// image and asks etcd before it answers; all else comes after that, and OK means received.
func (s *UpgradeService) Upgrade(ctx context.Context, in *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	if now.Bare {
		return nil, status.Error(codes.FailedPrecondition, "Talos is not installed")
	}
	if err := system.PullToSystem(ctx, s.Machine, now, in.GetImage()); err != nil {
		return nil, fmt.Errorf("error validating installer image %q: %w", in.GetImage(), err)
	}
	if err := s.Machine.Wait(ctx, validation); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	image, _, ok := s.Machine.FindImage(in.GetImage())
	if !ok {
		return nil, fmt.Errorf("error validating installer image %q: %s", in.GetImage(), noProgram)
	}
	if !skipsEtcd(in, now.Talos) {
		if err := s.Machine.CheckEtcd(ctx); err != nil {
			return nil, err
		}
	}
	actor := system.NewUUID()
	if err := s.Machine.BeginUpgrade(actor, in, image); err != nil {
		return nil, err
	}
	return &machineapi.UpgradeResponse{Messages: []*machineapi.Upgrade{{Ack: "Upgrade request received", ActorId: actor}}}, nil
}

// Rollback boots the slot that did not boot last. Nothing is asked before, and no actor is named.
// Source: talos v1.13.9, v1alpha1_server.go.
func (s *UpgradeService) Rollback(context.Context, *machineapi.RollbackRequest) (*machineapi.RollbackResponse, error) {
	if err := s.Machine.Rollback(); err != nil {
		return nil, err
	}
	return &machineapi.RollbackResponse{Messages: []*machineapi.Rollback{{}}}, nil
}

// LifecycleService is machine.LifecycleService, which v1.13 brought.
type LifecycleService struct {
	machineapi.UnimplementedLifecycleServiceServer
	Machine Machine
	// Busy is locked while an installer runs, whoever waits for it.
	Busy *sync.Mutex
}

var errBusy = status.Error(codes.FailedPrecondition, "another installation/upgrade is already in progress")

// Install is for machines that run from an installation medium, for which the lab does not carry it out.
// Source: talos, internal/app/lifecycle; the refusal is recorded.
func (s *LifecycleService) Install(*machineapi.LifecycleServiceInstallRequest, grpc.ServerStreamingServer[machineapi.LifecycleServiceInstallResponse]) error {
	if !s.Busy.TryLock() {
		return errBusy
	}
	defer s.Busy.Unlock()
	now, err := s.Machine.Look()
	switch {
	case err != nil:
		return err
	case now.Bare:
		return status.Error(codes.Unimplemented, "the lab installs by machine config only")
	}
	return status.Error(codes.AlreadyExists, "machine is already installed")
}

// Upgrade runs an installer that is on the machine already and reports what it prints, and last of
// all how it ended; an installer that fails is an answer, and no error. Nothing asks etcd, and nothing
// reboots. It ends when the installer does, also when its caller disconnected (all recorded).
func (s *LifecycleService) Upgrade(in *machineapi.LifecycleServiceUpgradeRequest, out grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse]) error {
	if !s.Busy.TryLock() {
		return errBusy
	}
	defer s.Busy.Unlock()
	if now, err := s.Machine.Look(); err != nil {
		return err
	} else if now.Bare {
		return status.Error(codes.FailedPrecondition, "machine is not installed")
	}
	ref := in.GetSource().GetImageName()
	if ref == "" {
		return status.Error(codes.InvalidArgument, "installer image name is required")
	}
	run, image, err := s.prepareRun(out.Context(), in.GetContainerd(), ref)
	if err != nil {
		return status.Errorf(codes.Internal, "upgrade failed: %v", err)
	}
	return s.runInstaller(run, image, func(p *machineapi.LifecycleServiceInstallProgress) {
		// A caller that disconnected does not get it.
		_ = out.Send(&machineapi.LifecycleServiceUpgradeResponse{Progress: p})
	})
}

// prepareRun finds an installer in an instance of containerd.
func (s *LifecycleService) prepareRun(ctx context.Context, instance *common.ContainerdInstance, ref string) (Run, world.Image, error) {
	if err := system.CheckInstance(instance); err != nil {
		return Run{}, world.Image{}, err
	}
	now, err := system.LookAtInstance(ctx, s.Machine, instance)
	if err != nil {
		return Run{}, world.Image{}, err
	}
	inmem := instance.GetDriver() == common.ContainerDriver_CONTAINERD
	if !slices.ContainsFunc(now.ImagesIn(inmem, instance.GetNamespace()), func(i system.Image) bool { return i.IsNamed(ref) }) {
		return Run{}, world.Image{}, fmt.Errorf("installer image %[1]q not found in containerd store: image %[1]q: not found", ref)
	}
	image, flaw, ok := s.Machine.FindImage(ref)
	if !ok {
		return Run{}, world.Image{}, errors.New("failed to create task: " + noProgram)
	}
	return Plan(now.Talos, image, flaw), image, nil
}

// runInstaller lets the installer run to its end, or until the machine goes down.
func (s *LifecycleService) runInstaller(run Run, image world.Image, report func(*machineapi.LifecycleServiceInstallProgress)) error {
	if err := s.Machine.ClearSlot(); err != nil {
		return err
	}
	pause := s.Machine.InstallTime() / time.Duration(len(run.Lines))
	for _, line := range run.Lines {
		text := time.Now().UTC().Format("2006/01/02 15:04:05 ") + line + "\n"
		report(&machineapi.LifecycleServiceInstallProgress{Response: &machineapi.LifecycleServiceInstallProgress_Message{Message: text}})
		if err := s.Machine.Outlast(pause); err != nil {
			return err
		}
	}
	if run.ExitCode == 0 {
		if err := s.Machine.WriteSlot(image); err != nil {
			return err
		}
	}
	report(&machineapi.LifecycleServiceInstallProgress{Response: &machineapi.LifecycleServiceInstallProgress_ExitCode{ExitCode: run.ExitCode}})
	return nil
}
