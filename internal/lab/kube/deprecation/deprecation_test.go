package deprecation

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMetrics: every deprecated API that was asked for is there once, with the version that does not
// have it any longer.
func TestMetrics(t *testing.T) {
	var r Requests
	get := func(path string, may bool) (string, int, bool) {
		w := httptest.NewRecorder()
		served := r.ServeMetrics(w, httptest.NewRequest(http.MethodGet, path, nil), may)
		return w.Body.String(), w.Code, served
	}
	if body, _, served := get("/metrics", true); !served || strings.Contains(body, "deprecated") {
		t.Errorf("%t %s", served, body)
	}
	h := http.Header{}
	r.Note(h, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", reflect.TypeFor[corev1.Pod](), "")
	for range 2 {
		//lint:ignore SA1019 it is deprecated
		r.Note(h, schema.GroupVersionResource{Version: "v1", Resource: "endpoints"}, "", reflect.TypeFor[corev1.Endpoints](), "Endpoints is deprecated")
	}
	r.Note(h, schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1beta1", Resource: "validatingadmissionpolicies"}, "status",
		reflect.TypeFor[admissionv1beta1.ValidatingAdmissionPolicy](), "it is deprecated")
	if got := h.Values("Warning"); len(got) != 3 || got[0] != `299 - "Endpoints is deprecated"` {
		t.Errorf("%q", got)
	}
	body, _, _ := get("/metrics", true)
	_, lines, _ := strings.Cut(body, "# TYPE apiserver_requested_deprecated_apis gauge\n")
	want := `apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1
apiserver_requested_deprecated_apis{group="admissionregistration.k8s.io",removed_release="1.34",resource="validatingadmissionpolicies",subresource="status",version="v1beta1"} 1
`
	if lines != want {
		t.Errorf("%s", body)
	}
	if _, code, served := get("/metrics", false); !served || code != http.StatusForbidden {
		t.Errorf("%t %d", served, code)
	}
	if _, _, served := get("/apis", true); served {
		t.Error("it serves other paths")
	}
}
