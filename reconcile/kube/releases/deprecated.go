package releases

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// removals are the kinds of Kubernetes that some version of it does not have, by their API, each with that version, v1.36.
var removals = sync.OnceValue(func() map[schema.GroupVersion]map[string]string {
	out := map[schema.GroupVersion]map[string]string{}
	for kind := range scheme.Scheme.AllKnownTypes() {
		o, err := scheme.Scheme.New(kind)
		if err != nil {
			continue // one of a type that cannot be made is none of an API
		}
		if t, ok := o.(interface{ APILifecycleRemoved() (major, minor int) }); ok {
			major, minor := t.APILifecycleRemoved()
			if out[kind.GroupVersion()] == nil {
				out[kind.GroupVersion()] = map[string]string{}
			}
			out[kind.GroupVersion()][kind.Kind] = fmt.Sprintf("v%d.%d", major, minor)
		}
	}
	return out
})

// What is read of a manifest at most: whoever may make a Secret can have any text in it, and an object that is parsed takes a hundred times
// its size.
const (
	mostManifest = 16 << 20
	mostObject   = 2 << 20
)

// head is what of an object of a manifest counts. One of a list has its objects in items.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []head `json:"items"`
}

// findDeprecated finds the kinds of a manifest that some version of Kubernetes does not have, in a fixed order.
func findDeprecated(manifest string) ([]cluster.DeprecatedAPI, error) {
	if len(manifest) > mostManifest {
		return nil, fmt.Errorf("its manifest has more than %d MiB", mostManifest>>20)
	}
	var out []cluster.DeprecatedAPI
	for document := range strings.SplitSeq("\n"+manifest, "\n---") {
		if !namesDeprecated(document) {
			continue // most do not, and are not worth to be parsed
		}
		if len(document) > mostObject {
			return nil, fmt.Errorf("its manifest has an object of more than %d MiB", mostObject>>20)
		}
		var o head
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return nil, errors.New("its manifest has an object that cannot be read")
		}
		for _, h := range append(o.Items, o) {
			api, err := schema.ParseGroupVersion(h.APIVersion)
			if err != nil {
				continue // no API of Kubernetes has such a name
			}
			if removed := removals()[api][h.Kind]; removed != "" {
				out = append(out, cluster.DeprecatedAPI{Group: api.Group, Version: api.Version, Resource: h.Kind, Removed: removed})
			}
		}
	}
	slices.SortFunc(out, func(a, b cluster.DeprecatedAPI) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version), strings.Compare(a.Resource, b.Resource))
	})
	return slices.Compact(out), nil
}

// namesDeprecated reports whether an API that is deprecated is named anywhere in a document.
func namesDeprecated(document string) bool {
	for api := range removals() {
		if strings.Contains(document, api.String()) {
			return true
		}
	}
	return false
}
