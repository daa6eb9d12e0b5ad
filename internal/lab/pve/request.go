package pve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// apiPrefix is where the API lives.
const apiPrefix = "/api2/json"

// maxBody is the largest form or JSON body pveproxy reads.
const maxBody = 512 << 10

// call is one request that is being answered.
type call struct {
	s     *Server
	r     *http.Request
	who   identity
	node  *host          // of the path; nil when the path names none
	in    map[string]any // parameters of path, query and body: string or []string
	fault world.Fault
}

// str returns a parameter, "" when it is absent.
func (c *call) str(name string) string {
	v, _ := c.in[name].(string)
	return v
}

// has reports whether a parameter was given.
func (c *call) has(name string) bool {
	_, ok := c.in[name]
	return ok
}

// num returns an integer that the schema has checked, or def.
func (c *call) num(name string, def int) int {
	n, err := strconv.Atoi(c.str(name))
	if err != nil {
		return def
	}
	return n
}

// flag returns a boolean that the schema has checked.
func (c *call) flag(name string) bool { return c.str(name) == "1" }

// vmid is the VM the path names.
func (c *call) vmid() int { return c.num("vmid", 0) }

// route is one method of the API.
type route struct {
	method, path string
	do           func(*call) (any, error)
	// harmless marks a POST that changes nothing.
	harmless bool
	segments []string // of the path
}

// splitRoutes returns the routes that a flavour has, ready to be matched.
func splitRoutes(methods map[string]*schema.Method) []route {
	out := slices.DeleteFunc(slices.Clone(routes), func(r route) bool { return methods[r.method+" "+r.path] == nil })
	for i := range out {
		out[i].segments = strings.Split(out[i].path, "/")
	}
	return out
}

// matchRoute finds the route of a request and the parameters in its path. A path
// that is unknown, or has no such method, has none.
func (s *Server) matchRoute(method, path string) (*route, map[string]any) {
	have := strings.Split(strings.TrimSuffix(path, "/"), "/")
	for i := range s.routes {
		if r := &s.routes[i]; r.method == method {
			if in, ok := r.matchSegments(have); ok {
				return r, in
			}
		}
	}
	return nil, nil
}

// matchSegments matches the segments of a path. {volume} takes all that are left,
// because volume names have slashes.
func (r *route) matchSegments(have []string) (map[string]any, bool) {
	for i, want := range r.segments {
		switch {
		case i >= len(have), have[i] == "" && i > 0, want != have[i] && !strings.HasPrefix(want, "{"):
			return nil, false
		case want == "{volume}":
			return r.pickParameters(append(have[:i:i], strings.Join(have[i:], "/"))), true
		}
	}
	return r.pickParameters(have), len(r.segments) == len(have)
}

// pickParameters picks the parameters out of the segments of a path that matches.
func (r *route) pickParameters(have []string) map[string]any {
	in := map[string]any{}
	for i, want := range r.segments {
		if name, ok := strings.CutPrefix(want, "{"); ok && i < len(have) {
			in[strings.TrimSuffix(name, "}")] = have[i]
		}
	}
	return in
}

// arrivalKey carries what name found out about a request to serve.
type arrivalKey struct{}

// arrival is a request as far as it can be read without knowing who asks.
type arrival struct {
	route *route         // nil when there is no such method
	path  map[string]any // parameters in the path
	body  map[string]any // parameters in the body
	err   error          // why the body has none
	call  *call          // with what is known of it so far
}

// arrivalOf is what is known of a request.
func arrivalOf(r *http.Request) *arrival {
	a, _ := r.Context().Value(arrivalKey{}).(*arrival)
	return a
}

// nameCall reports to the world what a request asks, and of whom.
func (s *Server) nameCall(r *http.Request) (world.Call, bool) {
	a := &arrival{call: &call{}}
	if path, ok := strings.CutPrefix(r.URL.Path, apiPrefix); ok {
		a.route, a.path = s.matchRoute(r.Method, path)
	}
	c := world.Call{System: "pve", Op: r.Method + " unknown"}
	if a.route != nil {
		c.Op = a.route.method + " " + a.route.path
	}
	if a.route == nil || !isUpload(a.route) {
		a.body, a.err = readBody(r)
	}
	// The world hands this very request on, so it takes the findings along.
	*r = *r.WithContext(context.WithValue(r.Context(), arrivalKey{}, a))
	if c.Subject = nameSubject(a.path); a.route != nil && a.route.path == createPath {
		c.Subject, _ = a.body["vmid"].(string)
	}
	return c, a.route != nil && a.route.method != http.MethodGet && !a.route.harmless
}

// createPath is where VMs are created: the one path whose subject is in the
// body.
const createPath = "/nodes/{node}/qemu"

// nameSubject is whom a request is about: a VM, else a storage, a host or a pool.
func nameSubject(in map[string]any) string {
	if u, ok := in["upid"].(string); ok {
		if p, err := parseUPID(u); err == nil && p.id != "" {
			return p.id
		}
	}
	for _, k := range []string{"vmid", "storage", "node", "poolid", "userid"} {
		if v, ok := in[k].(string); ok {
			return v
		}
	}
	return ""
}

