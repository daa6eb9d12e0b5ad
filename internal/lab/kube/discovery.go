package kube

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// verbs is what can be done with a resource, which is everything with each.
func (r *resource) verbs() []string {
	if r.typ == nil {
		return []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	}
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

// discover answers which groups, versions and resources there are: in pieces,
// or in one for clients that ask for the aggregated form.
func (a *apiserver) discover(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	groups := groupsOf(a.cl.store.resources())
	want, ok := negotiate(r.Header.Get("Accept"), asGroupsKinds)
	if !ok {
		writeStatus(w, refusal(http.StatusNotAcceptable, "only the following media types are accepted: application/json"))
		return
	}
	aggregated := want == asGroupsKinds && len(parts) == 1
	var answer any
	switch {
	case len(parts) == 1 && (parts[0] == "api" || parts[0] == "apis") && aggregated:
		answer = aggregate(groups, parts[0] == "api")
	case len(parts) == 1 && parts[0] == "api":
		answer = metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{
				ClientCIDR: "0.0.0.0/0", ServerAddress: netip.AddrPortFrom(a.cp.Address, port).String(),
			}},
		}
	case len(parts) == 1 && parts[0] == "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, g := range groups {
			if g.name != "" {
				list.Groups = append(list.Groups, g.described())
			}
		}
		answer = list
	case len(parts) == 2 && parts[0] == "apis":
		if g := find(groups, parts[1]); g != nil {
			described := g.described()
			described.Kind, described.APIVersion = "APIGroup", "v1"
			answer = described
		}
	case len(parts) == 2 && parts[0] == "api":
		answer = find(groups, "").listed(parts[1])
	case len(parts) == 3 && parts[0] == "apis":
		answer = find(groups, parts[1]).listed(parts[2])
	}
	if list, ok := answer.(*metav1.APIResourceList); answer == nil || ok && list == nil {
		group := ""
		if parts[0] != "api" && len(parts) > 1 {
			group = parts[1]
		}
		if len(parts) < 2 {
			group = "none at all"
		}
		a.notServed(w, &request{group: group})
		return
	}
	body, err := json.Marshal(answer)
	if err != nil {
		writeError(w, err)
		return
	}
	if aggregated {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		_, _ = w.Write(body) // a client that is gone has lost nothing of ours
		return
	}
	writeJSON(w, http.StatusOK, body)
}

// group is an API group as discovery tells of it.
type group struct {
	name      string
	versions  []string // preferred first
	resources []*resource
}

// groupsOf sorts resources into their groups, in the order they are served.
func groupsOf(resources []*resource) []*group {
	var groups []*group
	for _, r := range resources {
		g := find(groups, r.group)
		if g == nil {
			g = &group{name: r.group}
			groups = append(groups, g)
		}
		g.resources = append(g.resources, r)
		for _, v := range r.versions {
			if !slices.Contains(g.versions, v) {
				g.versions = append(g.versions, v)
			}
		}
	}
	return groups
}

func find(groups []*group, name string) *group {
	for _, g := range groups {
		if g.name == name {
			return g
		}
	}
	return nil
}

func (g *group) described() metav1.APIGroup {
	out := metav1.APIGroup{Name: g.name}
	for _, v := range g.versions {
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: schema.GroupVersion{Group: g.name, Version: v}.String(), Version: v,
		})
	}
	out.PreferredVersion = out.Versions[0]
	return out
}

// listed tells the resources of one version; nil if the group has no such
// version, or is none.
func (g *group) listed(version string) *metav1.APIResourceList {
	if g == nil || !slices.Contains(g.versions, version) {
		return nil
	}
	list := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: schema.GroupVersion{Group: g.name, Version: version}.String(),
	}
	for _, r := range g.resources {
		if !r.serves(version) {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.name, SingularName: r.singular, Namespaced: r.namespaced, Kind: r.kind,
			Verbs: r.verbs(), ShortNames: r.short, Categories: r.categories,
		})
		for _, s := range r.subresources() {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: r.name + "/" + s.name, Namespaced: r.namespaced, Kind: s.kind.Kind,
				Group: differing(s.kind.Group, r.group), Version: differing(s.kind.Version, version), Verbs: s.verbs,
			})
		}
	}
	return list
}

// differing is value where it is not the usual one.
func differing(value, usual string) string {
	if value == usual {
		return ""
	}
	return value
}

// subresource is a part of a resource with an address of its own.
type subresource struct {
	name  string
	kind  schema.GroupVersionKind
	verbs []string
}

func (r *resource) subresources() []subresource {
	own := schema.GroupVersionKind{Group: r.group, Version: r.storage, Kind: r.kind}
	var out []subresource
	for _, s := range r.subs {
		switch s {
		case "eviction":
			out = append(out, subresource{s, schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, []string{"create"}})
		case "finalize":
			out = append(out, subresource{s, own, []string{"update"}})
		default:
			out = append(out, subresource{s, own, []string{"get", "patch", "update"}})
		}
	}
	if r.status {
		out = append(out, subresource{"status", own, []string{"get", "patch", "update"}})
	}
	return out
}

// aggregate tells everything at once: the core group for /api, all others for
// /apis.
func aggregate(groups []*group, core bool) apidiscoveryv2.APIGroupDiscoveryList {
	list := apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
	}
	for _, g := range groups {
		if core != (g.name == "") {
			continue
		}
		described := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.name}}
		for _, v := range g.versions {
			version := apidiscoveryv2.APIVersionDiscovery{Version: v, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			for _, r := range g.resources {
				if r.serves(v) {
					version.Resources = append(version.Resources, r.discovered(v))
				}
			}
			described.Versions = append(described.Versions, version)
		}
		list.Items = append(list.Items, described)
	}
	return list
}

func (r *resource) discovered(version string) apidiscoveryv2.APIResourceDiscovery {
	scope := apidiscoveryv2.ScopeCluster
	if r.namespaced {
		scope = apidiscoveryv2.ScopeNamespace
	}
	out := apidiscoveryv2.APIResourceDiscovery{
		Resource: r.name, ResponseKind: &metav1.GroupVersionKind{Group: r.group, Version: version, Kind: r.kind},
		Scope: scope, SingularResource: r.singular, Verbs: r.verbs(), ShortNames: r.short, Categories: r.categories,
	}
	for _, s := range r.subresources() {
		out.Subresources = append(out.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: s.name, ResponseKind: &metav1.GroupVersionKind{Group: s.kind.Group, Version: s.kind.Version, Kind: s.kind.Kind}, Verbs: s.verbs,
		})
	}
	return out
}
