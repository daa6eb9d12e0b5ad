package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// dryRun reports whether a write is only to be tried.
func (req *request) dryRun() bool { return req.query.Get("dryRun") == metav1.DryRunAll }

// applies reports whether a request is a server-side apply.
func (req *request) applies() bool { return types.PatchType(req.media) == types.ApplyYAMLPatchType }

// write is what the rules of ownership need to know of a request. The owner of what an
// update sets is called as its client calls itself, unless it gives a name.
func (req *request) write(res *resource) rules.Write {
	w := rules.Write{Manager: req.query.Get("fieldManager"), Kind: schema.GroupVersionKind{Group: res.group, Version: req.version, Kind: res.kind}, Subresource: req.subresource,
		Force: req.query.Get("force") == "true", Body: req.body}
	if !req.applies() && w.Manager == "" {
		w.Manager, _, _ = strings.Cut(req.agent, "/")
	}
	return w
}

// createObject makes a new object from the request's body.
func (a *apiserver) createObject(w http.ResponseWriter, req *request, res *resource) (*object, error) {
	body, err := decodeBody(w, req, res)
	if err != nil {
		return nil, err
	}
	return a.cl.store.insertObject(res, req, body)
}

// insertObject stores a new object the way the server's own create does.
func (s *store) insertObject(res *resource, req *request, body map[string]any) (*object, error) {
	meta := rules.EnsureMap(body, "metadata")
	if err := s.checkPlace(res, req, meta); err != nil {
		return nil, err
	}
	if rules.TextAt(meta, "resourceVersion") != "" {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: "resourceVersion should not be set on objects to be created"}}
	}
	if rules.TextAt(meta, "name") == "" && rules.TextAt(meta, "generateName") == "" {
		return nil, apierrors.NewInvalid(res.gk(), "", field.ErrorList{
			field.Required(field.NewPath("metadata", "name"), "name or generateName is required")})
	}
	if res.status && res != resNodes {
		delete(body, "status")
		if empty := res.emptyStatus(); empty != nil {
			body["status"] = empty
		}
	}
	if res == resNodes {
		rules.AddTaint(rules.EnsureMap(body, "spec"), corev1.TaintNodeNotReady, "", corev1.TaintEffectNoSchedule)
	}
	for _, k := range []string{"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"} {
		delete(meta, k)
	}
	if !req.applies() {
		delete(meta, "managedFields")
	}
	s.stampObject(res, meta)
	if err := s.admitObject(res, body, nil); err != nil {
		return nil, err
	}
	if !req.applies() {
		if err := rules.KeepOwners(req.write(res), nil, body); err != nil {
			return nil, err
		}
	}
	name := rules.TextAt(meta, "name")
	key := objectKey(rules.TextAt(meta, "namespace"), name)
	if s.getObject(res, key) != nil {
		return nil, apierrors.NewAlreadyExists(res.gr(), name)
	}
	if req.dryRun() {
		return &object{body: body}, nil
	}
	o, err := s.commitObject(res, key, nil, body)
	if err != nil {
		return nil, apierrors.NewAlreadyExists(res.gr(), name)
	}
	return o, nil
}

// checkPlace checks that an object belongs where it was sent to.
func (s *store) checkPlace(res *resource, req *request, meta map[string]any) error {
	ns := rules.TextAt(meta, "namespace")
	if !res.namespaced {
		if ns != "" {
			return apierrors.NewBadRequest("namespace may not be set on a cluster-scoped object")
		}
		return nil
	}
	if ns != "" && ns != req.namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	meta["namespace"] = req.namespace
	space := s.getObject(resNamespaces, objectKey("", req.namespace))
	if space == nil {
		return apierrors.NewNotFound(resNamespaces.gr(), req.namespace)
	}
	if rules.TextAt(space.body, "status", "phase") == "Terminating" {
		err := apierrors.NewForbidden(res.gr(), rules.TextAt(meta, "name"),
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", req.namespace))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type: "NamespaceTerminating", Message: fmt.Sprintf("namespace %s is being terminated", req.namespace), Field: "metadata.namespace",
		}}
		return err
	}
	return nil
}

