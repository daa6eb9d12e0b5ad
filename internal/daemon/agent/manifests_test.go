package agent_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// imageOf is the image of the first container of a workload of kube-system.
func (s *sim) imageOf(resource, name string) string {
	s.T.Helper()
	for _, o := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}, "kube-system") {
		if containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers"); o.GetName() == name && len(containers) > 0 {
			image, _, _ := unstructured.NestedString(containers[0].(map[string]any), "image")
			return image
		}
	}
	s.T.Errorf("there is no %s", name)
	return ""
}

// TestManifestsFollow: what Talos deploys once when a cluster is made follows each hop: kube-proxy the version of Kubernetes,
// Flannel that of Talos. What a Helm release has taken over stays as it is.
func TestManifestsFollow(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		files := sz.Files()
		const file = "inventory/dev/cluster.yaml"
		changed(t, files, file, "cni: cilium", "cni: flannel")
		changed(t, files, file, "addons: [addons/cilium.yaml, addons/podinfo.yaml]", "addons: []")
		changed(t, files, file, "kubernetes_version: v1.36.1", "kubernetes_version: v1.35.10")
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "the cluster")
		s.Boot()
		s.UntilReady(30 * time.Minute)
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodPatch, "/apis/apps/v1/namespaces/kube-system/deployments/coredns",
			`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"coredns","meta.helm.sh/release-namespace":"kube-system"}}}`)
		dns, flannel := s.imageOf("deployments", "coredns"), s.imageOf("daemonsets", "kube-flannel")
		if image := s.imageOf("daemonsets", "kube-proxy"); !strings.HasSuffix(image, ":v1.35.10") {
			t.Errorf("kube-proxy begins as %s", image)
		}

		changed(t, files, file, "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Push(files, "another kubernetes")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		if image := s.imageOf("daemonsets", "kube-proxy"); !strings.HasSuffix(image, ":v1.36.1") {
			t.Errorf("kube-proxy is %s after the upgrade of Kubernetes", image)
		}
		if image := s.imageOf("daemonsets", "kube-flannel"); image != flannel {
			t.Errorf("Flannel is %s after an upgrade of Kubernetes alone, and was %s", image, flannel)
		}

		changed(t, files, file, "talos_version: v1.13.9", "talos_version: v1.14.1")
		s.Push(files, "another talos")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		if image := s.imageOf("daemonsets", "kube-flannel"); image == flannel {
			t.Errorf("Flannel is still %s after the upgrade of Talos", image)
		}
		if image := s.imageOf("deployments", "coredns"); image != dns {
			t.Errorf("the cluster's DNS belongs to Helm, and was changed from %s to %s", dns, image)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}
