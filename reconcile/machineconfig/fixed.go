package machineconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Fixed returns what of a machine config can never change on a cluster that lives. The
// error names what is wrong without quoting the config.
func Fixed(config []byte) (cluster.FixedConfig, error) {
	p, err := configloader.NewFromBytes(config)
	if err != nil {
		return cluster.FixedConfig{}, errors.New("load machine config: " + explainError(err, config))
	}
	return recoverPanic(func() (cluster.FixedConfig, error) { return fixedOf(p), nil })
}

func fixedOf(p config.Config) cluster.FixedConfig {
	var f cluster.FixedConfig
	if c := p.K8sClusterConfig(); c != nil {
		f.Cluster = c.ClusterName()
	}
	if n := p.K8sNetworkConfig(); n != nil {
		f.DNSDomain, f.Pods, f.Services = n.DNSDomain(), joinNetworks(n.PodCIDRs()), joinNetworks(n.ServiceCIDRs())
	}
	if m := p.Machine(); m != nil {
		f.Role = cluster.Worker
		if m.Type().IsControlPlane() {
			f.Role, f.Flannel = cluster.ControlPlane, "no"
			if p.K8sFlannelCNIConfig() != nil {
				f.Flannel = "yes"
			}
		}
		f.Authorities.Talos = hashAuthorities(m.Security().IssuingCA(), m.Security().AcceptedCAs())
	}
	if ca := p.K8sAPIServerCAConfig(); ca != nil {
		f.Authorities.Kubernetes = hashAuthorities(ca.IssuingCA(), ca.AcceptedCAs())
	}
	if c := p.Cluster(); c != nil && c.Etcd() != nil {
		f.Authorities.Etcd = hashAuthorities(c.Etcd().CA(), nil)
	}
	return f
}

// hashAuthorities hashes certificates of authorities, of the one that issues first.
func hashAuthorities(issuing *x509.PEMEncodedCertificateAndKey, accepted []*x509.PEMEncodedCertificate) string {
	var certs [][]byte
	if issuing != nil {
		certs = append(certs, issuing.Crt)
	}
	for _, a := range accepted {
		certs = append(certs, a.Crt)
	}
	var out []string
	for _, text := range certs {
		if block, _ := pem.Decode(text); block != nil {
			sum := sha256.Sum256(block.Bytes)
			out = append(out, hex.EncodeToString(sum[:]))
		}
	}
	return strings.Join(out, ",")
}

func joinNetworks(networks []netip.Prefix) string {
	var out []string
	for _, n := range networks {
		out = append(out, fmt.Sprint(n))
	}
	return strings.Join(out, ",")
}
