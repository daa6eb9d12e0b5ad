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

// Summarize returns what of a machine config is known without its text. The error names what
// is wrong without quoting the config.
func Summarize(config []byte) (cluster.ConfigSummary, error) {
	p, err := configloader.NewFromBytes(config)
	if err != nil {
		return cluster.ConfigSummary{}, errors.New("load machine config: " + explainError(err, config))
	}
	return recoverPanic(func() (cluster.ConfigSummary, error) { return summarize(p), nil })
}

func summarize(p config.Config) cluster.ConfigSummary {
	var f cluster.ConfigSummary
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
	f.Images = listImages(p, f.Role)
	return f
}

// listImages lists what a machine of a role runs. The config of a worker has images of the
// control plane, too.
func listImages(p config.Config, role cluster.Role) (images cluster.Images) {
	if c := p.K8sKubeletConfig(); c != nil {
		images.Kubelet = c.Image()
	}
	if role != cluster.ControlPlane {
		return images
	}
	if c := p.Cluster(); c != nil && c.Etcd() != nil {
		images.Etcd = c.Etcd().Image()
	}
	if c := p.K8sAPIServerConfig(); c != nil {
		images.APIServer = c.Image()
	}
	if c := p.K8sControllerManagerConfig(); c != nil {
		images.ControllerManager = c.Image()
	}
	if c := p.K8sSchedulerConfig(); c != nil {
		images.Scheduler = c.Image()
	}
	return images
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
