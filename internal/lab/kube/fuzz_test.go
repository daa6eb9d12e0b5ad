package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

func TestParsePath(t *testing.T) {
	for _, c := range []struct {
		method, path string
		want         request
	}{
		{"GET", "/api/v1/nodes", request{verb: "list", version: "v1", resource: "nodes", pattern: "/api/v1/nodes"}},
		{"GET", "/api/v1/nodes/cp-1", request{verb: "get", version: "v1", resource: "nodes", name: "cp-1", pattern: "/api/v1/nodes/{name}"}},
		{"PUT", "/api/v1/nodes/cp-1/status", request{verb: "update", version: "v1", resource: "nodes", name: "cp-1", subresource: "status", pattern: "/api/v1/nodes/{name}/status"}},
		{"PATCH", "/apis/apps/v1/namespaces/x/deployments/d", request{verb: "patch", group: "apps", version: "v1", namespace: "x", resource: "deployments", name: "d", pattern: "/apis/apps/v1/namespaces/{namespace}/deployments/{name}"}},
		{"POST", "/api/v1/namespaces", request{verb: "create", version: "v1", resource: "namespaces", pattern: "/api/v1/namespaces"}},
		{"DELETE", "/api/v1/namespaces/x", request{verb: "delete", version: "v1", resource: "namespaces", name: "x", pattern: "/api/v1/namespaces/{name}"}},
		{"PUT", "/api/v1/namespaces/x/finalize", request{verb: "update", version: "v1", resource: "namespaces", name: "x", subresource: "finalize", pattern: "/api/v1/namespaces/{name}/finalize"}},
		{"DELETE", "/api/v1/namespaces/x/pods", request{verb: "deletecollection", version: "v1", namespace: "x", resource: "pods", pattern: "/api/v1/namespaces/{namespace}/pods"}},
		{"GET", "/apis/apps/v1", request{pattern: "/apis/apps/v1"}},
		{"GET", "/readyz", request{pattern: "/readyz"}},
	} {
		got := *parsePath(c.method, c.path)
		got.query = nil
		if got.verb != c.want.verb || got.group != c.want.group || got.version != c.want.version || got.resource != c.want.resource ||
			got.namespace != c.want.namespace || got.name != c.want.name || got.subresource != c.want.subresource || got.pattern != c.want.pattern {
			t.Errorf("%s %s: %+v, want %+v", c.method, c.path, got, c.want)
		}
	}
}

func TestNegotiate(t *testing.T) {
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for accept, want := range map[string]struct {
		as rules.Rendering
		ok bool
	}{
		"":                                    {rules.AsIs, true},
		"*/*":                                 {rules.AsIs, true},
		"application/json":                    {rules.AsIs, true},
		"application/vnd.kubernetes.protobuf": {rules.AsIs, false},
		"application/vnd.kubernetes.protobuf, */*":                             {rules.AsIs, true},
		table + ",application/json":                                            {rules.AsTable, true},
		"application/json;q=0.9," + table:                                      {rules.AsTable, true},
		"application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json":   {rules.AsIs, true},
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io":     {rules.AsMetadata, true},
		"application/json;q=0":                                                 {rules.AsIs, false},
		"application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io": {rules.AsIs, false}, // not offered for objects
	} {
		if as, ok := rules.NegotiateRendering(accept, rules.AsTable, rules.AsMetadata); as != want.as || ok != want.ok {
			t.Errorf("%q: %v %v, want %v", accept, as, ok, want)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, p := range []string{"/api/v1/namespaces/x/pods/y/status", "/apis/apps/v1/deployments", "/apis//v1//", "/"} {
		f.Add("GET", p)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		req := parsePath(method, path)
		call, _ := req.nameCall(method, "node")
		if req.name != "" && !strings.Contains(req.pattern, "{name}") || !strings.HasSuffix(call.Op, req.pattern) {
			t.Errorf("%s %q: %+v named %+v", method, path, req, call)
		}
	})
}

func FuzzNegotiate(f *testing.F) {
	f.Add("application/json;as=Table;v=v1;g=meta.k8s.io,application/json;q=0.5")
	f.Fuzz(func(t *testing.T, accept string) {
		if as, ok := rules.NegotiateRendering(accept, rules.AsTable); as != rules.AsIs && (as != rules.AsTable || !ok) {
			t.Errorf("%q: %v %v was not offered", accept, as, ok)
		}
	})
}

// FuzzWrite sends bodies of every kind to every kind of write. Whatever they
// are, the store holds only objects that JSON can show, or the answer is an
// error that shows it.
func FuzzWrite(f *testing.F) {
	media := []string{"application/json", "application/yaml", string(types.MergePatchType), string(types.JSONPatchType), string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType)}
	seeds := []string{
		`{"metadata":{"name":"a"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":"c","$patch":"delete"}]}}}}`, `[{"op":"add","path":"/metadata/labels","value":{"x":"y"}}]`,
		`{"metadata":{"finalizers":["x"]},"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"c"}]}}}}`, `{"metadata":null}`, `null`, `"x"`,
	}
	for i := range media {
		for _, s := range seeds {
			f.Add(i, s)
		}
	}
	f.Fuzz(func(t *testing.T, kind int, body string) {
		s := newStore("fuzz", func() {})
		a := &apiserver{cl: &cluster{store: s}}
		s.createObject(resNamespaces, map[string]any{"metadata": map[string]any{"name": "default"}})
		req := &request{version: "v1", group: "apps", resource: "deployments", namespace: "default", query: url.Values{"fieldManager": {"f"}}, media: "application/json", body: []byte(seeds[0])}
		if _, err := a.createObject(httptest.NewRecorder(), req, resDeployments); err != nil {
			t.Fatal(err)
		}
		i := ((kind % len(media)) + len(media)) % len(media)
		req.media, req.body = media[i], []byte(body)
		var o *object
		var err error
		if i < 2 {
			o, err = a.createObject(httptest.NewRecorder(), req, resDeployments)
		} else {
			req.name = "a"
			o, _, err = a.patchObject(httptest.NewRecorder(), req, resDeployments)
		}
		if err != nil {
			if _, ok := err.(apierrors.APIStatus); !ok {
				t.Errorf("error without a status: %v", err)
			}
			return
		}
		if _, err := o.content(); err != nil {
			t.Error(err)
		}
		if o.body["kind"] != "Deployment" || rules.TextAt(o.body, "metadata", "uid") == "" {
			t.Errorf("object %v", o.body)
		}
	})
}

func FuzzProtobuf(f *testing.F) {
	raw, err := (&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "x"}}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	envelope, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"}, Raw: raw}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append([]byte("k8s\x00"), envelope...))
	f.Fuzz(func(t *testing.T, body []byte) {
		out, err := rules.FromProtobuf(body, typeOf)
		if err == nil && !json.Valid(out) {
			t.Errorf("%x became %q", body, out)
		}
	})
}

// TestHandlerOutsideOfTLS: without a certificate nobody is believed.
func TestHandlerOutsideOfTLS(t *testing.T) {
	a := &apiserver{}
	if _, ok := a.authenticateRequest(httptest.NewRequest(http.MethodGet, "/api", nil)); ok {
		t.Error("a request without TLS is believed")
	}
}
