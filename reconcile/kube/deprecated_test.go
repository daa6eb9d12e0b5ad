package kube

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// otherMetrics is what a kube-apiserver shows besides.
const otherMetrics = `# HELP apiserver_request_total [STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="LIST",version="v1"} 17
# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.
# TYPE apiserver_requested_deprecated_apis gauge
`

func TestReadDeprecated(t *testing.T) {
	line := func(labels string) string { return "apiserver_requested_deprecated_apis{" + labels + "} 1\n" }
	flow := line(`group="flowcontrol.apiserver.k8s.io",removed_release="1.32",resource="flowschemas",subresource="",version="v1beta3"`)
	for name, tc := range map[string]struct {
		metrics string
		want    []cluster.DeprecatedAPI
		err     string
	}{
		"none":      {metrics: otherMetrics},
		"no others": {metrics: ""},
		"some": {metrics: otherMetrics + line(`group="",removed_release="",resource="endpoints",subresource="",version="v1"`) + flow + strings.Replace(flow, `subresource=""`, `subresource="status"`, 1) + "process_start_time_seconds 1.7e+09\n",
			want: []cluster.DeprecatedAPI{{Version: "v1", Resource: "endpoints"}, {Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3", Resource: "flowschemas", Removed: "v1.32"}}},
		"odd names":     {metrics: line(`group="a},=\"\n",version="v1",resource="\\x"`), want: []cluster.DeprecatedAPI{{Group: `a},="`, Version: "v1", Resource: `\x`}}},
		"no labels":     {metrics: line(""), err: "a metric of deprecated APIs does not name one"},
		"in the middle": {metrics: strings.TrimSuffix(flow, "\"} 1\n"), err: "a metric of deprecated APIs has other labels than those that are known"},
		"a long line":   {metrics: strings.Repeat("x", longestMetric+1), err: "read metrics: bufio.Scanner: token too long"},
	} {
		got, err := readDeprecated(strings.NewReader(tc.metrics))
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// endless are metrics that never end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "x 1\n"[i%4]
	}
	return len(p), nil
}

func TestDeprecatedAreBounded(t *testing.T) {
	if _, err := readDeprecated(endless{}); err == nil || !strings.HasSuffix(err.Error(), "are larger than 64 MiB") {
		t.Error(err)
	}
}

func FuzzReadDeprecated(f *testing.F) {
	f.Add(otherMetrics + `apiserver_requested_deprecated_apis{group="",version="v1",resource="endpoints"} 1`)
	f.Add(requestedDeprecated + "}")
	f.Fuzz(func(t *testing.T, metrics string) {
		apis, err := readDeprecated(strings.NewReader(metrics))
		if err != nil && apis != nil {
			t.Errorf("%+v, and %v", apis, err)
		}
		for _, api := range apis {
			if api.Version == "" || strings.ContainsAny(api.Group+api.Version+api.Resource+api.Removed, "\n\r\x1b") {
				t.Errorf("%q", api)
			}
		}
	})
}

// TestDeprecated: what clients request of any kube-apiserver is seen where nodes are to run another version of
// Kubernetes, and is not asked for otherwise. While one of them does not answer it is unknown,
// and one that has restarted has forgotten.
func TestDeprecated(t *testing.T) {
	bubble(t, 2, func(b *bench) {
		b.serve(1)
		stop := b.serve(2)
		b.desired.Spec.Nodes = append(b.desired.Spec.Nodes, cluster.Node{Name: "wk-1", Role: cluster.Worker, IP: netip.MustParseAddr("10.0.0.21")})
		ready, _ := b.join("wk-1", "10.0.0.21", 521)
		<-ready
		requests := func() (n int) {
			for op, count := range b.calls() {
				if op == "GET /metrics" {
					n += count
				}
			}
			return n
		}
		b.desired.Spec.Versions.Kubernetes = "v1.36.1"
		if o := b.look(); o.Deprecated.Known || !strings.Contains(o.Deprecated.Why, "looked for once the repository asks") || requests() > 0 {
			t.Errorf("%+v", o.Deprecated)
		}
		b.desired.Goal.Kubernetes = "v1.37.0" // which comes after a hop of Talos
		if o := b.look(); !o.Deprecated.Known || len(o.Deprecated.Value) > 0 || requests() != 2 {
			t.Errorf("%+v", o.Deprecated)
		}
		b.desired.Spec.Versions.Kubernetes, b.desired.Goal.Kubernetes = "v1.37.0", ""
		b.request("10.0.0.12", "/api/v1/namespaces/default/endpoints")
		if o := b.look(); !o.Deprecated.Known || len(o.Deprecated.Value) > 0 || requests() > 0 {
			t.Errorf("it was asked again at once: %+v", o.Deprecated)
		}
		time.Sleep(metricsFor)
		want := []cluster.DeprecatedAPI{{Version: "v1", Resource: "endpoints"}}
		if o := b.look(); !o.Deprecated.Known || !slices.Equal(o.Deprecated.Value, want) {
			t.Errorf("%+v", o.Deprecated)
		}
		time.Sleep(metricsFor)
		b.world.Inject(world.Fault{System: "kube", Op: "GET /metrics", Kind: world.Answer, Status: 403, Text: "no"})
		if o := b.look(); o.Deprecated.Known || o.Deprecated.Why != "the metrics of the API at 10.0.0.11: 403 Forbidden" {
			t.Errorf("%+v", o.Deprecated)
		}
		b.world.Heal()
		time.Sleep(readyFor)
		if o := b.look(); !slices.Equal(o.Deprecated.Value, want) {
			t.Errorf("%+v", o.Deprecated)
		}
		stop()
		time.Sleep(metricsFor)
		if o := b.look(); o.Deprecated.Known || !strings.HasPrefix(o.Deprecated.Why, "the metrics of the API at 10.0.0.12: ") {
			t.Errorf("%+v", o.Deprecated)
		}
		b.serve(2)
		time.Sleep(readyFor)
		if o := b.look(); !o.Deprecated.Known || len(o.Deprecated.Value) > 0 {
			t.Errorf("%+v", o.Deprecated)
		}
	})
}

// request has a client of its own get a path.
func (b *bench) request(addr, path string) {
	b.Helper()
	conn, err := b.cluster.connection(b.desired.Access.Kube, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, serverOf(netip.MustParseAddr(addr))+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	resp, err := conn.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		b.Fatalf("%s: %v", resp.Status, err)
	}
}
