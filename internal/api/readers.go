package api

import (
	"log/slog"
	"net"
	"sync"

	"github.com/talos-agent/talos-agent/internal/httpserver"
)

// maxReaders bounds the connections of those who may only look: however many
// they open, root can still suspend a cluster.
const maxReaders = httpserver.MaxConns * 3 / 4

// keepRoom accepts connections of readers up to a bound, and root's always.
func keepRoom(l net.Listener, who func(net.Conn) peer, log *slog.Logger) net.Listener {
	return &roomy{Listener: l, who: who, log: log, slots: make(chan struct{}, maxReaders)}
}

type roomy struct {
	net.Listener
	who   func(net.Conn) peer
	log   *slog.Logger
	slots chan struct{}
}

// Accept implements net.Listener. One reader too many is turned away: waiting,
// it would stand in root's way.
func (r *roomy) Accept() (net.Conn, error) {
	for {
		c, err := r.Listener.Accept()
		if err != nil || r.who(c).isRoot() {
			return c, err
		}
		select {
		case r.slots <- struct{}{}:
			return &readerConn{Conn: c, release: sync.OnceFunc(func() { <-r.slots })}, nil
		default:
			r.log.Debug("a reader is refused: there are too many")
			_ = c.Close() // nothing was sent yet
		}
	}
}

type readerConn struct {
	net.Conn
	release func()
}

// NetConn returns the connection itself, for who must know its peer.
func (c *readerConn) NetConn() net.Conn { return c.Conn }

func (c *readerConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}
