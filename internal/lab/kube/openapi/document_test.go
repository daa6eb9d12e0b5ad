package openapi

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// document is what clients read of one.
type document struct {
	Paths      map[string]any
	Components struct{ Schemas map[string]*fields }
}

type fields struct {
	Ref         string `json:"$ref"`
	AllOf       []fields
	Description string
	Required    []string
	Properties  map[string]fields
	Kinds       []any `json:"x-kubernetes-group-version-kind"`
}

// TestDescribe reads documents as clients do: every reference leads somewhere, and fields
// are as the API's own document has them.
func TestDescribe(t *testing.T) {
	for _, typ := range []reflect.Type{reflect.TypeFor[corev1.Pod](), reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]()} {
		gv := schema.GroupVersion{Group: "g", Version: "v1"}
		raw, err := json.Marshal(Describe(gv, []Resource{{Name: "things", Kind: typ.Name(), Namespaced: true, Type: typ}, {Name: "others", Kind: "Other"}}))
		if err != nil {
			t.Fatal(err)
		}
		var doc document
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		if doc.Paths["/apis/g/v1/namespaces/{namespace}/things/{name}"] == nil || doc.Paths["/apis/g/v1/others/{name}"] == nil {
			t.Errorf("%s: paths %v", typ, doc.Paths)
		}
		refs := 0
		for _, part := range strings.Split(string(raw), `"$ref":"#/components/schemas/`)[1:] {
			name, _, _ := strings.Cut(part, `"`)
			if refs++; doc.Components.Schemas[name] == nil {
				t.Errorf("%s: nothing at %s", typ, name)
			}
		}
		if refs < 10 {
			t.Errorf("%s: %d references", typ, refs)
		}
		if typ.Name() != "Pod" {
			continue
		}
		spec := doc.Components.Schemas["io.k8s.api.core.v1.PodSpec"]
		probe := doc.Components.Schemas["io.k8s.api.core.v1.Probe"]
		if spec == nil || !slices.Contains(spec.Required, "containers") || !strings.HasPrefix(spec.Properties["hostNetwork"].Description, "Host networking requested") ||
			probe == nil || probe.Properties["httpGet"].AllOf[0].Ref != "#/components/schemas/io.k8s.api.core.v1.HTTPGetAction" {
			t.Errorf("PodSpec %v, Probe %v", spec, probe)
		}
		if pod := doc.Components.Schemas["io.k8s.api.core.v1.Pod"]; pod == nil || len(pod.Kinds) != 1 || !strings.HasPrefix(pod.Properties["kind"].Description, "Kind is a string value") {
			t.Errorf("Pod %v", pod)
		}
	}
}
