package inventory

import (
	"github.com/talos-agent/talos-agent/internal/cluster"
)

const (
	ciliumName = "cilium"
	// ciliumAddon is a whole addon file on one line, to paste.
	ciliumAddon = `{name: cilium, namespace: kube-system, chart: {repository: "https://helm.cilium.io", name: cilium, version: 1.19.3}}`
)

// checkCNI compares the container network with the addons.
func (l *loader) checkCNI(addons map[string]string) {
	at, has := addons[ciliumName]
	unread := len(addons) < len(l.cluster.Addons) // reported already; one of them may be it
	switch {
	case l.spec.CNI == cluster.CNICilium && !has && !unread:
		l.Wrong("cni", "write addons: [addons/cilium.yaml], and into that file: "+ciliumAddon, "cilium needs an addon of that name")
	case l.spec.CNI == cluster.CNIFlannel && has:
		l.Wrong(at+".name", "write cni: cilium in "+ClusterFile, "two container networks: Talos brings Flannel, and this addon is Cilium")
	}
}

// ciliumValues are the values Cilium needs on Talos, below what the user
// wrote: no loading of kernel modules, Talos' own cgroup mount, and the API
// through Talos' local load balancer, because without kube-proxy no service
// address works before Cilium does.
func ciliumValues(spec cluster.Spec, user map[string]any) map[string]any {
	values := map[string]any{
		"ipam": map[string]any{"mode": "kubernetes"},
		"securityContext": map[string]any{"capabilities": map[string]any{
			"ciliumAgent":      []any{"CHOWN", "KILL", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "SYS_ADMIN", "SYS_RESOURCE", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"},
			"cleanCiliumState": []any{"NET_ADMIN", "SYS_ADMIN", "SYS_RESOURCE"},
		}},
		"cgroup": map[string]any{"autoMount": map[string]any{"enabled": false}, "hostRoot": "/sys/fs/cgroup"},
	}
	replaces, written := user["kubeProxyReplacement"]
	if !written {
		replaces = spec.CNI == cluster.CNICilium // anything else keeps kube-proxy
	}
	values["kubeProxyReplacement"] = replaces
	if parseTruth(replaces) {
		values["k8sServiceHost"] = "localhost"
		values["k8sServicePort"] = 7445
	}
	if spec.Network.IPv6.On() {
		values["ipv6"] = map[string]any{"enabled": true}
	}
	if len(spec.Nodes) == 1 {
		// Two replicas refuse to share a node.
		values["operator"] = map[string]any{"replicas": 1}
	}
	if bpf, ok := user["bpf"].(map[string]any); ok && parseTruth(bpf["masquerade"]) {
		// With host routing in BPF, CoreDNS does not reach Talos' own resolver.
		values["bpf"] = map[string]any{"hostLegacyRouting": true}
	}
	return values
}

// parseTruth reads a value that charts accept as a truth value or as a text.
func parseTruth(v any) bool { return v == true || v == "true" }

// checkCiliumProxy warns of a cluster in which nothing would serve services.
func (l *loader) checkCiliumProxy(field string, values map[string]any) {
	if l.spec.CNI == cluster.CNICilium && !parseTruth(values["kubeProxyReplacement"]) {
		l.Warn(field+".values.kubeProxyReplacement", "remove it, or write cni: none to keep kube-proxy",
			"cni: cilium switches kube-proxy off, and Cilium is told not to replace it: services have no address that works")
	}
}
