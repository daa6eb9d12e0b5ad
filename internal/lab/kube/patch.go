package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// decodeBody reads an object from a request's body: through its Go type where it
// has one, so that it is stored as a real server would store it and wrong types
// are refused with the text of the decoder.
func decodeBody(w http.ResponseWriter, req *request, res *resource) (map[string]any, error) {
	data := req.body
	switch req.media {
	case "application/json", "":
	case "application/yaml":
		var err error
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return nil, apierrors.NewBadRequest("error converting YAML to JSON: " + err.Error())
		}
	default:
		return nil, &apierrors.StatusError{ErrStatus: rules.NewRefusal(http.StatusUnsupportedMediaType,
			"the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf")}
	}
	return decodeJSON(w, data, req, res)
}

func decodeJSON(w http.ResponseWriter, data []byte, req *request, res *resource) (map[string]any, error) {
	var body map[string]any
	err := utiljson.Unmarshal(data, &body)
	if err == nil && body == nil {
		err = errors.New("json: null is no object")
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf(
			"the object provided is unrecognized (must be of type %s): couldn't get version/kind; json parse error: %v", res.kind, err))
	}
	if err := checkKind(body, req, res); err != nil {
		return nil, err
	}
	if res.typ != nil {
		typed := reflect.New(res.typ).Interface()
		strict, err := kjson.UnmarshalStrict(data, typed)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", res.kind, req.version, res.kind, err))
		}
		if err := unknownFields(w, req, res, strict); err != nil {
			return nil, err
		}
		if body, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
	}
	body["apiVersion"], body["kind"] = res.apiVersion(), res.kind
	if body["metadata"] == nil {
		body["metadata"] = map[string]any{}
	}
	if _, ok := body["metadata"].(map[string]any); !ok {
		return nil, apierrors.NewBadRequest(res.kind + " cannot be handled: metadata is no object")
	}
	return body, nil
}

// versionText is the apiVersion of objects in a served version.
func (r *resource) versionText(version string) string {
	if r.group == "" {
		return version
	}
	return r.group + "/" + version
}

// checkKind refuses an object of another kind or version than the path names.
// Only built-in objects may leave both out.
func checkKind(body map[string]any, req *request, res *resource) error {
	kind, version, asked := rules.TextAt(body, "kind"), rules.TextAt(body, "apiVersion"), res.versionText(req.version)
	switch {
	case res.typ != nil:
		kind, version = cmp.Or(kind, res.kind), cmp.Or(version, asked)
		if kind != res.kind || version != asked {
			return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: it is another kind or version", kind, version, res.kind))
		}
	case kind == "":
		return apierrors.NewBadRequest("Object 'Kind' is missing")
	case version != asked:
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", version, asked))
	case kind != res.kind:
		return apierrors.NewInvalid(schema.GroupKind{Group: res.group, Kind: kind}, rules.TextAt(body, "metadata", "name"), field.ErrorList{
			field.Invalid(field.NewPath("kind"), kind, "must be "+res.kind)})
	}
	return nil
}

// unknownFields does with fields no such object has what the client asked for:
// refuse them, warn of them (the default), or drop them in silence.
func unknownFields(w http.ResponseWriter, req *request, res *resource, strict []error) error {
	if len(strict) == 0 {
		return nil
	}
	var texts []string
	for _, e := range strict {
		texts = append(texts, e.Error())
	}
	switch req.query.Get("fieldValidation") {
	case metav1.FieldValidationIgnore:
	case metav1.FieldValidationStrict:
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: strict decoding error: %s",
			res.kind, req.version, res.kind, strings.Join(texts, ", ")))
	default:
		for _, t := range texts {
			w.Header().Add("Warning", fmt.Sprintf("299 - %q", t))
		}
	}
	return nil
}

// patchObject changes an object, or by an apply patch makes it. It returns the code
// to answer with.
func (a *apiserver) patchObject(w http.ResponseWriter, req *request, res *resource) (*object, int, error) {
	s := a.cl.store
	kind := types.PatchType(req.media)
	key := objectKey(req.namespace, req.name)
	for {
		have := s.getObject(res, key)
		if have == nil {
			if kind != types.ApplyYAMLPatchType || req.subresource != "" {
				return nil, 0, apierrors.NewNotFound(res.gr(), req.name)
			}
			o, err := a.applyNew(w, req, res)
			return o, http.StatusCreated, err
		}
		was, err := view{res: res, version: req.version}.renderOne(have)
		if err != nil {
			return nil, 0, apierrors.NewInternalError(err)
		}
		patched, err := req.patched(res, have, was)
		if err != nil {
			return nil, 0, err
		}
		body, err := decodeJSON(w, patched, req, res)
		if err != nil {
			// What the patch makes of the object is no such object.
			return nil, 0, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), string(patched), err.Error())})
		}
		o, err := s.overwriteObject(res, req, have, body)
		if !errors.Is(err, errRaced) {
			return o, http.StatusOK, err
		}
	}
}

// patched is the JSON of an object after a patch.
func (req *request) patched(res *resource, have *object, was []byte) ([]byte, error) {
	if req.applies() {
		return rules.MergeApplied(req.write(res), have.body)
	}
	return rules.Patch{Kind: types.PatchType(req.media), Body: req.body, Type: res.typ}.Apply(was)
}

// applyNew makes the object an apply patch describes.
func (a *apiserver) applyNew(w http.ResponseWriter, req *request, res *resource) (*object, error) {
	data, err := rules.MergeApplied(req.write(res), nil)
	if err != nil {
		return nil, err
	}
	body, err := decodeJSON(w, data, req, res)
	if err != nil {
		return nil, err
	}
	rules.EnsureMap(body, "metadata")["name"] = req.name
	return a.cl.store.insertObject(res, req, body)
}

// serveScale answers for the scale of a workload.
func (a *apiserver) serveScale(w http.ResponseWriter, req *request, res *resource) error {
	for {
		o := a.cl.store.getObject(res, objectKey(req.namespace, req.name))
		if o == nil {
			return apierrors.NewNotFound(res.gr(), req.name)
		}
		was, err := rules.EncodeScale(o.body)
		if err != nil {
			return err
		}
		body := req.body
		switch req.verb {
		case "get":
			writeJSON(w, http.StatusOK, was)
			return nil
		case "patch":
			body, err = rules.Patch{Kind: types.PatchType(req.media), Body: req.body, Type: rules.ScaleType}.Apply(was)
		case "update":
		default:
			return notAllowed()
		}
		if err != nil {
			return err
		}
		next, err := rules.Rescale(o.body, body)
		if err != nil {
			return err
		}
		o, err = a.cl.store.overwriteObject(res, req, o, next)
		if errors.Is(err, errRaced) {
			continue
		}
		if err != nil {
			return err
		}
		now, err := rules.EncodeScale(o.body)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, now)
		return nil
	}
}
