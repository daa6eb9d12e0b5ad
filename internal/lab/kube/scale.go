package kube

import (
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// serveScale answers for the scale of a workload.
func (a *apiserver) serveScale(w http.ResponseWriter, req *request, res *resource) error {
	for {
		o := a.cl.store.getObject(res, objectKey(req.namespace, req.name))
		if o == nil {
			return apierrors.NewNotFound(res.gr(), req.name)
		}
		was, err := scaleJSON(o)
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
		now, err := scaleJSON(o)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, now)
		return nil
	}
}

func scaleJSON(o *object) ([]byte, error) {
	scale, err := rules.ScaleOf(o.body)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	body, err := json.Marshal(scale)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return body, nil
}

// reviewAccess answers whether who asks may do something. Nothing of it is stored.
func (a *apiserver) reviewAccess(w http.ResponseWriter, req *request, who identity) error {
	if req.verb != "create" || req.name != "" {
		return notAllowed()
	}
	body, err := decodeBody(w, req, resReviews)
	if err != nil {
		return err
	}
	delete(rules.EnsureMap(body, "metadata"), "resourceVersion")
	body["status"] = map[string]any{"allowed": who.master}
	answer, err := json.Marshal(body)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	writeJSON(w, http.StatusCreated, answer)
	return nil
}
