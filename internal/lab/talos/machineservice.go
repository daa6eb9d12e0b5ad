package talos

import (
	"context"
	goruntime "runtime"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
	"github.com/talos-agent/talos-agent/internal/lab/talos/etcddb"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// machineService is machine.MachineService of a configured machine and, from
// v1.13 on, of one in maintenance mode. What neither it nor those two
// implement answers Unimplemented.
type machineService struct {
	system.Service
	installer.UpgradeService
	etcddb.EtcdService
	access.CredentialService
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
		Version:  &machineapi.VersionInfo{Tag: s.b.image.Version, Sha: "undefined", GoVersion: goruntime.Version(), Os: "linux", Arch: "amd64"},
		Platform: &machineapi.PlatformInfo{Name: s.b.image.Platform, Mode: rules.Mode{}.String()},
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
			list.Services = append(list.Services, service.Info())
		}
		return nil
	})
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{list}}, err
}

// inside is a machine as package system looks at it.
type inside struct{ b *boot }
