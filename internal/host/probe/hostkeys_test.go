package probe

import (
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"slices"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// sshServer serves connections on loopback, each by itself, until the test ends.
func sshServer(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// TestScanHostKeys: the kinds of keys are asked for side by side, so that a server
// that does not answer is waited for once, and one kind is enough.
func TestScanHostKeys(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	key, err := ssh.NewSignerFromKey(private)
	must(err)
	var here sync.WaitGroup
	here.Add(len(hostKeyAlgorithms))
	addr := sshServer(t, func(c net.Conn) {
		here.Done()
		here.Wait() // until all are there
		config := &ssh.ServerConfig{NoClientAuth: true}
		config.AddHostKey(key)
		if conn, _, _, err := ssh.NewServerConn(c, config); err == nil {
			t.Errorf("somebody stayed: %v", conn.Close())
		}
	})
	keys, err := ScanHostKeys(t.Context(), addr)
	if err != nil || len(keys) != 1 || !slices.Equal(keys[0].Marshal(), key.PublicKey().Marshal()) {
		t.Errorf("%v, %v", keys, err)
	}
}
