package machineconfig

import (
	"fmt"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// imagesOf are the images that the rendered config of a node names, by component.
func imagesOf(t rapid.TB, c cluster.Config) map[string]string {
	t.Helper()
	p, err := configloader.NewFromBytes(c.Bytes.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{"kubelet": p.K8sKubeletConfig().Image()}
	if p.Machine().Type().IsControlPlane() {
		out["kube-apiserver"], out["kube-controller-manager"] = p.K8sAPIServerConfig().Image(), p.K8sControllerManagerConfig().Image()
		out["kube-scheduler"], out["kube-proxy"] = p.K8sSchedulerConfig().Image(), imageOfProxy(p)
	}
	return out
}

// TestComponents: whatever versions the components of a node are to have, each image has its own,
// from the registry of before, and nothing else of the config changes.
func TestComponents(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawSnapshot(rt, t)
		patched := rapid.Bool().Draw(rt, "registry of a patch")
		if patched {
			image := "image: \"registry.example.org/kubelet:" + s.Spec.Versions.Kubernetes + "\""
			if s.Spec.Versions.Contract == "v1.14" {
				withPatch(&s, "patches/registry.yaml", "{apiVersion: v1alpha1, kind: KubeletConfig, "+image+"}")
			} else {
				withPatch(&s, "patches/registry.yaml", "machine: {kubelet: {"+image+"}}")
			}
		}
		var r Renderer
		plain, ps := r.Render(s, testSchematic)
		if ps.HasErrors() {
			rt.Fatal(ps)
		}
		version := rapid.SampledFrom([]string{"", s.Spec.Versions.Kubernetes, "v1.31.0", "v1.32.3-rc.1"})
		want := map[string]map[string]string{} // by node and component
		for i := range s.Spec.Nodes {
			n := &s.Spec.Nodes[i]
			n.Components = cluster.Components{APIServer: version.Draw(rt, "apiserver"), ControllerManager: version.Draw(rt, "controller manager"),
				Scheduler: version.Draw(rt, "scheduler"), Proxy: version.Draw(rt, "proxy"), Kubelet: version.Draw(rt, "kubelet")}
			want[n.Name] = map[string]string{}
			for _, c := range components {
				want[n.Name][c.name] = c.want(n.Components)
			}
		}
		staged, ps := r.Render(s, testSchematic)
		if ps.HasErrors() {
			rt.Fatal(ps)
		}
		for name, before := range plain {
			after, text := imagesOf(rt, staged[name]), staged[name].Bytes.RevealString()
			if staged[name].Final != before.Summary.Images || before.Final != before.Summary.Images {
				rt.Errorf("%s has %+v in the end, and %+v without steps", name, staged[name].Final, before.Summary.Images)
			}
			for c, image := range imagesOf(rt, before) {
				wanted := image
				if v := want[name][c]; v != "" {
					wanted = strings.TrimSuffix(image, s.Spec.Versions.Kubernetes) + v
				}
				if after[c] != wanted {
					rt.Errorf("%s of %s is %s, want %s", c, name, after[c], wanted)
				}
				text = strings.ReplaceAll(text, "image: "+wanted+"\n", "image: "+image+"\n")
			}
			if text != before.Bytes.RevealString() {
				rt.Errorf("more than images of %s changed:\n%s\nis not\n%s", name, text, before.Bytes.RevealString())
			}
			if patched && !strings.HasPrefix(after["kubelet"], "registry.example.org/") {
				rt.Errorf("the kubelet of %s is %s", name, after["kubelet"])
			}
		}
	})
}

// TestPinnedComponents: what a patch pins stays so, and where it can not, no config is made.
func TestPinnedComponents(t *testing.T) {
	for name, tc := range map[string]struct{ patch, want string }{
		"another tag": {"cluster: {proxy: {image: \"registry.example.org/kube-proxy:v9\"}}", "registry.example.org/kube-proxy:v9"},
		"a registry":  {"cluster: {proxy: {image: \"registry.example.org/kube-proxy:v1.36.1\"}}", "registry.example.org/kube-proxy:v1.35.10"},
		"a digest": {"cluster: {proxy: {image: \"registry.example.org/kube-proxy:v1.36.1@sha256:" + strings.Repeat("0", 64) + "\"}}",
			"machine config of node dev-cp-1: a patch has the digest sha256:" + strings.Repeat("0", 64) + " for the image of kube-proxy, and its version has to be v1.35.10 before it is v1.36.1 (leave the digest out of the patch until all nodes run v1.36.1)"},
	} {
		s := snapshot(t, "v1.13")
		s.Spec.Nodes = s.Spec.Nodes[:1]
		s.Spec.Nodes[0].Components.Proxy = "v1.35.10"
		withPatch(&s, "patches/proxy.yaml", tc.patch)
		var r Renderer
		configs, ps := r.Render(s, testSchematic)
		var got string
		for _, p := range ps {
			if p.Severity == cluster.Error {
				got = fmt.Sprintf("%s (%s)", p.Message, p.Hint)
			}
		}
		if c, ok := configs["dev-cp-1"]; ok {
			got = imagesOf(t, c)["kube-proxy"]
		}
		if got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}

// TestProxyInSummary: an image of kube-proxy that is off is none.
func TestProxyInSummary(t *testing.T) {
	for _, contract := range contracts {
		for cni, want := range map[cluster.CNI]string{cluster.CNIFlannel: "registry.k8s.io/kube-proxy:" + kubernetesFor[contract], cluster.CNICilium: ""} {
			s := snapshot(t, contract)
			s.Spec.CNI = cni
			if got := mustRender(t, s)["dev-cp-1"].Summary.Images.Proxy; got != want {
				t.Errorf("%s with %s: kube-proxy is %q", contract, cni, got)
			}
		}
	}
}
