package api

import (
	"cmp"
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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/httpserver"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// Group is the group whose members may read over the socket.
const Group = "talos-agent"

// Server serves the socket.
type Server struct {
	*httpserver.Server
	path string
}

// IsRemoved reports whether somebody removed the socket's file: the server runs on,
// and it cannot be reached.
func (s *Server) IsRemoved() bool {
	_, err := os.Lstat(s.path)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Reopen serves the path of a server whose file was removed, and closes that one.
func (s *Server) Reopen(d Daemon, log *slog.Logger) (*Server, error) {
	if err := s.Close(); err != nil {
		log.Debug("close the socket that was removed", logging.Err, err)
	}
	return Listen(s.path, d, log)
}

// Listen opens the socket and serves it until Close. A stale socket is
// replaced, a live one is not: then another agent runs.
func Listen(path string, d Daemon, log *slog.Logger) (*Server, error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The socket is made closed to others and opened to the group afterwards:
	// there is no moment in which anybody may connect.
	l, err := listenClosed(path)
	if err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	if gid, ok := groupID(); ok {
		if err := os.Chown(path, -1, gid); err != nil {
			log.Debug("the socket stays with its user, because its group cannot be set", logging.Err, err)
		}
	}
	if err := os.Chmod(path, 0o660); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("open socket %s to its group: %w", path, err)
	}
	return &Server{httpserver.Serve(keepRoom(l, peerOf, log), newHTTPServer(d, log), log), path}, nil
}

// listenClosed opens a socket to which nobody but its user may connect. Linux
// makes it with the mode that its descriptor has by then; the umask would do the
// same to whatever else the process makes at that moment.
func listenClosed(path string) (net.Listener, error) {
	c := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var failed error
		if err := conn.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }); err != nil {
			return err
		}
		return failed
	}}
	return c.Listen(context.Background(), "unix", path)
}

// newHTTPServer are those of the server: what the routes need beside the bounds that
// every listener has.
func newHTTPServer(d Daemon, log *slog.Logger) *http.Server {
	ctx, cancel := context.WithCancel(context.Background())
	h := httpserver.HTTP(newHandler(d, newStreams(ctx)), log)
	h.ReadTimeout, h.WriteTimeout = 30*time.Second, 60*time.Second // a directory to plan comes over it
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, peerKey{}, peerOf(c))
	}
	h.RegisterOnShutdown(cancel)
	return h
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
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = inner.NetConn()
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

// isFromRoot reports whether a request is from somebody who may change things.
func isFromRoot(r *http.Request) bool {
	p, _ := r.Context().Value(peerKey{}).(peer)
	return p.isRoot()
}

// newHandler serves the routes. The peer of a request comes from its connection;
// without one, only reading is allowed.
func newHandler(d Daemon, st *streams) http.Handler {
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) {
			if rt.access == forRoot && !isFromRoot(r) {
				writeError(w, &Error{Status: http.StatusForbidden, Reason: cluster.AccessDenied, Message: "this is for root of the host", Hint: "run it with sudo"})
				return
			}
			if rt.stream != nil {
				st.serve(w, r, rt, d)
				return
			}
			data, err := rt.serve(r, d)
			if err != nil {
				writeError(w, err)
				return
			}
			writeJSON(w, http.StatusOK, envelope{Kind: rt.kind, APIVersion: Version, Data: data})
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if methods := methodsOf(mux, r); len(methods) > 0 {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			writeError(w, &Error{Status: http.StatusMethodNotAllowed, Reason: cluster.RouteUnknown, Message: fmt.Sprintf("%s cannot be asked with %s", r.URL.Path, r.Method), Hint: "ask with " + strings.Join(methods, " or ")})
			return
		}
		writeError(w, &Error{Status: http.StatusNotFound, Reason: cluster.RouteUnknown, Message: fmt.Sprintf("the agent knows no %s %s", r.Method, r.URL.Path), Hint: "the client may be newer than the daemon: restart talos-agent"})
	})
	return mux
}

// methodsOf lists the methods with which the path of a request is a route.
func methodsOf(mux *http.ServeMux, r *http.Request) (methods []string) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" {
			methods = append(methods, method)
		}
	}
	return methods
}

// statuses are those of errors that are no failure of the daemon, by their reason.
var statuses = map[cluster.Reason]int{
	cluster.Starting:        http.StatusServiceUnavailable,
	cluster.NothingToAccept: http.StatusConflict,
	cluster.InventoryUnread: http.StatusConflict,
}

// envelope is the shape of every answer.
type envelope struct {
	Kind       string `json:"kind,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
	Data       any    `json:"data,omitempty"`
	Error      *Error `json:"error,omitempty"`
}

func writeError(w http.ResponseWriter, err error) {
	out := &Error{Status: http.StatusInternalServerError, Reason: cmp.Or(cluster.ReasonOf(err), cluster.CommandFailed), Message: err.Error()}
	var e *Error
	switch {
	case errors.As(err, &e):
		out = e
	case errors.Is(err, ErrUnknownCluster):
		out.Status, out.Reason = http.StatusNotFound, cluster.ClusterUnknown
	case errors.Is(err, ErrUnknownNode):
		out.Status, out.Reason = http.StatusNotFound, cluster.RequestInvalid
	case errors.Is(err, ErrUnmanaged):
		out.Status = http.StatusConflict
	case statuses[out.Reason] != 0:
		out.Status = statuses[out.Reason]
	}
	if out.Hint == "" {
		out.Hint = fault.HintOf(err)
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
	_, _ = w.Write(append(b, '\n')) // a client that has disconnected does not want it
}
