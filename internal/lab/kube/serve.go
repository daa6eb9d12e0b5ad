package kube

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// newHandler is everything between a connection and the store: reading the
// request, the world's latency and faults, who may ask, and the answer.
func (a *apiserver) newHandler() http.Handler {
	name := func(r *http.Request) (world.Call, bool) {
		return requestOf(r.Context()).nameCall(r.Method, a.cp.Node)
	}
	refuse := func(w http.ResponseWriter, code int, text string) { writeStatus(w, rules.NewRefusal(code, text)) }
	faced := a.c.world.HTTP(name, refuse, http.HandlerFunc(a.answerRequest))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.c.gate.tryEnter() {
			panic(http.ErrAbortHandler)
		}
		defer a.c.gate.leave()
		req, err := readRequest(w, r)
		if err != nil {
			writeError(w, err)
			return
		}
		faced.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, req)))
	})
}

// answerRequest carries out a request.
func (a *apiserver) answerRequest(w http.ResponseWriter, r *http.Request) {
	req := requestOf(r.Context())
	if a.answerOpen(w, r) {
		return
	}
	user, ok := a.authenticateRequest(r)
	if !ok {
		writeStatus(w, rules.NewRefusal(http.StatusUnauthorized, "Unauthorized"))
		return
	}
	if req.verb == "" {
		if !a.serveOpenAPI(w, r) {
			a.serveDiscovery(w, r)
		}
		return
	}
	res := a.cl.store.findResource(schema.GroupResource{Group: req.group, Resource: req.resource})
	if res == nil || !res.servesVersion(req.version) || req.namespace != "" && !res.namespaced {
		notServed(w, findGroup(groupsOf(a.cl.store.listResources()), req.group) != nil)
		return
	}
	if res.review {
		if err := a.reviewAccess(w, req, user); err != nil {
			writeError(w, err)
		}
		return
	}
	if !user.master {
		writeError(w, forbidRequest(user, req, res))
		return
	}
	want, ok := rules.NegotiateRendering(r.Header.Get("Accept"), rules.AsTable, rules.AsMetadata)
	if !ok {
		writeStatus(w, rules.GenericStatus(http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: application/json"))
		return
	}
	if slices.Contains([]string{"get", "list", "watch"}, req.verb) {
		a.c.refreshBeats(a.cl, res, req.namespace, req.name)
	}
	if err := a.carryOut(w, r, req, view{
		res: res, version: req.version, as: want, include: metav1.IncludeObjectPolicy(req.query.Get("includeObject")),
	}); err != nil {
		writeError(w, err)
	}
}

// carryOut does what is asked of a resource. What it returns was not answered
// yet.
func (a *apiserver) carryOut(w http.ResponseWriter, r *http.Request, req *request, v view) error {
	res := v.res
	if req.subresource != "" && !(res.status && req.subresource == "status") && !slices.Contains(res.subs, req.subresource) {
		notServed(w, true)
		return nil
	}
	if res == resPods && slices.Contains(rules.KubeletCalls, req.subresource) {
		return a.askKubelet(w, r, req)
	}
	allowed := req.name != "" || slices.Contains([]string{"list", "watch", "create", "deletecollection"}, req.verb)
	if req.verb == "create" {
		// Objects are made in a namespace and by POST to the collection; the
		// one subresource that is made is an eviction.
		allowed = (req.name == "") == (req.subresource == "") && (req.subresource == "" || req.subresource == "eviction") && (!res.namespaced || req.namespace != "")
	}
	if !allowed || res.namespaced && req.name != "" && req.namespace == "" {
		return notAllowed()
	}
	if req.subresource == "scale" {
		return a.serveScale(w, req, res)
	}
	code := http.StatusOK
	var o *object
	var err error
	switch req.verb {
	case "list":
		return a.listObjects(w, r, req, v)
	case "watch":
		return a.watchObjects(w, r, req, v)
	case "get":
		o = a.cl.store.getObject(res, objectKey(req.namespace, req.name))
		if o == nil {
			return apierrors.NewNotFound(res.gr(), req.name)
		}
	case "create":
		if req.subresource == "eviction" {
			return a.evictPod(w, req)
		}
		o, err = a.createObject(w, req, res)
		code = http.StatusCreated
	case "update":
		o, err = a.replaceObject(w, req, res)
	case "patch":
		o, code, err = a.patchObject(w, req, res)
	case "delete":
		return a.deleteObject(w, req, v)
	case "deletecollection":
		return a.deleteCollection(w, req, v)
	default:
		return notAllowed()
	}
	if err != nil {
		return err
	}
	body, err := v.renderOne(o)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	a.warnOfTemplate(w, req, o)
	writeJSON(w, code, body)
	return nil
}

// askKubelet answers what a pod's kubelet is asked for. A log that is followed stays
// open until its reader closes it.
func (a *apiserver) askKubelet(w http.ResponseWriter, r *http.Request, req *request) error {
	o := a.cl.store.getObject(resPods, objectKey(req.namespace, req.name))
	if o == nil {
		return apierrors.NewNotFound(resPods.gr(), req.name)
	}
	text, err := rules.AskKubelet(o.body, req.subresource, r.Method, req.query, a.cl.runsKubelet(rules.TextAt(o.body, "spec", "nodeName")))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write([]byte(text)) // a client that hung up needs no answer
	if req.query.Get("follow") == "true" && http.NewResponseController(w).Flush() == nil {
		<-r.Context().Done()
	}
	return nil
}

// warnOfTemplate warns who wrote a template of pods that its namespace may not like.
func (a *apiserver) warnOfTemplate(w http.ResponseWriter, req *request, o *object) {
	template := rules.MapAt(o.body, "spec", "template")
	if template == nil || req.verb == "get" {
		return
	}
	if text := a.cl.store.security.Warn(a.cl.store.labelsOf(req.namespace), req.namespace, template); text != "" {
		w.Header().Add("Warning", fmt.Sprintf("299 - %q", text))
	}
}

// listObjects answers with every object the selectors let through.
func (a *apiserver) listObjects(w http.ResponseWriter, r *http.Request, req *request, v view) error {
	sel, err := rules.SelectorOf(v.res.gr(), v.res.typ == nil, req.query)
	if err != nil {
		return err
	}
	objects, rv := a.cl.store.listObjects(v.res, req.namespace)
	want, err := askedVersion(req)
	if err != nil {
		return err
	}
	if want > rv {
		return tooLarge(want, rv)
	}
	if world.VerdictOf(r.Context()).Fault.Kind == world.EmptyList {
		objects = nil
	}
	objects = slices.DeleteFunc(objects, func(o *object) bool { return !sel.Matches(o.body) })
	body, err := v.renderList(objects, rv)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	writeJSON(w, http.StatusOK, body)
	return nil
}

// answerOpen answers what a kube-apiserver answers anybody. It returns false if
// the request is no such thing.
func (a *apiserver) answerOpen(w http.ResponseWriter, r *http.Request) bool {
	switch path := strings.TrimSuffix(r.URL.Path, "/"); path {
	case "/readyz", "/livez", "/healthz":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		body := "ok"
		if r.URL.Query().Has("verbose") {
			body = "[+]ping ok\n[+]etcd ok\n[+]etcd-readiness ok\n" + path[1:] + " check passed\n"
		}
		_, _ = w.Write([]byte(body)) // a client that hung up needs no answer
		return true
	case "/version":
		v := strings.SplitN(strings.TrimPrefix(a.cp.Kubernetes, "v"), ".", 3)
		info := version.Info{GitVersion: a.cp.Kubernetes, Major: v[0], Platform: "linux/amd64", Compiler: "gc", GitTreeState: "clean"}
		if len(v) > 1 {
			info.Minor = v[1]
		}
		body, err := json.Marshal(info)
		if err != nil {
			writeError(w, err)
			return true
		}
		writeJSON(w, http.StatusOK, body)
		return true
	}
	return false
}

// identity is who asks.
type identity struct {
	name   string
	master bool // in system:masters, which may do everything
}

// caller is who is at the other end of a connection, as proven until then: to
// follow a chain of certificates takes longer than most answers.
type caller struct {
	mu    sync.Mutex
	who   identity
	until time.Time
}

// callerKey is where the context of a connection has its caller.
type callerKey struct{}

// authenticateRequest trusts client certificates of the cluster's CA.
func (a *apiserver) authenticateRequest(r *http.Request) (identity, bool) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return identity{}, false
	}
	c := r.Context().Value(callerKey{}).(*caller)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := a.c.world.GuestNow()
	if now.Before(c.until) {
		return c.who, true
	}
	chain, err := a.verifyChain(r.TLS.PeerCertificates, now)
	if err != nil {
		a.c.world.Log.Debug("kube-apiserver does not trust a client certificate", "node", a.cp.Node, "err", err)
		return identity{}, false
	}
	leaf := chain[0]
	c.who = identity{name: leaf.Subject.CommonName, master: slices.Contains(leaf.Subject.Organization, "system:masters")}
	c.until = slices.MinFunc(chain, func(x, y *x509.Certificate) int { return x.NotAfter.Compare(y.NotAfter) }).NotAfter
	return c.who, true
}

