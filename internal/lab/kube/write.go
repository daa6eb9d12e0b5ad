package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// dryRun tells whether a write is only to be tried.
func (req *request) dryRun() bool { return req.query.Get("dryRun") == metav1.DryRunAll }

// create makes a new object from the request's body.
func (a *apiserver) create(w http.ResponseWriter, req *request, res *resource) (*object, error) {
	body, err := decode(w, req, res)
	if err != nil {
		return nil, err
	}
	return a.cl.store.insert(res, req, body)
}

// insert stores a new object the way the server's own create does.
func (s *store) insert(res *resource, req *request, body map[string]any) (*object, error) {
	meta := ensure(body, "metadata")
	if err := s.place(res, req, meta); err != nil {
		return nil, err
	}
	if text(meta, "resourceVersion") != "" {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: "resourceVersion should not be set on objects to be created"}}
	}
	if text(meta, "name") == "" && text(meta, "generateName") == "" {
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
		taint(ensure(body, "spec"), taintNotReady, "", "NoSchedule")
	}
	for _, k := range []string{"deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"} {
		delete(meta, k)
	}
	s.stamp(res, meta)
	if err := s.admit(res, body, nil); err != nil {
		return nil, err
	}
	name := text(meta, "name")
	key := objectKey(text(meta, "namespace"), name)
	if s.get(res, key) != nil {
		return nil, apierrors.NewAlreadyExists(res.gr(), name)
	}
	if req.dryRun() {
		return &object{body: body}, nil
	}
	o, err := s.commit(res, key, nil, body)
	if err != nil {
		return nil, apierrors.NewAlreadyExists(res.gr(), name)
	}
	return o, nil
}

// place checks that an object belongs where it was sent to.
func (s *store) place(res *resource, req *request, meta map[string]any) error {
	ns := text(meta, "namespace")
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
	space := s.get(resNamespaces, objectKey("", req.namespace))
	if space == nil {
		return apierrors.NewNotFound(resNamespaces.gr(), req.namespace)
	}
	if text(space.body, "status", "phase") == "Terminating" {
		err := apierrors.NewForbidden(res.gr(), text(meta, "name"),
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", req.namespace))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type: "NamespaceTerminating", Message: fmt.Sprintf("namespace %s is being terminated", req.namespace), Field: "metadata.namespace",
		}}
		return err
	}
	return nil
}

// replace puts the request's body in the place of an object.
func (a *apiserver) replace(w http.ResponseWriter, req *request, res *resource) (*object, error) {
	body, err := decode(w, req, res)
	if err != nil {
		return nil, err
	}
	have := a.cl.store.get(res, objectKey(req.namespace, req.name))
	if have == nil {
		return nil, apierrors.NewNotFound(res.gr(), req.name)
	}
	if res.typ == nil && text(body, "metadata", "resourceVersion") == "" {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: res.group, Kind: res.name}, req.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
	}
	for {
		o, err := a.cl.store.overwrite(res, req, have, body)
		if !errors.Is(err, errRaced) {
			return o, err
		}
		if have = a.cl.store.get(res, objectKey(req.namespace, req.name)); have == nil {
			return nil, apierrors.NewNotFound(res.gr(), req.name)
		}
	}
}

