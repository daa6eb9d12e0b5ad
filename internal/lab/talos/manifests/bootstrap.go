package manifests

import (
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/talos-agent/talos-agent/internal/lab/kube/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// numbers order what Talos renders, by the app. Source: Talos v1.13.9, ManifestController.
var numbers = map[string]string{"coredns": "11-core-dns", "kube-dns": "11-core-dns-svc", "kube-flannel": "05-flannel", "flannel": "05-flannel", "kube-proxy": "10-kube-proxy"}

// Bootstrap are the bootstrap manifests of a control plane, by the ids of its resources. Each has
// the objects of one file.
func Bootstrap(cp world.ControlPlane, cfg config.Provider) map[string]func(*k8s.Manifest) {
	proxy := ""
	if p := cfg.K8sProxyConfig(); p != nil {
		proxy = p.Image()
	}
	items := map[string][]k8s.SingleManifest{}
	for _, o := range system.Deployed(cp, proxy) {
		items[numbers[o.Name]] = append(items[numbers[o.Name]], k8s.SingleManifest{Object: o.Manifest()})
	}
	out := map[string]func(*k8s.Manifest){}
	for id, all := range items {
		out[id] = func(r *k8s.Manifest) { r.TypedSpec().Items = all }
	}
	return out
}
