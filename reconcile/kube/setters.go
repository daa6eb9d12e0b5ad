package kube

import (
	"maps"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/edits"
)

// fieldManager is who owns the fields of Nodes that the agent writes.
const fieldManager = "talos-agent"

// writings are what the API server notes of who has written the fields of Nodes, by their
// names. They are not part of what is seen of a Node: another one of them is no change.
// They are read only of a Node that differs from the inventory.
type writings struct {
	mu sync.Mutex
	of map[string][]metav1.ManagedFieldsEntry

	// What was named last: the map of Nodes that it was added to, and the result; nil:
	// nothing.
	from    map[string]cluster.KubeNode
	setters map[string]map[string]cluster.Setter // by node
	named   map[string]cluster.KubeNode
}

// keepWritings is what of the notes about a Node may be asked about.
func keepWritings(n *corev1.Node) []metav1.ManagedFieldsEntry {
	return edits.Foreign(n.ManagedFields, func(manager string) bool { return manager == fieldManager })
}

// note keeps what a Node that was seen has.
func (w *writings) note(n *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string][]metav1.ManagedFieldsEntry{}
	}
	w.of[n.Name] = keepWritings(n)
}

// drop keeps nothing of a Node that was deleted.
func (w *writings) drop(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, name)
}

// settersOf is who has set what is to be changed of a Node, but for what it has of the
// agent, which noted that as owned.
func (w *writings) settersOf(node string, changes []cluster.MetaEdit, owned cluster.NodeMeta) map[string]cluster.Setter {
	w.mu.Lock()
	entries := w.of[node]
	w.mu.Unlock()
	if len(entries) == 0 {
		return nil
	}
	var writers edits.Writers
	var out map[string]cluster.Setter
	for _, e := range changes {
		if e.Have == nil && e.Kind != cluster.MetaTaint || owned.Notes(e) {
			continue
		}
		if writers == nil {
			writers = edits.ReadWriters(entries)
		}
		path := []string{"metadata", "labels", e.Key}
		switch e.Kind {
		case cluster.MetaLabel:
		case cluster.MetaAnnotation:
			path[1] = "annotations"
		case cluster.MetaTaint:
			path = []string{"spec", "taints"}
		}
		manager, at := writers.Of(path...)
		if manager == "" {
			continue
		}
		if out == nil {
			out = map[string]cluster.Setter{}
		}
		out[e.Field()] = cluster.Setter{Manager: edits.Shown(manager), At: at}
	}
	return out
}

// nameSetters adds to the Nodes that differ from the inventory who has set what is to be
// changed. The map that others share is left as it is, and while nothing changes it is
// replaced by the same one.
func (w *writings) nameSetters(d cluster.Desired, o *cluster.Observed) {
	setters := map[string]map[string]cluster.Setter{}
	for _, n := range d.Repository().Spec.Nodes {
		kn, there := o.Nodes.Value[n.Name]
		if !there {
			continue
		}
		if by := w.settersOf(n.Name, kn.EditsFor(n.Meta()), kn.Owned); len(by) > 0 {
			setters[n.Name] = by
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(setters) == 0:
		w.from, w.setters, w.named = nil, nil, nil
		return
	case w.named == nil, !isSame(w.from, o.Nodes.Value), !reflect.DeepEqual(w.setters, setters):
		w.from, w.setters, w.named = o.Nodes.Value, setters, maps.Clone(o.Nodes.Value)
		for name, by := range setters {
			kn := w.named[name]
			kn.SetBy = by
			w.named[name] = kn
		}
	}
	o.Nodes.Value = w.named
}

// isSame reports whether two maps are one.
func isSame(a, b map[string]cluster.KubeNode) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}
