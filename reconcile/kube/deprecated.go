package kube

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

const (
	// metricsWithin is how long a kube-apiserver may take to answer with its metrics.
	metricsWithin = 5 * time.Second
	// metricsFor is how long what they show is used: nothing of an upgrade waits for less.
	metricsFor = 5 * time.Minute
	// mostMetrics and longestMetric bound what is read of them, in bytes: several MB in a large cluster.
	mostMetrics   = 64 << 20
	longestMetric = 1 << 20
)

// deprecations are the deprecated APIs in use, as the kube-apiservers of control planes showed them last.
type deprecations struct {
	asked time.Time
	conn  *kubeapi.Connection // that they were asked over
	of    []netip.Addr
	seen  cluster.Seen[[]cluster.DeprecatedAPI]
}

// isDue reports whether it is time to ask again.
func (d *deprecations) isDue(now time.Time, conn *kubeapi.Connection, of []netip.Addr) bool {
	if d.conn != conn || !slices.Equal(d.of, of) {
		return true
	}
	if d.seen.Known {
		return now.Sub(d.asked) >= metricsFor
	}
	return now.Sub(d.asked) >= readyFor
}

// whyNotLookedFor is why deprecated APIs are not looked for: no node is to run another version of Kubernetes, or it is not known
// what they run. "": they are.
func whyNotLookedFor(want cluster.Desired, nodes cluster.Seen[map[string]cluster.KubeNode]) string {
	asked := want.Repository()
	goal := cmp.Or(asked.Goal.Kubernetes, asked.Spec.Versions.Kubernetes) // which may come after hops of Talos
	switch {
	case !nodes.Known:
		return nodes.Why
	case !slices.ContainsFunc(asked.Spec.Nodes, func(n cluster.Node) bool {
		kubelet := nodes.Value[n.Name].Kubelet
		return kubelet != "" && (kubelet != asked.Spec.Versions.Kubernetes || kubelet != goal)
	}):
		return "they are looked for once the repository asks for another version of Kubernetes"
	}
	return ""
}

// look returns the deprecated APIs in use. Each kube-apiserver knows its own requests only, so that one which does not answer leaves
// it unknown.
func (d *deprecations) look(ctx context.Context, conn *kubeapi.Connection, want cluster.Desired) cluster.Seen[[]cluster.DeprecatedAPI] {
	var addrs []netip.Addr
	for _, n := range want.Spec.ControlPlanes() {
		addrs = append(addrs, n.IP)
	}
	if now := time.Now(); d.isDue(now, conn, addrs) {
		*d = deprecations{asked: now, conn: conn, of: addrs, seen: askAllDeprecated(ctx, conn, addrs)}
	}
	return d.seen
}

// askAllDeprecated asks all kube-apiservers side by side, and merges what they show.
func askAllDeprecated(ctx context.Context, conn *kubeapi.Connection, addrs []netip.Addr) cluster.Seen[[]cluster.DeprecatedAPI] {
	found, errs := make([][]cluster.DeprecatedAPI, len(addrs)), make([]error, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() { found[i], errs[i] = askDeprecated(ctx, conn, addr) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return cluster.Unseen[[]cluster.DeprecatedAPI](fmt.Sprintf("the metrics of the API at %s: %s", addrs[i], kubeapi.Reason(err)))
		}
	}
	return cluster.Saw(sortDeprecated(slices.Concat(found...)))
}

// sortDeprecated sorts APIs, and leaves each in once.
func sortDeprecated(apis []cluster.DeprecatedAPI) []cluster.DeprecatedAPI {
	slices.SortFunc(apis, func(a, b cluster.DeprecatedAPI) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version), strings.Compare(a.Resource, b.Resource), strings.Compare(a.Removed, b.Removed))
	})
	return slices.Compact(apis)
}

// askDeprecated asks one kube-apiserver for its metrics.
func askDeprecated(ctx context.Context, c *kubeapi.Connection, addr netip.Addr) (_ []cluster.DeprecatedAPI, err error) {
	ctx, cancel := context.WithTimeout(ctx, metricsWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, serverOf(addr)+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain")
	resp, err := c.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return readDeprecated(resp.Body)
}

// requestedDeprecated begins the lines that show deprecated APIs. The metric is a stable one.
// Source: kubernetes v1.36, staging/src/k8s.io/apiserver, endpoints/metrics.
const requestedDeprecated = "apiserver_requested_deprecated_apis{"

// readDeprecated reads metrics in Prometheus' text format. Most of them are others.
func readDeprecated(r io.Reader) ([]cluster.DeprecatedAPI, error) {
	bounded := &io.LimitedReader{R: r, N: mostMetrics + 1}
	lines := bufio.NewScanner(bounded)
	lines.Buffer(nil, longestMetric)
	var out []cluster.DeprecatedAPI
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), requestedDeprecated)
		if !ok {
			continue
		}
		api, err := readLabels(rest)
		if err != nil {
			return nil, err
		}
		out = append(out, api)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	if bounded.N <= 0 {
		return nil, fmt.Errorf("its metrics are larger than %d MiB", mostMetrics>>20)
	}
	return sortDeprecated(out), nil
}

// readLabels reads the labels of one metric, behind the brace: group="apps",version="v1"} 1.
func readLabels(s string) (cluster.DeprecatedAPI, error) {
	labels := map[string]string{}
	for !strings.HasPrefix(s, "}") {
		name, rest, ok := strings.Cut(s, "=")
		quoted, err := strconv.QuotedPrefix(rest)
		if !ok || err != nil {
			return cluster.DeprecatedAPI{}, errors.New("a metric of deprecated APIs has other labels than those that are known")
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return cluster.DeprecatedAPI{}, err
		}
		labels[name] = kubeapi.Sanitize(value)
		s = strings.TrimPrefix(rest[len(quoted):], ",")
	}
	api := cluster.DeprecatedAPI{Group: labels["group"], Version: labels["version"], Resource: labels["resource"]}
	if v := labels["removed_release"]; v != "" {
		api.Removed = "v" + v
	}
	if api.Version == "" || api.Resource == "" {
		return cluster.DeprecatedAPI{}, errors.New("a metric of deprecated APIs does not name one")
	}
	return api, nil
}
