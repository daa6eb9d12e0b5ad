package access

import (
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// AdminKubeconfig makes an administrator's kubeconfig of a cluster, valid for a year.
func AdminKubeconfig(now time.Time, of config.Provider, cert, key []byte) ([]byte, error) {
	ca, err := ParseAuthority(cert, key)
	if err != nil {
		return nil, err
	}
	crt, key, err := ca.IssueClient(now, "admin", []string{constants.KubernetesAdminCertOrganization}, constants.KubernetesAdminCertDefaultLifetime)
	if err != nil {
		return nil, err
	}
	cluster := of.K8sClusterConfig()
	return WriteKubeconfig(cluster.ClusterName(), cluster.ClusterEndpoint().String(), cert, crt, key), nil
}

// ClientConfiguration issues a client certificate of a machine's authority for any roles, also for
// ones that do not exist (recorded).
func ClientConfiguration(now time.Time, ca Authority, pem []byte, wanted []string, ttl time.Duration, cluster string) (*machineapi.GenerateClientConfigurationResponse, error) {
	roles, _ := role.Parse(wanted)
	crt, key, err := ca.IssueClient(now, "", roles.Strings(), ttl)
	if err != nil {
		return nil, err
	}
	if r := roles.Strings(); len(r) == 1 {
		cluster = strings.TrimPrefix(r[0], role.Prefix) + "@" + cluster
	}
	talosconfig, err := clientconfig.NewConfig(cluster, nil, pem, &x509.PEMEncodedCertificateAndKey{Crt: crt, Key: key}).Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode talosconfig: %w", err)
	}
	return &machineapi.GenerateClientConfigurationResponse{Messages: []*machineapi.GenerateClientConfiguration{
		{Ca: pem, Crt: crt, Key: key, Talosconfig: talosconfig},
	}}, nil
}
