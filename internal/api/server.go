package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Group is the group whose members may read over the socket.
const Group = "talos-agent"

// maxConns bounds the connections served at once: a crowd at the socket must
// not eat the daemon.
const maxConns = 64

// Server serves the socket.
type Server struct {
	http     *http.Server
	listener net.Listener
	path     string
}

// Listen opens the socket and serves it until Close. A stale socket is
// replaced, a live one is not: then another agent runs.
func Listen(path string, a Agent, log *slog.Logger) (*Server, error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The socket is made closed to others and opened to the group afterwards:
	// there is no moment in which anybody may connect.
	old := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	if gid, ok := groupID(); ok {
		if err := os.Chown(path, -1, gid); err != nil {
			log.Debug("the socket stays with its user, because its group cannot be set", "err", err)
		}
	}
	if err := os.Chmod(path, 0o660); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("open socket %s to its group: %w", path, err)
	}
	s := &Server{listener: limit(l, maxConns), path: path}
	s.http = &http.Server{
		Handler:           Handler(a),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, peerOf(c))
		},
	}
	go func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the socket is not served any more", "err", err)
		}
	}()
	return s, nil
}

// Close stops serving and removes the socket.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	return err
}

// makeDir makes the socket's folder, if there is none, such that the group gets
// through to the socket whatever the umask is.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen on socket %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on socket %s: there is something that is not a socket; move it away", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return fmt.Errorf("listen on socket %s: another agent serves it already", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the stale socket %s: %w", path, err)
	}
	return nil
}

func groupID() (int, bool) {
	g, err := user.LookupGroup(Group)
	if err != nil {
		return 0, false
	}
	id, err := strconv.Atoi(g.Gid)
	return id, err == nil
}

type peerKey struct{}

// peer is who is at the other end of a connection, in the kernel's word.
type peer struct {
	known bool
	uid   uint32
}

func peerOf(c net.Conn) peer {
	if lc, ok := c.(*limitConn); ok {
		c = lc.Conn
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return peer{}
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return peer{}
	}
	var p peer
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err == nil {
			p = peer{known: true, uid: cred.Uid}
		}
	})
	if err != nil {
		return peer{}
	}
	return p
}

// isRoot reports whether the peer may change things: root, or the daemon's own
// user, who could read the daemon's memory anyway.
func (p peer) isRoot() bool { return p.known && (p.uid == 0 || int(p.uid) == os.Getuid()) }

// Handler serves the routes. The peer of a request comes from its connection;
// without one, only reading is allowed.
func Handler(a Agent) http.Handler {
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) {
			p, _ := r.Context().Value(peerKey{}).(peer)
			if rt.access == forRoot && !p.isRoot() {
				writeError(w, &Error{Status: http.StatusForbidden, Message: "this is for root of the host", Help: "run it with sudo"})
				return
			}
			data, err := rt.serve(r, a)
			if err != nil {
				writeError(w, err)
				return
			}
			writeJSON(w, http.StatusOK, envelope{Kind: rt.kind, APIVersion: Version, Data: data})
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &Error{Status: http.StatusNotFound, Message: fmt.Sprintf("the agent knows no %s %s", r.Method, r.URL.Path), Help: "the client may be newer than the daemon: restart talos-agent"})
	})
	return mux
}

// envelope is the shape of every answer.
type envelope struct {
	Kind       string `json:"kind,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
	Data       any    `json:"data,omitempty"`
	Error      *Error `json:"error,omitempty"`
}

func writeError(w http.ResponseWriter, err error) {
	out := &Error{Status: http.StatusInternalServerError, Message: err.Error()}
	var e *Error
	var hint interface{ Hint() string }
	switch {
	case errors.As(err, &e):
		out = e
	case errors.Is(err, ErrUnknownCluster):
		out.Status = http.StatusNotFound
	}
	if out.Help == "" && errors.As(err, &hint) {
		out.Help = hint.Hint()
	}
	writeJSON(w, out.Status, envelope{Error: out})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer cannot be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that is gone does not want it
}

// limit accepts no more than n connections at once.
func limit(l net.Listener, n int) net.Listener {
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

func (c *limitConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}
