package helm

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// The kinds whose readiness decides that of a release, as keys have them.
const (
	kindDaemonSet   = "daemonset"
	kindDeployment  = "deployment"
	kindStatefulSet = "statefulset"
)

var kinds = map[string]string{"DaemonSet": kindDaemonSet, "Deployment": kindDeployment, "StatefulSet": kindStatefulSet}

// object names a workload, or another object: its kind, namespace and name.
type object struct{ kind, namespace, name string }

// String implements fmt.Stringer.
func (o object) String() string {
	if o.namespace == "" {
		return o.kind + " " + o.name
	}
	return o.kind + " " + o.namespace + "/" + o.name
}

// aWorkload finds documents that are worth parsing: most are not.
var aWorkload = pattern.New(`(?m)^kind:\s*["']?(DaemonSet|Deployment|StatefulSet)\b`)

// workloadsIn lists the workloads of a manifest in the order it has them, which
// is that of Helm's installation, and their documents. Those without a namespace are in
// the release's.
func workloadsIn(manifest, namespace string) (list []object, documents map[object]string) {
	documents = map[object]string{}
	for document := range strings.SplitSeq("\n"+manifest, "\n---") {
		if !aWorkload.MatchString(document) {
			continue
		}
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Metadata   struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"metadata"`
		}
		// Helm could read it; what does not fit these fields is no workload.
		if yaml.Unmarshal([]byte(document), &head) != nil || !strings.HasPrefix(head.APIVersion, "apps/") || kinds[head.Kind] == "" {
			continue
		}
		o := object{kinds[head.Kind], cmp.Or(head.Metadata.Namespace, namespace), head.Metadata.Name}
		list = append(list, o)
		documents[o] = strings.Clone(document) // and not the whole manifest
	}
	return list, documents
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