// replaceObject puts the request's body in the place of an object.
func (a *apiserver) replaceObject(w http.ResponseWriter, req *request, res *resource) (*object, error) {
	body, err := decodeBody(w, req, res)
	if err != nil {
		return nil, err
	}
	have := a.cl.store.getObject(res, objectKey(req.namespace, req.name))
	if have == nil {
		return nil, apierrors.NewNotFound(res.gr(), req.name)
	}
	if res.typ == nil && rules.TextAt(body, "metadata", "resourceVersion") == "" {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: res.group, Kind: res.name}, req.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
	}
	for {
		o, err := a.cl.store.overwriteObject(res, req, have, body)
		if !errors.Is(err, errRaced) {
			return o, err
		}
		if have = a.cl.store.getObject(res, objectKey(req.namespace, req.name)); have == nil {
			return nil, apierrors.NewNotFound(res.gr(), req.name)
		}
	}
}

// overwriteObject stores body as the next version of have, keeping what a client
// may not change. It returns errRaced if have is no longer what is stored.
func (s *store) overwriteObject(res *resource, req *request, have *object, body map[string]any) (*object, error) {
	was := rules.MapAt(have.body, "metadata")
	next := make(map[string]any, len(body))
	for k, v := range body {
		next[k] = v
	}
	meta := make(map[string]any, len(was))
	for k, v := range rules.MapAt(body, "metadata") {
		meta[k] = v
	}
	next["metadata"] = meta
	if err := checkPreconditions(res, req, was, meta); err != nil {
		return nil, err
	}
	for _, k := range []string{"name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName"} {
		delete(meta, k)
		if v, ok := was[k]; ok {
			meta[k] = v
		}
	}
	owners := was["managedFields"]
	if req.applies() {
		owners = meta["managedFields"]
	}
	delete(meta, "managedFields")
	switch {
	case req.subresource == "status":
		state := next["status"]
		next = have.copyBody()
		meta = rules.MapAt(next, "metadata")
		delete(next, "status")
		if state != nil {
			next["status"] = state
		}
	case res.status && req.subresource == "":
		delete(next, "status")
		if state, ok := have.body["status"]; ok {
			next["status"] = runtime.DeepCopyJSONValue(state)
		}
	}
	if err := s.admitObject(res, next, have.body); err != nil {
		return nil, err
	}
	if owners != nil {
		meta["managedFields"] = owners
	}
	if !req.applies() {
		if err := rules.KeepOwners(req.write(res), have.body, next); err != nil {
			return nil, err
		}
	}
	meta["resourceVersion"] = was["resourceVersion"]
	if reflect.DeepEqual(next, have.body) {
		return have, nil
	}
	if res.countsGenerations() && rules.DiffersInSpec(have.body, next) {
		meta["generation"] = rules.NumberAt(was, "generation") + 1
	}
	if req.dryRun() {
		return &object{body: next}, nil
	}
	key := objectKey(rules.TextAt(meta, "namespace"), rules.TextAt(meta, "name"))
	if meta["deletionTimestamp"] != nil && len(rules.ListAt(meta, "finalizers")) == 0 && !s.isHeld(res, next) {
		if _, err := s.commitObject(res, key, have, nil); err != nil {
			return nil, err
		}
		return &object{body: next}, nil
	}
	return s.commitObject(res, key, have, next)
}

// checkPreconditions checks what a body demands of the object it is meant for.
func checkPreconditions(res *resource, req *request, was, meta map[string]any) error {
	if name := rules.TextAt(meta, "name"); name != "" && name != req.name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, req.name))
	}
	if ns := rules.TextAt(meta, "namespace"); ns != "" && ns != req.namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if uid := rules.TextAt(meta, "uid"); uid != "" && uid != rules.TextAt(was, "uid") {
		return apierrors.NewConflict(res.gr(), req.name, fmt.Errorf(
			"StorageError: invalid object, Code: 4, Key: /registry/%s/%s/%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %s, UID in object meta: %s",
			res.name, req.namespace, req.name, uid, rules.TextAt(was, "uid")))
	}
	if rv := rules.TextAt(meta, "resourceVersion"); rv != "" && rv != rules.TextAt(was, "resourceVersion") {
		return apierrors.NewConflict(res.gr(), req.name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// deleteObject removes an object, or marks it where somebody has to release it first.
func (a *apiserver) deleteObject(w http.ResponseWriter, req *request, v view) error {
	opts, err := rules.ReadDeletion(req.body, req.query)
	if err != nil {
		return err
	}
	o, removed, err := a.cl.store.dropObject(v.res, objectKey(req.namespace, req.name), opts)
	if err != nil {
		return err
	}
	if !removed || v.res == resServices || v.res == resPods {
		body, err := v.renderOne(o)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		writeJSON(w, http.StatusOK, body)
		return nil
	}
	writeStatus(w, metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: req.name, Group: v.res.group, Kind: v.res.name, UID: types.UID(rules.TextAt(o.body, "metadata", "uid")),
	}})
	return nil
}

