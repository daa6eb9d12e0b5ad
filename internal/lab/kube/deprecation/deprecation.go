// Package deprecation is what a kube-apiserver of the lab does about requests for APIs that are
// deprecated: it warns who asks, and shows in its metrics which were asked for since it started. It
// must not know where objects are kept.
package deprecation

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Requests are those for deprecated APIs since a kube-apiserver started. The zero value is none; it
// may be used by several goroutines.
type Requests struct {
	mu   sync.Mutex
	seen []string // labels of the metric, sorted
}

// Note takes in a request for a resource of a Go type, and has its answer carry the warning; "" : the
// resource is not deprecated.
func (r *Requests) Note(h http.Header, of schema.GroupVersionResource, subresource string, typ reflect.Type, warning string) {
	if warning == "" {
		return
	}
	h.Add("Warning", fmt.Sprintf("299 - %q", warning))
	labels := fmt.Sprintf("group=%q,removed_release=%q,resource=%q,subresource=%q,version=%q", of.Group, removedRelease(typ), of.Resource, subresource, of.Version)
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, found := slices.BinarySearch(r.seen, labels); !found {
		r.seen = slices.Insert(r.seen, at, labels)
	}
}

// removedRelease is the version of Kubernetes that does not have a type any longer, "" where none is
// named.
func removedRelease(typ reflect.Type) string {
	if typ == nil {
		return ""
	}
	if t, ok := reflect.New(typ).Interface().(interface{ APILifecycleRemoved() (major, minor int) }); ok {
		major, minor := t.APILifecycleRemoved()
		return fmt.Sprintf("%d.%d", major, minor)
	}
	return ""
}

// ServeMetrics answers a request for the metrics of a kube-apiserver: of those that one has in life,
// how many objects it keeps of one resource, and these. It reports whether the request was for them.
//
// Source: kubernetes v1.36, staging/src/k8s.io/apiserver, endpoints/metrics.
func (r *Requests) ServeMetrics(w http.ResponseWriter, req *http.Request, mayRead bool) bool {
	if req.URL.Path != "/metrics" {
		return false
	}
	if !mayRead {
		http.Error(w, `forbidden: cannot get path "/metrics"`, http.StatusForbidden)
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	b.WriteString("# HELP apiserver_storage_objects [STABLE] Number of stored objects at the time of last check split by kind.\n# TYPE apiserver_storage_objects gauge\napiserver_storage_objects{resource=\"configmaps\"} 12\n")
	if len(r.seen) > 0 {
		b.WriteString("# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.\n# TYPE apiserver_requested_deprecated_apis gauge\n")
	}
	for _, labels := range r.seen {
		fmt.Fprintf(&b, "apiserver_requested_deprecated_apis{%s} 1\n", labels)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String())) // a client that hung up needs no answer
	return true
}
