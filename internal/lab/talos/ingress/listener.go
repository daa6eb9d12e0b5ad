package ingress

import (
	"maps"
	"net"
	"slices"
	"sync"
)

// Listener remembers its connections, so that they can be cut in one go
// without waiting for anybody's handshake.
type Listener struct {
	net.Listener

	mu      sync.Mutex
	dropped bool
	shut    bool // a firewall drops what is new; it is not answered, nor refused
	conns   map[net.Conn]struct{}
}

// NewListener makes one of a listener, and behind a firewall that drops new connections, or
// does not.
func NewListener(l net.Listener, shut bool) *Listener {
	return &Listener{Listener: l, shut: shut, conns: map[net.Conn]struct{}{}}
}

// SetShut has a firewall drop new connections, or not any longer.
func (l *Listener) SetShut(shut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = shut
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if tracked, shut, err := l.track(c); err != nil || !shut {
			return tracked, err
		}
	}
}

// track remembers a connection, and reports whether a firewall drops it.
func (l *Listener) track(c net.Conn) (tracked net.Conn, shut bool, err error) {
	tracked = &conn{Conn: c, l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped {
		_ = c.Close()
		return nil, false, net.ErrClosed
	}
	l.conns[tracked] = struct{}{}
	return tracked, l.shut, nil
}

// DropAll stops listening and cuts every connection.
func (l *Listener) DropAll() {
	_ = l.Listener.Close()
	l.mu.Lock()
	l.dropped = true
	conns := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

type conn struct {
	net.Conn
	l *Listener
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}
