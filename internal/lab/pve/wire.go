package pve

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// failure is an answer that is not 200. A plain error is one with status 500.
type failure struct {
	status int
	text   string            // the reason phrase, and the message in the body
	params map[string]string // the errors map of a 400
	body   body
	slow   bool // pveproxy delays it, against guessing
}

func (f *failure) Error() string { return f.text }

// body is what the body of a failure holds.
type body int

// The bodies of failures.
const (
	jsonBody    body = iota // {"data":null,"message":...}, when a handler was reached
	emptyBody               // pveproxy itself refused
	textBody                // the HTTP layer refused: the reason once more
	messageOnly             // jsonBody whose message lacks the newline of Perl's die
)

// perlError is an error with Proxmox VE's own text, as its Perl dies with it.
func perlError(format string, args ...any) error {
	return &failure{status: http.StatusInternalServerError, text: fmt.Sprintf(format, args...)}
}

// refuseParams is what Proxmox VE answers to bad parameters: all of them at once.
func refuseParams(params map[string]string) error {
	return &failure{status: http.StatusBadRequest, text: "Parameter verification failed.", params: params}
}

// invalidParam is invalid for one parameter.
func invalidParam(name, format string, args ...any) error {
	return refuseParams(map[string]string{name: fmt.Sprintf(format, args...)})
}

// denyAccess is what Proxmox VE answers for lack of a privilege; what is "" where
// it does not name one.
func denyAccess(what string) error {
	text := "Permission check failed"
	if what != "" {
		text += " (" + what + ")"
	}
	return &failure{status: http.StatusForbidden, text: text}
}

// asFailure turns what a handler returned into an answer.
func asFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return &failure{status: http.StatusInternalServerError, text: err.Error()}
}

// failureDelay is how long pveproxy keeps clients waiting whose credentials
// failed.
const failureDelay = 3 * time.Second

// writeFailure answers with a failure. The text goes into the reason phrase, which
// net/http cannot set, so the connection is taken over; it ends with the
// answer, as it does in life.
func (s *Server) writeFailure(w http.ResponseWriter, r *http.Request, f *failure) {
	// A body that is still on its way would make the closing connection eat
	// the answer.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		s.log.Debug("drain a refused request", "err", err)
	}
	if f.slow && s.world.Sleep(r.Context(), failureDelay) != nil {
		panic(http.ErrAbortHandler)
	}
	contentType, payload := "application/json;charset=UTF-8", []byte(nil)
	switch f.body {
	case emptyBody:
		contentType = ""
	case textBody:
		contentType, payload = "text/plain", []byte(f.text)
	default:
		answer := map[string]any{"data": nil, "message": f.text + "\n"}
		if f.body == messageOnly {
			answer["message"] = f.text
		}
		if f.params != nil {
			answer["errors"] = f.params
		}
		payload = encodeJSON(answer)
	}
	s.logRequest(r, f.status, len(payload))
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		// Nobody will see this answer: it is one the world loses.
		w.WriteHeader(f.status)
		return
	}
	var b bytes.Buffer
	reason := strings.NewReplacer("\r", " ", "\n", " ").Replace(f.text)
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", f.status, reason)
	h := s.commonHeader()
	h.Set("Connection", "close")
	h.Set("Content-Length", strconv.Itoa(len(payload)))
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	if err := errors.Join(h.Write(&b), writeAll(conn, append(append(b.Bytes(), "\r\n"...), payload...)), conn.Close()); err != nil {
		s.log.Debug("send a failure", "err", err)
	}
}

func writeAll(w io.Writer, p []byte) error {
	_, err := w.Write(p)
	return err
}

// takeRequest has the world decide about a request, or refuse it for Proxmox VE.
func (s *Server) takeRequest(w http.ResponseWriter, r *http.Request) {
	s.world.HTTP(s.nameCall, func(w http.ResponseWriter, status int, text string) {
		if a := arrivalOf(r); status != http.StatusUnauthorized {
			a.call.who, _ = s.authenticateRequest(r, a.route)
		}
		r.Body = http.NoBody
		s.writeFailure(w, r, &failure{status: status, text: text})
	}, http.HandlerFunc(s.serveRequest)).ServeHTTP(w, r)
}

// logRequest notes a request, before its answer leaves, in the access logs of the host that
// was asked and of the one that it was passed on to.
func (s *Server) logRequest(r *http.Request, status, length int) {
	a, asked, now := arrivalOf(r), s.askedHost(r), time.Now().Add(time.Duration(s.ahead.Load()))
	for _, h := range slices.Compact([]*host{asked, cmp.Or(a.call.node, asked)}) {
		h.accessLog.Append(r, a.call.who.id, now, status, length)
	}
}

// listing is a list that states how many entries there are beside those it gives.
type listing struct {
	data  any
	total int
}

// writeReply answers 200.
func (s *Server) writeReply(w http.ResponseWriter, c *call, data any) {
	answer := map[string]any{"data": data}
	if l, ok := data.(listing); ok {
		answer["data"], answer["total"] = l.data, l.total
	}
	if c.fault.Kind == world.EmptyList && isList(answer["data"]) {
		answer["data"] = []any{}
	}
	payload := encodeJSON(answer)
	s.logRequest(c.r, http.StatusOK, len(payload))
	h := w.Header()
	maps.Copy(h, s.commonHeader())
	h.Set("Connection", "Keep-Alive")
	h.Set("Content-Type", "application/json;charset=UTF-8")
	h.Set("Content-Length", strconv.Itoa(len(payload)))
	if err := writeAll(w, payload); err != nil {
		s.log.Debug("send an answer", "err", err)
	}
}

func (s *Server) commonHeader() http.Header {
	now := time.Now().Add(time.Duration(s.ahead.Load())).UTC().Format(http.TimeFormat)
	return http.Header{
		"Cache-Control": {"max-age=0"}, "Pragma": {"no-cache"}, "Server": {"pve-api-daemon/3.0"},
		"Date": {now}, "Expires": {now},
	}
}

// encodeJSON renders JSON as Proxmox VE does, without Go's escapes for HTML.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("pve: encode an answer: %v", err)) // answers are maps of plain values
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// row is one JSON object of an answer.
type row = map[string]any

func isList(v any) bool {
	switch v.(type) {
	case []row, []any, []string:
		return true
	}
	return false
}
