package rules

import (
	"encoding/json"
	"net/http"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Patch is a patch of one object, as a request has it; an apply is another thing.
type Patch struct {
	Kind types.PatchType
	Body []byte
	Type reflect.Type // of the object; nil: a custom resource
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
