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

	"github.com/talos-agent/talos-agent/internal/lab/kube/openapi"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// verbs is what can be done with a resource, which is everything with each that is
// stored.
func (r *resource) verbs() []string {
	if r.review {
		return []string{"create"}
	}
	if r.typ == nil {
		return []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	}
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

// serveDiscovery answers which groups, versions and resources there are: in pieces,
// or in one for clients that ask for the aggregated form.
func (a *apiserver) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	want, ok := rules.NegotiateRendering(r.Header.Get("Accept"), rules.AsGroupsKinds)
	if !ok {
		writeStatus(w, rules.NewRefusal(http.StatusNotAcceptable, "only the following media types are accepted: application/json"))
		return
	}
	root, name, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	core := root == "api"
	if core && name != "" {
		name = "/" + name // the core group has no name
	}
	name, version, _ := strings.Cut(name, "/")
	groups := groupsOf(a.cl.store.listResources())
	top := name == "" && version == ""
	g := findGroup(groups, name)
	var answer any
	switch {
	case !core && root != "apis":
	case top && want == rules.AsGroupsKinds:
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		answer = aggregateGroups(groups, core)
	case top && core:
		answer = a.coreVersions()
	case top:
		answer = listGroups(groups)
	case g == nil:
	case version == "":
		described := g.describeGroup()
		described.Kind, described.APIVersion = "APIGroup", "v1"
		answer = described
	case slices.Contains(g.versions, version):
		answer = g.listResources(version)
	}
	if answer == nil {
		notServed(w, g != nil && !top)
		return
	}
	body, err := json.Marshal(answer)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, body)
}

// coreVersions are those of the core group.
func (a *apiserver) coreVersions() metav1.APIVersions {
	return metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{
			ClientCIDR: "0.0.0.0/0", ServerAddress: netip.AddrPortFrom(a.cp.Address, port).String(),
		}},
	}
}

// listGroups lists all groups but the core.
func listGroups(groups []*group) metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, g := range groups {
		if g.name != "" {
			list.Groups = append(list.Groups, g.describeGroup())
		}
	}
	return list
}

// group is an API group as discovery shows it.
type group struct {
	name      string
	versions  []string // preferred first
	resources []*resource
}

// groupsOf sorts resources into their groups, in the order they are served.
func groupsOf(resources []*resource) []*group {
	var groups []*group
	for _, r := range resources {
		g := findGroup(groups, r.group)
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

func findGroup(groups []*group, name string) *group {
	for _, g := range groups {
		if g.name == name {
			return g
		}
	}
	return nil
}

func (g *group) describeGroup() metav1.APIGroup {
	out := metav1.APIGroup{Name: g.name}
	for _, v := range g.versions {
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: schema.GroupVersion{Group: g.name, Version: v}.String(), Version: v,
		})
	}
	out.PreferredVersion = out.Versions[0]
	return out
}

// listResources lists the resources of one version.
func (g *group) listResources(version string) metav1.APIResourceList {
	list := metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: schema.GroupVersion{Group: g.name, Version: version}.String(),
	}
	for _, r := range g.resources {
		if !r.servesVersion(version) {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.name, SingularName: r.singular, Namespaced: r.namespaced, Kind: r.kind,
			Verbs: r.verbs(), ShortNames: r.short, Categories: r.categories,
		})
		for _, s := range r.subresources() {
			part := metav1.APIResource{Name: r.name + "/" + s.Name, Namespaced: r.namespaced, Kind: s.Kind.Kind, Verbs: s.Verbs}
			if s.Kind.Group != r.group || s.Kind.Version != version {
				part.Group, part.Version = s.Kind.Group, s.Kind.Version
			}
			list.APIResources = append(list.APIResources, part)
		}
	}
	return list
}

func (r *resource) subresources() (out []rules.Subresource) {
	own := schema.GroupVersionKind{Group: r.group, Version: r.storage, Kind: r.kind}
	for _, s := range r.subs {
		out = append(out, rules.DescribeSubresource(s, own))
	}
	if r.status {
		out = append(out, rules.DescribeSubresource("status", own))
	}
	return out
}

// aggregateGroups lists everything at once: the core group for /api, all others for
// /apis.
func aggregateGroups(groups []*group, core bool) apidiscoveryv2.APIGroupDiscoveryList {
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
				if r.servesVersion(v) {
					version.Resources = append(version.Resources, r.describeResource(v))
				}
			}
			described.Versions = append(described.Versions, version)
		}
		list.Items = append(list.Items, described)
	}
	return list
}

func (r *resource) describeResource(version string) apidiscoveryv2.APIResourceDiscovery {
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
			Subresource: s.Name, ResponseKind: &metav1.GroupVersionKind{Group: s.Kind.Group, Version: s.Kind.Version, Kind: s.Kind.Kind}, Verbs: s.Verbs,
		})
	}
	return out
}

// serveOpenAPI serves OpenAPI v3. It returns false if the path is none of its.
func (a *apiserver) serveOpenAPI(w http.ResponseWriter, r *http.Request) bool {
	rest, ok := strings.CutPrefix(strings.TrimRight(r.URL.Path, "/"), "/openapi/v3")
	if !ok {
		return false
	}
	var answer any
	var all []schema.GroupVersion
	for _, g := range groupsOf(a.cl.store.listResources()) {
		for _, v := range g.versions {
			gv := schema.GroupVersion{Group: g.name, Version: v}
			if all = append(all, gv); openapi.PathOf(gv) == rest {
				answer = openapi.Describe(gv, g.describeKinds(v))
			}
		}
	}
	if rest == "" {
		answer = openapi.ListDocuments(all)
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

// describeKinds are the resources of a version as OpenAPI is handed them.
func (g *group) describeKinds(version string) (out []openapi.Resource) {
	for _, r := range g.resources {
		if r.servesVersion(version) {
			out = append(out, openapi.Resource{Name: r.name, Kind: r.kind, Namespaced: r.namespaced, Type: r.typ})
		}
	}
	return out
}
