package rules

import "k8s.io/apimachinery/pkg/runtime/schema"

// Subresource is a part of a resource with an address of its own, as discovery
// shows it.
type Subresource struct {
	Name  string
	Kind  schema.GroupVersionKind
	Verbs []string
}

// DescribeSubresource describes a subresource of a resource of that kind.
func DescribeSubresource(name string, own schema.GroupVersionKind) Subresource {
	core := func(kind string) schema.GroupVersionKind { return schema.GroupVersionKind{Version: "v1", Kind: kind} }
	switch name {
	case "eviction":
		return Subresource{name, schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, []string{"create"}}
	case "scale":
		return Subresource{name, schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, []string{"get", "patch", "update"}}
	case "finalize":
		return Subresource{name, own, []string{"update"}}
	case "log":
		return Subresource{name, own, []string{"get"}}
	case "attach":
		return Subresource{name, core("PodAttachOptions"), []string{"create", "get"}}
	case "exec":
		return Subresource{name, core("PodExecOptions"), []string{"create", "get"}}
	case "portforward":
		return Subresource{name, core("PodPortForwardOptions"), []string{"create", "get"}}
	}
	return Subresource{name, own, []string{"get", "patch", "update"}}
}