// dropObject deletes an object; removed is false where it is only marked as being
// deleted: a finalizer holds it, or what hangs on it has to go first.
func (s *store) dropObject(res *resource, key string, opts metav1.DeleteOptions) (o *object, removed bool, err error) {
	_, name := splitKey(key)
	for {
		have := s.getObject(res, key)
		if have == nil {
			return nil, false, apierrors.NewNotFound(res.gr(), name)
		}
		meta := rules.MapAt(have.body, "metadata")
		if p := opts.Preconditions; p != nil {
			kind := schema.GroupResource{Group: res.group, Resource: res.kind} // as the server writes it here
			if uid := rules.TextAt(meta, "uid"); p.UID != nil && string(*p.UID) != uid {
				return nil, false, apierrors.NewConflict(kind, name, fmt.Errorf(
					"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, uid))
			}
			if rv := rules.TextAt(meta, "resourceVersion"); p.ResourceVersion != nil && *p.ResourceVersion != rv {
				return nil, false, apierrors.NewConflict(kind, name, fmt.Errorf(
					"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, rv))
			}
		}
		grace := rules.DeletionGrace(have.body, opts.GracePeriodSeconds)
		hold := len(rules.ListAt(meta, "finalizers")) > 0 || s.isHeld(res, have.body) && !(grace == 0 && res == resPods)
		switch {
		case slices.Contains(opts.DryRun, metav1.DryRunAll):
			return have, !hold, nil
		case hold && meta["deletionTimestamp"] != nil && !(res == resPods && grace < rules.NumberAt(meta, "deletionGracePeriodSeconds")):
			return have, false, nil
		case hold:
			o, err = s.commitObject(res, key, have, rules.MarkDeleted(have.copyBody(), res.gr(), grace, res.countsGenerations()))
		default:
			orphan := opts.PropagationPolicy != nil && *opts.PropagationPolicy == metav1.DeletePropagationOrphan
			_, err = s.writeObject(change{res: res, key: key, event: event{old: have}, orphan: orphan}, nil)
			o = have
		}
		if !errors.Is(err, errRaced) {
			return o, !hold, err
		}
	}
}

// isHeld reports whether an object goes only after something else did: a
// namespace after its content, a definition after its custom resources, a pod
// after its containers.
func (s *store) isHeld(res *resource, body map[string]any) bool {
	switch res {
	case resNamespaces, resCRDs:
		return true
	case resPods:
		phase := rules.TextAt(body, "status", "phase")
		return rules.TextAt(body, "spec", "nodeName") != "" && phase != "Succeeded" && phase != "Failed"
	}
	return false
}

// deleteCollection deletes every object the selectors let through.
func (a *apiserver) deleteCollection(w http.ResponseWriter, req *request, v view) error {
	opts, err := rules.ReadDeletion(req.body, req.query)
	if err != nil {
		return err
	}
	sel, err := rules.SelectorOf(v.res.gr(), v.res.typ == nil, req.query)
	if err != nil {
		return err
	}
	objects, _ := a.cl.store.listObjects(v.res, req.namespace)
	objects = slices.DeleteFunc(objects, func(o *object) bool { return !sel.Matches(o.body) })
	for _, o := range objects {
		key := objectKey(rules.TextAt(o.body, "metadata", "namespace"), rules.TextAt(o.body, "metadata", "name"))
		if _, _, err := a.cl.store.dropObject(v.res, key, opts); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	_, rv := a.cl.store.listObjects(v.res, req.namespace)
	body, err := v.renderList(objects, rv)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	writeJSON(w, http.StatusOK, body)
	return nil
}

// reviewAccess answers what who asks may do, or who that is. Nothing of it is stored.
func (a *apiserver) reviewAccess(w http.ResponseWriter, req *request, res *resource, who identity) error {
	if req.verb != "create" || req.name != "" {
		return notAllowed()
	}
	body, err := decodeBody(w, req, res)
	if err != nil {
		return err
	}
	delete(rules.EnsureMap(body, "metadata"), "resourceVersion")
	if body["status"], err = rules.Review(res.kind, body, who.name, who.groups); err != nil {
		return err
	}
	answer, err := json.Marshal(body)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	writeJSON(w, http.StatusCreated, answer)
	return nil
}
