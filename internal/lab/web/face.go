package web

import (
	"context"
	"crypto/tls"
	"encoding/json"
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

// Config is what every face needs.
type Config struct {
	World *world.World // required
	// Addr is the host:port to listen at, in the world's network. On the
	// loopback network port 0 takes a free one.
	Addr string
	// Names are further host names and addresses the certificate is good for.
	Names []string
	// Plain serves http instead of https.
	Plain bool
}

// face is one HTTP server of the lab.
type face struct {
	url      string
	listener net.Listener
	server   *http.Server
	stop     context.CancelFunc
	served   chan struct{}

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// listen takes the address of a face. Nothing is answered before serve.
func listen(c Config) (*face, error) {
	if c.World == nil {
		return nil, errors.New("no world")
	}
	l, err := c.World.Net.Listen(c.Addr)
	if err != nil {
		return nil, err
	}
	host, port, err := hostPort(c.Addr, l.Addr())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	scheme, standard := "http", "80"
	if !c.Plain {
		scheme, standard = "https", "443"
		cert, err := c.World.PKI.Server(append([]string{host}, c.Names...)...)
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
	return &face{
		url: u.String(), listener: l, stop: stop, served: make(chan struct{}),
		server: &http.Server{
			BaseContext: func(net.Listener) context.Context { return ctx },
			ErrorLog:    slog.NewLogLogger(c.World.Log.Handler(), slog.LevelDebug),
		},
	}, nil
}

// serve answers with h until Close. It returns at once.
func (f *face) serve(w *world.World, h http.Handler) {
	f.server.Handler = f.track(h)
	go func() {
		defer close(f.served)
		if err := f.server.Serve(f.listener); !errors.Is(err, http.ErrServerClosed) {
			w.Log.Error("a face of the lab stopped serving", "url", f.url, "err", err)
		}
	}()
}

// hostPort returns the host as asked for and the port as given.
func hostPort(asked string, got net.Addr) (host, port string, err error) {
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

// track counts the requests under way, so that Close can wait for them.
func (f *face) track(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		f.running.Add(1)
		f.mu.Unlock()
		defer f.running.Done()
		h.ServeHTTP(rw, r)
	})
}

// URL is where the face is reached, without a slash at the end.
func (f *face) URL() string { return f.url }

// Close stops listening, breaks the connections and waits for the requests
// that were under way.
func (f *face) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop()
	err := f.server.Close()
	<-f.served
	f.running.Wait()
	return err
}

// routes puts the world in front of every route of a face.
type routes struct {
	world  *world.World
	system string
	refuse func(http.ResponseWriter, int, string)
	mux    http.ServeMux
}

// handle adds a route. The call is named by method and pattern; subject says
// what it is about. A GET route answers HEAD too.
func (t *routes) handle(pattern string, mutating bool, subject func(*http.Request) string, h http.HandlerFunc) {
	_, route, _ := strings.Cut(pattern, " ")
	name := func(r *http.Request) (world.Call, bool) {
		return world.Call{System: t.system, Op: r.Method + " " + route, Subject: subject(r)}, mutating
	}
	t.mux.Handle(pattern, t.world.HTTP(name, t.refuse, h))
}

// nothingElse answers every other path with a 404 in the face's own words.
func (t *routes) nothingElse(words string) {
	t.handle("/", false, func(r *http.Request) string { return r.URL.Path }, func(rw http.ResponseWriter, _ *http.Request) {
		t.refuse(rw, http.StatusNotFound, words)
	})
}

// pathValue is the subject of routes that carry it in their path.
func pathValue(key string) func(*http.Request) string {
	return func(r *http.Request) string { return r.PathValue(key) }
}

// noSubject is for routes that are about the face as a whole.
func noSubject(*http.Request) string { return "" }

// plainText refuses as net/http does: a line of text.
func plainText(rw http.ResponseWriter, status int, text string) { http.Error(rw, text, status) }

// writeJSON answers with v. What cannot be sent any more is the client's loss:
// it hung up.
func writeJSON(rw http.ResponseWriter, status int, v any) {
	rw.Header().Set("Content-Type", "application/json; charset=utf-8")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(v)
}
