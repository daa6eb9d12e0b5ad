package manifests

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// What Talos' controllers make of a machine config before they render anything. Volumes,
// resources and how the API is reached are left out.
// Source: talos v1.13.9, internal/app/machined/pkg/controllers/k8s.

// FillKubelet writes what the kubelet is to be.
func FillKubelet(to *k8s.KubeletConfigSpec, cfg config.Provider) {
	if k := cfg.K8sKubeletConfig(); k != nil {
		*to = k8s.KubeletConfigSpec{Image: k.Image(), ClusterDNS: k.ClusterDNS(), ExtraArgs: valuesOf(k.ExtraArgs()),
			ExtraMounts: k.ExtraMounts(), ExtraConfig: k.ExtraConfig(), DefaultRuntimeSeccompEnabled: k.DefaultRuntimeSeccompProfileEnabled(), DisableManifestsDirectory: k.DisableManifestsDirectory()}
	}
	n := cfg.K8sNetworkConfig()
	if n == nil {
		return
	}
	to.ClusterDomain = n.DNSDomain()
	if len(to.ClusterDNS) == 0 {
		for _, a := range k8s.DNSServiceAddrs(n.ServiceCIDRs()) {
			to.ClusterDNS = append(to.ClusterDNS, a.String())
		}
	}
}

// FillAPIServer writes what the kube-apiserver is to be.
func FillAPIServer(to *k8s.APIServerConfigSpec, cfg config.Provider) {
	if api := cfg.K8sAPIServerConfig(); api != nil {
		*to = k8s.APIServerConfigSpec{Image: api.Image(), LocalPort: api.APIPort(), ExtraArgs: valuesOf(api.ExtraArgs()), EnvironmentVariables: api.Env()}
	}
}

// FillManager writes what the kube-controller-manager is to be.
func FillManager(to *k8s.ControllerManagerConfigSpec, cfg config.Provider) {
	if m := cfg.K8sControllerManagerConfig(); m != nil {
		*to = k8s.ControllerManagerConfigSpec{Enabled: m.Enabled(), Image: m.Image(), ExtraArgs: valuesOf(m.ExtraArgs()), EnvironmentVariables: m.Env()}
	}
}

// FillScheduler writes what the kube-scheduler is to be.
func FillScheduler(to *k8s.SchedulerConfigSpec, cfg config.Provider) {
	if s := cfg.K8sSchedulerConfig(); s != nil {
		*to = k8s.SchedulerConfigSpec{Enabled: s.Enabled(), Image: s.Image(), ExtraArgs: valuesOf(s.ExtraArgs()), Config: s.Config(), EnvironmentVariables: s.Env()}
	}
}

func valuesOf(args map[string][]string) map[string]k8s.ArgValues {
	out := make(map[string]k8s.ArgValues, len(args))
	for name, values := range args {
		out[name] = k8s.ArgValues{Values: values}
	}
	return out
}

// ReadNode finds what a node is to register with: the version of its kubelet, its labels and its
// taints, and the address of IPv6 among those of its link, of which the config gives it others than its own.
func ReadNode(to *world.Kubelet, cfg config.Provider, g world.Guest, image world.Image, others []netip.Prefix) {
	to.Address6 = findAddress6(cfg, system.ListAddresses(g, image, netip.Prefix{}, others...))
	if k := cfg.K8sKubeletConfig(); k != nil {
		// The sizes of Talos' kubelet are of one version.
		to.Kubernetes = strings.TrimSuffix(strings.TrimSuffix(system.TagOf(k.Image()), "-fat"), "-slim")
	}
	n := cfg.K8sNodeConfig()
	if n == nil {
		return
	}
	to.Labels, to.Schedulable = n.Labels(), true
	for key, taint := range n.Taints() {
		if key == constants.LabelNodeRoleControlPlane && taint == constants.TaintEffectNoSchedule {
			to.Schedulable = false // the kubelet of a control plane adds it
			continue
		}
		if strings.Contains(taint, ":") {
			key += "=" + taint
		} else {
			key += ":" + taint // an effect without a value
		}
		to.Taints = append(to.Taints, key)
	}
	slices.Sort(to.Taints)
}

// findAddress6 finds the node's address of IPv6: the first of its link that is not of pods or services, and lies in one of the
// subnets that the config names, or, where it names none, if pods have addresses of IPv6. The zero Addr is none.
// Source: talos v1.13, internal/app/machined/pkg/controllers/k8s, nodeip.go and nodeip_config.go.
func findAddress6(cfg config.Provider, link []netip.Prefix) netip.Addr {
	n := cfg.K8sNetworkConfig()
	if n == nil {
		return netip.Addr{}
	}
	var valid []string
	if node := cfg.K8sNodeConfig(); node != nil && node.NodeIP() != nil {
		valid = slices.Clone(node.NodeIP().ValidSubnets())
	}
	var except []string
	for _, p := range slices.Concat(n.PodCIDRs(), n.ServiceCIDRs()) {
		except = append(except, "!"+p.String())
		if p.Addr().Is6() && len(valid) == 0 {
			valid = []string{"::/0"}
		}
	}
	valid = append(valid, except...)
	for _, p := range link {
		if p.Addr().Is6() && isValid(valid, p.Addr()) {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// isValid reports whether one of the subnets has an address, and none with ! in front.
func isValid(subnets []string, a netip.Addr) (ok bool) {
	for _, s := range subnets {
		except, no := strings.CutPrefix(s, "!")
		p, err := netip.ParsePrefix(except)
		switch {
		case err != nil || !p.Contains(a):
		case no:
			return false
		default:
			ok = true
		}
	}
	return ok
}

// ReadPlane finds what a kube-apiserver is given, and what Talos deploys beside it.
func ReadPlane(to *world.ControlPlane, cfg config.Provider) {
	to.CNI = "none"
	if cfg.K8sFlannelCNIConfig() != nil {
		to.CNI = "flannel"
	}
	if proxy := cfg.K8sProxyConfig(); proxy != nil {
		to.KubeProxy = proxy.Enabled()
	}
	if dns := cfg.K8sCoreDNSConfig(); dns != nil {
		to.NoDNS = !dns.Enabled()
	}
	to.Extra = nil
	for _, m := range cfg.K8sInlineManifestConfigs() {
		to.Extra = append(to.Extra, readInline(m.Contents())...)
	}
	if api := cfg.K8sAPIServerConfig(); api != nil {
		to.Kubernetes, to.SANs = system.TagOf(api.Image()), slices.Clone(api.CertSANs())
	}
	if c := cfg.K8sClusterConfig(); c != nil && c.ClusterEndpoint() != nil {
		to.SANs = append(to.SANs, c.ClusterEndpoint().Hostname())
	}
}
