package talos

import (
	"context"
	"fmt"
	goruntime "runtime"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// machineService is machine.MachineService of a configured machine and, from
// v1.13 on, of one in maintenance mode. What neither it nor system.Service
// implements answers Unimplemented.
type machineService struct {
	system.Service
	b *boot
}

// errDown is the answer of a machine that went down while it was asked.
var errDown = status.Error(codes.Unavailable, "error reading from server: EOF")

// alterFleet changes the fleet for a call, unless the machine went down meanwhile.
func (b *boot) alterFleet(do func() error) error {
	return b.f.attemptChange(func() error {
		if b.m.boot != b {
			return errDown
		}
		b.f.markTouched(b)
		return do()
	})
}

// readFleet reads the fleet for a call.
func (b *boot) readFleet(do func() error) error {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	if b.m.boot != b {
		return errDown
	}
	return do()
}

// Version names no features in maintenance mode (recorded).
func (s *machineService) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	v := &machineapi.Version{
		Version:  &machineapi.VersionInfo{Tag: s.b.m.image().Version, Sha: "undefined", GoVersion: goruntime.Version(), Os: "linux", Arch: "amd64"},
		Platform: &machineapi.PlatformInfo{Name: s.b.m.image().Platform, Mode: rules.Mode{}.String()},
	}
	if !s.b.inMaintenance() {
		v.Features = &machineapi.FeaturesInfo{Rbac: true}
	}
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{v}}, nil
}

// Hostname is the name the machine has for itself.
func (s *machineService) Hostname(context.Context, *emptypb.Empty) (*machineapi.HostnameResponse, error) {
	var name string
	err := s.b.readFleet(func() error { name = s.b.hostname(); return nil })
	return &machineapi.HostnameResponse{Messages: []*machineapi.Hostname{{Hostname: name}}}, err
}

// ServiceList lists the services with their past.
func (s *machineService) ServiceList(context.Context, *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	list := &machineapi.ServiceList{}
	err := s.b.readFleet(func() error {
		for _, service := range s.b.listServices() {
			list.Services = append(list.Services, service.info())
		}
		return nil
	})
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{list}}, err
}

// ServiceRestart restarts the kubelet and the services of extensions.
func (s *machineService) ServiceRestart(_ context.Context, in *machineapi.ServiceRestartRequest) (*machineapi.ServiceRestartResponse, error) {
	if err := s.b.operateService(in.GetId(), "restart"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceRestartResponse{Messages: []*machineapi.ServiceRestart{{Resp: fmt.Sprintf("Service %q restarted", in.GetId())}}}, nil
}

// ServiceStop stops a service of an extension.
func (s *machineService) ServiceStop(_ context.Context, in *machineapi.ServiceStopRequest) (*machineapi.ServiceStopResponse, error) {
	if err := s.b.operateService(in.GetId(), "stop"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceStopResponse{Messages: []*machineapi.ServiceStop{{Resp: fmt.Sprintf("Service %q stopped", in.GetId())}}}, nil
}

// ServiceStart starts a service of an extension.
func (s *machineService) ServiceStart(_ context.Context, in *machineapi.ServiceStartRequest) (*machineapi.ServiceStartResponse, error) {
	if err := s.b.operateService(in.GetId(), "start"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceStartResponse{Messages: []*machineapi.ServiceStart{{Resp: fmt.Sprintf("Service %q started", in.GetId())}}}, nil
}

// Reboot answers at once; the API is closed a moment later.
func (s *machineService) Reboot(context.Context, *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	actor := newUUID()
	err := s.b.alterFleet(func() error {
		if s.b.refuseSequence("reboot") {
			return nil
		}
		s.b.actor = actor
		s.b.f.world.Report(s.b.hostname(), "reboots")
		s.b.rebootMachine()
		return nil
	})
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: actor}}}, err
}

// Shutdown switches the virtual machine off from inside.
func (s *machineService) Shutdown(context.Context, *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	actor := newUUID()
	err := s.b.alterFleet(func() error {
		s.b.actor = actor
		s.b.f.world.Report(s.b.hostname(), "shuts down")
		s.b.powerDown(runtime.MachineStageShuttingDown, func() {})
		return nil
	})
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: actor}}}, err
}

// powerDown switches the virtual machine off from inside, with a last deed.
func (b *boot) powerDown(stage runtime.MachineStage, last func()) {
	vmid := b.m.guest.VMID
	b.goDown(stage, b.f.world.Latency.Stop, func() {
		last()
		b.m.switchOff()
		b.f.world.After(0, func() { b.f.off(vmid) })
	})
}

// Reset implements machine.MachineService. A graceful one leaves etcd first,
// which without a quorum goes on until the caller gives up. Without
// partitions the whole system disk is wiped, Talos with it: a machine made
// from a disk image has nothing to boot afterwards.
func (s *machineService) Reset(ctx context.Context, in *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	b, actor := s.b, newUUID()
	err := b.awaitChange(ctx, func() error {
		d := b.m.disk()
		if b.refuseSequence("reset") {
			return nil
		}
		b.actor = actor
		if in.GetGraceful() && d.member != nil {
			if !d.member.of.canServe() {
				return errHang
			}
			b.runAfter(silence/2, b.leaveEtcd)
		}
		b.f.world.Report(b.hostname(), "is reset")
		if !in.GetReboot() {
			b.powerDown(runtime.MachineStageResetting, func() { b.wipeDisk(in) })
			return nil
		}
		b.goDown(runtime.MachineStageResetting, silence, func() {
			b.wipeDisk(in)
			if b.m.canBoot() {
				b.m.startBoot()
			}
		})
		return nil
	})
	return &machineapi.ResetResponse{Messages: []*machineapi.Reset{{ActorId: actor}}}, err
}

// wipeDisk empties what a reset asks to.
func (b *boot) wipeDisk(in *machineapi.ResetRequest) {
	d := b.m.disk()
	if in.GetGraceful() {
		b.leaveEtcd()
	}
	if in.GetMode() == machineapi.ResetRequest_USER_DISKS {
		return
	}
	if len(in.GetSystemPartitionsToWipe()) == 0 {
		*d = disk{wiped: true}
		return
	}
	for _, p := range in.GetSystemPartitionsToWipe() {
		switch {
		case !p.GetWipe():
		case p.GetLabel() == constants.StatePartitionLabel:
			d.config = nil
		case p.GetLabel() == constants.EphemeralPartitionLabel:
			d.member, d.images = nil, nil
		}
	}
}

// Upgrade is refused.
func (s *machineService) Upgrade(context.Context, *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	return nil, errNoUpgrade
}

var errNoUpgrade = status.Error(codes.Unimplemented, "the lab does not play upgrades yet")

// lifecycleService is machine.LifecycleService, which v1.13 brought.
type lifecycleService struct {
	machineapi.UnimplementedLifecycleServiceServer
}

func (*lifecycleService) Upgrade(*machineapi.LifecycleServiceUpgradeRequest, grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse]) error {
	return errNoUpgrade
}

// inside is a machine as package system looks at it.
type inside struct{ b *boot }

// storageService is storage.StorageService.
type storageService struct {
	storageapi.UnimplementedStorageServiceServer
	b *boot
}
