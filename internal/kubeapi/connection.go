package kubeapi

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

// ListAgain is after how long what is watched is listed once more: of an event that was lost nothing else would be seen.
const ListAgain = 30 * time.Minute

// Dial is how connections are made; nil is the network of this host.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// Wrap puts something in front of a transport; nil puts nothing there.
type Wrap = func(http.RoundTripper) http.RoundTripper

// Connection is what requests under the same credentials go through: an
// http.RoundTripper for all servers of a cluster. Many goroutines may use it.
type Connection struct {
	ca, cert  []byte
	since     time.Time // before which the credentials are not good
	renew     time.Time // when newer credentials are worth a new connection
	conns     *conns
	transport *http.Transport
	through   http.RoundTripper // what is asked through: the transport, or what wraps it
}

// Connect prepares connections with the given credentials. It makes no request
// yet. Whoever connects must Close.
func Connect(c cluster.Credentials, dial Dial, wrap Wrap) (*Connection, error) {
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
	conn := &Connection{
		ca: ca, cert: cert, since: pair.Leaf.NotBefore,
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

// RoundTrip implements http.RoundTripper.
func (c *Connection) RoundTrip(r *http.Request) (*http.Response, error) {
	return c.through.RoundTrip(r)
}

// Serves reports whether the connection can go on under these credentials:
// they are signed by the same authority, and the present ones are good and have a
// good part of their life before them, or are no older. Ones that are not good yet
// were made while the clock was wrong.
func (c *Connection) Serves(want cluster.Credentials, now time.Time) bool {
	return bytes.Equal(c.ca, want.CA.Reveal()) && (now.Before(c.renew) && !now.Before(c.since) || bytes.Equal(c.cert, want.Cert.Reveal()))
}

// Close breaks every connection that is open, in the middle of whatever goes
// through it, and lets none be made any more.
func (c *Connection) Close() {
	c.conns.close()
	c.transport.CloseIdleConnections()
}

// conns keeps track of open connections: a transport closes only those that
// are idle by itself.
type conns struct {
	dial Dial

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
		// It is being closed; the error of closing does not matter.
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