// overwrite stores body as the next version of have, keeping what a client may
// not change. It returns errRaced if have is no longer what is stored.
func (s *store) overwrite(res *resource, req *request, have *object, body map[string]any) (*object, error) {
	was := child(have.body, "metadata")
	next := make(map[string]any, len(body))
	for k, v := range body {
		next[k] = v
	}
	meta := make(map[string]any, len(was))
	for k, v := range child(body, "metadata") {
		meta[k] = v
	}
	next["metadata"] = meta
	if err := preconditions(res, req, was, meta); err != nil {
		return nil, err
	}
	for _, k := range []string{"name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName"} {
		delete(meta, k)
		if v, ok := was[k]; ok {
			meta[k] = v
		}
	}
	delete(meta, "managedFields")
	switch {
	case req.subresource == "status":
		state := next["status"]
		next = have.copied()
		meta = child(next, "metadata")
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
	if err := s.admit(res, next, have.body); err != nil {
		return nil, err
	}
	meta["resourceVersion"] = was["resourceVersion"]
	if reflect.DeepEqual(next, have.body) {
		return have, nil
	}
	if res.counted() && specChanged(have.body, next) {
		meta["generation"] = number(was, "generation") + 1
	}
	if req.dryRun() {
		return &object{body: next}, nil
	}
	key := objectKey(text(meta, "namespace"), text(meta, "name"))
	if meta["deletionTimestamp"] != nil && len(items(meta, "finalizers")) == 0 && !s.held(res, next) {
		if _, err := s.commit(res, key, have, nil); err != nil {
			return nil, err
		}
		return &object{body: next}, nil
	}
	return s.commit(res, key, have, next)
}

// preconditions checks what a body says about the object it is meant for.
func preconditions(res *resource, req *request, was, meta map[string]any) error {
	if name := text(meta, "name"); name != "" && name != req.name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, req.name))
	}
	if ns := text(meta, "namespace"); ns != "" && ns != req.namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if uid := text(meta, "uid"); uid != "" && uid != text(was, "uid") {
		return apierrors.NewConflict(res.gr(), req.name, fmt.Errorf(
			"StorageError: invalid object, Code: 4, Key: /registry/%s/%s/%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %s, UID in object meta: %s",
			res.name, req.namespace, req.name, uid, text(was, "uid")))
	}
	if rv := text(meta, "resourceVersion"); rv != "" && rv != text(was, "resourceVersion") {
		return apierrors.NewConflict(res.gr(), req.name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// specChanged tells whether anything but metadata and status differs.
func specChanged(a, b map[string]any) bool {
	for _, m := range [2]map[string]any{a, b} {
		for k := range m {
			if k != "metadata" && k != "status" && !reflect.DeepEqual(a[k], b[k]) {
				return true
			}
		}
	}
	return false
}

// deletion is what a client may say about a deletion.
func (req *request) deletion() (metav1.DeleteOptions, error) {
	var opts metav1.DeleteOptions
	if len(req.body) > 0 {
		if err := json.Unmarshal(req.body, &opts); err != nil {
			return opts, apierrors.NewBadRequest("read DeleteOptions: " + err.Error())
		}
	}
	if p := metav1.DeletionPropagation(req.query.Get("propagationPolicy")); p != "" {
		opts.PropagationPolicy = &p
	}
	if req.query.Get("gracePeriodSeconds") == "0" {
		opts.GracePeriodSeconds = new(int64)
	}
	if req.dryRun() {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return opts, nil
}

// delete removes an object, or marks it where somebody has to let go first.
func (a *apiserver) delete(w http.ResponseWriter, req *request, v view) error {
	opts, err := req.deletion()
	if err != nil {
		return err
	}
	o, gone, err := a.cl.store.drop(v.res, objectKey(req.namespace, req.name), opts)
	if err != nil {
		return err
	}
	if !gone || v.res == resServices || v.res == resPods {
		body, err := v.one(o)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		writeJSON(w, http.StatusOK, body)
		return nil
	}
	writeStatus(w, metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: req.name, Group: v.res.group, Kind: v.res.name, UID: types.UID(text(o.body, "metadata", "uid")),
	}})
	return nil
}

// drop deletes an object; gone is false where it is only marked as being
// deleted: a finalizer holds it, or what hangs on it has to go first.
func (s *store) drop(res *resource, key string, opts metav1.DeleteOptions) (o *object, gone bool, err error) {
	_, name := splitKey(key)
	for {
		have := s.get(res, key)
		if have == nil {
			return nil, false, apierrors.NewNotFound(res.gr(), name)
		}
		meta := child(have.body, "metadata")
		if p := opts.Preconditions; p != nil {
			kind := schema.GroupResource{Group: res.group, Resource: res.kind} // as the server writes it here
			if uid := text(meta, "uid"); p.UID != nil && string(*p.UID) != uid {
				return nil, false, apierrors.NewConflict(kind, name, fmt.Errorf(
					"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, uid))
			}
			if rv := text(meta, "resourceVersion"); p.ResourceVersion != nil && *p.ResourceVersion != rv {
				return nil, false, apierrors.NewConflict(kind, name, fmt.Errorf(
					"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, rv))
			}
		}
		force := opts.GracePeriodSeconds != nil && *opts.GracePeriodSeconds == 0
		hold := len(items(meta, "finalizers")) > 0 || s.held(res, have.body) && !(force && res == resPods)
		switch {
		case slices.Contains(opts.DryRun, metav1.DryRunAll):
			return have, !hold, nil
		case hold && meta["deletionTimestamp"] != nil:
			return have, false, nil
		case hold:
			o, err = s.commit(res, key, have, marked(res, have))
		default:
			orphan := opts.PropagationPolicy != nil && *opts.PropagationPolicy == metav1.DeletePropagationOrphan
			_, err = s.write(change{res: res, key: key, event: event{old: have}, orphan: orphan}, nil)
			o = have
		}
		if !errors.Is(err, errRaced) {
			return o, !hold, err
		}
	}
}

// held tells whether an object goes only after something else did: a
// namespace after its content, a definition after its custom resources, a pod
// after its containers.
func (s *store) held(res *resource, body map[string]any) bool {
	switch res {
	case resNamespaces, resCRDs:
		return true
	case resPods:
		phase := text(body, "status", "phase")
		return text(body, "spec", "nodeName") != "" && phase != "Succeeded" && phase != "Failed"
	}
	return false
}

// marked is the object with the mark of deletion.
func marked(res *resource, have *object) map[string]any {
	next := have.copied()
	meta := child(next, "metadata")
	meta["deletionTimestamp"] = now()
	status := ensure(next, "status")
	switch res {
	case resNamespaces:
		status["phase"] = "Terminating"
		return next
	case resCRDs:
		meta["finalizers"] = []any{apiextensionsv1.CustomResourceCleanupFinalizer}
		status["conditions"] = condition(items(status, "conditions"), string(apiextensionsv1.Terminating), "True",
			"InstanceDeletionPending", "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon")
		return next
	case resPods:
		meta["deletionGracePeriodSeconds"] = number(next, "spec", "terminationGracePeriodSeconds")
	default:
		meta["deletionGracePeriodSeconds"] = int64(0)
	}
	if len(status) == 0 {
		delete(next, "status")
	}
	if res.counted() {
		meta["generation"] = number(meta, "generation") + 1
	}
	return next
}

// deleteCollection deletes every object the selectors let through.
func (a *apiserver) deleteCollection(w http.ResponseWriter, req *request, v view) error {
	opts, err := req.deletion()
	if err != nil {
		return err
	}
	sel, err := selectorOf(v.res, req.query)
	if err != nil {
		return err
	}
	objects, _ := a.cl.store.list(v.res, req.namespace)
	objects = slices.DeleteFunc(objects, func(o *object) bool { return !sel.matches(o) })
	for _, o := range objects {
		key := objectKey(text(o.body, "metadata", "namespace"), text(o.body, "metadata", "name"))
		if _, _, err := a.cl.store.drop(v.res, key, opts); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	_, rv := a.cl.store.list(v.res, req.namespace)
	body, err := v.many(objects, rv)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	writeJSON(w, http.StatusOK, body)
	return nil
}

// evict deletes a pod the polite way. Disruption budgets are not asked.
func (a *apiserver) evict(w http.ResponseWriter, req *request) error {
	if _, _, err := a.cl.store.drop(resPods, objectKey(req.namespace, req.name), metav1.DeleteOptions{}); err != nil {
		return err
	}
	writeStatus(w, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
	return nil
}
