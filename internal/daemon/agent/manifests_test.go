package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
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

// lists reports whether Kubernetes has an object in a namespace, and whether Talos' inventory lists it there by a key.
func (s *sim) lists(group, resource, namespace, name, key string) (there, listed bool) {
	s.T.Helper()
	for _, o := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, namespace) {
		there = there || o.GetName() == name
	}
	for _, o := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "kube-system") {
		if o.GetName() == "talos-bootstrap-manifests-inventory" {
			data, _, _ := unstructured.NestedMap(o.Object, "data")
			_, listed = data[key]
		}
	}
	return there, listed
}

// TestManifestsPruned: what a push switches off of what Talos deploys stays while the nodes make a hop, is shown then, and deleted at its
// end, in a cluster of three control planes; and taken out of Talos' inventory. While a manifest that the config names cannot be downloaded,
// nothing is: its objects look the same.
func TestManifestsPruned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		files := sz.Files()
		const file, patch = "inventory/dev/cluster.yaml", "inventory/dev/patches/extra.yaml"
		changed(t, files, file, "cni: cilium\n", "cni: flannel\npatches: {controlplane: [patches/extra.yaml]}\n")
		changed(t, files, file, "addons: [addons/cilium.yaml, addons/podinfo.yaml]", "addons: []")
		changed(t, files, file, "kubernetes_version: v1.36.1", "kubernetes_version: v1.35.10")
		const inline = "cluster:\n  inlineManifests:\n    - name: a\n      contents: |\n        apiVersion: v1\n        kind: ConfigMap\n        metadata: {name: a, namespace: kube-system}\n        data: {b: c}\n"
		files[patch] = []byte(inline)
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "the cluster")
		s.Boot()
		s.UntilReady(30 * time.Minute)
		expect := func(what string, want bool) {
			t.Helper()
			for key, o := range map[string][3]string{"kube-system_a__ConfigMap": {"", "configmaps", "a"}, "kube-system_kube-proxy_apps_DaemonSet": {"apps", "daemonsets", "kube-proxy"}} {
				if there, listed := s.lists(o[0], o[1], "kube-system", o[2], key); there != want || listed != want {
					t.Errorf("%s: %s is there: %v, and listed: %v", what, o[2], there, listed)
				}
			}
		}
		expect("when it is made", true)

		files[patch] = []byte("cluster:\n  proxy: {disabled: true}\n  extraManifests: [https://manifests.example.org/later.yaml]\n")
		changed(t, files, file, "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Push(files, "less, and one that cannot be downloaded")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		expect("while one is not downloaded", true)
		if text := s.Status().Problems.Error(); !strings.Contains(text, "DaemonSet kube-system/kube-proxy: nothing renders it now, and dev-cp-") || !strings.Contains(text, "1 of the 1 further manifests") {
			t.Errorf("no warning has what is not downloaded: %s", text)
		}

		files[patch] = []byte("cluster:\n  proxy: {disabled: true}\n")
		changed(t, files, file, "talos_version: v1.13.9", "talos_version: v1.14.1")
		s.Push(files, "another talos")
		s.Until(4*time.Hour, "it is shown", func(st cluster.Status) bool {
			text, err := json.Marshal(st)
			return err == nil && strings.Contains(string(text), "DaemonSet kube-system/kube-proxy (deleted: nothing renders it)")
		})
		s.untilAppliedIn(4*time.Hour, "upgraded")
		expect("at the end", false)
		if image := s.imageOf("daemonsets", "kube-flannel"); image == "" {
			t.Error("Flannel is not there")
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestManifestsFollow: what Talos deploys once when a cluster is made follows each hop: kube-proxy the version of Kubernetes,
// Flannel that of Talos. What a Helm release has taken over stays as it is.
func TestManifestsFollow(t *testing.T) {
	t.Parallel()
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

// TestManifestsRollOut: the next hop does not begin before the pods of what was applied are the new ones. An image that cannot be pulled
// shows as overdue, with the workload; when it can be, the upgrade goes on by itself. What the nodes go back to, they go back to with what Talos
// deploys once, though the window is closed.
func TestManifestsRollOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		files := sz.Files()
		const file = "inventory/dev/cluster.yaml"
		changed(t, files, file, "cni: cilium\n", "cni: flannel\n")
		changed(t, files, file, "addons: [addons/cilium.yaml, addons/podinfo.yaml]", "addons: []")
		withVersions(t, files, [2]string{"v1.13.9", "v1.36.1"}, [2]string{"v1.11.6", "v1.34.13"})
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "the cluster")
		s.Boot()
		s.UntilReady(30 * time.Minute)
		first := s.imageOf("daemonsets", "kube-flannel")
		s.Lab.Kube.CloseRegistry("ghcr.io")
		withVersions(t, files, [2]string{"v1.11.6", "v1.34.13"}, [2]string{"v1.13.9", "v1.34.13"})
		s.Push(files, "two hops")
		s.Until(4*time.Hour, "the rollout is overdue", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.ManifestsRolling && strings.Contains(st.Message, "DaemonSet kube-system/kube-flannel: 1 of 3 pods are new")
		})
		s.wantTalos("v1.12.11")
		second := s.imageOf("daemonsets", "kube-flannel")
		if second == first {
			t.Errorf("Flannel is still %s", first)
		}
		s.Lab.Kube.OpenRegistry("ghcr.io")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		if image := s.imageOf("daemonsets", "kube-flannel"); image == second {
			t.Errorf("Flannel is still %s", image)
		}

		now := time.Now().UTC()
		changed(t, files, file, "cni: flannel\n", fmt.Sprintf("cni: flannel\nwindow: {from: %q, to: %q}\n", now.Add(10*time.Hour).Format("15:04"), now.Add(11*time.Hour).Format("15:04")))
		withVersions(t, files, [2]string{"v1.13.9", "v1.34.13"}, [2]string{"v1.12.11", "v1.34.13"})
		s.goesBack()
		s.Push(files, "back")
		s.untilAppliedIn(2*time.Hour, "all of it is back")
		if image := s.imageOf("daemonsets", "kube-flannel"); image != second {
			t.Errorf("Flannel is %s, and not back at %s", image, second)
		}
		s.wantTalos("v1.12.11")
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}
