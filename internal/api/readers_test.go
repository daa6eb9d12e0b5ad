package api

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/httpserver"
)

// crowdable serves an agent at a socket at which everybody is a reader until root
// is set; whoever comes from then on is who they are.
func crowdable(t *testing.T, d Daemon, change func(*http.Server)) (path string, root *atomic.Bool, srv *httpserver.Server) {
	t.Helper()
	path, root = filepath.Join(t.TempDir(), "agent.sock"), new(atomic.Bool)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	who := func(c net.Conn) peer {
		if root.Load() {
			return peerOf(c)
		}
		return peer{known: true, uid: 65534}
	}
	log := slog.New(slog.DiscardHandler)
	h := newHTTPServer(d, log)
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, peerKey{}, who(c))
	}
	change(h)
	return path, root, httpserver.Serve(keepRoom(l, who, log), h, log)
}

// TestReadersLeaveRoomForRoot: readers who open every connection that they get,
// and say nothing, keep other readers out, and not root.
func TestReadersLeaveRoomForRoot(t *testing.T) {
	path, root, srv := crowdable(t, &stub{}, func(h *http.Server) {
		h.ReadHeaderTimeout, h.ReadTimeout = 0, 0 // they are never interrupted
	})
	var crowd []net.Conn
	for range 2 * httpserver.MaxConns {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		crowd = append(crowd, c)
	}
	// The last of them was turned away: by then the others were accepted.
	if _, err := bufio.NewReader(crowd[len(crowd)-1]).ReadByte(); err != io.EOF {
		t.Fatalf("one more reader: %v", err)
	}
	root.Store(true)
	if err := NewClient(path).Suspend(t.Context(), "dev"); err != nil {
		t.Errorf("root behind %d readers: %v", len(crowd), err)
	}
	for _, c := range crowd {
		_ = c.Close()
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
}

// TestWatchersLeaveRoomForRoot: so it is with answers that go on.
func TestWatchersLeaveRoomForRoot(t *testing.T) {
	path, root, srv := crowdable(t, &stub{}, func(*http.Server) {})
	c := NewClient(path)
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, maxStreams)
	watch := func(c *Client) error {
		return c.Watch(ctx, "", func() {}, func(cluster.Status) error { return nil }, nil)
	}
	for range maxStreams {
		asked := make(chan struct{})
		go func() {
			ended <- c.Watch(ctx, "", func() { close(asked) }, func(cluster.Status) error { return nil }, nil)
		}()
		<-asked
	}
	if err := watch(c); err == nil || err.Error() != errTooMany.Message {
		t.Errorf("one more reader: %v", err)
	}
	root.Store(true)
	said := ""
	if err := NewClient(path).Console(ctx, "dev", "cp-1", func() {}, func(text string) error { said += text; return nil }); said != "hello" {
		t.Errorf("root hears %q, %v", said, err)
	}
	leave()
	for range maxStreams {
		<-ended
	}
	if err := srv.Close(); err != nil && err != http.ErrServerClosed {
		t.Error(err)
	}
}
