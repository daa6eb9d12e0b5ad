package system

import (
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
