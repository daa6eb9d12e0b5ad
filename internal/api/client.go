package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Client speaks to a daemon over its socket. Close it when done.
type Client struct {
	path string
	http *http.Client
}

// NewClient makes a client of the socket at path. Nothing is dialled yet.
func NewClient(path string) *Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}, DisableKeepAlives: true}
	return &Client{path: path, http: &http.Client{Transport: tr, Timeout: 90 * time.Second}}
}

// ErrNoDaemon means that no daemon could be reached over the socket.
var ErrNoDaemon = errors.New("cannot reach the talos-agent daemon")

// ErrDown means that, besides, none listens: none runs, or it listens elsewhere.
var ErrDown = errors.New("no talos-agent daemon listens")

// unreachable is ErrNoDaemon with the reason and the hint.
type unreachable struct {
	path string
	err  error
	hint string
	down bool // nothing listens
}

func (u *unreachable) Error() string { return fmt.Sprintf("%v at %s: %v", ErrNoDaemon, u.path, u.err) }
func (u *unreachable) Is(target error) bool {
	return target == ErrNoDaemon || target == ErrDown && u.down
}
func (u *unreachable) Unwrap() error { return fault.WithHint(u.err, u.hint) }

func (c *Client) explain(err error) error {
	var errno syscall.Errno
	u := &unreachable{path: c.path, err: err, hint: "is it running? `systemctl status talos-agent`"}
	if !errors.As(err, &errno) {
		return u
	}
	u.err = errno
	switch errno {
	case syscall.ENOENT:
		u.err, u.down = errors.New("there is no socket"), true
		u.hint = "`systemctl restart talos-agent` starts the daemon, and makes its socket again if it was removed; then `journalctl -u talos-agent`; if it listens elsewhere, use `--socket`"
	case syscall.ECONNREFUSED:
		u.err, u.down = errors.New("connection refused"), true
		u.hint = "the daemon is not running: `systemctl start talos-agent`, then `journalctl -u talos-agent`"
	case syscall.EACCES, syscall.EPERM:
		u.err = errors.New("permission denied")
		u.hint = "run it with sudo, or become a member of group " + Group + ": `usermod -aG " + Group + " YOU`, then log in again"
	}
	return u
}

// call asks one route and decodes its data into out (nil: dropped).
func (c *Client) call(ctx context.Context, method, path string, body io.Reader, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://talos-agent"+path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.failed(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	return c.answer(resp, out)
}

// failed explains why a question was not answered.
func (c *Client) failed(ctx context.Context, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.explain(err)
}

