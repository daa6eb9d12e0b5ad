package talos

import (
	"context"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
)

// Kubeconfig sends a tar.gz with one file. It works long before there is a
// Kubernetes (recorded), so it proves nothing.
func (s *machineService) Kubeconfig(_ *emptypb.Empty, out grpc.ServerStreamingServer[common.Data]) error {
	var set *settings
	err := s.b.readFleet(func() error {
		set = s.b.set
		return s.b.onControlPlane("kubeconfig")
	})
	if err != nil {
		return err
	}
	config, err := access.AdminKubeconfig(s.b.f.world.GuestNow(), set.provider, set.plane.CACert, set.plane.CAKey)
	if err != nil {
		return err
	}
	packed, err := access.PackFile("kubeconfig", config)
	if err != nil {
		return err
	}
	return out.Send(&common.Data{Bytes: packed})
}

// GenerateClientConfiguration issues a client certificate for any roles, also
// for ones nobody knows (recorded).
func (s *machineService) GenerateClientConfiguration(_ context.Context, in *machineapi.GenerateClientConfigurationRequest) (*machineapi.GenerateClientConfigurationResponse, error) {
	var set *settings
	var ca access.Authority
	err := s.b.readFleet(func() error {
		set = s.b.set
		if err := s.b.onControlPlane("generate client configuration"); err != nil {
			return err
		}
		ca = s.b.f.authorities[set.machineCA]
		return nil
	})
	if err != nil {
		return nil, err
	}
	ttl := in.GetCrtTtl().AsDuration()
	if ttl <= 0 {
		return nil, status.Error(codes.InvalidArgument, "crt_ttl should be positive")
	}
	return access.ClientConfiguration(s.b.f.world.GuestNow(), ca, set.acceptedCA[0], in.GetRoles(), ttl, set.provider.K8sClusterConfig().ClusterName())
}
