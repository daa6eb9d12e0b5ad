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
	"net/url"
	"strconv"
	"strings"

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

// has tells whether a parameter was given.
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
}

// match finds the route of a request and the parameters in its path. A path
// that is unknown, or has no such method, has none.
func match(method, path string) (*route, map[string]any) {
	path = strings.TrimSuffix(path, "/")
	for i := range routes {
		r := &routes[i]
		if r.method != method {
			continue
		}
		if in, ok := matchPath(r.path, path); ok {
			return r, in
		}
	}
	return nil, nil
}

// matchPath matches a path against a template. {volume} takes the rest of the
// path, because volume names have slashes.
func matchPath(template, path string) (map[string]any, bool) {
	want, have := strings.Split(template, "/"), strings.Split(path, "/")
	in := map[string]any{}
	for i, w := range want {
		if i >= len(have) {
			return nil, false
		}
		name, isParam := strings.CutPrefix(w, "{")
		name = strings.TrimSuffix(name, "}")
		switch {
		case !isParam && w != have[i]:
			return nil, false
		case isParam && have[i] == "":
			return nil, false
		case isParam && name == "volume":
			in[name] = strings.Join(have[i:], "/")
			return in, true
		case isParam:
			in[name] = have[i]
		}
	}
	return in, len(want) == len(have)
}

// parsedKey carries the body's parameters from name, which needs them to say
// whom a creation is about, to serve.
type parsedKey struct{}

// parsed are the parameters of a body, or why there are none.
type parsed struct {
	in  map[string]any
	err error
}

// name tells the world what a request asks, and of whom.
func (s *Server) name(r *http.Request) (world.Call, bool) {
	path, ok := strings.CutPrefix(r.URL.Path, apiPrefix)
	rt, in := match(r.Method, path)
	if !ok || rt == nil {
		return world.Call{System: "pve", Op: r.Method + " unknown"}, false
	}
	c := world.Call{System: "pve", Op: rt.method + " " + rt.path}
	if !isUpload(rt) {
		p := readBody(r)
		*r = *r.WithContext(context.WithValue(r.Context(), parsedKey{}, p))
		if v, ok := p.in["vmid"].(string); ok && rt.path == "/nodes/{node}/qemu" {
			in["vmid"] = v
		}
	}
	c.Subject = subject(in)
	return c, rt.method != http.MethodGet && !rt.harmless
}

// subject is whom a request is about: a VM, else a storage, a host or a pool.
func subject(in map[string]any) string {
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
func readBody(r *http.Request) parsed {
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		return parsed{}
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return parsed{err: fmt.Errorf("read the request: %w", err)}
	case len(text) > maxBody:
		return parsed{err: &failure{status: http.StatusNotImplemented, text: "for data too large", body: textBody}}
	case len(text) == 0:
		return parsed{}
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Header.Get("Content-Type") == "" {
		kind, err = "application/x-www-form-urlencoded", nil
	}
	switch {
	case err == nil && kind == "application/x-www-form-urlencoded":
		in, err := parseForm(string(text))
		return parsed{in: in, err: err}
	case err == nil && kind == "application/json":
		in, err := parseJSON(text)
		return parsed{in: in, err: err}
	}
	return parsed{err: &failure{status: http.StatusVariantAlsoNegotiates, body: textBody,
		text: fmt.Sprintf("upload 'Content-Type '%s' not implemented", r.Header.Get("Content-Type"))}}
}

// parseForm reads form parameters. A key that comes twice becomes an array,
// which no scalar parameter accepts.
func parseForm(text string) (map[string]any, error) {
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, fmt.Errorf("unable to decode parameters: %w", err)
	}
	in := map[string]any{}
	for k, v := range values {
		if len(v) == 1 {
			in[k] = v[0]
		} else {
			in[k] = v
		}
	}
	return in, nil
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

// serve answers one request, in the order Proxmox VE goes about it: who asks,
// is there such a method, may they, which host, are the parameters right.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.work.Done()
	c := &call{s: s, r: r, in: map[string]any{}, fault: world.VerdictOf(r.Context()).Fault}
	data, err := s.handle(c)
	if err != nil {
		s.fail(w, r, asFailure(err))
		return
	}
	s.reply(w, c, data)
}

func (s *Server) handle(c *call) (any, error) {
	switch c.r.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return nil, &failure{status: http.StatusNotImplemented, text: fmt.Sprintf("method '%s' not available", c.r.Method), body: emptyBody}
	}
	path, ok := strings.CutPrefix(c.r.URL.Path, apiPrefix)
	if !ok {
		return nil, &failure{status: http.StatusNotFound, text: "no such file '" + c.r.URL.Path + "'", body: emptyBody}
	}
	rt, in := match(c.r.Method, path)
	m := s.schema[c.r.Method+" "+templateOf(rt)]
	who, err := s.authenticate(c.r, rt)
	if err != nil {
		return nil, err
	}
	if rt == nil {
		return nil, &failure{status: http.StatusNotImplemented, body: messageOnly,
			text: fmt.Sprintf("Method '%s %s' not implemented", c.r.Method, path)}
	}
	c.who = who
	if err := c.parameters(in); err != nil {
		return nil, err
	}
	s.holdAgainst(c, rt)
	if err := s.mayCall(c, m); err != nil {
		if isUpload(rt) {
			f := asFailure(err)
			return nil, &failure{status: f.status, text: f.text, body: emptyBody, slow: true}
		}
		return nil, err
	}
	if name, ok := c.in["node"].(string); ok && strings.Contains(rt.path, "{node}") {
		if c.node = s.host(name); c.node == nil {
			return nil, die("hostname lookup '%s' failed - failed to get address info for: %s: Temporary failure in name resolution", name, name)
		}
	}
	if isUpload(rt) {
		return s.upload(c, m)
	}
	if errs := m.faults(c.in); len(errs) > 0 {
		return nil, invalid(errs)
	}
	return rt.do(c)
}

func templateOf(rt *route) string {
	if rt == nil {
		return ""
	}
	return rt.path
}

// parameters collects what path, query and body say; the path wins.
func (c *call) parameters(path map[string]any) error {
	p, _ := c.r.Context().Value(parsedKey{}).(parsed)
	if p.err != nil {
		return p.err
	}
	query, err := parseForm(c.r.URL.RawQuery)
	if err != nil {
		return err
	}
	for _, from := range []map[string]any{query, p.in, path} {
		for k, v := range from {
			c.in[k] = v
		}
	}
	return nil
}

// holdAgainst tells the world when the agent does what it promised not to do,
// whether or not Proxmox VE lets it. The call itself goes on as in life.
func (s *Server) holdAgainst(c *call, rt *route) {
	if c.who.id != s.agent || rt.method == http.MethodGet || rt.harmless {
		return
	}
	id := c.vmid()
	s.mu.Lock()
	v := s.vms[id]
	var maker string
	if v != nil {
		maker = v.maker
	}
	s.mu.Unlock()
	creates := rt.path == "/nodes/{node}/qemu"
	switch {
	case v == nil:
	case maker != s.agent && creates:
		s.world.Violate("ownership", "%s %s would create vm %d, which %s made", rt.method, rt.path, id, maker)
	case maker != s.agent:
		s.world.Violate("ownership", "%s %s touches vm %d, which %s made", rt.method, rt.path, id, maker)
	case creates:
		s.world.Violate("duplicate", "%s %s creates vm %d a second time", rt.method, rt.path, id)
	}
}
