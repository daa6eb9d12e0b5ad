package kube_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
)

func TestDiscoveryAndDynamic(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		_, lists, err := set.Discovery().ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, list := range lists {
			for _, r := range list.APIResources {
				seen[list.GroupVersion+"/"+r.Name] = true
			}
		}
		for _, want := range []string{"v1/pods", "v1/pods/status", "apps/v1/daemonsets", "policy/v1/poddisruptionbudgets", "autoscaling/v2/horizontalpodautoscalers", "certificates.k8s.io/v1/certificatesigningrequests"} {
			if !seen[want] {
				t.Errorf("discovery does not tell of %s", want)
			}
		}
		// The same in pieces, for clients that do not know the aggregated form.
		legacy := discovery.NewDiscoveryClientForConfigOrDie(l.config(apiAddr))
		legacy.UseLegacyDiscovery = true
		_, pieces, err := legacy.ServerGroupsAndResources()
		if err != nil || len(pieces) != len(lists) {
			t.Errorf("in pieces: %d lists of %d, %v", len(pieces), len(lists), err)
		}
		mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(legacy))
		m, err := mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "DaemonSet"})
		if err != nil || m.Resource.Resource != "daemonsets" {
			t.Fatalf("mapping %+v, %v", m, err)
		}
		client := dynamic.NewForConfigOrDie(l.config(apiAddr))
		list, err := client.Resource(m.Resource).Namespace("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "k8s-app in (kube-proxy)"})
		if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "kube-proxy" || list.GetKind() != "DaemonSetList" {
			t.Errorf("dynamic list %+v, %v", list, err)
		}
		meta := metadata.NewForConfigOrDie(l.config(apiAddr))
		partial, err := meta.Resource(m.Resource).Namespace("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil || len(partial.Items) != 2 || partial.Items[0].Name != "kube-flannel" {
			t.Errorf("metadata list %+v, %v", partial, err)
		}
	})
}

func TestCustomResources(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		l.running(apiAddr)
		client := dynamic.NewForConfigOrDie(l.config(apiAddr))
		crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		things := client.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}).Namespace("default")
		if _, err := crds.Create(ctx, thingDefinition(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		thing := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.org/v1", "kind": "Thing", "metadata": map[string]any{"name": "one"},
			"spec": map[string]any{"n": int64(1)}, "status": map[string]any{"dropped": true},
		}}
		_, err := things.Create(ctx, thing, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound) // not served yet
		eventually(t, "established", 5*time.Second, func() error {
			_, err := things.Create(ctx, thing, metav1.CreateOptions{})
			return err
		})
		crd, err := crds.Get(ctx, "things.example.org", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
		if err != nil || len(conditions) != 2 || conditions[1].(map[string]any)["type"] != "Established" {
			t.Errorf("conditions %v, %v", conditions, err)
		}
		one, err := things.Get(ctx, "one", metav1.GetOptions{})
		if err != nil || one.Object["status"] != nil || one.GetGeneration() != 1 {
			t.Fatalf("thing %+v, %v", one, err)
		}
		if one, err = things.Patch(ctx, "one", types.MergePatchType, []byte(`{"spec":{"n":2}}`), metav1.PatchOptions{}); err != nil || one.GetGeneration() != 2 {
			t.Errorf("patched thing %+v, %v", one, err)
		}
		_, err = things.Patch(ctx, "one", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
		mustReason(t, err, metav1.StatusReasonUnsupportedMediaType)
		beta := client.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1beta1", Resource: "things"})
		old, err := beta.List(ctx, metav1.ListOptions{})
		if err != nil || len(old.Items) != 1 || old.Items[0].GetAPIVersion() != "example.org/v1beta1" {
			t.Errorf("in the other version: %+v, %v", old, err)
		}
		one.SetResourceVersion("")
		_, err = things.Update(ctx, one, metav1.UpdateOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)

		// A finalizer holds the thing, the thing holds the definition.
		if _, err = things.Patch(ctx, "one", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.org/hold"]}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := crds.Delete(ctx, "things.example.org", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if one, err = things.Get(ctx, "one", metav1.GetOptions{}); err != nil || one.GetDeletionTimestamp() == nil {
			t.Fatalf("held thing %+v, %v", one, err)
		}
		if _, err = things.Patch(ctx, "one", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		_, err = things.List(ctx, metav1.ListOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)
		_, err = crds.Get(ctx, "things.example.org", metav1.GetOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)
	})
}

func TestNamespaceGoesWithItsContent(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ns := set.CoreV1().Namespaces()
		if _, err := ns.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		maps := set.CoreV1().ConfigMaps("app")
		held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.org/hold"}}}
		if _, err := maps.Create(ctx, held, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "what every namespace has", time.Second, func() error {
			_, err := set.CoreV1().ServiceAccounts("app").Get(ctx, "default", metav1.GetOptions{})
			return err
		})
		if err := ns.Delete(ctx, "app", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		app, err := ns.Get(ctx, "app", metav1.GetOptions{})
		if err != nil || app.Status.Phase != corev1.NamespaceTerminating {
			t.Fatalf("namespace %+v, %v", app, err)
		}
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonForbidden)
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("error %v tells no cause", err)
		}
		if _, err = maps.Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the namespace is gone", time.Second, func() error {
			if _, err := ns.Get(ctx, "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.New("still there")
			}
			return nil
		})
	})
}

func TestServices(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		services := l.running(apiAddr).CoreV1().Services("default")
		make := func(name string, spec corev1.ServiceSpec) (*corev1.Service, error) {
			return services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		}
		ports := []corev1.ServicePort{{Port: 80}}
		a, err := make("a", corev1.ServiceSpec{Ports: ports})
		if err != nil || !strings.HasPrefix(a.Spec.ClusterIP, "10.96.1.") || a.Spec.Ports[0].TargetPort.IntValue() != 80 {
			t.Errorf("service %+v, %v", a, err)
		}
		b, err := make("b", corev1.ServiceSpec{Ports: ports, Type: corev1.ServiceTypeLoadBalancer})
		if err != nil || b.Spec.ClusterIP == a.Spec.ClusterIP || b.Spec.Ports[0].NodePort == 0 || len(b.Status.LoadBalancer.Ingress) > 0 {
			t.Errorf("service %+v, %v", b, err)
		}
		if h, err := make("h", corev1.ServiceSpec{ClusterIP: "None"}); err != nil || h.Spec.ClusterIP != "None" {
			t.Errorf("service %+v, %v", h, err)
		}
		_, err = make("far", corev1.ServiceSpec{Ports: ports, ClusterIP: "192.0.2.1"})
		mustReason(t, err, metav1.StatusReasonInvalid)
		a.Spec.ClusterIP = "10.96.9.9"
		_, err = services.Update(ctx, a, metav1.UpdateOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)
		k, err := services.Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil || k.Spec.ClusterIP != "10.96.0.1" {
			t.Errorf("service %+v, %v", k, err)
		}
	})
}

func thingDefinition() *unstructured.Unstructured {
	version := func(name string, storage bool) any {
		return map[string]any{
			"name": name, "served": true, "storage": storage, "subresources": map[string]any{"status": map[string]any{}},
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "things.example.org"},
		"spec": map[string]any{
			"group": "example.org", "scope": "Namespaced",
			"names":    map[string]any{"plural": "things", "kind": "Thing"},
			"versions": []any{version("v1beta1", false), version("v1", true)},
		},
	}}
}
