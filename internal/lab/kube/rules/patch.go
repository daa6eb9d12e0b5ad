package rules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// Patch is a patch of one object, as a request has it.
type Patch struct {
	Kind    types.PatchType
	Body    []byte
	Manager string          // of fields; an apply needs one
	Type    reflect.Type    // of the object; nil: a custom resource
	Of      metav1.TypeMeta // of the object
}

// Apply returns the JSON of an object after the patch.
func (p Patch) Apply(was []byte) ([]byte, error) {
	var out []byte
	var err error
	switch {
	case p.Kind == types.JSONPatchType:
		return jsonPatched(was, p.Body)
	case p.Kind == types.MergePatchType:
		if err := json.Unmarshal(p.Body, new(any)); err != nil {
			return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
		}
		out, err = jsonpatch.MergePatch(was, p.Body)
	case p.Kind == types.StrategicMergePatchType && p.Type != nil:
		if err := json.Unmarshal(p.Body, &map[string]any{}); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		out, err = strategicpatch.StrategicMergePatch(was, p.Body, reflect.New(p.Type).Elem().Interface())
	case p.Kind == types.ApplyYAMLPatchType:
		return p.mergeApplied(was)
	case p.Type == nil:
		return nil, &apierrors.StatusError{ErrStatus: NewRefusal(http.StatusUnsupportedMediaType,
			"the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")}
	default:
		return nil, &apierrors.StatusError{ErrStatus: GenericStatus(http.StatusUnsupportedMediaType, "415: Unsupported Media Type")}
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

func jsonPatched(was, operations []byte) ([]byte, error) {
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	out, err := patch.Apply(was)
	if err != nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return out, nil
}

// mergeApplied merges an apply patch. Ownership of fields is not kept: nothing
// conflicts, and what a client no longer mentions stays.
func (p Patch) mergeApplied(was []byte) ([]byte, error) {
	if p.Manager == "" {
		return nil, apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("PatchOptions").GroupKind(), "", field.ErrorList{
			field.Required(field.NewPath("fieldManager"), "is required for apply patch")})
	}
	patch, err := yaml.YAMLToJSON(p.Body)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	var typed metav1.TypeMeta
	if err := json.Unmarshal(patch, &typed); err != nil || typed != p.Of {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid object type: %s, Kind=%s", cmp.Or(typed.APIVersion, "/"), typed.Kind))
	}
	if p.Type == nil {
		patch, err = jsonpatch.MergePatch(was, patch)
	} else {
		patch, err = strategicpatch.StrategicMergePatch(was, patch, reflect.New(p.Type).Elem().Interface())
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return patch, nil
}
