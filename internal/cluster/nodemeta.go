package cluster

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// AnnotationOwned holds, on a Node object, the labels and taints that the agent answers
// for, with the values that it has set: once they leave the inventory it takes them back.
const AnnotationOwned = "talos-agent.dev/owned"

// NodeMeta are labels and taints of a Node object. The taints are by key, each as
// "value:Effect"; where a key has several, with commas between them.
type NodeMeta struct {
	Labels map[string]string `json:"labels,omitempty"`
	Taints map[string]string `json:"taints,omitempty"`
}

// ownTaints begin the keys of the taints that Kubernetes itself sets and removes: by the
// state of a node, whatever anybody asks for.
const ownTaints = "node.kubernetes.io/"

// Meta is what the inventory has of the node's Node object.
func (n Node) Meta() NodeMeta {
	m := NodeMeta{Labels: n.Labels, Taints: maps.Clone(n.Taints)}
	maps.DeleteFunc(m.Taints, func(key, _ string) bool { return strings.HasPrefix(key, ownTaints) })
	return m
}

// IsZero reports whether there are none.
func (m NodeMeta) IsZero() bool { return len(m.Labels)+len(m.Taints) == 0 }

// Encode writes it for an annotation, the same always; "" : there are none.
func (m NodeMeta) Encode() string {
	if m.IsZero() {
		return ""
	}
	text, err := json.Marshal(m) // maps are sorted
	if err != nil {
		panic(err) // texts
	}
	return string(text)
}

// DecodeNodeMeta reads what Encode wrote. In an annotation anybody may write anything:
// what cannot be the name or the value of a label or taint is left out.
func DecodeNodeMeta(text string) NodeMeta {
	var m NodeMeta
	if text == "" || json.Unmarshal([]byte(text), &m) != nil {
		return NodeMeta{}
	}
	strange := func(key, value string) bool { return !isPlain(key) || !isPlain(value) }
	maps.DeleteFunc(m.Labels, strange)
	maps.DeleteFunc(m.Taints, strange)
	return m
}

// isPlain reports whether a text has only what names and values of labels and taints
// are made of.
func isPlain(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./:,", r)
	})
}

// MetaEdit is a label or a taint of a Node object that is to become another.
type MetaEdit struct {
	Taint      bool
	Key        string
	Have, Want *string // nil: none
}

// EditsOf is what makes a Node object what the inventory has. What the agent answers for
// and the inventory has no more is removed, unless somebody has changed it since. All else
// is of others.
func (m NodeMeta) EditsOf(have, owned NodeMeta) []MetaEdit {
	return append(editsOf(false, m.Labels, have.Labels, owned.Labels), editsOf(true, m.Taints, have.Taints, owned.Taints)...)
}

func editsOf(taint bool, want, have, owned map[string]string) []MetaEdit {
	var out []MetaEdit
	at := func(of map[string]string, key string) *string {
		if value, ok := of[key]; ok {
			return &value
		}
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if value, ok := have[key]; !ok || value != want[key] {
			out = append(out, MetaEdit{taint, key, at(have, key), at(want, key)})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(owned)) {
		_, wanted := want[key]
		if value, ok := have[key]; ok && !wanted && value == owned[key] {
			out = append(out, MetaEdit{taint, key, at(have, key), nil})
		}
	}
	return out
}

// IsNoted reports whether enough is noted on a Node object to take back later what the
// inventory has now, and nothing of others. Talos takes back labels that it has set, and
// the taints of a control plane; a worker is registered with its taints, and only the agent
// removes them.
func (m NodeMeta) IsNoted(owned NodeMeta, role Role) bool {
	within := func(a, b map[string]string) bool { // keys
		for key := range a {
			if _, ok := b[key]; !ok {
				return false
			}
		}
		return true
	}
	return within(owned.Labels, m.Labels) && within(owned.Taints, m.Taints) && (role != Worker || maps.Equal(owned.Taints, m.Taints))
}
