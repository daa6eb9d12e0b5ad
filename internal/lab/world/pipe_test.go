package world

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

func TestPipeIsAConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		l := listenPipe(64 << 10)
		accepted := make(chan net.Conn, 1)
		go func() {
			c, _ := l.Accept()
			accepted <- c
		}()
		c1, err = l.DialContext(context.Background())
		c2 = <-accepted
		return c1, c2, func() { _ = c1.Close(); _ = c2.Close(); _ = l.Close() }, err
	})
}

// TestLiftedDeadlineNeverStrikes does what net/http does between two requests:
// it breaks off a read with a deadline in the past, and lifts it, while data
// arrives.
func TestLiftedDeadlineNeverStrikes(t *testing.T) {
	p := newPipe(16)
	end := &pipeConn{in: p, out: newPipe(16)}
	for i := range 2000 {
		done := make(chan error, 1)
		go func() {
			_, err := end.Read(make([]byte, 1))
			done <- err
		}()
		go func() { _, _ = p.writeBytes([]byte{1}) }()
		if err := end.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		broken := <-done
		if err := end.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if errors.Is(broken, os.ErrDeadlineExceeded) {
			if _, err := end.Read(make([]byte, 1)); err != nil {
				t.Fatalf("round %d: read without a deadline: %v", i, err)
			}
		} else if broken != nil {
			t.Fatal(broken)
		}
	}
}
