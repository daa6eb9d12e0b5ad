package machineconfig

import "strings"

// moved are the settings that newer contracts generate as documents of their own. A config
// must not have both, so that a patch that was written for an older contract is refused.
// What the inventory has a key for is written there. The library names the places in its
// texts alone. Source: Talos machinery 1.14.1, the
// V1Alpha1ConflictValidate methods in config/types.
var moved = []struct{ text, old, instead string }{
	{"(.machine.kubelet)", "machine.kubelet", "kind: KubeletConfig"},
	{"(.cluster.apiServer)", "cluster.apiServer", "kind: KubeAPIServerConfig"},
	{"(.cluster.controllerManager)", "cluster.controllerManager", "kind: KubeControllerManagerConfig"},
	{"(.cluster.scheduler)", "cluster.scheduler", "kind: KubeSchedulerConfig"},
	{"(.machine.cluster.proxy)", "cluster.proxy", "kind: KubeProxyConfig"},
	{"(.cluster.coreDNS)", "cluster.coreDNS", "kind: KubeCoreDNSConfig"},
	{"(.machine.features.kubePrism)", "machine.features.kubePrism", "kind: KubePrismConfig"},
	{".machine.features.hostDNS is already", "machine.features.hostDNS", "kind: ResolverConfig"},
	{".machine.network.nameservers is already", "machine.network.nameservers", "network.nameservers in cluster.yaml"},
	{"time servers cannot be specified in both", "machine.time", "network.time_servers in cluster.yaml"},
	{".cluster.allowSchedulingOnControlPlanes is already", "cluster.allowSchedulingOnControlPlanes", "kind: KubeNodeConfig"},
	{".machine.nodeLabels is already", "machine.nodeLabels", "labels in nodes.yaml"},
	{".machine.nodeAnnotations is already", "machine.nodeAnnotations", "annotations in nodes.yaml"},
	{".machine.nodeTaints is already", "machine.nodeTaints", "taints in nodes.yaml"},
}

// hintMoved is what to write instead of settings that a config has as documents of their
// own; "" where a config is refused for something else.
func hintMoved(refusal string) string {
	var instead []string
	for _, m := range moved {
		if strings.Contains(refusal, m.text) {
			instead = append(instead, m.instead+" instead of "+m.old)
		}
	}
	if instead == nil {
		return ""
	}
	return "with this config_contract these settings are documents of their own; write " + strings.Join(instead, ", ")
}
