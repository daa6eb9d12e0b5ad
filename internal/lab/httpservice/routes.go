package httpservice

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Routes puts the world in front of every route of a service.
type Routes struct {
	World  *world.World
	System string // of the calls
	// Refuse writes a refusal as the real service does.
	Refuse func(rw http.ResponseWriter, status int, text string)

	mux http.ServeMux
}

// ServeHTTP implements http.Handler.
func (t *Routes) ServeHTTP(rw http.ResponseWriter, r *http.Request) { t.mux.ServeHTTP(rw, r) }

// Handle adds a route. The call is named by method and pattern; subject names
// what it is about. A GET route answers HEAD too.
func (t *Routes) Handle(pattern string, mutating bool, subject func(*http.Request) string, h http.HandlerFunc) {
	_, route, _ := strings.Cut(pattern, " ")
	name := func(r *http.Request) (world.Call, bool) {
		return world.Call{System: t.System, Op: r.Method + " " + route, Subject: subject(r)}, mutating
	}
	t.mux.Handle(pattern, t.World.HTTP(name, t.Refuse, h))
}

// HandleRest answers every other path with a 404 and the service's own text.
func (t *Routes) HandleRest(text string) {
	t.Handle("/", false, func(r *http.Request) string { return r.URL.Path }, func(rw http.ResponseWriter, _ *http.Request) {
		t.Refuse(rw, http.StatusNotFound, text)
	})
}

// PathValue is the subject of routes that carry it in their path.
func PathValue(key string) func(*http.Request) string {
	return func(r *http.Request) string { return r.PathValue(key) }
}

// NoSubject is for routes that are about the service as a whole.
func NoSubject(*http.Request) string { return "" }

// RefuseText refuses as net/http does: a line of text.
func RefuseText(rw http.ResponseWriter, status int, text string) { http.Error(rw, text, status) }

// WriteJSON answers with v. What cannot be sent any more is the client's loss:
// it hung up.
func WriteJSON(rw http.ResponseWriter, status int, v any) {
	rw.Header().Set("Content-Type", "application/json; charset=utf-8")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(v)
}

// WriteBody answers 200 with body; HEAD gets the headers only.
func WriteBody(rw http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	rw.Header().Set("Content-Type", contentType)
	rw.Header().Set("Content-Length", strconv.Itoa(len(body)))
	rw.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = rw.Write(body)
	}
}

// WriteBlob answers with content and the digest that OCI clients check it by.
func WriteBlob(rw http.ResponseWriter, r *http.Request, mediaType string, body []byte) {
	sum := sha256.Sum256(body)
	rw.Header().Set("Docker-Content-Digest", "sha256:"+hex.EncodeToString(sum[:]))
	WriteBody(rw, r, mediaType, body)
}
