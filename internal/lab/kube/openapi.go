package kube

import (
	"encoding/json"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// serveOpenAPI serves as much of OpenAPI v3 as makes clients leave the checking of
// fields to the server: Helm asks it before it makes a hook, kubectl before it
// creates or applies anything. No schemas are in it. It returns false if the
// path is none of OpenAPI's.
func (a *apiserver) serveOpenAPI(w http.ResponseWriter, r *http.Request) bool {
	path := strings.Trim(r.URL.Path, "/")
	rest, ok := strings.CutPrefix(path, "openapi/v3")
	if !ok {
		return false
	}
	groups := groupsOf(a.cl.store.listResources())
	var answer any
	if rest == "" {
		paths := map[string]any{}
		for _, g := range groups {
			for _, v := range g.versions {
				at := versionPath(g.name, v)
				paths[at[1:]] = map[string]any{"serverRelativeURL": "/openapi/v3" + at}
			}
		}
		answer = map[string]any{"paths": paths}
	}
	for _, g := range groups {
		for _, v := range g.versions {
			if versionPath(g.name, v) == rest {
				answer = g.openAPI(v)
			}
		}
	}
	if answer == nil {
		notServed(w, false)
		return true
	}
	body, err := json.Marshal(answer)
	if err != nil {
		writeError(w, err)
		return true
	}
	writeJSON(w, http.StatusOK, body)
	return true
}

// versionPath is where a version of a group is served.
func versionPath(group, version string) string {
	if group == "" {
		return "/api/" + version
	}
	return "/apis/" + group + "/" + version
}

// openAPI states of every resource that a PATCH takes fieldValidation.
func (g *group) openAPI(version string) map[string]any {
	paths := map[string]any{}
	for _, r := range g.resources {
		if !r.servesVersion(version) {
			continue
		}
		at := versionPath(g.name, version)
		if r.namespaced {
			at += "/namespaces/{namespace}"
		}
		kind := metav1.GroupVersionKind(schema.GroupVersionKind{Group: g.name, Version: version, Kind: r.kind})
		paths[at+"/"+r.name+"/{name}"] = map[string]any{"patch": map[string]any{
			"parameters":                      []any{map[string]any{"name": "fieldValidation", "in": "query", "schema": map[string]any{"type": "string"}}},
			"responses":                       map[string]any{},
			"x-kubernetes-action":             "patch",
			"x-kubernetes-group-version-kind": kind,
		}}
	}
	return map[string]any{"openapi": "3.0.0", "info": map[string]any{"title": "Kubernetes", "version": "unversioned"}, "paths": paths}
}
