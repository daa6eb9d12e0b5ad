package kube_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/talos-agent/talos-agent/internal/golden"
)

// recorded holds requests and what a real kube-apiserver v1.35.4 answered, one
// exchange a line, on an empty etcd and without any controllers.
const recorded = "testdata/recorded-v1.35.4.jsonl"

var record = flag.String("record", "", "kubeconfig of a real, empty kube-apiserver with contexts admin, jane and anonymous: record its answers anew")

// exchange is a request and its answer, without what differs from run to run.
type exchange struct {
	Wait   time.Duration     `json:"wait,omitempty"` // before asking, for what takes a moment
	User   string            `json:"user,omitempty"` // empty: admin
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Header map[string]string `json:"header,omitempty"`
	Body   string            `json:"body,omitempty"`
	Code   int               `json:"code"`
	Type   string            `json:"type"`
	Answer any               `json:"answer"`
}

// Why the lab answers otherwise.
const (
	onlyJSON     = "the lab speaks JSON only and says so"
	wording      = "the same code and reason, in words without the names of Go types"
	controllers  = "the lab's controllers acted meanwhile, there were none"
	unfinished   = "what is deleted at once comes back without the marks of deletion"
	keyOrder     = "the keys of the object in the message stand in another order"
	oldTemplates = "the annotation of the template generation, deprecated since 1.9, is not kept"
	protection   = "volume claims are not protected by a finalizer"
)

// differs are the recorded exchanges the lab answers otherwise.
var differs = map[string]string{
	"9 POST /api/v1/namespaces/default/configmaps":                                           wording,
	"10 POST /api/v1/namespaces/default/configmaps":                                          wording,
	"11 POST /api/v1/namespaces/default/configmaps":                                          wording,
	"12 POST /api/v1/namespaces/default/configmaps":                                          wording,
	"30 GET /api/v1/namespaces/default/configmaps":                                           onlyJSON,
	"31 GET /api/v1/namespaces/default/configmaps/a":                                         onlyJSON,
	"47 PATCH /api/v1/namespaces/default/configmaps/a":                                       keyOrder,
	"75 GET /apis/apps/v1/namespaces/default/deployments/w/status":                           controllers,
	"77 GET /apis/apps/v1/namespaces/default/deployments?labelSelector=mine":                 controllers,
	"79 PATCH /apis/apps/v1/namespaces/default/deployments/w":                                controllers,
	"80 PATCH /apis/apps/v1/namespaces/default/deployments/w/status":                         controllers,
	"100 POST /apis/apps/v1/namespaces/app/daemonsets":                                       oldTemplates,
	"105 GET /apis/apps/v1/namespaces/app/replicasets/d":                                     controllers,
	"107 GET /apis/batch/v1/namespaces/app/jobs/j":                                           controllers,
	"110 GET /api/v1/namespaces/app/pods":                                                    controllers,
	"111 DELETE /api/v1/namespaces/app/pods/p":                                               unfinished,
	"112 POST /api/v1/namespaces/app/persistentvolumeclaims":                                 protection,
	"113 GET /api/v1/namespaces/app/persistentvolumeclaims/p":                                controllers,
	"119 DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.org": controllers,
	"154 GET /apis/apps": onlyJSON,
}

func readExchanges(t *testing.T) []exchange {
	t.Helper()
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	var out []exchange
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e exchange
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// answer asks an API and returns the exchange with its answer.
func (e exchange) answer(t *testing.T, c *rest.Config) exchange {
	t.Helper()
	c = rest.CopyConfig(c)
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	var conns []net.Conn
	c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			conns = append(conns, conn)
		}
		return conn, err
	}
	defer func() {
		for _, conn := range conns {
			_ = conn.Close() // or the other side was faster
		}
	}()
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(e.Wait)
	req, err := http.NewRequest(e.Method, c.Host+e.Path, bytes.NewReader([]byte(e.Body)))
	if err != nil {
		t.Fatal(err)
	}
	if e.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range e.Header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	e.Code, e.Type, e.Answer = resp.StatusCode, resp.Header.Get("Content-Type"), string(body)
	var v any
	if json.Unmarshal(body, &v) != nil {
		v = string(body)
	}
	e.Answer = scrub(v)
	return e
}

// scrub takes out what differs from run to run or is of no use to clients.
func scrub(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			switch k {
			case "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "lastTransitionTime",
				"batch.kubernetes.io/controller-uid", "controller-uid":
				if e != nil && e != "" {
					v[k] = "*"
				}
			case "managedFields", "description", "storageVersionHash", "serverAddress":
				delete(v, k)
			default:
				v[k] = scrub(e)
			}
		}
	case []any:
		for i := range v {
			v[i] = scrub(v[i])
		}
	case string:
		if ages.MatchString(v) {
			return "*"
		}
		return uuid.ReplaceAllString(v, "*")
	}
	return v
}

// ages also finds times.
var ages = regexp.MustCompile(`^(\d+[sm]|\d{4}-\d\d-\d\dT[0-9:]+Z)$`)

var uuid = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// TestRecorded asks the lab what a real API server was asked and compares the
// answers.
func TestRecorded(t *testing.T) {
	if *record != "" {
		recordAnew(t)
		return
	}
	bubble(t, func(t *testing.T, l *lab) {
		l.running(apiAddr)
		all := readExchanges(t)
		agree := 0
		for i, e := range all {
			config := l.config(apiAddr)
			switch e.User {
			case "jane":
				config.CertData, config.KeyData = l.client("jane", "people")
			case "anonymous":
				config.CertData, config.KeyData = nil, nil
			}
			got := e.answer(t, config)
			name := fmt.Sprintf("%d %s %s", i+1, e.Method, e.Path)
			diff := cmp.Diff(e, got)
			why, known := differs[name]
			switch {
			case diff == "" && known:
				t.Errorf("%s agrees now, and the table still says: %s", name, why)
			case diff == "":
				agree++
			case known:
				t.Logf("%s differs: %s", name, why)
			default:
				t.Errorf("%s %s\n(-real +lab)\n%s", name, e.Body, diff)
			}
		}
		t.Logf("%d of %d recorded exchanges agree", agree, len(all))
		golden.CheckShown(t, "Kubernetes 1.35", agree, len(all))
	})
}

// recordAnew asks the real API server and writes its answers down.
func recordAnew(t *testing.T) {
	var out bytes.Buffer
	for _, e := range readExchanges(t) {
		user := e.User
		if user == "" {
			user = "admin"
		}
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: *record}, &clientcmd.ConfigOverrides{CurrentContext: user}).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		line, err := json.Marshal(e.answer(t, config))
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(line, '\n'))
	}
	if err := os.WriteFile(recorded, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
