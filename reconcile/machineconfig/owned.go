package machineconfig

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/talos-agent/talos-agent/internal/cluster/device"
)

// owned are the facts of a machine config that follow from the inventory or the
// secrets. A patch that changed one would make the machine another one than the
// agent believes it to be.
var owned = []struct {
	name, instead string
	// value is the fact as a string that only serves to be compared.
	value func(config.Provider, *input) string
}{
	{"the machine's type", "list the node under controlplane or workers in nodes.yaml",
		func(c config.Provider, _ *input) string { return c.Machine().Type().String() }},
	{"the hostname", "the node's name in nodes.yaml is its hostname",
		func(c config.Provider, _ *input) string {
			return c.NetworkHostnameConfig().Hostname() + "/" + c.NetworkHostnameConfig().AutoHostname().String()
		}},
	{"the node's address", "set ip and ip6 in nodes.yaml, and network.cidr, network.cidr6 and their gateways in cluster.yaml",
		func(c config.Provider, in *input) string { return fmt.Sprint(hasAddress(c, in)) }},
	{"an address of its further network cards", "set nics[].address in nodes.yaml",
		func(c config.Provider, in *input) string { return fmt.Sprint(hasFurtherAddresses(c, in)) }},
	{"the cluster's name", "set cluster_name in cluster.yaml",
		func(c config.Provider, _ *input) string { return c.K8sClusterConfig().ClusterName() }},
	{"the cluster's endpoint", "set network.endpoint in cluster.yaml",
		func(c config.Provider, _ *input) string { return c.K8sClusterConfig().ClusterEndpoint().String() }},
	{"the pod network", "set network.pod_cidr and network.pod_cidr6 in cluster.yaml",
		func(c config.Provider, _ *input) string { return fmt.Sprint(c.K8sNetworkConfig().PodCIDRs()) }},
	{"the service network", "set network.svc_cidr and network.svc_cidr6 in cluster.yaml",
		func(c config.Provider, _ *input) string { return fmt.Sprint(c.K8sNetworkConfig().ServiceCIDRs()) }},
	{"the installer image", "it follows from talos_version, talos.schematic and talos.installer_registry in cluster.yaml",
		func(c config.Provider, _ *input) string { return installerImage(c) }},
	{"the disk that Talos is installed on", "with boot: iso it is the system disk of the node, by its serial",
		func(c config.Provider, in *input) string { return installDisk(c, in) }},
	{"the version of Kubernetes", "set kubernetes_version in cluster.yaml",
		func(c config.Provider, _ *input) string { return listTags(c) }},
	{"the cluster's secrets", "they are in secrets.sops.yaml",
		func(c config.Provider, _ *input) string { return secretsOf(c) }},
}

// hasAddress reports whether a config gives a node the address of the
// inventory. It may give others as well.
func hasAddress(c config.Provider, in *input) bool {
	return !isStatic(in) || !slices.ContainsFunc(in.addresses(), func(a string) bool { return !givesAddress(c, a) })
}

// hasFurtherAddresses reports the same of the addresses of its further network cards.
func hasFurtherAddresses(c config.Provider, in *input) bool {
	return !slices.ContainsFunc(in.Devices.Cards, func(card device.Card) bool { return card.Address.IsValid() && !givesAddress(c, card.Address.String()) })
}

// givesAddress reports whether a config gives an address to a link.
func givesAddress(c config.Provider, address string) bool {
	for _, l := range c.NetworkCommonLinkConfigs() {
		for _, a := range l.Addresses() {
			if a.Address().String() == address {
				return true
			}
		}
	}
	for _, d := range c.Machine().Network().Devices() {
		if slices.Contains(d.Addresses(), address) {
			return true
		}
	}
	return false
}

func installerImage(c config.Provider) string {
	if u := c.UnattendedInstallConfig(); u != nil {
		return u.InstallerImage()
	}
	return c.Machine().Install().Image()
}

// installDisk is by what a machine finds the disk that it installs itself on, "" of one that is made from a disk image: it does not look.
func installDisk(c config.Provider, in *input) string {
	if !in.ISO {
		return ""
	}
	if u := c.UnattendedInstallConfig(); u != nil {
		selector := u.VolumeSelector()
		return fmt.Sprint(selector.String(), u.VolumeWipe())
	}
	match, err := c.Machine().Install().DiskMatchExpression()
	if err != nil || match == nil {
		return fmt.Sprint(c.Machine().Install().Disk(), err)
	}
	return match.String()
}

// listTags lists the versions of the Kubernetes components, whatever registry they
// come from.
func listTags(c config.Provider) string {
	images := []string{c.K8sKubeletConfig().Image()}
	if c.Machine().Type().IsControlPlane() {
		images = append(images, c.K8sAPIServerConfig().Image(), c.K8sControllerManagerConfig().Image(), c.K8sSchedulerConfig().Image())
	}
	for i, image := range images {
		image, _, _ = strings.Cut(image, "@")
		images[i] = image[strings.LastIndexByte(image, ':')+1:]
	}
	return strings.Join(images, " ")
}

// secretsOf digests every secret of a config that comes from the bundle.
func secretsOf(c config.Provider) string {
	h := sha256.New()
	pair := func(p *x509.PEMEncodedCertificateAndKey) {
		if p != nil {
			fmt.Fprintf(h, "%q %q\n", p.Crt, p.Key)
		}
	}
	pair(c.Machine().Security().IssuingCA())
	id := c.DiscoveryIdentityConfig()
	fmt.Fprintf(h, "%q %q %q\n", c.Machine().Security().Token(), id.ClusterID(), id.ClusterSecret())
	fmt.Fprintf(h, "%q %q\n", c.Cluster().Token().ID(), c.Cluster().Token().Secret())
	if ca := c.K8sAPIServerCAConfig(); ca != nil {
		pair(ca.IssuingCA())
		if accepted := ca.AcceptedCAs(); len(accepted) > 0 {
			fmt.Fprintf(h, "%q\n", accepted[0].Crt) // more may be added
		}
	}
	if c.Machine().Type().IsControlPlane() {
		pair(c.Cluster().Etcd().CA())
		pair(c.K8sAggregatorCAConfig().IssuingCA())
		fmt.Fprintf(h, "%q\n", c.K8sServiceAccountConfig().IssuingKey().Key)
		fmt.Fprintf(h, "%q %q\n", c.Cluster().AESCBCEncryptionSecret(), c.Cluster().SecretboxEncryptionSecret())
		if e := c.K8sEtcdEncryptionConfig(); e != nil {
			fmt.Fprintf(h, "%v\n", e.EtcdEncryptionConfig())
		}
	}
	return string(h.Sum(nil))
}
