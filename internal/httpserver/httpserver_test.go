package httpserver

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// crowded counts how many connections are open at once.
type crowded struct {
	net.Listener
	now, most atomic.Int64
}

type counted struct {
	net.Conn
	onClose func()
}

func (l *crowded) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := l.now.Add(1)
	for most := l.most.Load(); n > most && !l.most.CompareAndSwap(most, n); most = l.most.Load() {
	}
	return &counted{Conn: c, onClose: func() { l.now.Add(-1) }}, nil
}

func (c *counted) Close() error {
	c.onClose()
	return c.Conn.Close()
}

// TestACrowdIsServedInTurn: many who send nothing, or half a request, do not keep
// out one who sends a whole one, and are never served all at once. It runs in
// virtual time, in which only those who send nothing are late.
func TestACrowdIsServedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "10.0.0.1:80"
		n := world.NewMemory()
		l, err := n.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		in := &crowded{Listener: l}
		h := HTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }), quiet)
		s := Serve(in, h, quiet)
		for i := range 10 * MaxConns {
			go func() {
				c, err := n.DialContext(t.Context(), "tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = c.Close() }()
				if i%2 == 0 {
					_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\n") // it may have been sent away already
				}
				_, _ = io.Copy(io.Discard, c) // until it is sent away
			}()
		}
		synctest.Wait() // as many as may be are served, and the others stand in the queue
		client := &http.Client{Transport: &http.Transport{DialContext: n.DialContext, DisableKeepAlives: true}}
		res, err := client.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || string(b) != "served" {
			t.Errorf("%q, %v", b, err)
		}
		if most := in.most.Load(); most != MaxConns {
			t.Errorf("%d connections at once", most)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := n.DialContext(t.Context(), "tcp", addr); err == nil {
			t.Error("somebody listens still")
		}
	})
}

// TestTakenAddress: the error names the address.
func TestTakenAddress(t *testing.T) {
	s, err := TCP("127.0.0.1:0", http.NotFoundHandler(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := TCP(s.Addr().String(), http.NotFoundHandler(), quiet); err == nil || !strings.Contains(err.Error(), "listen on "+s.Addr().String()) {
		t.Errorf("%v", err)
	}
}