// verifyChain returns the way from a client's certificate to the cluster's CA.
func (a *apiserver) verifyChain(certs []*x509.Certificate, now time.Time) ([]*x509.Certificate, error) {
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	chains, err := certs[0].Verify(x509.VerifyOptions{Roots: a.cas, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return nil, err
	}
	return chains[0], nil
}

func forbidRequest(user identity, req *request, res *resource) error {
	where := "at the cluster scope"
	if req.namespace != "" {
		where = fmt.Sprintf("in the namespace %q", req.namespace)
	}
	text := fmt.Sprintf("User %q cannot %s resource %q in API group %q %s",
		user.name, req.verb, strings.TrimSuffix(res.name+"/"+req.subresource, "/"), res.group, where)
	return apierrors.NewForbidden(res.gr(), req.name, errors.New(text))
}

// view is how one request wants to see objects of a resource.
type view struct {
	res     *resource
	version string
	as      rules.Rendering
	include metav1.IncludeObjectPolicy // in the rows of a table
}

// renderOne renders one object.
func (v view) renderOne(o *object) ([]byte, error) {
	switch v.as {
	case rules.AsTable:
		return v.encodeTable([]*object{o}, rules.TextAt(o.body, "metadata", "resourceVersion"), true)
	case rules.AsMetadata:
		return json.Marshal(partialMetadata(o))
	}
	// Conversion of custom resources is strategy None: only the name of the
	// version changes.
	return o.encodeTyped(v.res.kind, v.res.versionText(v.version))
}

// inList renders one object of a list. Built-in ones do not repeat there what
// they are.
func (v view) inList(o *object) ([]byte, error) {
	if v.as == rules.AsIs && v.res.typ != nil {
		return o.content()
	}
	return v.renderOne(o)
}

// renderList renders a list.
func (v view) renderList(objects []*object, rv uint64) ([]byte, error) {
	version := strconv.FormatUint(rv, 10)
	apiVersion, kind := v.res.versionText(v.version), v.res.listKind
	switch v.as {
	case rules.AsTable:
		return v.encodeTable(objects, version, true)
	case rules.AsMetadata:
		apiVersion, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	meta := fmt.Sprintf(`{"resourceVersion":%q}`, version)
	if v.res.typ == nil && v.as == rules.AsIs {
		meta = fmt.Sprintf(`{"continue":"","resourceVersion":%q}`, version)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, kind, apiVersion, meta)
	for i, o := range objects {
		if i > 0 {
			b.WriteByte(',')
		}
		one, err := v.inList(o)
		if err != nil {
			return nil, err
		}
		b.Write(one)
	}
	b.WriteString("]}\n")
	return b.Bytes(), nil
}

// partialMetadata is an object's metadata.
func partialMetadata(o *object) map[string]any {
	return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o.body["metadata"]}
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that hung up needs no answer
}

// writeError answers with the Status an error carries.
func writeError(w http.ResponseWriter, err error) {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		writeStatus(w, status.Status())
		return
	}
	writeStatus(w, apierrors.NewInternalError(err).Status())
}

func writeStatus(w http.ResponseWriter, s metav1.Status) {
	s.Kind, s.APIVersion = "Status", "v1"
	body, err := json.Marshal(s)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	writeJSON(w, cmp.Or(int(s.Code), http.StatusOK), body)
}

// notServed answers for what is not there: with a Status within a group that
// is, with plain text outside of all.
func notServed(w http.ResponseWriter, inGroup bool) {
	if !inGroup {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	writeStatus(w, rules.GenericStatus(http.StatusNotFound, "the server could not find the requested resource"))
}

func notAllowed() error {
	return &apierrors.StatusError{ErrStatus: rules.GenericStatus(http.StatusMethodNotAllowed, "the server does not allow this method on the requested resource")}
}