// answer decodes an answer's data into out (nil: dropped).
func (c *Client) answer(resp *http.Response, out any) error {
	var env struct {
		Data  json.RawMessage `json:"data"`
		Error *Error          `json:"error"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&env); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", text.Plain(err))
	}
	if env.Error != nil {
		env.Error.Status = resp.StatusCode
		return env.Error
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(env.Data, out); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", text.Plain(err))
	}
	return nil
}

func clusterPath(name, what string) string {
	return "/v1/clusters/" + url.PathEscape(name) + "/" + what
}

func forgetNode(node string) string { return nodePath(node, "forget") }

func nodePath(node, what string) string { return "nodes/" + url.PathEscape(node) + "/" + what }

func requestJSON[T any](ctx context.Context, c *Client, method, path string, body io.Reader) (T, error) {
	var v T
	err := c.call(ctx, method, path, body, &v)
	return v, err
}

func jsonBody(v any) io.Reader {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // request types of this package always marshal
	}
	return bytes.NewReader(b)
}

// About asks what the daemon reports about itself.
func (c *Client) About(ctx context.Context) (About, error) {
	return requestJSON[About](ctx, c, "GET", "/v1/about", nil)
}

// Examine has the daemon look at its host.
func (c *Client) Examine(ctx context.Context) (doctor.Examination, error) {
	return requestJSON[doctor.Examination](ctx, c, "GET", "/v1/doctor", nil)
}

// Inside asks for the daemon's own insides.
func (c *Client) Inside(ctx context.Context) (Inside, error) {
	return requestJSON[Inside](ctx, c, "GET", "/v1/inside", nil)
}

// StatusAll asks for the status of every cluster.
func (c *Client) StatusAll(ctx context.Context) ([]cluster.Status, error) {
	return requestJSON[[]cluster.Status](ctx, c, "GET", "/v1/status", nil)
}

// Status asks for the status of one cluster.
func (c *Client) Status(ctx context.Context, name string) (cluster.Status, error) {
	return requestJSON[cluster.Status](ctx, c, "GET", clusterPath(name, "status"), nil)
}

// Forecast asks what will happen for the pushed revision.
func (c *Client) Forecast(ctx context.Context, name string) (cluster.Forecast, error) {
	return requestJSON[cluster.Forecast](ctx, c, "GET", clusterPath(name, "plan"), nil)
}

// ForecastDir asks what would happen if files were the repository.
func (c *Client) ForecastDir(ctx context.Context, name string, files fs.FS) (cluster.Forecast, error) {
	var b bytes.Buffer
	if err := WriteTar(&b, files); err != nil {
		return cluster.Forecast{}, err
	}
	return requestJSON[cluster.Forecast](ctx, c, "POST", clusterPath(name, "plan"), &b)
}

// ForecastDestroy asks what destroy would delete.
func (c *Client) ForecastDestroy(ctx context.Context, name string, despite ...int) (cluster.Forecast, error) {
	q := url.Values{}
	for _, vmid := range despite {
		q.Add("despiteProtection", strconv.Itoa(vmid))
	}
	path := clusterPath(name, "destroy")
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return requestJSON[cluster.Forecast](ctx, c, "GET", path, nil)
}

// Render asks what a cluster, or one node of it, would be given.
func (c *Client) Render(ctx context.Context, name, node string, showSecrets bool) (cluster.Rendering, error) {
	path := clusterPath(name, "render")
	if showSecrets {
		path += "/secrets"
	}
	return requestJSON[cluster.Rendering](ctx, c, "GET", path+"?"+url.Values{"node": {node}}.Encode(), nil)
}

// Diff asks how a cluster, or one node of it, differs from what it would be given.
func (c *Client) Diff(ctx context.Context, name, node string) (cluster.Difference, error) {
	return requestJSON[cluster.Difference](ctx, c, "GET", clusterPath(name, "diff")+"?"+url.Values{"node": {node}}.Encode(), nil)
}

// Usage asks what of the hosts and VMs of a cluster is in use.
func (c *Client) Usage(ctx context.Context, name string) (usage.Report, error) {
	return requestJSON[usage.Report](ctx, c, "GET", clusterPath(name, "usage"), nil)
}

// Reconcile has the daemon fetch and look now.
func (c *Client) Reconcile(ctx context.Context, name string) error {
	return c.call(ctx, "POST", clusterPath(name, "reconcile"), nil, nil)
}

// ReconcileAll has the daemon fetch, and look at every cluster now.
func (c *Client) ReconcileAll(ctx context.Context) error {
	return c.call(ctx, "POST", "/v1/reconcile", nil, nil)
}

// Suspend has the daemon change nothing until Resume.
func (c *Client) Suspend(ctx context.Context, name string) error {
	return c.call(ctx, "POST", clusterPath(name, "suspend"), nil, nil)
}

// Resume ends a suspension.
func (c *Client) Resume(ctx context.Context, name string) error {
	return c.call(ctx, "POST", clusterPath(name, "resume"), nil, nil)
}

// Accept lets a revision that does not descend from the last one be applied.
func (c *Client) Accept(ctx context.Context, name string, req AcceptRequest) error {
	return c.call(ctx, "POST", clusterPath(name, "accept"), jsonBody(req), nil)
}

// Upgrade lets the upgrade of the revision in force do what is ordered, or no longer.
func (c *Client) Upgrade(ctx context.Context, name string, req UpgradeRequest) error {
	return c.call(ctx, "POST", clusterPath(name, "upgrade"), jsonBody(req), nil)
}

// RequestSnapshot has a snapshot of etcd taken now; Status shows when it is there.
func (c *Client) RequestSnapshot(ctx context.Context, name string) error {
	return c.call(ctx, "POST", clusterPath(name, "snapshot"), nil, nil)
}

// RollBack has the machine of a node boot the Talos that it ran before, or no longer.
func (c *Client) RollBack(ctx context.Context, name, node string, req RollbackRequest) error {
	return c.call(ctx, "POST", clusterPath(name, nodePath(node, "rollback")), jsonBody(req), nil)
}

// ForecastForget asks what it means to take the machine of a node for lost.
func (c *Client) ForecastForget(ctx context.Context, name, node string) (cluster.Forecast, error) {
	return requestJSON[cluster.Forecast](ctx, c, "GET", clusterPath(name, forgetNode(node)), nil)
}

// Forget has the machine of a node taken for lost; unfenced is that of the Forecast.
func (c *Client) Forget(ctx context.Context, name, node string, unfenced bool) error {
	return c.call(ctx, "POST", clusterPath(name, forgetNode(node)), jsonBody(ForgetRequest{Confirm: node, Unfenced: unfenced}), nil)
}

// Approve lets the plan with this digest go, which waits for approval.
func (c *Client) Approve(ctx context.Context, name, digest string) error {
	return c.call(ctx, "POST", clusterPath(name, "approve"), jsonBody(ApproveRequest{Digest: digest}), nil)
}

// Destroy begins to destroy a cluster: the VMs that a forecast showed, those that are
// protected in Proxmox VE only if they are named.
func (c *Client) Destroy(ctx context.Context, name string, shown []int, despite ...int) error {
	return c.call(ctx, "POST", clusterPath(name, "destroy"), jsonBody(DestroyRequest{Confirm: name, DespiteProtection: despite, VMs: shown}), nil)
}

// Kubeconfig asks for a fresh kubeconfig.
func (c *Client) Kubeconfig(ctx context.Context, name string) ([]byte, error) {
	f, err := requestJSON[File](ctx, c, "GET", clusterPath(name, "kubeconfig"), nil)
	return []byte(f.Content), err
}

// Talosconfig asks for a fresh talosconfig.
func (c *Client) Talosconfig(ctx context.Context, name string) ([]byte, error) {
	f, err := requestJSON[File](ctx, c, "GET", clusterPath(name, "talosconfig"), nil)
	return []byte(f.Content), err
}
