package system

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestDeployed: the images follow the versions of Talos and of kube-proxy, and what a config switches off is not rendered.
func TestDeployed(t *testing.T) {
	images := func(cp world.ControlPlane) string {
		var out []string
		for _, o := range Deployed(cp, "registry.k8s.io/kube-proxy:v1.36.1") {
			m := o.Manifest()
			spec, _ := m["spec"].(map[string]any)
			template, _ := spec["template"].(map[string]any)
			if pod, ok := template["spec"].(map[string]any); ok {
				image := pod["containers"].([]any)[0].(map[string]any)["image"].(string)
				out = append(out, m["kind"].(string)+" "+image[strings.LastIndex(image, "/")+1:])
			}
		}
		return strings.Join(out, ", ")
	}
	for name, c := range map[string]struct {
		cp   world.ControlPlane
		want string
	}{
		"1.14":             {world.ControlPlane{Talos: "v1.14.1", CNI: "flannel", KubeProxy: true}, "Deployment coredns:v1.14.7, DaemonSet flannel:v0.28.9, DaemonSet kube-proxy:v1.36.1"},
		"1.13":             {world.ControlPlane{Talos: "v1.13.9", CNI: "flannel", KubeProxy: true}, "Deployment coredns:v1.14.2, DaemonSet flannel:v0.28.4, DaemonSet kube-proxy:v1.36.1"},
		"no version":       {world.ControlPlane{KubeProxy: true}, "Deployment coredns:v1.14.7, DaemonSet kube-proxy:v1.36.1"},
		"a network of its": {world.ControlPlane{Talos: "v1.13.9", CNI: "none"}, "Deployment coredns:v1.14.2"},
		"no DNS":           {world.ControlPlane{NoDNS: true, CNI: "none"}, ""},
	} {
		if got := images(c.cp); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestDeploy: Talos makes what is missing, once. Since 1.13 it lists what it has made, and what it has found, and makes nothing again that is
// listed; before, it makes again what somebody has deleted. What it does not render any longer stays, and stays listed.
func TestDeploy(t *testing.T) {
	there := map[string]bool{"kube-dns": true}
	listed := map[string]any{}
	deploy := func(what string, cp world.ControlPlane, want, wantListed string) {
		t.Helper()
		missing, lists := Deploy(cp, listed, func(o Object) bool { return there[o.Name] })
		var got []string
		for _, o := range missing {
			there[o.Name] = true
			meta, _ := o.Body["metadata"].(map[string]any)
			mark, _ := meta["annotations"].(map[string]any)
			got = append(got, strings.TrimSpace(o.Name+" "+strings.Repeat("marked", len(mark))))
		}
		if got, keys := strings.Join(got, ", "), strings.Join(slices.Sorted(maps.Keys(lists)), " "); got != want || keys != wantListed {
			t.Errorf("%s: makes %s; lists %s", what, got, keys)
		}
		listed = lists
	}
	cp := world.ControlPlane{Talos: "v1.12.11", CNI: "none", ServiceCIDR: "10.96.0.0/12"}
	deploy("made by 1.12", cp, "coredns, coredns", "")
	delete(there, "coredns")
	deploy("deleted, 1.12", cp, "coredns, coredns", "")
	cp.Talos = "v1.13.9"
	const dns = "kube-system_coredns__ServiceAccount kube-system_coredns_apps_Deployment kube-system_kube-dns__Service"
	deploy("what 1.13 finds", cp, Inventory, dns)
	delete(there, "coredns")
	deploy("deleted, 1.13", cp, "", dns)
	cp.KubeProxy = true
	const all = "kube-system_coredns__ServiceAccount kube-system_coredns_apps_Deployment kube-system_kube-dns__Service kube-system_kube-proxy__ServiceAccount kube-system_kube-proxy_apps_DaemonSet"
	deploy("more is rendered", cp, "kube-proxy marked, kube-proxy marked", all)
	cp.NoDNS = true
	deploy("less is rendered", cp, "", all)
}
