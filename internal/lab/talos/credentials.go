package talos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
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
	config, err := set.makeKubeconfig(s.b.f.world.GuestNow())
	if err != nil {
		return err
	}
	packed, err := access.PackFile("kubeconfig", config)
	if err != nil {
		return err
	}
	return out.Send(&common.Data{Bytes: packed})
}

// makeKubeconfig makes an administrator's kubeconfig, valid for a year.
func (s *settings) makeKubeconfig(now time.Time) ([]byte, error) {
	ca, err := access.ParseAuthority(s.plane.CACert, s.plane.CAKey)
	if err != nil {
		return nil, err
	}
	crt, key, err := ca.IssueClient(now, "admin", []string{constants.KubernetesAdminCertOrganization}, constants.KubernetesAdminCertDefaultLifetime)
	if err != nil {
		return nil, err
	}
	cluster := s.provider.K8sClusterConfig()
	return access.WriteKubeconfig(cluster.ClusterName(), cluster.ClusterEndpoint().String(), s.plane.CACert, crt, key), nil
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
	roles, _ := role.Parse(in.GetRoles())
	crt, key, err := ca.IssueClient(s.b.f.world.GuestNow(), "", roles.Strings(), ttl)
	if err != nil {
		return nil, err
	}
	name := set.provider.K8sClusterConfig().ClusterName()
	if r := roles.Strings(); len(r) == 1 {
		name = strings.TrimPrefix(r[0], role.Prefix) + "@" + name
	}
	pem := set.acceptedCA[0]
	talosconfig, err := clientconfig.NewConfig(name, nil, pem, &x509.PEMEncodedCertificateAndKey{Crt: crt, Key: key}).Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode talosconfig: %w", err)
	}
	return &machineapi.GenerateClientConfigurationResponse{Messages: []*machineapi.GenerateClientConfiguration{
		{Ca: pem, Crt: crt, Key: key, Talosconfig: talosconfig},
	}}, nil
}
