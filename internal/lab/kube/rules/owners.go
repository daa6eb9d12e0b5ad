package rules

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"
)

// Write is what the rules of ownership ask of a request. Who set which field is kept by
// the library that kube-apiserver keeps it with.
type Write struct {
	Manager     string // "": nobody's
	Kind        schema.GroupVersionKind
	Subresource string
	Force       bool   // of an apply
	Body        []byte // of an apply
}

// builtinTypes knows the built-in kinds and which of their lists have keys. It reads a
// large table, once.
var builtinTypes = sync.OnceValue(func() managedfields.TypeConverter { return applyconfigurations.NewTypeConverter(scheme.Scheme) })

// KeepOwners notes in an object who set which of its fields: what differs from before is
// the manager's now. What was never noted of an object that is there is not begun with.
func KeepOwners(w Write, was, next map[string]any) error {
	if w.Manager == "" {
		return nil
	}
	m, err := w.fieldManager()
	if err != nil {
		return err
	}
	m.UpdateNoErrors(w.liveObject(was), &unstructured.Unstructured{Object: next}, w.Manager) // changes next; as the server calls it
	return nil
}

// MergeApplied returns an object after an apply. That takes away what its manager applied
// before and does not any more, unless somebody else owns it too; it is refused if it
// changes what somebody else owns, unless it is forced.
func MergeApplied(w Write, was map[string]any) ([]byte, error) {
	if w.Manager == "" {
		return nil, apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("PatchOptions").GroupKind(), "", field.ErrorList{
			field.Required(field.NewPath("fieldManager"), "is required for apply patch")})
	}
	patch, err := yaml.YAMLToJSON(w.Body)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	var typed metav1.TypeMeta
	version, kind := w.Kind.ToAPIVersionAndKind()
	if err := json.Unmarshal(patch, &typed); err != nil || typed.APIVersion != version || typed.Kind != kind {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid object type: %s, Kind=%s", cmp.Or(typed.APIVersion, "/"), typed.Kind))
	}
	applied := &unstructured.Unstructured{}
	if err := applied.UnmarshalJSON(patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	m, err := w.fieldManager()
	if err != nil {
		return nil, err
	}
	out, err := m.Apply(w.liveObject(was), applied, w.Manager, w.Force)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return nil, err
	} else if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return json.Marshal(out)
}

// liveObject is the object that is there, an empty one if there is none.
func (w Write) liveObject(was map[string]any) *unstructured.Unstructured {
	live := maps.Clone(was)
	if live == nil {
		live = map[string]any{}
	}
	if meta, ok := live["metadata"].(map[string]any); ok {
		live["metadata"] = maps.Clone(meta)
	}
	out := &unstructured.Unstructured{Object: live}
	out.SetGroupVersionKind(w.Kind)
	return out
}

// fieldManager is the library's for one kind of object. What a subresource has of its own
// is not written through the object itself.
func (w Write) fieldManager() (*managedfields.FieldManager, error) {
	version := w.Kind.GroupVersion()
	reset := map[fieldpath.APIVersion]fieldpath.Filter{}
	if w.Subresource == "" {
		reset[fieldpath.APIVersion(version.String())] = fieldpath.NewExcludeSetFilter(fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
	}
	if applyconfigurations.ForKind(w.Kind) != nil { // else a custom resource, or a definition of one
		return managedfields.NewDefaultFieldManager(builtinTypes(), sameVersion{}, noDefaults{}, emptyObjects{}, w.Kind, version, w.Subresource, reset)
	}
	return managedfields.NewDefaultCRDFieldManager(managedfields.NewDeducedTypeConverter(), sameVersion{}, noDefaults{}, emptyObjects{}, w.Kind, version, w.Subresource, reset)
}

// sameVersion is for objects that are served as they are stored.
type sameVersion struct{}

// Convert implements runtime.ObjectConvertor.
func (sameVersion) Convert(in, out, _ any) error {
	return fmt.Errorf("%T is not converted to %T", in, out)
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (sameVersion) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (sameVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// noDefaults is for objects that get their defaults elsewhere.
type noDefaults struct{}

// Default implements runtime.ObjectDefaulter.
func (noDefaults) Default(runtime.Object) {}

type emptyObjects struct{}

// New implements runtime.ObjectCreater.
func (emptyObjects) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	out := &unstructured.Unstructured{Object: map[string]any{}}
	out.SetGroupVersionKind(kind)
	return out, nil
}

// HashTemplate distinguishes pod templates.
func HashTemplate(o map[string]any) string {
	h := fnv.New32a()
	// Maps of JSON values always encode, with sorted keys.
	if err := json.NewEncoder(h).Encode(ValueAt(o, "spec", "template")); err != nil {
		panic(err)
	}
	return fmt.Sprintf("%08x", h.Sum32())
}

// ListOwners are the uids of the owners of an object.
func ListOwners(o map[string]any) []string {
	var uids []string
	for _, r := range MapsAt(o, "metadata", "ownerReferences") {
		uids = append(uids, TextAt(r, "uid"))
	}
	return uids
}
