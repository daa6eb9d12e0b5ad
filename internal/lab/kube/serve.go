package kube

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/talos-agent/talos-agent/internal/lab/kube/containers"
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
		if !a.c.gate.TryEnter() {
			panic(http.ErrAbortHandler)
		}
		defer a.c.gate.Leave()
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
	var err error
	if user.name, user.groups, err = rules.Impersonate(r.Header, user.name, user.groups); err != nil {
		writeError(w, err)
		return
	}
	if req.verb == "" {
		if !a.requests.ServeMetrics(w, r, user.master()) && !a.serveOpenAPI(w, r) {
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
		if err := a.reviewAccess(w, req, res, user); err != nil {
			writeError(w, err)
		}
		return
	}
	if !user.master() {
		writeError(w, forbidRequest(user, req, res))
		return
	}
	want, ok := rules.NegotiateRendering(r.Header.Get("Accept"), rules.AsTable, rules.AsMetadata)
	if !ok {
		writeStatus(w, rules.GenericStatus(http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: application/json"))
		return
	}
	if slices.Contains([]string{"get", "list", "watch"}, req.verb) {
		a.c.refreshRead(a.cl, res, req.namespace, req.name)
	}
	a.requests.Note(w.Header(), res.gr().WithVersion(req.version), req.subresource, res.typ, rules.DeprecatedSince(res.gr(), a.cp.Kubernetes))
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
	if res == resPods && slices.Contains(containers.Calls, req.subresource) {
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

// askKubelet answers what a pod's kubelet is asked for. Kubelets of the lab have logs, and
// take commands over a WebSocket; nothing else of theirs can be connected to.
func (a *apiserver) askKubelet(w http.ResponseWriter, r *http.Request, req *request) error {
	if allowed := rules.DescribeSubresource(req.subresource, schema.GroupVersionKind{}).Verbs; !slices.Contains(allowed, req.verb) {
		return notAllowed()
	}
	pod := a.cl.store.getObject(resPods, objectKey(req.namespace, req.name))
	if pod == nil {
		return apierrors.NewNotFound(resPods.gr(), req.name)
	}
	if req.subresource == "log" {
		return a.serveLog(w, r, req, pod)
	}
	container := ""
	if req.subresource != "portforward" {
		var err error
		if container, err = containers.PickContainer(pod.body, req.query.Get("container")); err != nil {
			return err
		}
	}
	node := rules.TextAt(pod.body, "spec", "nodeName")
	if node == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", req.name))
	}
	address, runs, err := a.cl.findKubelet(node)
	upgrade := r.Header.Get("Upgrade")
	switch {
	case err != nil:
		return err
	case upgrade == "":
		return apierrors.NewBadRequest("Upgrade request required")
	case !runs:
		return containers.Unreachable("error dialing backend: dial tcp %s:10250: connect: no route to host", address)
	case req.subresource != "exec" || !strings.EqualFold(upgrade, "websocket"):
		return containers.Unreachable("error dialing backend: dial tcp %s:10250: connect: connection refused", address)
	}
	return containers.Exec(w, r, pod.body, container)
}

// serveLog answers with the log of a container. One that is followed stays open until the
// container has ended or its reader closes it.
func (a *apiserver) serveLog(w http.ResponseWriter, r *http.Request, req *request, pod *object) error {
	options, err := containers.ReadLogOptions(req.name, req.query)
	if err != nil {
		return err
	}
	container, err := containers.PickContainer(pod.body, req.query.Get("container"))
	if err != nil {
		return err
	}
	node := rules.TextAt(pod.body, "spec", "nodeName")
	if node == "" {
		return nil // as a real one does: nothing, and no error
	}
	address, runs, err := a.cl.findKubelet(node)
	if err != nil {
		return err
	}
	if !runs {
		kubelet := url.URL{Scheme: "https", Host: address + ":10250", Path: "/containerLogs/" + req.namespace + "/" + req.name + "/" + container, RawQuery: options.Query}
		return containers.Unreachable("Get %q: dial tcp %s:10250: connect: no route to host", kubelet.String(), address)
	}
	log, ended, err := containers.ReadLog(pod.body, container, options.Previous)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain")
	text, full := options.Print(options.Cut(log))
	_, _ = w.Write([]byte(text)) // a client that hung up needs no answer
	if options.Follow && !ended && !full {
		a.followLog(w, r, pod, container, &options, len(log))
	}
	return nil
}

// followLog sends the lines of a log behind the first so many, until there will be no
// more.
func (a *apiserver) followLog(w http.ResponseWriter, r *http.Request, pod *object, container string, options *containers.LogOptions, sent int) {
	key := objectKey(rules.TextAt(pod.body, "metadata", "namespace"), rules.TextAt(pod.body, "metadata", "name"))
	uid := rules.TextAt(pod.body, "metadata", "uid")
	flush := http.NewResponseController(w)
	for rv := pod.rv; flush.Flush() == nil; {
		_, at, moved, err := a.cl.store.eventsSince(resPods, rv)
		now := a.cl.store.getObject(resPods, key)
		if err != nil || now == nil || rules.TextAt(now.body, "metadata", "uid") != uid {
			return
		}
		log, ended, err := containers.ReadLog(now.body, container, false)
		if err == nil && len(log) > sent {
			text, _ := options.Print(log[sent:])
			_, _ = w.Write([]byte(text)) // the next flush shows whether it is read
			sent = len(log)
		}
		if err != nil || ended {
			return
		}
		rv = at
		select {
		case <-moved:
		case <-r.Context().Done():
			return
		}
	}
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
	groups []string
}

// master reports that it may do everything.
func (i identity) master() bool { return rules.MayAll(i.groups) }

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
	c.who = identity{name: leaf.Subject.CommonName, groups: append(slices.Clone(leaf.Subject.Organization), "system:authenticated")}
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
