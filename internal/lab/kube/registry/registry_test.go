package registry_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/talos-agent/talos-agent/internal/lab/kube/registry"
)

// TestKeysAreThoseOfKubernetes: as a kube-apiserver names what it keeps.
func TestKeysAreThoseOfKubernetes(t *testing.T) {
	for _, c := range []struct {
		group, resource string
		custom          bool
		ns, name, want  string
	}{
		{"", "pods", false, "kube-system", "etcd-cp1", "/registry/pods/kube-system/etcd-cp1"},
		{"", "nodes", false, "", "cp1", "/registry/minions/cp1"},
		{"", "services", false, "default", "kubernetes", "/registry/services/specs/default/kubernetes"},
		{"", "endpoints", false, "default", "kubernetes", "/registry/services/endpoints/default/kubernetes"},
		{"apps", "deployments", false, "kube-system", "coredns", "/registry/deployments/kube-system/coredns"},
		{"apiextensions.k8s.io", "customresourcedefinitions", false, "", "widgets.lab.io", "/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.lab.io"},
		{"lab.io", "widgets", true, "default", "w", "/registry/lab.io/widgets/default/w"},
	} {
		prefix := registry.Prefix(c.group, c.resource, c.custom)
		if got := registry.Key(prefix, c.ns, c.name); got != c.want {
			t.Errorf("key %s, want %s", got, c.want)
		}
		if ns, name, ok := registry.Split(prefix, c.want, c.ns != ""); !ok || ns != c.ns || name != c.name {
			t.Errorf("%s is split into %q and %q", c.want, ns, name)
		}
	}
	if _, _, ok := registry.Split("/registry/services/specs/", "/registry/services/endpoints/default/kubernetes", true); ok {
		t.Error("endpoints are taken for services")
	}
}

// TestValuesAreObjects: what is decoded is what was encoded, numbers and all, without the version,
// which the key has.
func TestValuesAreObjects(t *testing.T) {
	body := map[string]any{"metadata": map[string]any{"name": "c", "resourceVersion": "7"}, "spec": map[string]any{"replicas": int64(3), "share": 0.5}}
	value, err := registry.Encode(body, "apps/v1", "Deployment")
	if err != nil {
		t.Fatal(err)
	}
	got, err := registry.Decode(value)
	want := map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "c"}, "spec": map[string]any{"replicas": int64(3), "share": 0.5}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, bad := range []string{"", "[]", "{}", `{"metadata":{"na`} {
		if _, err := registry.Decode([]byte(bad)); err == nil {
			t.Errorf("%q is taken for an object", bad)
		}
	}
}
