package access

import (
	"context"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Credentials are what a control plane issues others from.
type Credentials struct {
	Now           time.Time
	Config        config.Provider
	CACert, CAKey []byte // of Kubernetes, as PEM
	Authority     Authority
	Accepted      []byte // the certificate of that, as PEM
}

// Machine is a machine that is asked for credentials.
type Machine interface {
	// ListCredentials returns those of a control plane, or refuses a call of that name.
	ListCredentials(call string) (Credentials, error)
}

// CredentialService is the part of machine.MachineService that issues credentials.
type CredentialService struct{ Machine Machine }

// Kubeconfig sends a tar.gz with one file. It works long before there is a
// Kubernetes (recorded), so it proves nothing.
func (s *CredentialService) Kubeconfig(_ *emptypb.Empty, out grpc.ServerStreamingServer[common.Data]) error {
	c, err := s.Machine.ListCredentials("kubeconfig")
	if err != nil {
		return err
	}
	config, err := AdminKubeconfig(c.Now, c.Config, c.CACert, c.CAKey)
	if err != nil {
		return err
	}
	packed, err := PackFile("kubeconfig", config)
	if err != nil {
		return err
	}
	return out.Send(&common.Data{Bytes: packed})
}

// GenerateClientConfiguration issues a client certificate for any roles, also
// for ones that do not exist (recorded).
func (s *CredentialService) GenerateClientConfiguration(_ context.Context, in *machineapi.GenerateClientConfigurationRequest) (*machineapi.GenerateClientConfigurationResponse, error) {
	c, err := s.Machine.ListCredentials("generate client configuration")
	if err != nil {
		return nil, err
	}
	ttl := in.GetCrtTtl().AsDuration()
	if ttl <= 0 {
		return nil, status.Error(codes.InvalidArgument, "crt_ttl should be positive")
	}
	return ClientConfiguration(c.Now, c.Authority, c.Accepted, in.GetRoles(), ttl, c.Config.K8sClusterConfig().ClusterName())
}