func isUpload(rt *route) bool { return strings.HasSuffix(rt.path, "/upload") }

// readBody reads a form or JSON body.
func readBody(r *http.Request) (map[string]any, error) {
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		return nil, nil
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the request: %w", err)
	case len(text) > maxBody:
		return nil, &failure{status: http.StatusNotImplemented, text: "for data too large", body: textBody}
	case len(text) == 0:
		return nil, nil
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Header.Get("Content-Type") == "" {
		kind, err = "application/x-www-form-urlencoded", nil
	}
	switch {
	case err == nil && kind == "application/x-www-form-urlencoded":
		return schema.ParseForm(string(text))
	case err == nil && kind == "application/json":
		return parseJSON(text)
	}
	return nil, &failure{status: http.StatusVariantAlsoNegotiates, body: textBody,
		text: fmt.Sprintf("upload 'Content-Type '%s' not implemented", r.Header.Get("Content-Type"))}
}

// parseJSON reads parameters from a JSON object.
func parseJSON(text []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var raw map[string]any
	if err := d.Decode(&raw); err != nil {
		return nil, errors.New(`malformed JSON string, neither tag, array, object, number, string or atom, at character offset 0 (before "` +
			firstLine(text) + `") at /usr/share/perl5/PVE/APIServer/AnyEvent.pm`)
	}
	in := map[string]any{}
	for k, v := range raw {
		switch v := v.(type) {
		case nil:
		case bool:
			in[k] = map[bool]string{true: "1", false: "0"}[v]
		case []any:
			var list []string
			for _, e := range v {
				list = append(list, fmt.Sprint(e))
			}
			in[k] = list
		default:
			in[k] = fmt.Sprint(v)
		}
	}
	return in, nil
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text), "\n")
	return line[:min(len(line), 40)]
}

// serveRequest answers one request, in the order Proxmox VE goes about it: who
// asks, is there such a method, may they, which host, are the parameters right.
func (s *Server) serveRequest(w http.ResponseWriter, r *http.Request) {
	if !s.beginWork() {
		panic(http.ErrAbortHandler)
	}
	defer s.work.Done()
	c := &call{s: s, r: r, in: map[string]any{}, fault: world.VerdictOf(r.Context()).Fault}
	arrivalOf(r).call = c
	data, err := s.handleCall(c)
	if err != nil {
		s.writeFailure(w, r, asFailure(err))
		return
	}
	if take, ok := data.(upgrade); ok {
		s.logRequest(r, http.StatusSwitchingProtocols, 0)
		take(w, c.r)
		return
	}
	s.writeReply(w, c, data)
}

func (s *Server) handleCall(c *call) (any, error) {
	switch c.r.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return nil, &failure{status: http.StatusNotImplemented, text: fmt.Sprintf("method '%s' not available", c.r.Method), body: emptyBody}
	}
	path, ok := strings.CutPrefix(c.r.URL.Path, apiPrefix)
	if !ok {
		return nil, &failure{status: http.StatusNotFound, text: "no such file '" + c.r.URL.Path + "'", body: emptyBody}
	}
	a := arrivalOf(c.r)
	rt := a.route
	var err error
	if c.who, err = s.authenticateRequest(c.r, rt); err != nil {
		return nil, err
	}
	if rt == nil {
		return nil, &failure{status: http.StatusNotImplemented, body: messageOnly,
			text: fmt.Sprintf("Method '%s %s' not implemented", c.r.Method, path)}
	}
	if err := c.collectParams(a); err != nil {
		return nil, err
	}
	m := s.schema[rt.method+" "+rt.path]
	s.checkRules(c, rt)
	if err := s.mayCall(c, m); err != nil {
		if isUpload(rt) {
			f := asFailure(err)
			return nil, &failure{status: f.status, text: f.text, body: emptyBody, slow: true}
		}
		return nil, err
	}
	if name, ok := c.in["node"].(string); ok && strings.Contains(rt.path, "{node}") {
		if c.node = s.host(name); c.node == nil {
			return nil, perlError("hostname lookup '%s' failed - failed to get address info for: %s: Temporary failure in name resolution", name, name)
		}
	}
	if isUpload(rt) {
		return s.answerUpload(c, m)
	}
	if errs := m.CheckParams(c.in); len(errs) > 0 {
		return nil, refuseParams(errs)
	}
	if s.noQuorum.Load() && rt.method != http.MethodGet && strings.HasPrefix(rt.path, "/pools") {
		return nil, perlError("cfs-lock 'file-user_cfg' error: no quorum!") // after ten seconds
	}
	if s.noQuorum.Load() && rt.method != http.MethodGet && !rt.harmless {
		return nil, perlError("cluster not ready - no quorum?")
	}
	data, err := rt.do(c)
	if err == nil {
		s.noteRead(c, rt)
	}
	return data, err
}

// collectParams gathers the parameters of path, query and body; the path wins.
func (c *call) collectParams(a *arrival) error {
	if a.err != nil {
		return a.err
	}
	query, err := schema.ParseForm(c.r.URL.RawQuery)
	if err != nil {
		return err
	}
	for _, from := range []map[string]any{query, a.body, a.path} {
		for k, v := range from {
			c.in[k] = v
		}
	}
	return nil
}
