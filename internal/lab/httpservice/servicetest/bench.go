// Package servicetest is what the tests of the lab's HTTP services share: a world in
// memory or on loopback, and a client in it.
//
// It must not know any of the services, and only tests import it.
package servicetest

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Bench is a world, where its services listen, and a client in it.
type Bench struct {
	*testing.T
	World  *world.World
	Client *http.Client

	addr func(name string) string
}

// Config is what a service of the bench is opened with.
func (b *Bench) Config(name string) httpservice.Config {
	return httpservice.Config{World: b.World, Addr: b.addr(name)}
}

func newBench(t *testing.T, c world.Config, addr func(string) string) *Bench {
	t.Helper()
	w, err := world.New(c)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DialContext: w.Net.DialContext, TLSClientConfig: &tls.Config{RootCAs: w.PKI.Pool()}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		w.Close()
	})
	return &Bench{T: t, World: w, Client: &http.Client{Transport: tr}, addr: addr}
}

// InMemory runs f in a bubble of virtual time over the network in memory.
func InMemory(t *testing.T, f func(*Bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(newBench(t, world.Config{}, func(name string) string { return name + ".lab:443" }))
	})
}

// OnLoopback runs f in real time, a thousand times faster, on real sockets.
func OnLoopback(t *testing.T, f func(*Bench)) {
	t.Helper()
	c := world.Config{Speed: 1000, Network: world.Loopback{}}
	f(newBench(t, c, func(string) string { return "127.0.0.1:0" }))
}

// Everywhere runs f both ways.
func Everywhere(t *testing.T, f func(*Bench)) {
	t.Run("memory", func(t *testing.T) { InMemory(t, f) })
	t.Run("loopback", func(t *testing.T) { OnLoopback(t, f) })
}

// Opened checks that a service opened, and closes it at the end.
func Opened[S interface{ Close() error }](b *Bench) func(S, error) S {
	return func(s S, err error) S {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
		return s
	}
}

// Reply is an answer, read whole.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do sends a request; header lines are "Name: value".
func (b *Bench) Do(method, url, body string, header ...string) (Reply, error) {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), method, url, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	resp, err := b.Client.Do(r)
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return Reply{resp.StatusCode, resp.Header, content}, err
}

// Must is Do for requests that get an answer.
func (b *Bench) Must(method, url, body string, header ...string) Reply {
	b.Helper()
	r, err := b.Do(method, url, body, header...)
	if err != nil {
		b.Fatalf("%s %s: %v", method, url, err)
	}
	return r
}

// Want checks the status and that the body holds some text.
func (b *Bench) Want(r Reply, status int, text string) {
	b.Helper()
	if r.Status != status || !bytes.Contains(r.Body, []byte(text)) {
		b.Errorf("answer is %d %q, want %d with %q", r.Status, r.Body, status, text)
	}
}
