package plumbing

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// Connections are those a server has open.
type Connections struct {
	mu   sync.Mutex
	open map[net.Conn]bool
}

// FollowState is what http.Server.ConnState wants.
func (c *Connections) FollowState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open == nil {
			c.open = map[net.Conn]bool{}
		}
		c.open[conn] = true
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

// CutAll closes them all without the farewell of TLS, as a power cut does.
func (c *Connections) CutAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if t, ok := conn.(*tls.Conn); ok {
			_ = t.NetConn().Close() // it may be closed already
		}
	}
}

// Gate counts who is inside and can be closed behind them.
type Gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// TryEnter returns false if the gate is closed; otherwise Leave must follow.
func (g *Gate) TryEnter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.inside.Add(1)
	}
	return !g.closed
}

// Leave lets one out.
func (g *Gate) Leave() { g.inside.Done() }

// CloseAndWait accepts no further request and waits until the last one has ended.
func (g *Gate) CloseAndWait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}
