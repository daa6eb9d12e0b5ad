package manifests

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestEntry: keys are read and written as cli-utils has them, which Talos and talosctl use, and none is taken for another object.
func TestEntry(t *testing.T) {
	kind := func(group, kind string) schema.GroupKind { return schema.GroupKind{Group: group, Kind: kind} }
	for key, want := range map[string]entry{
		"kube-system_kube-proxy_apps_DaemonSet":                           {"kube-system", "kube-proxy", kind("apps", "DaemonSet")},
		"kube-system_coredns__ServiceAccount":                             {"kube-system", "coredns", kind("", "ServiceAccount")},
		"_kube-system__Namespace":                                         {"", "kube-system", kind("", "Namespace")},
		"_system__coredns_rbac.authorization.k8s.io_ClusterRole":          {"", "system:coredns", kind("rbac.authorization.k8s.io", "ClusterRole")},
		"_system__a__b_rbac.authorization.k8s.io_ClusterRole":             {"", "system:a:b", kind("rbac.authorization.k8s.io", "ClusterRole")},
		"_foos.example.org_apiextensions.k8s.io_CustomResourceDefinition": {"", "foos.example.org", kind("apiextensions.k8s.io", "CustomResourceDefinition")},
	} {
		if got, ok := parseEntry(key); !ok || got != want || got.key() != key {
			t.Errorf("%s is read as %+v, %v, and written as %s", key, got, ok, got.key())
		}
	}
	for _, key := range []string{"", "a", "a_b", "a_b_c", "___", "a__c_", "a_b_c_d_e"} {
		if got, ok := parseEntry(key); ok {
			t.Errorf("%q is read as %+v", key, got)
		}
	}
}

// listed is what the inventory lists.
func (b *bench) listed() string {
	b.Helper()
	cm, err := b.set.CoreV1().ConfigMaps("kube-system").Get(b.Context(), inventoryName, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return strings.Join(slices.Sorted(maps.Keys(cm.Data)), " ")
}

// list adds to the inventory.
func (b *bench) list(keys ...string) {
	b.Helper()
	cm, err := b.set.CoreV1().ConfigMaps("kube-system").Get(b.Context(), inventoryName, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, key := range keys {
		cm.Data[key] = ""
	}
	if _, err := b.set.CoreV1().ConfigMaps("kube-system").Update(b.Context(), cm, metav1.UpdateOptions{}); err != nil {
		b.Fatal(err)
	}
}

// patchProxy changes the DaemonSet of kube-proxy.
func (b *bench) patchProxy(manager, patch string) {
	b.Helper()
	if _, err := b.set.AppsV1().DaemonSets("kube-system").Patch(b.Context(), "kube-proxy", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager}); err != nil {
		b.Fatal(err)
	}
}

// hasProxy reports whether kube-proxy is there.
func (b *bench) hasProxy() bool {
	b.Helper()
	_, err := b.set.AppsV1().DaemonSets("kube-system").Get(b.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		b.Fatal(err)
	}
	return err == nil
}

const (
	proxyDeleted   = "DaemonSet kube-system/kube-proxy (deleted: nothing renders it)"
	accountDeleted = "ServiceAccount kube-system/kube-proxy (deleted: nothing renders it)"
	others         = "kube-system_coredns__ServiceAccount kube-system_coredns_apps_Deployment kube-system_flannel__ServiceAccount kube-system_kube-dns__Service kube-system_kube-flannel_apps_DaemonSet"
	proxies        = " kube-system_kube-proxy__ServiceAccount kube-system_kube-proxy_apps_DaemonSet"
)

// TestPrune: what Talos has made and nothing renders any longer is shown, deleted, and taken out of the inventory after that; and what
// becomes rendered is in the inventory with its mark, so that talosctl finds it there.
func TestPrune(t *testing.T) {
	bubble(t, func(b *bench) {
		if got := b.listed(); got != others+proxies {
			t.Fatalf("Talos lists %s", got)
		}
		b.list("kube-system_deleted__ConfigMap", "no key", "kube-system_a_example.org_Thing")
		b.plane.KubeProxy = false
		b.render("v1.13.9", "v1.36.1")
		m := b.expect("kube-proxy is switched off", proxyDeleted, accountDeleted)
		if !b.hasProxy() {
			t.Fatal("looking has deleted it")
		}
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			t.Fatal(err)
		}
		b.expect("deleted")
		if got, want := b.listed(), "kube-system_a_example.org_Thing "+others+" no key"; b.hasProxy() || strings.Join(slices.Sorted(slices.Values(strings.Split(got, " "))), " ") != strings.Join(slices.Sorted(slices.Values(strings.Split(want, " "))), " ") {
			t.Errorf("kube-proxy is there: %v; the inventory lists %s", b.hasProxy(), got)
		}
		b.plane.KubeProxy = true
		b.render("v1.13.9", "v1.36.1")
		m = b.expect("and on again", "ServiceAccount kube-system/kube-proxy (new)", "DaemonSet kube-system/kube-proxy (new)")
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			t.Fatal(err)
		}
		ds, err := b.set.AppsV1().DaemonSets("kube-system").Get(b.Context(), "kube-proxy", metav1.GetOptions{})
		if err != nil || ds.Annotations[owningInventory] != inventoryName || !strings.Contains(b.listed(), strings.TrimSpace(proxies)) {
			t.Errorf("%v, its mark is %q; the inventory lists %s", err, ds.Annotations[owningInventory], b.listed())
		}
	})
}

