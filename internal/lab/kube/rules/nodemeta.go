package rules

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// What Talos does about the labels and taints of its machine config on the Node object.
// It notes there which of them it has set, and leaves those of others.
// Source: talos v1.13, internal/app/machined/pkg/controllers/k8s/node_apply.go.
const (
	ownedLabels = "talos.dev/owned-labels"
	ownedTaints = "talos.dev/owned-taints"
)

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
