package system

import (
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// talosManager is who Talos calls itself when it deploys. Source: Talos 1.8 to 1.14,
// ManifestApplyController.
const talosManager = "talos"

// images are the tags of what a minor version of Talos deploys. Those of 1.14 are its own; of the
// older ones it matters only that they are other ones.
var images = map[int]struct{ coreDNS, flannel string }{
	10: {"v1.12.1", "v0.26.7"}, 11: {"v1.12.3", "v0.27.2"}, 12: {"v1.13.1", "v0.27.4"}, 13: {"v1.14.2", "v0.28.4"}, 14: {"v1.14.7", "v0.28.9"},
}

// newest is the minor version of Talos whose manifests others than those above have.
const newest = 14

// Deployed is what Talos deploys into the clusters that it bootstraps, as it renders it: its own
// images are of its version, and that of kube-proxy is of the machine config.
func Deployed(cp world.ControlPlane, proxy string) (out []Object) {
	add := func(group, resource, name string, body map[string]any) {
		out = append(out, Object{group, resource, "kube-system", name, body, talosManager})
	}
	minor := newest
	if parts := strings.Split(cp.Talos, "."); len(parts) > 1 {
		if n, err := strconv.Atoi(parts[1]); err == nil && images[n].coreDNS != "" {
			minor = n
		}
	}
	if !cp.NoDNS {
		addDNS(cp, "registry.k8s.io/coredns/coredns:"+images[minor].coreDNS, add)
	}
	always := []any{map[string]any{"operator": "Exists"}}
	if cp.CNI == "flannel" {
		flannel := "ghcr.io/siderolabs/flannel:" + images[minor].flannel
		add("", "serviceaccounts", "flannel", map[string]any{})
		add("apps", "daemonsets", "kube-flannel", newWorkload("kube-flannel", flannel, "100m", "50Mi", map[string]any{
			"hostNetwork": true, "serviceAccountName": "flannel", "priorityClassName": "system-node-critical", "tolerations": always,
			"initContainers": []any{map[string]any{"name": "install-config", "image": flannel}},
		}))
	}
	if cp.KubeProxy {
		add("", "serviceaccounts", "kube-proxy", map[string]any{})
		add("apps", "daemonsets", "kube-proxy", newWorkload("kube-proxy", proxy, "", "", map[string]any{
			"hostNetwork": true, "serviceAccountName": "kube-proxy", "priorityClassName": "system-node-critical", "tolerations": always,
		}))
	}
	return out
}

func addDNS(cp world.ControlPlane, image string, add func(group, resource, name string, body map[string]any)) {
	add("", "serviceaccounts", "coredns", map[string]any{})
	add("", "services", "kube-dns", map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
		"spec": map[string]any{
			"clusterIP": rules.NthAddr(rules.FirstRange(cp.ServiceCIDR), 10).String(),
			"selector":  map[string]any{"k8s-app": "kube-dns"},
			"ports": []any{
				map[string]any{"name": "dns", "port": int64(53), "protocol": "UDP"},
				map[string]any{"name": "dns-tcp", "port": int64(53), "protocol": "TCP"},
			},
		},
	})
	dns := newWorkload("kube-dns", image, "100m", "70Mi", map[string]any{
		"serviceAccountName": "coredns", "priorityClassName": "system-cluster-critical", "dnsPolicy": "Default",
		"tolerations": []any{
			map[string]any{"key": world.RoleControl, "operator": "Exists", "effect": "NoSchedule"},
			map[string]any{"key": "node.cloudprovider.kubernetes.io/uninitialized", "operator": "Exists", "effect": "NoSchedule"},
		},
	})
	rules.EnsureMap(dns, "spec")["replicas"] = int64(2)
	add("apps", "deployments", "coredns", dns)
}

// Manifest is an object as a machine's resources have it.
func (o Object) Manifest() map[string]any {
	kinds := map[string]string{"serviceaccounts": "ServiceAccount", "services": "Service", "daemonsets": "DaemonSet", "deployments": "Deployment"}
	version := "v1"
	if o.Group != "" {
		version = o.Group + "/v1"
	}
	o.Body["apiVersion"], o.Body["kind"] = version, kinds[o.Resource]
	meta := rules.EnsureMap(o.Body, "metadata")
	meta["name"], meta["namespace"] = o.Name, o.Namespace
	return o.Body
}
