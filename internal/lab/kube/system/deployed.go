package system

import (
	"cmp"
	"maps"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

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
	minor := minorOf(cp)
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

// Inventory is the ConfigMap of kube-system in which Talos lists what it has deployed, and the value of the annotation of that.
// Source: Talos v1.14, constants.
const Inventory = "talos-bootstrap-manifests-inventory"

// Deploy is what the machine of a control plane makes of what it renders: what is missing, before Talos 1.13; and since, what is
// missing and is not listed in the inventory, be it that somebody has deleted it. All that is there gets listed, whoever made it,
// and nothing is ever taken out. Source: Talos v1.14, ManifestApplyController.
func Deploy(cp world.ControlPlane, listed map[string]any, isThere func(Object) bool) (missing []Object, lists map[string]any) {
	keeps := minorOf(cp) >= 13
	if lists = maps.Clone(listed); lists == nil {
		lists = map[string]any{}
	}
	for _, o := range append(Deployed(cp, "registry.k8s.io/kube-proxy:"+cp.Kubernetes), listExtra(cp)...) {
		key := o.entry()
		_, is := lists[key]
		switch {
		case keeps && is, isThere(o):
		case keeps:
			rules.EnsureMap(rules.EnsureMap(o.Body, "metadata"), "annotations")["config.k8s.io/owning-inventory"] = Inventory
			missing = append(missing, o)
		default:
			missing = append(missing, o)
		}
		if keeps {
			lists[key] = ""
		}
	}
	if inventory := (Object{"", "configmaps", "kube-system", Inventory, map[string]any{}, ""}); keeps && !isThere(inventory) {
		missing = append(missing, inventory)
	}
	return missing, lists
}

// SetData gives a ConfigMap its data, and reports whether it was other.
func SetData(o, data map[string]any) bool {
	same := maps.Equal(rules.MapAt(o, "data"), data)
	o["data"] = data
	return !same
}

// entry is what an object is in the inventory. Source: cli-utils, ObjMetadata.
func (o Object) entry() string {
	return strings.Join([]string{o.Namespace, strings.ReplaceAll(o.Name, ":", "__"), o.Group, kinds[o.Resource]}, "_")
}

// minorOf is the minor version of the Talos of a control plane.
func minorOf(cp world.ControlPlane) int {
	if parts := strings.Split(cp.Talos, "."); len(parts) > 1 {
		if n, err := strconv.Atoi(parts[1]); err == nil && images[n].coreDNS != "" {
			return n
		}
	}
	return newest
}

// kinds are those of what Talos deploys, and of what a machine config may have it deploy besides.
var kinds = map[string]string{"serviceaccounts": "ServiceAccount", "services": "Service", "daemonsets": "DaemonSet", "deployments": "Deployment",
	"configmaps": "ConfigMap", "secrets": "Secret", "namespaces": "Namespace", "clusterroles": "ClusterRole", "clusterrolebindings": "ClusterRoleBinding"}

// listExtra are the objects of a machine config, of the kinds above; one that names no namespace is in default.
func listExtra(cp world.ControlPlane) (out []Object) {
	for _, body := range cp.Extra {
		kind := rules.TextAt(body, "kind")
		o := Object{"", strings.ToLower(kind) + "s", rules.TextAt(body, "metadata", "namespace"), rules.TextAt(body, "metadata", "name"), runtime.DeepCopyJSON(body), talosManager}
		if group, _, ok := strings.Cut(rules.TextAt(body, "apiVersion"), "/"); ok {
			o.Group = group
		}
		if o.Namespace = cmp.Or(o.Namespace, "default"); o.Resource == "namespaces" || strings.HasPrefix(o.Resource, "clusterrole") {
			o.Namespace = ""
		}
		if kinds[o.Resource] == kind && o.Name != "" {
			out = append(out, o)
		}
	}
	return out
}

// Manifest is an object as a machine's resources have it.
func (o Object) Manifest() map[string]any {
	version := "v1"
	if o.Group != "" {
		version = o.Group + "/v1"
	}
	o.Body["apiVersion"], o.Body["kind"] = version, kinds[o.Resource]
	meta := rules.EnsureMap(o.Body, "metadata")
	meta["name"], meta["namespace"] = o.Name, o.Namespace
	return o.Body
}
