package talos

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// machineService is machine.MachineService of a configured machine and, from
// v1.13 on, of one in maintenance mode. What is not implemented here answers
// Unimplemented.
type machineService struct {
	machineapi.UnimplementedMachineServiceServer
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
		Platform: &machineapi.PlatformInfo{Name: s.b.m.image().Platform, Mode: runtimeMode{}.String()},
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

// ServiceRestart, ServiceStop and ServiceStart refuse, see refuseService.
func (s *machineService) ServiceRestart(_ context.Context, in *machineapi.ServiceRestartRequest) (*machineapi.ServiceRestartResponse, error) {
	return nil, s.b.refuseService(in.GetId(), "restart")
}

func (s *machineService) ServiceStop(_ context.Context, in *machineapi.ServiceStopRequest) (*machineapi.ServiceStopResponse, error) {
	return nil, s.b.refuseService(in.GetId(), "stop")
}

func (s *machineService) ServiceStart(_ context.Context, in *machineapi.ServiceStartRequest) (*machineapi.ServiceStartResponse, error) {
	return nil, s.b.refuseService(in.GetId(), "start")
}

// refuseService refuses to start or stop a service: most may not be in life
// either, the others are not simulated here.
func (b *boot) refuseService(id, operation string) error {
	return b.readFleet(func() error {
		switch {
		case b.services[id] == nil:
			return fmt.Errorf("service %q not defined", id)
		case slices.Contains([]string{"machined", "apid", "containerd", "cri", "trustd", "etcd"}, id):
			return fmt.Errorf("service %q doesn't support %s operation via API", id, operation)
		}
		return status.Errorf(codes.Unimplemented, "the lab does not play the %s of a service", operation)
	})
}

// Logs are empty, for services that there are.
func (s *machineService) Logs(in *machineapi.LogsRequest, _ grpc.ServerStreamingServer[common.Data]) error {
	return s.b.readFleet(func() error {
		if s.b.services[in.GetId()] == nil {
			return fmt.Errorf("log %q was not registered", in.GetId())
		}
		return nil // a service that has logged nothing
	})
}

// Read reads the one file clients need: the boot id, which proves a
// reboot.
func (s *machineService) Read(in *machineapi.ReadRequest, out grpc.ServerStreamingServer[common.Data]) error {
	if in.GetPath() != "/proc/sys/kernel/random/boot_id" {
		return status.Errorf(codes.NotFound, "stat %s: no such file or directory", in.GetPath())
	}
	return out.Send(&common.Data{Bytes: []byte(s.b.id + "\n")})
}

// Reboot answers at once; the API is closed a moment later.
func (s *machineService) Reboot(context.Context, *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	err := s.b.alterFleet(func() error {
		s.b.f.world.Report(s.b.hostname(), "reboots")
		s.b.rebootMachine()
		return nil
	})
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: newUUID()}}}, err
}

// Shutdown switches the virtual machine off from inside.
func (s *machineService) Shutdown(context.Context, *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	err := s.b.alterFleet(func() error {
		s.b.f.world.Report(s.b.hostname(), "shuts down")
		s.b.powerDown(runtime.MachineStageShuttingDown, func() {})
		return nil
	})
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: newUUID()}}}, err
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
	b := s.b
	err := b.awaitChange(ctx, func() error {
		d := b.m.disk()
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
	return &machineapi.ResetResponse{Messages: []*machineapi.Reset{{ActorId: newUUID()}}}, err
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
			d.member = nil
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

// storageService is storage.StorageService of a machine whose disks the API
// does not show.
type storageService struct {
	storageapi.UnimplementedStorageServiceServer
}

func (*storageService) Disks(context.Context, *emptypb.Empty) (*storageapi.DisksResponse, error) {
	return &storageapi.DisksResponse{Messages: []*storageapi.Disks{{}}}, nil
}
