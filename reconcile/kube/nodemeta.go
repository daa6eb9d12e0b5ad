package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// metaKeys are keys of labels, taints and annotations that are looked at on every Node, beside those
// that the agent has noted on it.
type metaKeys map[string]bool

// keysOf are the keys that an inventory names.
func keysOf(s cluster.Spec) metaKeys {
	keys := metaKeys{}
	for _, n := range s.Nodes {
		keys.add(n.Meta())
	}
	return keys
}

// add adds the keys of m.
func (keys metaKeys) add(m cluster.NodeMeta) {
	for key := range m.Labels {
		keys[key] = true
	}
	for key := range m.Taints {
		keys[key] = true
	}
	for key := range m.Annotations {
		keys[key] = true
	}
}

// nodeReader reads Nodes: of their labels, taints and annotations what some keys name, and
// what the agent has noted with its seal.
type nodeReader struct {
	metaKeys
	seal cluster.Secret
}

// isEqual reports whether another one reads the same.
func (r nodeReader) isEqual(o nodeReader) bool {
	return maps.Equal(r.metaKeys, o.metaKeys) && r.seal.Equal(o.seal)
}

// ownedOf are the labels, taints and annotations that the agent answers for on a Node.
func (r nodeReader) ownedOf(n *corev1.Node) cluster.NodeMeta {
	return cluster.OpenNodeMeta(n.Annotations[cluster.AnnotationOwned], r.seal, identityOf(n))
}

// identityOf is what no other Node object is called.
func identityOf(n *corev1.Node) string { return n.Name + "/" + string(n.UID) }

// pick are the labels, or the annotations, of a Node that are looked at: has are all of
// them, owned those that the agent answers for.
func (keys metaKeys) pick(has, owned map[string]string) map[string]string {
	var out map[string]string
	for key, value := range has {
		if _, ours := owned[key]; ours || keys[key] {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

// taintsOf are the taints of a Node that are looked at.
func (keys metaKeys) taintsOf(n *corev1.Node, owned cluster.NodeMeta) []corev1.Taint {
	var out []corev1.Taint
	for _, t := range n.Spec.Taints {
		if _, ours := owned.Taints[t.Key]; ours || keys[t.Key] {
			out = append(out, t)
		}
	}
	return out
}

// metaOf reads the labels, taints and annotations of a Node that are looked at.
func (keys metaKeys) metaOf(n *corev1.Node, owned cluster.NodeMeta) cluster.NodeMeta {
	m := cluster.NodeMeta{Labels: keys.pick(n.Labels, owned.Labels), Annotations: keys.pick(n.Annotations, owned.Annotations)}
	values := map[string][]string{}
	for _, t := range keys.taintsOf(n, owned) {
		values[t.Key] = append(values[t.Key], t.Value+":"+string(t.Effect))
	}
	for key, list := range values {
		if m.Taints == nil {
			m.Taints = map[string]string{}
		}
		slices.Sort(list)
		m.Taints[key] = strings.Join(list, ",")
	}
	return m
}

// Label gives a Node the labels, taints and annotations of n, takes back those that it was
// given before and n has no more, and notes which these are. What others have set stays, and so
// does what they have made of ours since it left n, and what is left of n, in the names of
// MetaEdit.Field. A node that is not there is left to its
// registration. What it returns is no more than that Kubernetes cannot be asked or
// refuses: it can be called again.
func (k *Cluster) Label(ctx context.Context, d cluster.Desired, n cluster.Node, left []string) error {
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return fmt.Errorf("label %s: %w", n.Name, err)
	}
	defer leave()
	c := &changer{k: k, access: d.Access.Kube}
	want := n.Meta()
	r := nodeReader{metaKeys{}, d.Access.Kube.Seal}
	r.add(want)
	_, err = c.alterNode(ctx, n.Name, func(node *corev1.Node) (patch, error) {
		owned := r.ownedOf(node)
		edits := slices.DeleteFunc(want.EditsOf(r.metaOf(node, owned), owned), func(e cluster.MetaEdit) bool { return slices.Contains(left, e.Field()) })
		note := want.SealExcept(left, owned, r.seal, identityOf(node))
		if len(edits) == 0 && note == node.Annotations[cluster.AnnotationOwned] {
			return nil, nil
		}
		return patchMeta(node, edits, note), nil
	})
	if err != nil && !errors.Is(err, errNoNode) {
		return fmt.Errorf("label %s: %w", n.Name, err)
	}
	return nil
}

// patchMeta makes the patch of some labels, taints and annotations, and of what is noted of them. A
// merge patch replaces the whole list of taints: it is for exactly this version of the Node.
func patchMeta(node *corev1.Node, edits []cluster.MetaEdit, note string) patch {
	labels, annotations := map[string]any{}, map[string]any{cluster.AnnotationOwned: nil}
	if note != "" {
		annotations[cluster.AnnotationOwned] = note
	}
	p := patch{"metadata": map[string]any{"labels": labels, "annotations": annotations}}
	taints := slices.Clone(node.Spec.Taints)
	for _, e := range edits {
		switch e.Kind {
		case cluster.MetaLabel:
			labels[e.Key] = e.Want // nil: null removes it
		case cluster.MetaAnnotation:
			annotations[e.Key] = e.Want
		case cluster.MetaTaint:
			taints = slices.DeleteFunc(taints, func(t corev1.Taint) bool { return t.Key == e.Key })
			if e.Want != nil {
				value, effect, _ := strings.Cut(*e.Want, ":")
				taints = append(taints, corev1.Taint{Key: e.Key, Value: value, Effect: corev1.TaintEffect(effect)})
			}
			p["spec"] = map[string]any{"taints": taints}
		}
	}
	return p
}
