package kube

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// maxBody is what a kube-apiserver reads of a request.
const maxBody = 3 << 20

// request is what a request asks, in the terms of Kubernetes.
type request struct {
	verb        string // get list watch create update patch delete deletecollection; "": no object
	group       string
	version     string
	resource    string
	namespace   string
	name        string
	subresource string
	pattern     string // the path with names taken out
	query       url.Values
	media       string // type of the body, without parameters
	agent       string // the client, as it calls itself
	body        []byte
}

type requestKey struct{}

// requestOf returns what readRequest made of the request.
func requestOf(ctx context.Context) *request {
	req, _ := ctx.Value(requestKey{}).(*request)
	return req
}

// readRequest understands a request and reads its body.
func readRequest(w http.ResponseWriter, r *http.Request) (*request, error) {
	req := parsePath(r.Method, r.URL.Path)
	req.query, req.agent = r.URL.Query(), r.UserAgent()
	if req.verb == "list" {
		if watch, err := strconv.ParseBool(req.query.Get("watch")); err == nil && watch {
			req.verb = "watch"
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return req, apierrors.NewRequestEntityTooLargeError("limit is " + strconv.Itoa(maxBody))
	}
	if err != nil {
		return req, apierrors.NewBadRequest("read body: " + err.Error())
	}
	req.body = body
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	req.media = strings.TrimSpace(media)
	if req.media == rules.Protobuf && len(body) > 0 {
		req.media = "application/json"
		if req.body, err = rules.FromProtobuf(body, typeOf); err != nil {
			return req, err
		}
	}
	return req, nil
}

// verbs are what a method means, for a collection and for one object.
var verbs = map[string][2]string{
	http.MethodGet:    {"list", "get"},
	http.MethodHead:   {"list", "get"},
	http.MethodPost:   {"create", "create"},
	http.MethodPut:    {"update", "update"},
	http.MethodPatch:  {"patch", "patch"},
	http.MethodDelete: {"deletecollection", "delete"},
}

// parsePath understands a path of the API.
func parsePath(method, path string) *request {
	req := &request{pattern: path}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var prefix string
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		req.version = parts[1]
		prefix, parts = "/api/"+req.version, parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		req.group, req.version = parts[1], parts[2]
		prefix, parts = "/apis/"+req.group+"/"+req.version, parts[3:]
	default:
		return req
	}
	// namespaces/x/status is a subresource of the namespace, not a resource in it.
	if len(parts) >= 3 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		req.namespace = parts[1]
		prefix, parts = prefix+"/namespaces/{namespace}", parts[2:]
	}
	req.resource = parts[0]
	prefix += "/" + req.resource
	one := 0
	if len(parts) > 1 {
		one = 1
		req.name = parts[1]
		prefix += "/{name}"
	}
	if len(parts) > 2 {
		req.subresource = strings.Join(parts[2:], "/")
		prefix += "/" + req.subresource
	}
	req.verb = verbs[method][one]
	req.pattern = prefix
	return req
}

// nameCall names the request for the world.
func (req *request) nameCall(method, node string) (c world.Call, mutating bool) {
	c = world.Call{System: "kube", Op: method + " " + req.pattern}
	if req.verb == "" {
		c.Subject = node
		return c, false
	}
	if req.verb == "watch" {
		c.Op = "WATCH " + req.pattern
	}
	name := req.name
	if name == "" && req.verb == "create" {
		var named struct {
			Metadata struct{ Name string }
		}
		if json.Unmarshal(req.body, &named) == nil {
			name = named.Metadata.Name
		}
	}
	c.Subject = strings.Trim(req.namespace+"/"+name, "/")
	return c, !req.dryRun() && !slices.Contains([]string{"get", "list", "watch"}, req.verb)
}
