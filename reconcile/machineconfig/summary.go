package machineconfig

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"

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

// hashRest hashes all of a config but the images that Talos itself runs and how Talos is installed;
// "" where it cannot be encoded.
func hashRest(p config.Provider) string {
	images := listImages(p, cluster.ControlPlane) // a worker's config may name them, too
	if c := p.K8sProxyConfig(); c != nil {
		images.Proxy = c.Image() // also where it is off
	}
	h := sha256.New()
	for _, doc := range p.Documents() {
		if doc.Kind() == "UnattendedInstallConfig" {
			continue
		}
		var what any = doc
		if c, ok := doc.(*v1alpha1.Config); ok && c.MachineConfig != nil {
			rest, machine := *c, *c.MachineConfig
			//lint:ignore SA1019 it is where contracts before 1.14 have it
			machine.MachineInstall = nil
			rest.MachineConfig = &machine
			what = &rest
		}
		text, err := encoder.NewEncoder(what, encoder.WithComments(encoder.CommentsDisabled)).Encode()
		if err != nil {
			return ""
		}
		for _, image := range []string{images.Kubelet, images.Etcd, images.APIServer, images.ControllerManager, images.Scheduler, images.Proxy} {
			if image != "" {
				text = bytes.ReplaceAll(text, []byte(image), nil)
			}
		}
		fmt.Fprintf(h, "%d %s\n", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func summarize(p config.Provider) cluster.ConfigSummary {
	var f cluster.ConfigSummary
	if c := p.K8sClusterConfig(); c != nil {
		f.Cluster = c.ClusterName()
		if u := c.ClusterEndpoint(); u != nil {
			f.Endpoint = u.Hostname()
		}
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
	// What cannot be read of these is no reason not to know the rest.
	_, _ = recoverPanic(func() (struct{}, error) {
		f.Images, f.Registries, f.Discovery = listImages(p, f.Role), hashRegistries(p), len(p.DiscoveryServiceConfigs()) > 0
		f.Rest = hashRest(p)
		return struct{}{}, nil
	})
	return f
}

// listImages lists what the config of a machine of a role names; a worker's has images of the
// control plane, too. Where it names no etcd, the machine knows its own, which is not that of
// this program's library.
func listImages(p config.Provider, role cluster.Role) (images cluster.Images) {
	if c := p.K8sKubeletConfig(); c != nil {
		images.Kubelet = c.Image()
	}
	if role != cluster.ControlPlane {
		return images
	}
	if raw := p.RawV1Alpha1(); raw != nil && raw.ClusterConfig != nil && raw.ClusterConfig.EtcdConfig != nil {
		images.Etcd = raw.ClusterConfig.EtcdConfig.ContainerImage
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
	if c := p.K8sProxyConfig(); c != nil && c.Enabled() {
		images.Proxy = c.Image()
	}
	return images
}

// hashRegistries hashes how a machine reaches images: mirrors, credentials, certificates, names,
// proxies, and which images it takes.
func hashRegistries(p config.Provider) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	for name, m := range p.RegistryMirrorConfigs() {
		add("mirror %q %v", name, m.SkipFallback())
		for i, e := range m.Endpoints() {
			add("mirror %q endpoint %d %q %v", name, i, e.Endpoint(), e.OverridePath())
		}
	}
	for name, a := range p.RegistryAuthConfigs() {
		add("auth %q %q %q %q %q", name, a.Username(), a.Password(), a.Auth(), a.IdentityToken())
	}
	for name, c := range p.RegistryTLSConfigs() {
		add("tls %q %q %v", name, c.CA(), c.InsecureSkipVerify())
		if id := c.ClientIdentity(); id != nil {
			add("tls %q %q %q", name, id.Crt, id.Key)
		}
	}
	if c := p.TrustedRoots(); c != nil {
		add("roots %q", c.ExtraTrustedRootCertificates())
	}
	if c := p.NetworkResolverConfig(); c != nil {
		for i, r := range c.Resolvers() {
			add("resolver %d %v", i, r)
		}
	}
	for _, h := range p.NetworkStaticHostConfig() {
		add("host %q %q", h.IP(), h.Aliases())
	}
	variables := map[string]string{}
	if m := p.Machine(); m != nil {
		maps.Copy(variables, m.Env())
	}
	if c := p.Environment(); c != nil {
		maps.Copy(variables, c.Variables())
	}
	for name, value := range variables {
		if upper := strings.ToUpper(name); strings.HasSuffix(upper, "_PROXY") || strings.HasPrefix(upper, "SSL_CERT_") {
			add("variable %q %q", name, value)
		}
	}
	if c := p.ImageVerificationConfig(); c != nil {
		for i, r := range c.Rules() {
			add("rule %d %q %v %v", i, r.ImagePattern(), r.Skip(), r.Deny())
		}
	}
	if len(parts) == 0 {
		return ""
	}
	slices.Sort(parts)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return hex.EncodeToString(sum[:])
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
