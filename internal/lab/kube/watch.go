package kube

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const (
	// bookmarkEvery is how often a watch that asked for bookmarks gets one.
	bookmarkEvery = time.Minute
	// watchFor ends a watch whose client sets no limit.
	watchFor = 30 * time.Minute
)

// watchObjects streams what happens to the objects the selectors let through, until
// the client or the API goes away or the client's time is over.
func (a *apiserver) watchObjects(w http.ResponseWriter, r *http.Request, req *request, v view) error {
	sel, err := rules.SelectorOf(v.res.gr(), v.res.typ == nil, req.query)
	if err != nil {
		return err
	}
	initial, err := strconv.ParseBool(cmp.Or(req.query.Get("sendInitialEvents"), "false"))
	if err != nil {
		return apierrors.NewBadRequest("sendInitialEvents: " + err.Error())
	}
	if initial && req.query.Get("resourceVersionMatch") != string(metav1.ResourceVersionMatchNotOlderThan) {
		return apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", field.ErrorList{
			field.Forbidden(field.NewPath("resourceVersionMatch"), "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")})
	}
	limit := watchFor
	if n, err := strconv.Atoi(req.query.Get("timeoutSeconds")); err == nil && n > 0 {
		limit = time.Duration(n) * time.Second
	}
	s := stream{w: w, flush: http.NewResponseController(w), view: v, sel: sel, bookmarks: req.query.Get("allowWatchBookmarks") == "true"}
	rv, err := askedVersion(req)
	if err != nil {
		return err
	}
	var existing []*object
	if rv == 0 || initial {
		var at uint64
		existing, at = a.cl.store.listObjects(v.res, req.namespace)
		if rv > at {
			return tooLarge(rv, at)
		}
		rv = at
		if world.VerdictOf(r.Context()).Fault.Kind == world.EmptyList {
			existing = nil
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
	for _, o := range existing {
		if s.sel.Matches(o.body) {
			s.sendObject("ADDED", o)
		}
	}
	if initial && s.bookmarks {
		s.sendBookmark(rv, true)
	}
	s.followStore(r, a.cl.store, req.namespace, rv, limit)
	return nil
}

// askedVersion is the one a list or watch asks for, 0 for none.
func askedVersion(req *request) (uint64, error) {
	asked := req.query.Get("resourceVersion")
	rv, err := strconv.ParseUint(cmp.Or(asked, "0"), 10, 64)
	if err != nil {
		return 0, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: fmt.Sprintf("resourceVersion: Invalid value: %q: %v", asked, err)}}
	}
	return rv, nil
}

// tooLarge answers a version the store has not reached.
func tooLarge(rv, at uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", rv, at), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// stream is the answer to a watch.
type stream struct {
	w         http.ResponseWriter
	flush     *http.ResponseController
	view      view
	sel       rules.Selector
	bookmarks bool
	headed    bool // the first table had its columns
	err       error
}

// followStore sends what happens after version rv.
func (s *stream) followStore(r *http.Request, from *store, namespace string, rv uint64, limit time.Duration) {
	end := time.NewTimer(limit)
	defer end.Stop()
	bookmark := time.NewTicker(bookmarkEvery)
	defer bookmark.Stop()
	for s.err == nil {
		events, at, moved, err := from.eventsSince(s.view.res, rv)
		if err != nil {
			s.failStream(apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", rv, at)).Status())
			return
		}
		for _, e := range events {
			s.sendEvent(e, namespace)
		}
		rv = at
		if len(events) > 0 {
			continue
		}
		if err := s.flush.Flush(); err != nil {
			return // the answer goes nowhere
		}
		select {
		case <-moved:
		case <-bookmark.C:
			if s.bookmarks {
				s.sendBookmark(rv, false)
			}
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// sendEvent sends one change as the selectors see it: an object that begins to
// match is added, one that no longer does is deleted.
func (s *stream) sendEvent(e event, namespace string) {
	if ns := namespaceOf(e); namespace != "" && ns != namespace {
		return
	}
	before, after := e.old != nil && s.sel.Matches(e.old.body), e.new != nil && s.sel.Matches(e.new.body)
	switch {
	case after && before:
		s.sendObject("MODIFIED", e.new)
	case after:
		s.sendObject("ADDED", e.new)
	case before && e.new != nil:
		s.sendObject("DELETED", e.new)
	case before:
		s.sendObject("DELETED", e.old)
	}
}

func namespaceOf(e event) string {
	o := e.new
	if o == nil {
		o = e.old
	}
	return rules.TextAt(o.body, "metadata", "namespace")
}

func (s *stream) sendObject(kind string, o *object) {
	body, err := s.renderObject(o)
	if err != nil {
		s.failStream(apierrors.NewInternalError(err).Status())
		return
	}
	s.writeFrame(kind, body)
}

func (s *stream) renderObject(o *object) ([]byte, error) {
	if s.view.as != rules.AsTable {
		return s.view.renderOne(o)
	}
	head := !s.headed
	s.headed = true
	return s.view.encodeTable([]*object{o}, strconv.FormatUint(o.rv, 10), head)
}

// sendBookmark reports to the client how far it is. The one that ends the initial
// events is marked.
func (s *stream) sendBookmark(rv uint64, initial bool) {
	meta := map[string]any{"resourceVersion": strconv.FormatUint(rv, 10)}
	if initial {
		meta["annotations"] = map[string]any{metav1.InitialEventsAnnotationKey: "true"}
	}
	s.sendObject("BOOKMARK", &object{rv: rv, body: map[string]any{"metadata": meta}})
}

// failStream ends the stream with an error.
func (s *stream) failStream(status metav1.Status) {
	status.Kind, status.APIVersion = "Status", "v1"
	body, err := json.Marshal(status)
	if err == nil {
		s.writeFrame("ERROR", body)
		err = s.flush.Flush()
	}
	s.err = errors.Join(errors.New("the watch failed"), err)
}

func (s *stream) writeFrame(kind string, body []byte) {
	if s.err != nil {
		return
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"type":%q,"object":`, kind)
	b.Write(bytes.TrimRight(body, "\n"))
	b.WriteString("}\n")
	_, s.err = s.w.Write(b.Bytes())
}
