package openapi

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is a resource of a version of a group.
type Resource struct {
	Name, Kind string
	Namespaced bool
	Type       reflect.Type // nil: a custom one, whose fields are not described
}

// PathOf is where a version of a group is served.
func PathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// ListDocuments is what lists the documents: where that of each version is.
func ListDocuments(versions []schema.GroupVersion) map[string]any {
	paths := map[string]any{}
	for _, gv := range versions {
		paths[PathOf(gv)[1:]] = map[string]any{"serverRelativeURL": "/openapi/v3" + PathOf(gv)}
	}
	return map[string]any{"paths": paths}
}

// Describe is the document of a version of a group: of every resource that a PATCH takes
// fieldValidation, and the fields of its kind.
func Describe(gv schema.GroupVersion, resources []Resource) map[string]any {
	paths, schemas := map[string]any{}, map[string]any{}
	for _, r := range resources {
		at := PathOf(gv)
		if r.Namespaced {
			at += "/namespaces/{namespace}"
		}
		kind := metav1.GroupVersionKind(gv.WithKind(r.Kind))
		paths[at+"/"+r.Name+"/{name}"] = map[string]any{"patch": map[string]any{
			"parameters":                      []any{map[string]any{"name": "fieldValidation", "in": "query", "schema": map[string]any{"type": "string"}}},
			"responses":                       map[string]any{},
			"x-kubernetes-action":             "patch",
			"x-kubernetes-group-version-kind": kind,
		}}
		if r.Type != nil {
			collectSchemas(schemas, r.Type)[kindKey] = []any{kind}
			continue
		}
		schemas[gv.Group+"."+gv.Version+"."+r.Kind] = map[string]any{"type": "object", kindKey: []any{kind}}
	}
	return map[string]any{
		"openapi": "3.0.0", "info": map[string]any{"title": "Kubernetes", "version": "unversioned"},
		"paths": paths, "components": map[string]any{"schemas": schemas},
	}
}

const kindKey = "x-kubernetes-group-version-kind"
