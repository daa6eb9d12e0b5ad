package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/retry"
)

const (
	// requestWithin is the deadline of a request, or of a few that belong together.
	requestWithin = 10 * time.Second
	// silentFor is how long no API may answer before a change is given up.
	silentFor = time.Minute
	// retryPause is the wait between two tries of a request.
	retryPause = time.Second
)

var (
	errClosed = errors.New("the agent stops")
	errNoAPI  = errors.New("no kube-apiserver is ready on a control plane's own address")
)

// enter begins a change: its context ends with the Cluster's too, and Close waits for
// leave.
func (k *Cluster) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, nil, errClosed
	}
	k.wg.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(k.ctx, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		k.wg.Done()
	}, nil
}

// changer sends the requests of one change to the API that is ready when each is
// sent, as Observe saw it last.
type changer struct {
	k      *Cluster
	access cluster.Credentials

	conn   *kubeapi.Connection
	server netip.Addr
	set    kubernetes.Interface
}

// connect returns a client of the API to talk to now.
func (c *changer) connect() (kubernetes.Interface, error) {
	conn, err := c.k.connection(c.access, time.Now())
	if err != nil {
		return nil, err
	}
	c.k.mu.Lock()
	addr, ok := c.k.best()
	c.k.mu.Unlock()
	switch {
	case !ok:
		return nil, errNoAPI
	case c.set != nil && c.conn == conn && c.server == addr:
		return c.set, nil
	}
	config := &rest.Config{Host: serverOf(addr), QPS: -1, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON}}
	set, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: kubeapi.Once(conn)})
	if err != nil {
		return nil, fmt.Errorf("make client for %s: %w", addr, err)
	}
	c.conn, c.server, c.set = conn, addr, set
	return set, nil
}

// ask sends what request sends once, with a deadline.
func (c *changer) ask(ctx context.Context, request func(context.Context, kubernetes.Interface) error) error {
	set, err := c.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	return request(ctx, set)
}

// insist asks until an API answers with something that another try would not change,
// but for no longer than a minute.
func (c *changer) insist(ctx context.Context, request func(context.Context, kubernetes.Interface) error) error {
	for start := time.Now(); ; {
		err := c.ask(ctx, request)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil || isFinal(err):
			return err
		case time.Since(start) >= silentFor:
			return fmt.Errorf("ask Kubernetes for %v: %s", silentFor, kubeapi.Reason(err))
		}
		if retry.Sleep(ctx, retryPause) != nil {
			return context.Cause(ctx)
		}
	}
}

// isFinal reports whether an API has answered, and would again. One that starts, stops
// or has too much to do answers with 429 or 5xx.
func isFinal(err error) bool {
	if errors.Is(err, errClosed) {
		return true
	}
	answer := apierrors.APIStatus(nil)
	if !errors.As(err, &answer) {
		return false
	}
	code := answer.Status().Code
	return code >= 400 && code < 500 && code != http.StatusTooManyRequests
}
