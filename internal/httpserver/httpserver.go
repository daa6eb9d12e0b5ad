package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/logging"
)

// MaxConns bounds the connections served at once: a crowd at the door must not
// eat the daemon. The rest waits in the kernel's queue.
const MaxConns = 64

// closeWithin is how long requests under way have when a server closes.
const closeWithin = 2 * time.Second

// Server serves one listener.
type Server struct {
	http *http.Server
	addr net.Addr
	done chan struct{}
}

// HTTP is a server's settings with the bounds that every listener of the agent
// has. Who serves clients that may take longer changes them.
func HTTP(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// TCP opens addr and serves it until Close.
func TCP(addr string, h http.Handler, log *slog.Logger) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // the rest of it has the address again
		}
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return Serve(l, HTTP(h, log), log), nil
}

// Serve serves a listener, MaxConns connections at once, until Close.
func Serve(l net.Listener, h *http.Server, log *slog.Logger) *Server {
	s := &Server{http: h, addr: l.Addr(), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		if err := h.Serve(limitConns(l, MaxConns)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("http server failed", logging.Detail, l.Addr().String(), logging.Err, err)
		}
	}()
	return s
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Close stops serving. Requests under way have a moment to end.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	<-s.done
	return err
}

// limitConns accepts no more than n connections at once.
func limitConns(l net.Listener, n int) net.Listener {
	return &limitListener{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

type limitListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitConn{Conn: c, release: func() { <-l.slots }}, nil
}

func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitConn struct {
	net.Conn
	once    sync.Once
	release func()
}

// NetConn returns the connection itself, for who must know its peer.
func (c *limitConn) NetConn() net.Conn { return c.Conn }

func (c *limitConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}
