//go:build linux

package api

import (
	"context"
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/httpserver"
	"github.com/talos-agent/talos-agent/internal/logging"
)

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
