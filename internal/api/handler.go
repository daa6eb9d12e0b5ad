package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

type peerKey struct{}

// peer is who is at the other end of a connection, in the kernel's word.
type peer struct {
	known bool
	uid   uint32
}

// isRoot reports whether the peer may change things: root, or the daemon's own
// user, who could read the daemon's memory anyway.
func (p peer) isRoot() bool { return p.known && (p.uid == 0 || int(p.uid) == os.Getuid()) }

// isFromRoot reports whether a request is from somebody who may change things.
func isFromRoot(r *http.Request) bool {
	p, _ := r.Context().Value(peerKey{}).(peer)
	return p.isRoot()
}

// newHandler serves the routes. The peer of a request comes from its connection;
// without one, only reading is allowed.
func newHandler(d Daemon, st *streams) http.Handler {
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) {
			if rt.access == forRoot && !isFromRoot(r) {
				writeError(w, &Error{Status: http.StatusForbidden, Reason: cluster.AccessDenied, Message: "this is for root of the host", Hint: "run it with sudo"})
				return
			}
			if rt.stream != nil {
				st.serve(w, r, rt, d)
				return
			}
			data, err := rt.serve(r, d)
			if err != nil {
				writeError(w, err)
				return
			}
			writeJSON(w, http.StatusOK, envelope{Kind: rt.kind, APIVersion: Version, Data: data})
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if methods := methodsOf(mux, r); len(methods) > 0 {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			writeError(w, &Error{Status: http.StatusMethodNotAllowed, Reason: cluster.RouteUnknown, Message: fmt.Sprintf("%s cannot be asked with %s", r.URL.Path, r.Method), Hint: "ask with " + strings.Join(methods, " or ")})
			return
		}
		writeError(w, &Error{Status: http.StatusNotFound, Reason: cluster.RouteUnknown, Message: fmt.Sprintf("the agent knows no %s %s", r.Method, r.URL.Path), Hint: "the client may be newer than the daemon: restart talos-agent"})
	})
	return mux
}

// methodsOf lists the methods with which the path of a request is a route.
func methodsOf(mux *http.ServeMux, r *http.Request) (methods []string) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" {
			methods = append(methods, method)
		}
	}
	return methods
}

// statuses are those of errors that are no failure of the daemon, by their reason.
var statuses = map[cluster.Reason]int{
	cluster.Starting:        http.StatusServiceUnavailable,
	cluster.StandingBy:      http.StatusServiceUnavailable,
	cluster.NothingToAccept: http.StatusConflict,
	cluster.NothingToDo:     http.StatusConflict,
	cluster.InventoryUnread: http.StatusConflict,
}

// envelope is the shape of every answer.
type envelope struct {
	Kind       string `json:"kind,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
	Data       any    `json:"data,omitempty"`
	Error      *Error `json:"error,omitempty"`
}

func writeError(w http.ResponseWriter, err error) {
	out := &Error{Status: http.StatusInternalServerError, Reason: cmp.Or(cluster.ReasonOf(err), cluster.CommandFailed), Message: err.Error()}
	var e *Error
	switch {
	case errors.As(err, &e):
		out = e
	case errors.Is(err, ErrUnknownCluster):
		out.Status, out.Reason = http.StatusNotFound, cluster.ClusterUnknown
	case errors.Is(err, ErrUnknownNode):
		out.Status, out.Reason = http.StatusNotFound, cluster.RequestInvalid
	case errors.Is(err, ErrNoVM):
		out.Status, out.Reason = http.StatusConflict, cluster.RequestInvalid
	case errors.Is(err, ErrUnmanaged):
		out.Status = http.StatusConflict
	case statuses[out.Reason] != 0:
		out.Status = statuses[out.Reason]
	}
	if out.Hint == "" {
		out.Hint = fault.HintOf(err)
	}
	writeJSON(w, out.Status, envelope{Error: out})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer cannot be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that has disconnected does not want it
}
