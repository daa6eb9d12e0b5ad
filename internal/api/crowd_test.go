package api

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/httpserver"
)

// TestACrowdLeavesNothingBehind: a thousand readers watch and follow, read slowly
// or not at all, and half of them die. Root gets in all the while, what the daemon
// spends on them is bounded, and when they are closed nothing is left of them.
func TestACrowdLeavesNothingBehind(t *testing.T) {
	const crowded, perReader = 1000, 4 // goroutines of net/http and ours for one connection, at most
	if _, err := os.ReadDir("/proc/self/fd"); err != nil {
		t.Skip("descriptors cannot be counted here:", err)
	}
	goroutines, descriptors := runtime.NumGoroutine(), openFiles(t)
	a := &stub{}
	path, root, srv := crowdable(t, a, func(*http.Server) {})

	var crowd []net.Conn
	for i := range crowded {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		crowd = append(crowd, c)
		// One that was turned away already cannot be asked any more.
		_, err = fmt.Fprintf(c, "GET /v1/%s HTTP/1.1\r\nHost: talos-agent\r\n\r\n", []string{"watch", "events/stream"}[i%2])
		if err != nil && !strings.Contains(err.Error(), "broken pipe") {
			t.Fatal(err)
		}
	}
	// Events enough to fill what the kernel keeps for those who do not read; some
	// take a little now and then.
	word, some := strings.Repeat("x", 32<<10), make([]byte, 512)
	for n := range uint64(64) {
		a.change(func() {
			a.events = append(a.events[max(0, len(a.events)-8):], cluster.Event{Seq: n + 1, Message: word})
		})
		for _, c := range crowd[:100] {
			_ = c.SetReadDeadline(time.Now().Add(time.Microsecond))
			_, _ = c.Read(some) // it may be turned away, or have nothing to read
		}
		if now := runtime.NumGoroutine() - goroutines; now > httpserver.MaxConns*perReader {
			t.Fatalf("%d goroutines for %d readers", now, crowded)
		}
		if now := openFiles(t) - descriptors - crowded; now > httpserver.MaxConns+8 {
			t.Fatalf("%d descriptors for %d readers", now, crowded)
		}
	}
	root.Store(true)
	if err := NewClient(path).Suspend(t.Context(), "dev"); err != nil {
		t.Errorf("root behind %d readers: %v", crowded, err)
	}
	for _, c := range crowd[:crowded/2] {
		_ = c.Close()
	}
	if err := NewClient(path).Resume(t.Context(), "dev"); err != nil {
		t.Errorf("root, when half of them are gone: %v", err)
	}
	for _, c := range crowd[crowded/2:] {
		_ = c.Close()
	}
	// The listener, and what accepts at it, stay.
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines+4 || openFiles(t) > descriptors+4; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines and %d descriptors, and before %d and %d\n%s", runtime.NumGoroutine(), openFiles(t), goroutines, descriptors,
				stacks[:runtime.Stack(stacks, true)])
		}
	}
	// And another reader is let in.
	root.Store(false)
	if err := NewClient(path).Follow(t.Context(), cluster.EventQuery{}, func() {}, func(cluster.Event) error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("a reader afterwards: %v", err)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
}

// openFiles counts this program's descriptors.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
