package manifests

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// inventoryName names the inventory of Talos >= 1.13, a ConfigMap of kube-system whose keys are the objects that Talos has applied, or found
// where it would have applied them. Its machines write it when they start, and talosctl when it applies.
// Source: Talos v1.14, constants and ManifestApplyController.
const inventoryName = "talos-bootstrap-manifests-inventory"

// owningInventory is the annotation with which Talos >= 1.13 marks what it made, with the name of its inventory. Talos
// does not render it, so that applying without it would take it away. Source: Talos v1.14, ManifestApplyController.
const owningInventory = "config.k8s.io/owning-inventory"

// configMaps is what the inventory is one of.
var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// entry is an object in the inventory.
type entry struct {
	namespace, name string
	kind            schema.GroupKind
}

// separator is between the fields of a key, and colon is a colon in the name of an object of RBAC. Source: cli-utils, ObjMetadata.
const separator, colon = "_", "__"

// parseEntry reads a key: NAMESPACE_NAME_GROUP_KIND.
func parseEntry(key string) (e entry, ok bool) {
	var rest string
	if e.namespace, rest, ok = strings.Cut(key, separator); !ok {
		return e, false
	}
	for _, field := range []*string{&e.kind.Kind, &e.kind.Group} {
		i := strings.LastIndex(rest, separator)
		if i < 0 {
			return e, false
		}
		rest, *field = rest[:i], rest[i+1:]
	}
	e.name = strings.ReplaceAll(rest, colon, ":")
	return e, e.name != "" && e.kind.Kind != "" && !strings.Contains(e.name, separator)
}

// key is what an object is in the inventory.
func (e entry) key() string {
	name := e.name
	if e.kind.Group == "rbac.authorization.k8s.io" {
		name = strings.ReplaceAll(name, ":", colon)
	}
	return strings.Join([]string{e.namespace, name, e.kind.Group, e.kind.Kind}, separator)
}

// entryOf is an object that is rendered, with its namespace.
func entryOf(o *unstructured.Unstructured) entry {
	return entry{o.GetNamespace(), o.GetName(), o.GroupVersionKind().GroupKind()}
}

// readInventory returns the inventory, nil where there is none, and its keys in their order.
func (c *client) readInventory(ctx context.Context) (has *unstructured.Unstructured, keys []string, err error) {
	has, err = c.objects.Resource(configMaps).Namespace(metav1.NamespaceSystem).Get(ctx, inventoryName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	data, _, err := unstructured.NestedMap(has.Object, "data")
	return has, slices.Sorted(maps.Keys(data)), err
}

// changeInventory gives the inventory other keys. It is refused where somebody else, as a machine that starts, has written it
// since it was read, and then begins again.
func (c *client) changeInventory(ctx context.Context, change func(keys []string) []string) error {
	for try := 1; ; try++ {
		has, keys, err := c.readInventory(ctx)
		if err != nil {
			return err
		}
		wants := change(slices.Clone(keys))
		if slices.Equal(slices.Sorted(slices.Values(wants)), keys) {
			return nil
		}
		data := map[string]any{}
		for _, key := range wants {
			data[key] = ""
		}
		at := c.objects.Resource(configMaps).Namespace(metav1.NamespaceSystem)
		if has == nil {
			o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": inventoryName}, "data": data}}
			_, err = at.Create(ctx, o, metav1.CreateOptions{FieldManager: fieldManager})
		} else {
			has.Object["data"] = data
			_, err = at.Update(ctx, has, metav1.UpdateOptions{FieldManager: fieldManager})
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) || try == writeTries {
			return err
		}
	}
}

// writeTries is how often the inventory is read again: each machine writes it once when it starts.
const writeTries = 5

// addToInventory lists objects that are to be applied, besides what is listed.
func (c *client) addToInventory(ctx context.Context, objects []*unstructured.Unstructured) error {
	if !c.inventoried || len(objects) == 0 {
		return nil
	}
	return c.changeInventory(ctx, func(keys []string) []string {
		for _, o := range objects {
			if key := entryOf(o).key(); !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		return keys
	})
}

// mark gives an object that is to be applied the mark of Talos' inventory, as far as nodes know of it or it bears that
// already, and returns the other inventory that has it.
func (c *client) mark(o, has *unstructured.Unstructured) (other string) {
	bears := ""
	if has != nil {
		bears = has.GetAnnotations()[owningInventory]
	}
	if bears = cmp.Or(bears, o.GetAnnotations()[owningInventory]); bears != "" && bears != inventoryName {
		return kubeapi.Sanitize(bears)
	}
	if c.inventoried || bears != "" {
		annotations := o.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[owningInventory] = inventoryName
		o.SetAnnotations(annotations)
	}
	return ""
}

// withoutMark is an object without the mark of Talos' inventory.
func withoutMark(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	annotations := o.GetAnnotations()
	delete(annotations, owningInventory)
	if o.SetAnnotations(annotations); len(annotations) == 0 {
		o.SetAnnotations(nil)
	}
	return o
}
