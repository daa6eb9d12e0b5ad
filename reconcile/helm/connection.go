package helm

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// callWithin is how long a whole call of an action may take.
const callWithin = time.Minute

// connection is everything that depends on which kube-apiserver is asked, with
// which credentials.
type connection struct {
	*kubeapi.Connection
	server string
}

// connectServer prepares connections to a server. It makes no request yet.
func connectServer(server string, c cluster.Credentials, dial kubeapi.Dial, wrap kubeapi.Wrap) (*connection, error) {
	conn, err := kubeapi.Connect(c, dial, wrap)
	if err != nil {
		return nil, err
	}
	return &connection{conn, server}, nil
}

// serves reports whether the connection leads to the server and can go on
// under these credentials.
func (c *connection) serves(server string, want cluster.Credentials, now time.Time) bool {
	return c.server == server && c.Serves(want, now)
}

// config is what client-go and Helm talk to the server with. A transport of
// our own keeps client-go from caching one for ever.
func (c *connection) config(through http.RoundTripper) *rest.Config {
	return &rest.Config{
		Host: c.server, Transport: through, QPS: -1, UserAgent: "talos-agent",
		// Talos warns of every pod that Pod Security would not call restricted; client-go
		// would print that to the standard error output.
		WarningHandler: rest.NoWarnings{},
		ContentConfig:  rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON},
	}
}

// leash ends every request with a context: Helm asks under contexts of its own
// that never end.
type leash struct {
	ctx  context.Context
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (l *leash) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.ctx.Err() != nil {
		return nil, context.Cause(l.ctx)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	unhook := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	done := func() {
		unhook()
		cancel(nil)
	}
	resp, err := l.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		done()
		return nil, err
	}
	resp.Body = &leashed{resp.Body, done}
	return resp, nil
}

// leashed is a body whose request is over when it is closed.
type leashed struct {
	io.ReadCloser
	done func()
}

// Close implements io.Closer.
func (b *leashed) Close() error {
	err := b.ReadCloser.Close()
	b.done()
	return err
}

// What templates of one chart may look up. What comes is in this process, and takes some ten
// times of it, until the worker has got it.
const (
	maxLookedUp = 8 << 20 // bytes in all, with what the API has on the kinds
	maxLookups  = 1000    // requests; each kind takes one by itself
)

// lookups bounds what is looked up for one chart.
type lookups struct {
	next     http.RoundTripper
	requests atomic.Int64
	bytes    atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (l *lookups) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.requests.Add(1) > maxLookups {
		return nil, fmt.Errorf("its templates look something up more than %d times", maxLookups/2)
	}
	resp, err := l.next.RoundTrip(r)
	if err == nil {
		resp.Body = &lookedUp{resp.Body, &l.bytes}
	}
	return resp, err
}

// lookedUp is a body that counts.
type lookedUp struct {
	io.ReadCloser
	bytes *atomic.Int64
}

// Read implements io.Reader.
func (b *lookedUp) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.bytes.Add(int64(n)) > maxLookedUp {
		return 0, fmt.Errorf("its templates look up more than %d MiB", maxLookedUp>>20)
	}
	return n, err
}
