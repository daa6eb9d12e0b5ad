package manifests

import (
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"sigs.k8s.io/yaml"

	"github.com/talos-agent/talos-agent/internal/lab/kube/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// numbers order what Talos renders, by the app. Source: Talos v1.13.9, ManifestController.
var numbers = map[string]string{"coredns": "11-core-dns", "kube-dns": "11-core-dns-svc", "kube-flannel": "05-flannel", "flannel": "05-flannel", "kube-proxy": "10-kube-proxy"}

// FillExtra is what a control plane is to render besides its own manifests. Source: Talos v1.14,
// ControlPlaneExtraManifestsController.
func FillExtra(to *k8s.ExtraManifestsConfigSpec, cfg config.Provider) {
	to.ExtraManifests = nil
	for _, m := range cfg.K8sExternalManifestConfigs() {
		to.ExtraManifests = append(to.ExtraManifests, k8s.ExtraManifest{Name: m.Name(), URL: m.URL(), Priority: extra, ExtraHeaders: m.Headers()})
	}
	for _, m := range cfg.K8sInlineManifestConfigs() {
		to.ExtraManifests = append(to.ExtraManifests, k8s.ExtraManifest{Name: m.Name(), Priority: extra, InlineManifest: m.Contents()})
	}
}

// extra is the priority of what is not Talos' own: it comes last.
const extra = "99"

// readInline reads the objects of a manifest in a machine config. What is no object Talos does not make either.
func readInline(contents string) (out []map[string]any) {
	for _, text := range strings.Split("\n"+contents, "\n---") {
		var o map[string]any
		if yaml.Unmarshal([]byte(text), &o) == nil && len(o) > 0 {
			out = append(out, o)
		}
	}
	return out
}

// Bootstrap are the bootstrap manifests of a control plane, by the ids of its resources. Each has
// the objects of one file. Those that are to be downloaded never are: the machine has no way to where they are.
func Bootstrap(cp world.ControlPlane, cfg config.Provider) map[string]func(*k8s.Manifest) {
	proxy := ""
	if p := cfg.K8sProxyConfig(); p != nil {
		proxy = p.Image()
	}
	items := map[string][]k8s.SingleManifest{}
	for _, o := range system.Deployed(cp, proxy) {
		items[numbers[o.Name]] = append(items[numbers[o.Name]], k8s.SingleManifest{Object: o.Manifest()})
	}
	for _, m := range cfg.K8sInlineManifestConfigs() {
		id := extra + "-" + m.Name()
		for _, o := range readInline(m.Contents()) {
			items[id] = append(items[id], k8s.SingleManifest{Object: o})
		}
	}
	out := map[string]func(*k8s.Manifest){}
	for id, all := range items {
		out[id] = func(r *k8s.Manifest) { r.TypedSpec().Items = all }
	}
	return out
}
