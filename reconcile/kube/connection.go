package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The deadlines of a connection. A kube-apiserver that fell silent without
// closing anything (a node that lost its power) is noticed by pings.
const (
	dialWithin   = 5 * time.Second
	answerWithin = 30 * time.Second // until the headers of an answer
	pingAfter    = 15 * time.Second // of silence
	pongWithin   = 10 * time.Second
	idleFor      = 2 * time.Minute
)

// dialFunc is how connections are made.
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// connection is everything that depends on the credentials: they are minted
// anew from time to time.
type connection struct {
	ca, cert  []byte
	renew     time.Time // when newer credentials are worth a new connection
	conns     *conns
	transport *http.Transport
	through   http.RoundTripper // what is asked through: the transport, or what wraps it
}

// connect prepares connections with the given credentials. It asks nobody yet.
func connect(c cluster.Credentials, dial dialFunc, wrap func(http.RoundTripper) http.RoundTripper) (*connection, error) {
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
		ca: ca, cert: cert,
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

// serves reports whether the connection can go on under these credentials:
// they are signed by the same authority, and the present ones have a good part
// of their life before them, or are no older.
func (c *connection) serves(want cluster.Credentials, now time.Time) bool {
	return bytes.Equal(c.ca, want.CA.Reveal()) && (now.Before(c.renew) || bytes.Equal(c.cert, want.Cert.Reveal()))
}

// close breaks every connection that is open.
func (c *connection) close() {
	c.conns.close()
	c.transport.CloseIdleConnections()
}

// once is a transport for what is watched. client-go tries the same server
// again, for up to a minute, after the errors it knows of a connection that
// broke; here they have no such name, and another server is tried.
type once struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, &lostError{err}
	}
	return resp, nil
}

// lostError is an error whose cause is told in words only.
type lostError struct{ cause error }

// Error implements error.
func (e *lostError) Error() string { return reason(e.cause) }

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
