// Package registry is where and how a kube-apiserver keeps objects in etcd: the keys, and the
// objects as their values. The values are JSON, which a kube-apiserver reads as well as its own
// protobuf, and hold no resourceVersion: that is the revision of the key.
//
// It must not know where objects are kept.
package registry

import (
	"errors"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// prefixes are those that are not the name of the resource.
// Source: kubernetes v1.36, pkg/kubeapiserver: SpecialDefaultResourcePrefixes.
var prefixes = map[string]string{
	"/replicationcontrollers":     "controllers",
	"/endpoints":                  "services/endpoints",
	"/nodes":                      "minions",
	"/services":                   "services/specs",
	"networking.k8s.io/ingresses": "ingress",
}

// Prefix is what the keys of a resource begin with. Custom resources, and their definitions, are
// kept under their group.
func Prefix(group, resource string, custom bool) string {
	if special := prefixes[group+"/"+resource]; special != "" {
		return "/registry/" + special + "/"
	}
	if custom || group == "apiextensions.k8s.io" {
		return "/registry/" + group + "/" + resource + "/"
	}
	return "/registry/" + resource + "/"
}

// Key is the key of an object. Those of resources without namespaces have namespace "".
func Key(prefix, namespace, name string) string {
	if namespace == "" {
		return prefix + name
	}
	return prefix + namespace + "/" + name
}

// Split returns the namespace and the name in a key; false: it is not one of that prefix.
func Split(prefix, key string, namespaced bool) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok || !namespaced {
		return "", rest, ok && rest != "" && !strings.Contains(rest, "/")
	}
	namespace, name, ok = strings.Cut(rest, "/")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}

// Encode is an object as the value of its key.
func Encode(body map[string]any, apiVersion, kind string) ([]byte, error) {
	kept := maps.Clone(body)
	kept["apiVersion"], kept["kind"] = apiVersion, kind
	meta := maps.Clone(rules.MapAt(body, "metadata"))
	delete(meta, "resourceVersion")
	kept["metadata"] = meta
	return json.Marshal(kept)
}

// Decode is the object in a value. It fails where that is none.
func Decode(value []byte) (map[string]any, error) {
	var body map[string]any
	if err := json.Unmarshal(value, &body); err != nil {
		return nil, err
	}
	if rules.TextAt(body, "metadata", "name") == "" {
		return nil, errors.New("an object without a name")
	}
	return body, nil
}
