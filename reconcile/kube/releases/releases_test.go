package releases

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// answers is a transport that answers by itself.
type answers func(*http.Request) (status int, body string)

// RoundTrip implements http.RoundTripper.
func (f answers) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := f(r)
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// secretOf is the Secret of a revision, as a list without what is in it has it.
func secretOf(name string, number int, status string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"apps","name":"sh.helm.release.v1.%s.v%d","uid":"%s-%d","resourceVersion":"7","labels":{"owner":"helm","name":%q,"version":"%d","status":%q}}}`,
		name, number, name, number, name, number, status)
}

// listOver lists the revisions of pages that are handed out one after the other.
func listOver(t *testing.T, pages ...string) ([]revision, error) {
	t.Helper()
	set, err := metadata.NewForConfigAndClient(&rest.Config{Host: "https://127.0.0.1"}, &http.Client{Transport: answers(func(r *http.Request) (int, string) {
		q := r.URL.Query()
		at := 0
		if q.Get("continue") != "" {
			at, _ = strconv.Atoi(q.Get("continue"))
		}
		if q.Get("labelSelector") != "owner=helm" || q.Get("limit") != "500" {
			t.Errorf("it asked for %s", r.URL)
		}
		if pages[at] == "" {
			return http.StatusGone, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`
		}
		next := ""
		if at+1 < len(pages) {
			next = strconv.Itoa(at + 1)
		}
		return http.StatusOK, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9","continue":"` + next + `"},"items":[` + pages[at] + `]}`
	})})
	if err != nil {
		t.Fatal(err)
	}
	return listRevisions(t.Context(), set)
}

// TestListRevisions: of each release that revision counts with which Helm compares an upgrade, on whichever page of the list it is.
func TestListRevisions(t *testing.T) {
	got, err := listOver(t,
		secretOf("web", 1, "superseded")+","+secretOf("web", 3, "failed"),
		secretOf("web", 2, "deployed")+","+secretOf("new", 1, "failed")+","+secretOf("new", 2, "pending-upgrade"),
		secretOf("gone", 1, "superseded")+","+secretOf("gone", 2, "uninstalled")+`,{"metadata":{"name":"other","labels":{"owner":"helm"}}}`)
	var names []string
	for _, rev := range got {
		names = append(names, rev.name.String()+" "+strconv.Itoa(rev.number))
	}
	if want := []string{"apps/new 2", "apps/web 2"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v", names, err)
	}
	if got, err := listOver(t, secretOf("web", 1, "deployed"), ""); err == nil || got != nil {
		t.Errorf("a list that ends in the middle: %v, %v", got, err)
	}
}

const (
	budget = "---\n# Source: web/templates/budget.yaml\napiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata:\n  name: web\n"
	config = "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\ndata:\n  note: it was policy/v1beta1 before\n"
)

// TestFindDeprecated: what counts is what an object is, in a list too, and not what it mentions.
func TestFindDeprecated(t *testing.T) {
	pdb := cluster.DeprecatedAPI{Group: "policy", Version: "v1beta1", Resource: "PodDisruptionBudget", Removed: "v1.25"}
	flow := cluster.DeprecatedAPI{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3", Resource: "FlowSchema", Removed: "v1.32"}
	for name, c := range map[string]struct {
		manifest string
		want     []cluster.DeprecatedAPI
		fails    bool
	}{
		"nothing":        {},
		"none":           {manifest: config},
		"one of several": {manifest: config + budget + config, want: []cluster.DeprecatedAPI{pdb}},
		"twice":          {manifest: budget + budget, want: []cluster.DeprecatedAPI{pdb}},
		"JSON":           {manifest: `{"kind": "FlowSchema", "apiVersion": "flowcontrol.apiserver.k8s.io/v1beta3"}`, want: []cluster.DeprecatedAPI{flow}},
		"in a list":      {manifest: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: \"policy/v1beta1\"\n  kind: 'PodDisruptionBudget'\n- apiVersion: flowcontrol.apiserver.k8s.io/v1beta3\n  kind: FlowSchema\n", want: []cluster.DeprecatedAPI{flow, pdb}},
		"another kind":   {manifest: "apiVersion: policy/v1beta1\nkind: Policy\n"},
		"of now":         {manifest: "apiVersion: policy/v1\nkind: PodDisruptionBudget\n"},
		"too large":      {manifest: "# policy/v1beta1\na: [" + strings.Repeat("0,", mostObject/2) + "0]\n", fails: true},
		"far too large":  {manifest: strings.Repeat("\n", mostManifest+1), fails: true},
		"broken":         {manifest: config + "---\napiVersion: policy/v1beta1\nkind: [\n", fails: true},
	} {
		got, err := findDeprecated(c.manifest)
		if !slices.Equal(got, c.want) || (err != nil) != c.fails {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func FuzzFindDeprecated(f *testing.F) {
	f.Add(budget + config)
	f.Add("---\nitems: [{apiVersion: policy/v1beta1, kind: PodDisruptionBudget}]")
	f.Fuzz(func(t *testing.T, manifest string) {
		apis, err := findDeprecated(manifest)
		if err != nil && apis != nil {
			t.Errorf("%+v, and %v", apis, err)
		}
		for _, api := range apis {
			if api.Removed == "" || !strings.Contains(manifest, api.Group+"/"+api.Version) {
				t.Errorf("%+v is not in %q", api, manifest)
			}
		}
	})
}

// TestRemovals: what k8s.io/api notes of a few kinds is found, so that a form of it that changes is seen.
func TestRemovals(t *testing.T) {
	flow := removals()[schema.GroupVersion{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta2"}]
	if flow["FlowSchema"] != "v1.29" || flow["PriorityLevelConfiguration"] != "v1.29" {
		t.Errorf("%v", flow)
	}
	if n := len(removals()); n < 20 {
		t.Errorf("only %d APIs are known to be removed", n)
	}
}
