package rules

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What Talos does about the labels and taints of its machine config on the Node object.
// It notes there which of them it has set, and leaves those of others.
// Source: talos v1.13, internal/app/machined/pkg/controllers/k8s/node_apply.go.
const (
	ownedLabels = "talos.dev/owned-labels"
	ownedTaints = "talos.dev/owned-taints"
	cordonedBy  = "talos.dev/cordoned"
)

// Who writes to a Node beside those who ask the server: as the field managers of the
// kubelet, of kube-controller-manager and of Talos are called, whose machined runs as
// /sbin/init and gives its client no other name.
// Source: talos v1.13, internal/app/init/main.go; client-go v0.36, rest.DefaultKubernetesUserAgent.
const (
	Kubelet     = "kubelet"
	Controllers = "kube-controller-manager"
	Talos       = "init"
)

// WriteAs notes in a Node that what edit changes of it was written by a manager. Its status
// is a subresource, and is not noted.
func WriteAs(manager string, node map[string]any, edit func()) {
	var was map[string]any
	if len(ListAt(node, "metadata", "managedFields")) > 0 {
		was = runtime.DeepCopyJSON(node)
	}
	edit()
	w := Write{Manager: manager, Kind: schema.GroupVersionKind{Version: "v1", Kind: "Node"}}
	if err := KeepOwners(w, was, node); err != nil {
		panic(err) // the kind is known
	}
}

// NewNode is the Node that a kubelet registers, with what the controllers add to it: cidrs
// are the networks of its pods, separated by commas, "" if it gets none.
func NewNode(name, cidrs string) map[string]any {
	node := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}}
	WriteAs(Kubelet, node, func() {
		EnsureMap(node, "metadata", "annotations")["volumes.kubernetes.io/controller-managed-attach-detach"] = "true"
	})
	WriteAs(Controllers, node, func() {
		EnsureMap(node, "metadata", "annotations")["node.alpha.kubernetes.io/ttl"] = "0"
		if cidrs != "" {
			var all []any
			for cidr := range strings.SplitSeq(cidrs, ",") {
				all = append(all, cidr)
			}
			node["spec"] = map[string]any{"podCIDR": all[0], "podCIDRs": all}
		}
	})
	return node
}

// SetLabels gives a Node the labels of its machine config.
func SetLabels(node map[string]any, want map[string]string) {
	labels, owned := EnsureMap(node, "metadata", "labels"), readOwned(node, ownedLabels)
	for key, value := range want {
		have, there := labels[key]
		if !there || have == value || owned[key] {
			labels[key], owned[key] = value, true
		}
	}
	writeOwned(node, ownedLabels, owned)
}

// DropLabels takes those from a Node that Talos has set and the config has no more, and
// reports whether there were any.
func DropLabels(node map[string]any, want map[string]string) (dropped bool) {
	owned := readOwned(node, ownedLabels)
	for key := range owned {
		if _, wanted := want[key]; !wanted {
			delete(EnsureMap(node, "metadata", "labels"), key)
			delete(owned, key)
			dropped = true
		}
	}
	writeOwned(node, ownedLabels, owned)
	return dropped
}

// RegisterTaints gives a Node that is made the taints of its machine config, as its
// kubelet does.
func RegisterTaints(node map[string]any, want []string) {
	for _, text := range want {
		t := parseTaint(text)
		AddTaint(EnsureMap(node, "spec"), t.Key, t.Value, t.Effect)
	}
}

// SetTaints gives the Node of a control plane the taints of its machine config, and
// takes back those that it has no more. (A worker may not change its own.)
func SetTaints(node map[string]any, want []string) {
	spec, owned := EnsureMap(node, "spec"), readOwned(node, ownedTaints)
	wanted := map[string]bool{}
	for _, text := range want {
		t := parseTaint(text)
		wanted[t.Key] = true
		i := slices.IndexFunc(MapsAt(spec, "taints"), func(have map[string]any) bool { return TextAt(have, "key") == t.Key })
		if i >= 0 && !owned[t.Key] {
			have := MapsAt(spec, "taints")[i]
			owned[t.Key] = TextAt(have, "value") == t.Value && TextAt(have, "effect") == string(t.Effect)
			continue
		}
		RemoveTaint(spec, t.Key)
		AddTaint(spec, t.Key, t.Value, t.Effect)
		owned[t.Key] = true
	}
	for key := range owned {
		if owned[key] && !wanted[key] {
			RemoveTaint(spec, key)
		}
		owned[key] = owned[key] && wanted[key]
	}
	writeOwned(node, ownedTaints, owned)
}

// Cordon keeps new pods away from a Node, noting that it was Talos, and reports whether it had
// to: what somebody else has cordoned stays theirs.
func Cordon(node map[string]any) bool {
	if BoolAt(node, "spec", "unschedulable") {
		return false
	}
	EnsureMap(node, "spec")["unschedulable"] = true
	EnsureMap(node, "metadata", "annotations")[cordonedBy] = "true"
	return true
}

// Uncordon takes that back.
func Uncordon(node map[string]any) {
	if TextAt(node, "metadata", "annotations", cordonedBy) != "" {
		delete(EnsureMap(node, "spec"), "unschedulable")
		delete(EnsureMap(node, "metadata", "annotations"), cordonedBy)
	}
}

// parseTaint reads key=value:Effect or key:Effect.
func parseTaint(text string) corev1.Taint {
	rest, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(rest, "=")
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
}

// readOwned reads a list of keys from an annotation of a Node.
func readOwned(node map[string]any, annotation string) map[string]bool {
	var keys []string
	owned := map[string]bool{}
	if json.Unmarshal([]byte(TextAt(node, "metadata", "annotations", annotation)), &keys) == nil {
		for _, key := range keys {
			owned[key] = true
		}
	}
	return owned
}

// writeOwned writes it.
func writeOwned(node map[string]any, annotation string, owned map[string]bool) {
	maps.DeleteFunc(owned, func(_ string, is bool) bool { return !is })
	annotations := EnsureMap(node, "metadata", "annotations")
	if len(owned) == 0 {
		delete(annotations, annotation)
		return
	}
	body, err := json.Marshal(slices.Sorted(maps.Keys(owned)))
	if err != nil {
		panic(err) // texts
	}
	annotations[annotation] = string(body)
}
