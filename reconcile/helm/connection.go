package helm

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The deadlines of a connection to the Kubernetes API. One that fell silent
// without closing anything is noticed by pings.
const (
	dialWithin   = 5 * time.Second
	answerWithin = 30 * time.Second // until the headers of an answer
	callWithin   = time.Minute      // a whole call of an action
	pingAfter    = 15 * time.Second // of silence
	pongWithin   = 10 * time.Second
	idleFor      = 2 * time.Minute
)

// dialFunc is how connections are made.
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// connection is everything that depends on which kube-apiserver is asked, with
// which credentials.
type connection struct {
	server    string
	ca, cert  []byte
	renew     time.Time // when newer credentials are worth a new connection
	conns     *conns
	transport *http.Transport
	through   http.RoundTripper // what is asked through: the transport, or what wraps it
}

// connect prepares connections to a server. It asks nobody yet.
func connect(server string, c cluster.Credentials, dial dialFunc, wrap func(http.RoundTripper) http.RoundTripper) (*connection, error) {
	ca, cert := c.CA.Reveal(), c.Cert.Reveal()
	pair, err := tls.X509KeyPair(cert, c.Key.Reveal())
	if err != nil {
		return nil, errors.New("the Kubernetes client certificate and its key do not go together")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the Kubernetes authority holds no PEM certificate")
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	open := &conns{dial: dial, open: map[*tracked]struct{}{}}
	conn := &connection{
		server: server, ca: ca, cert: cert,
		renew: pair.Leaf.NotBefore.Add(pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore) * 3 / 4),
		conns: open,
		// Proxy stays nil: control planes are reached on the nodes' own network.
		transport: &http.Transport{
			DialContext:           open.DialContext,
			TLSClientConfig:       &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:   dialWithin,
			ResponseHeaderTimeout: answerWithin,
			IdleConnTimeout:       idleFor,
			ForceAttemptHTTP2:     true,
			HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pongWithin},
		},
	}
	conn.through = conn.transport
	if wrap != nil {
		conn.through = wrap(conn.transport)
	}
	return conn, nil
}

// serves reports whether the connection can go on: it leads to the server, and
// the credentials are signed by the same authority and have a good part of
// their life before them, or are no older.
func (c *connection) serves(server string, want cluster.Credentials, now time.Time) bool {
	return c.server == server && bytes.Equal(c.ca, want.CA.Reveal()) && (now.Before(c.renew) || bytes.Equal(c.cert, want.Cert.Reveal()))
}

// close breaks every connection that is open.
func (c *connection) close() {
	c.conns.close()
	c.transport.CloseIdleConnections()
}

// config is what client-go and Helm talk to the server with. A transport of
// our own keeps client-go from caching one for ever.
func (c *connection) config(through http.RoundTripper) *rest.Config {
	return &rest.Config{
		Host: c.server, Transport: through, QPS: -1, UserAgent: "talos-agent",
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON},
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

// once is a transport for what is watched. client-go tries the same server
// again, for up to a minute, after the errors it knows of a connection that
// broke; here they have no such name, and whoever looks decides.
type once struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	return resp, nil
}

// conns keeps track of open connections: a transport closes only those that
// are idle by itself.
type conns struct {
	dial dialFunc

	mu     sync.Mutex
	closed bool
	open   map[*tracked]struct{}
}

// DialContext makes a connection, unless close was called.
func (c *conns) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	conn, err := c.dial(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	t := &tracked{conn, c}
	c.open[t] = struct{}{}
	return t, nil
}

func (c *conns) close() {
	c.mu.Lock()
	c.closed = true
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for t := range open {
		// It is going away; what closing has to say is of no interest.
		_ = t.Conn.Close()
	}
}

type tracked struct {
	net.Conn
	by *conns
}

// Close implements net.Conn.
func (t *tracked) Close() error {
	t.by.mu.Lock()
	delete(t.by.open, t)
	t.by.mu.Unlock()
	return t.Conn.Close()
}