// TestPruneKept: nothing is deleted but what is Talos' and nobody else's.
func TestPruneKept(t *testing.T) {
	annotated := func(key, value string) func(*bench) {
		return func(b *bench) {
			text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
			if err != nil {
				b.Fatal(err)
			}
			b.patchProxy("somebody", string(text))
		}
	}
	for name, c := range map[string]struct {
		do func(*bench)
		// want is what is left to be deleted; the ServiceAccount beside it always is.
		want string
	}{
		"nothing is done to it":                      {func(*bench) {}, proxyDeleted},
		"another label":                              {func(b *bench) { b.patchProxy("kubectl-label", `{"metadata":{"labels":{"a":"b"}}}`) }, proxyDeleted},
		"its mark is removed, and Talos has made it": {func(b *bench) { b.patchProxy("kubectl", `{"metadata":{"annotations":null}}`) }, proxyDeleted},
		"a release of Helm":                          {annotated("meta.helm.sh/release-name", "proxy"), ""},
		"Helm manages it": {func(b *bench) {
			b.patchProxy("helm", `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"}}}`)
		}, ""},
		"another inventory":    {annotated(owningInventory, "theirs"), ""},
		"kubectl applies it":   {annotated(corev1.LastAppliedConfigAnnotation, "{}"), ""},
		"it is to be kept":     {annotated("cli-utils.sigs.k8s.io/on-remove", "keep"), ""},
		"it is to be detached": {annotated("client.lifecycle.config.k8s.io/deletion", "detach"), ""},
		"an object owns it": {func(b *bench) {
			b.patchProxy("operator", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`)
		}, ""},
		"it is being deleted": {func(b *bench) {
			b.patchProxy("operator", `{"metadata":{"finalizers":["example.org/wait"]}}`)
			if err := b.set.AppsV1().DaemonSets("kube-system").Delete(b.Context(), "kube-proxy", metav1.DeleteOptions{}); err != nil {
				b.Fatal(err)
			}
		}, ""},
		"somebody else applies it": {func(b *bench) {
			apply := []byte(`{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"kube-proxy","labels":{"kustomize.toolkit.fluxcd.io/name":"a"}}}`)
			if _, err := b.set.AppsV1().DaemonSets("kube-system").Patch(b.Context(), "kube-proxy", types.ApplyPatchType, apply, metav1.PatchOptions{FieldManager: "kustomize-controller"}); err != nil {
				b.Fatal(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.plane.KubeProxy = false
				b.render("v1.13.9", "v1.36.1")
				all := b.expect("before", proxyDeleted, accountDeleted)
				c.do(b)
				b.keeper.Forget("")
				want := []string{accountDeleted}
				if c.want != "" {
					want = []string{c.want, accountDeleted}
				}
				b.expect(name, want...)
				if err := b.keeper.Sync(b.Context(), b.desired, all); err != nil { // what was shown before
					t.Fatal(err)
				}
				if b.hasProxy() == (c.want != "") {
					t.Errorf("kube-proxy is there: %v", b.hasProxy())
				}
			})
		})
	}
}

// TestPruneOthers: an object that the inventory lists because Talos has found it, and did not make it, is not deleted; nor is one that it
// does not list. What takes more with it is left, and named.
func TestPruneOthers(t *testing.T) {
	bubble(t, func(b *bench) {
		make := func(name, manager, mark string) {
			t.Helper()
			meta := metav1.ObjectMeta{Name: name, Annotations: map[string]string{owningInventory: mark}}
			if mark == "" {
				meta.Annotations = nil
			}
			if _, err := b.set.CoreV1().ConfigMaps("default").Create(b.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{FieldManager: manager}); err != nil {
				t.Fatal(err)
			}
		}
		make("found", "kubectl-create", "")
		make("unlisted", fieldManager, inventoryName)
		make("made", "talosctl", "")
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "extra", Annotations: map[string]string{owningInventory: inventoryName}}}
		if _, err := b.set.CoreV1().Namespaces().Create(b.Context(), ns, metav1.CreateOptions{FieldManager: fieldManager}); err != nil {
			t.Fatal(err)
		}
		b.list("default_found__ConfigMap", "default_made__ConfigMap", "_extra__Namespace", "kube-system_"+inventoryName+"__ConfigMap", "kube-system_kube-dns_example.org_Service")
		b.render("v1.13.9", "v1.36.1")
		m := b.expect("what is listed and not rendered", "ConfigMap default/made (deleted: nothing renders it)",
			"Namespace extra: nothing renders it any longer, and no Namespace is deleted, because more goes with it: `kubectl delete` it when nothing needs it")
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			t.Fatal(err)
		}
		cms, err := b.set.CoreV1().ConfigMaps("default").List(b.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, cm := range cms.Items {
			names = append(names, cm.Name)
		}
		if got := strings.Join(names, " "); got != "found kube-root-ca.crt unlisted" {
			t.Errorf("there are %s", got)
		}
	})
}

// TestPruneUnknown: nothing is deleted where nothing is rendered, or not all of what is asked for; on nodes of which one has a Talos that keeps no inventory;
// and when the control planes render something else by the time of it, or do not answer.
func TestPruneUnknown(t *testing.T) {
	bubble(t, func(b *bench) {
		b.rendered = cluster.Saw(cluster.RenderedManifests{Objects: cluster.SecretString("[]")})
		m := b.expect("nothing is rendered")
		m.Changes = append(m.Changes, cluster.ObjectChange{Object: "DaemonSet kube-system/kube-proxy", Deleted: true})
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			t.Fatal(err)
		}
		b.plane.KubeProxy = false
		b.os = "Talos (v1.12.11)"
		b.render("v1.13.9", "v1.36.1")
		b.expect("a node has Talos 1.12")
		b.os = "Talos (v1.13.9)"
		b.render("v1.13.9", "v1.36.1")
		b.rendered.Value.Lacks = "cp-1 has not rendered one of two"
		b.expect("one is not downloaded", "DaemonSet kube-system/kube-proxy: nothing renders it now, and cp-1 has not rendered one of two", "ServiceAccount kube-system/kube-proxy: nothing renders it now, and cp-1 has not rendered one of two")
		b.render("v1.13.9", "v1.36.1")
		m = b.expect("all is", proxyDeleted, accountDeleted)
		for what, now := range map[string]cluster.Seen[cluster.RenderedManifests]{
			"unknown":    cluster.Unseen[cluster.RenderedManifests]("cp-2: no answer"),
			"incomplete": cluster.Saw(cluster.RenderedManifests{Objects: m.Rendered.Objects, Lacks: "one"}),
			"other":      cluster.Saw(cluster.RenderedManifests{Objects: cluster.SecretString("[{}]")}),
		} {
			b.rendered = now
			if err := b.keeper.Sync(b.Context(), b.desired, m); err == nil || !b.hasProxy() {
				t.Errorf("%s: %v, kube-proxy is there: %v", what, err, b.hasProxy())
			}
		}
	})
}

// TestPruneCrash: what is applied is in the inventory before, and what is deleted until after that: a Sync that ends in between loses nothing,
// and the next one ends it. A machine that writes the inventory meanwhile is not overwritten.
func TestPruneCrash(t *testing.T) {
	bubble(t, func(b *bench) {
		b.plane.KubeProxy = false
		b.render("v1.13.9", "v1.36.1")
		more := `,{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"more","namespace":"default"},"data":{"a":"b"}}]`
		text := strings.TrimSuffix(b.rendered.Value.Objects.RevealString(), "]") + more
		b.rendered = cluster.Saw(cluster.RenderedManifests{Objects: cluster.SecretString(text)})
		m := b.expect("one more, and less", proxyDeleted, accountDeleted, "ConfigMap default/more (new)")
		fails := func(method, path string) {
			t.Helper()
			b.refuse = func(r *http.Request) bool {
				return r.Method == method && strings.Contains(r.URL.Path, path) && r.URL.Query().Get("dryRun") == ""
			}
			if err := b.keeper.Sync(b.Context(), b.desired, m); err == nil {
				t.Fatalf("%s %s was not refused", method, path)
			}
			b.refuse = nil
		}
		fails(http.MethodPatch, "/configmaps/more")
		if got := b.listed(); got != "default_more__ConfigMap "+others+proxies {
			t.Errorf("before it is made the inventory lists %s", got)
		}
		fails(http.MethodDelete, "/serviceaccounts/")
		if got := b.listed(); b.hasProxy() || got != "default_more__ConfigMap "+others+proxies {
			t.Errorf("after half the deletions the inventory lists %s", got)
		}
		m = b.expect("half", accountDeleted)
		writes := 0
		b.refuse = func(r *http.Request) bool {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, inventoryName) {
				if writes++; writes == 1 {
					refuse := b.refuse
					b.refuse = nil
					b.list("default_theirs__Secret") // between its being read and written
					b.refuse = refuse
				}
			}
			return false
		}
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			t.Fatal(err)
		}
		if got := b.listed(); got != "default_more__ConfigMap default_theirs__Secret "+others || writes != 2 {
			t.Errorf("after %d writes the inventory lists %s", writes, got)
		}
		b.expect("all")
	})
}

// TestMark: an object that Talos made before it kept an inventory bears no mark. That alone is no difference; it gets the mark when it changes.
// One of another inventory is left.
func TestMark(t *testing.T) {
	bubble(t, func(b *bench) {
		b.patchProxy("kubectl", `{"metadata":{"annotations":null}}`)
		b.render("v1.13.9", "v1.36.1")
		b.expect("as it was made")
		b.render("v1.13.9", "v1.37.0")
		m := b.expect("another version", proxyChange)
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			t.Fatal(err)
		}
		b.expect("applied")
		if ds, err := b.set.AppsV1().DaemonSets("kube-system").Get(b.Context(), "kube-proxy", metav1.GetOptions{}); err != nil || ds.Annotations[owningInventory] != inventoryName {
			t.Errorf("%v, its mark is %q", err, ds.Annotations[owningInventory])
		}
		b.patchProxy("kubectl", `{"metadata":{"annotations":{"`+owningInventory+`":"theirs"}}}`)
		b.render("v1.13.9", "v1.36.1")
		b.expect("of another", "DaemonSet kube-system/kube-proxy: the inventory theirs has it")
	})
}

// refuser refuses requests on their way.
type refuser struct {
	http.RoundTripper
	b *bench
}

func (r refuser) RoundTrip(req *http.Request) (*http.Response, error) {
	if refuse := r.b.refuse; refuse != nil && refuse(req) {
		return nil, context.DeadlineExceeded
	}
	return r.RoundTripper.RoundTrip(req)
}

// TestKeepsMore: with what an object may take more than itself.
func TestKeepsMore(t *testing.T) {
	object := func(apiVersion, kind string, more map[string]any) *unstructured.Unstructured {
		o := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": "a"}}
		maps.Copy(o, more)
		return &unstructured.Unstructured{Object: o}
	}
	deletes := map[string]any{"spec": map[string]any{"persistentVolumeClaimRetentionPolicy": map[string]any{"whenDeleted": "Delete"}}}
	retains := map[string]any{"spec": map[string]any{"persistentVolumeClaimRetentionPolicy": map[string]any{"whenDeleted": "Retain"}}}
	final := map[string]any{"metadata": map[string]any{"name": "a", "finalizers": []any{"resources-finalizer.argocd.argoproj.io"}}}
	for name, c := range map[string]struct {
		o    *unstructured.Unstructured
		want string
	}{
		"a ConfigMap":            {object("v1", "ConfigMap", nil), ""},
		"a DaemonSet":            {object("apps/v1", "DaemonSet", nil), ""},
		"a role":                 {object("rbac.authorization.k8s.io/v1", "ClusterRole", nil), ""},
		"a Namespace":            {object("v1", "Namespace", nil), "no Namespace is deleted, because more goes with it"},
		"a definition":           {object("apiextensions.k8s.io/v1", "CustomResourceDefinition", nil), "no CustomResourceDefinition is deleted, because more goes with it"},
		"an object of Argo CD":   {object("argoproj.io/v1alpha1", "Application", nil), "no Application is deleted, because only its own controller knows what goes with it"},
		"one with a finalizer":   {object("v1", "ConfigMap", final), "it has finalizers, by which more may go with it"},
		"a StatefulSet":          {object("apps/v1", "StatefulSet", nil), ""},
		"one that keeps volumes": {object("apps/v1", "StatefulSet", retains), ""},
		"one that takes its own": {object("apps/v1", "StatefulSet", deletes), "its volumes would go with it"},
	} {
		if got := keepsMore(c.o); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
