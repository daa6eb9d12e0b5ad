package machineconfig

import (
	"fmt"
	"strings"
)

// moved are the settings that newer contracts generate as documents of their own. A config
// must not have both, so that a patch that was written for an older contract is refused.
// The library names the places in its texts alone. Source: Talos machinery 1.14.1, the
// V1Alpha1ConflictValidate methods in config/types.
var moved = []struct{ text, old, kind string }{
	{"(.machine.kubelet)", "machine.kubelet", "KubeletConfig"},
	{"(.cluster.apiServer)", "cluster.apiServer", "KubeAPIServerConfig"},
	{"(.cluster.controllerManager)", "cluster.controllerManager", "KubeControllerManagerConfig"},
	{"(.cluster.scheduler)", "cluster.scheduler", "KubeSchedulerConfig"},
	{"(.machine.cluster.proxy)", "cluster.proxy", "KubeProxyConfig"},
	{"(.cluster.coreDNS)", "cluster.coreDNS", "KubeCoreDNSConfig"},
	{"(.machine.features.kubePrism)", "machine.features.kubePrism", "KubePrismConfig"},
	{".machine.features.hostDNS is already", "machine.features.hostDNS", "ResolverConfig"},
	{".machine.network.nameservers is already", "machine.network.nameservers", "ResolverConfig"},
	{"time servers cannot be specified in both", "machine.time", "TimeSyncConfig"},
	{".cluster.allowSchedulingOnControlPlanes is already", "cluster.allowSchedulingOnControlPlanes", "KubeNodeConfig"},
	{".machine.nodeLabels is already", "machine.nodeLabels", "KubeNodeConfig"},
	{".machine.nodeAnnotations is already", "machine.nodeAnnotations", "KubeNodeConfig"},
	{".machine.nodeTaints is already", "machine.nodeTaints", "KubeNodeConfig"},
}

// hintMoved is what to write instead of settings that a config has as documents of their
// own; "" where a config is refused for something else.
func hintMoved(refusal string) string {
	var instead []string
	for _, m := range moved {
		if strings.Contains(refusal, m.text) {
			instead = append(instead, fmt.Sprintf("kind: %s instead of %s", m.kind, m.old))
		}
	}
	if instead == nil {
		return ""
	}
	return "with this config_contract these settings are documents of their own; write " + strings.Join(instead, ", ")
}
