package httpservice

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Config is where a service listens, and in which world.
type Config struct {
	World *world.World // required
	// Addr is the host:port to listen at, in the world's network. On the
	// loopback network port 0 takes a free one.
	Addr string
	// Plain serves http instead of https.
	Plain bool
}

// Server is one HTTP server of the lab. Embedded, it gives a service its URL and
// its Close.
type Server struct {
	log      *slog.Logger
	url      string
	listener net.Listener
	server   *http.Server
	stop     context.CancelFunc
	served   chan struct{}

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// Open takes the address of a service. Nothing is answered before Serve.
func Open(c Config) (*Server, error) {
	if c.World == nil {
		return nil, errors.New("no world")
	}
	l, err := c.World.Net.Listen(c.Addr)
	if err != nil {
		return nil, err
	}
	host, port, err := HostPort(c.Addr, l.Addr())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	scheme, standard := "http", "80"
	if !c.Plain {
		scheme, standard = "https", "443"
		cert, err := c.World.PKI.Server(host)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		// No HTTP/2: a lost reply must break the connection, not one stream.
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}
	if port == standard {
		u.Host = strings.TrimSuffix(u.Host, ":"+standard)
	}
	ctx, stop := context.WithCancel(c.World.Context())
	return &Server{
		log: c.World.Log, url: u.String(), listener: l, stop: stop, served: make(chan struct{}),
		server: &http.Server{
			BaseContext: func(net.Listener) context.Context { return ctx },
			ErrorLog:    slog.NewLogLogger(c.World.Log.Handler(), slog.LevelDebug),
		},
	}, nil
}

// Serve answers with h until Close. It returns at once.
func (s *Server) Serve(h http.Handler) {
	s.server.Handler = s.trackRequests(h)
	go func() {
		defer close(s.served)
		if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("a service of the lab failed", "url", s.url, "err", err)
		}
	}()
}

// HostPort returns the host as asked for and the port as given.
func HostPort(asked string, got net.Addr) (host, port string, err error) {
	if host, _, err = net.SplitHostPort(asked); err != nil {
		return "", "", fmt.Errorf("listen at %q: %w", asked, err)
	}
	if _, port, err = net.SplitHostPort(got.String()); err != nil {
		return "", "", fmt.Errorf("listen at %q: %w", asked, err)
	}
	if host == "" {
		return "", "", fmt.Errorf("listen at %q: say which host: a certificate and a URL need one", asked)
	}
	return host, port, nil
}

// trackRequests counts the requests under way, so that Close can wait for them.
func (s *Server) trackRequests(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		s.running.Add(1)
		s.mu.Unlock()
		defer s.running.Done()
		h.ServeHTTP(rw, r)
	})
}

// URL is where the service is reached, without a slash at the end.
func (s *Server) URL() string { return s.url }

// Close stops listening, breaks the connections and waits for the requests
// that were under way.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	err := s.server.Close()
	<-s.served
	s.running.Wait()
	return err
}
