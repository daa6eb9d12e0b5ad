package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

const (
	// port is where a control plane's kube-apiserver listens.
	port = 6443
	// readyWithin is how long an API may take to answer that it is ready.
	readyWithin = 2 * time.Second
	// readyFor is how long its word holds.
	readyFor = 30 * time.Second
)

// api is one control plane's kube-apiserver as it was seen last.
type api struct {
	ready cluster.Seen[bool]
	asked time.Time // zero: never, or its word does not hold any more
	since time.Time // it answered ready last
}

// due reports whether it is time to ask again: always while it is not ready.
func (a api) due(now time.Time) bool {
	return !a.ready.Value || now.Sub(a.asked) >= readyFor
}

// serverOf is the base URL of a control plane's own API.
func serverOf(addr netip.Addr) string {
	return (&url.URL{Scheme: "https", Host: netip.AddrPortFrom(addr, port).String()}).String()
}

// askReady asks one kube-apiserver whether it is ready.
func askReady(ctx context.Context, c *kubeapi.Connection, addr netip.Addr) cluster.Seen[bool] {
	resp, body, err := askReadyz(ctx, c, addr, false)
	if err != nil {
		return seenUnanswered(addr, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return cluster.Saw(true)
	case http.StatusUnauthorized, http.StatusForbidden:
		return cluster.Unseen[bool](fmt.Sprintf("the API at %s does not accept the agent's certificate (%s)", addr, resp.Status))
	default:
		return notReady(fmt.Sprintf("the API at %s says %s", addr, firstFailed(resp.Status, body)))
	}
}

// askReadyz asks for the readiness of what answers at an address with a certificate of
// the cluster; with fresh, over a connection of its own.
func askReadyz(ctx context.Context, c *kubeapi.Connection, addr netip.Addr, fresh bool) (resp *http.Response, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, serverOf(addr)+"/readyz", nil)
	if err != nil {
		return nil, "", err
	}
	req.Close = fresh
	if resp, err = c.RoundTrip(req); err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, "", err
	}
	return resp, string(b), nil
}

// notReady is what is known of an API that is not ready, and why.
func notReady(why string) cluster.Seen[bool] { return cluster.Seen[bool]{Known: true, Why: why} }

// firstFailed takes the first failed check from the answer of /readyz, which
// lists them as "[-]etcd failed: reason withheld".
func firstFailed(status, body string) string {
	for line := range strings.Lines(body) {
		if check, ok := strings.CutPrefix(strings.TrimSpace(line), "[-]"); ok {
			return kubeapi.Sanitize(check)
		}
	}
	return kubeapi.Sanitize(status)
}

// seenUnanswered returns what an API that did not answer is: surely not ready
// when its host refuses the connection, unknown otherwise.
func seenUnanswered(addr netip.Addr, err error) cluster.Seen[bool] {
	why := fmt.Sprintf("%s: %s", netip.AddrPortFrom(addr, port), kubeapi.Reason(err))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return notReady(why)
	}
	return cluster.Unseen[bool](why)
}
