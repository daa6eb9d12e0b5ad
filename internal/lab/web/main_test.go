package web

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a world, where its faces listen, and a client in it.
type bench struct {
	*testing.T
	world  *world.World
	client *http.Client
	addr   func(face string) string
}

// config is what a face of the bench is opened with.
func (b *bench) config(face string) Config {
	return Config{World: b.world, Addr: b.addr(face)}
}

func newBench(t *testing.T, c world.Config, addr func(string) string) *bench {
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
	return &bench{T: t, world: w, client: &http.Client{Transport: tr}, addr: addr}
}

// inMemory runs f in a bubble of virtual time over the network in memory.
func inMemory(t *testing.T, f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(newBench(t, world.Config{}, func(face string) string { return face + ".lab:443" }))
	})
}

// onLoopback runs f in real time, a thousand times faster, on real sockets.
func onLoopback(t *testing.T, f func(*bench)) {
	t.Helper()
	c := world.Config{Speed: 1000, Network: world.Loopback{}}
	f(newBench(t, c, func(string) string { return "127.0.0.1:0" }))
}

// everywhere runs f both ways.
func everywhere(t *testing.T, f func(*bench)) {
	t.Run("memory", func(t *testing.T) { inMemory(t, f) })
	t.Run("loopback", func(t *testing.T) { onLoopback(t, f) })
}

// open checks that a face opened and closes it at the end.
func open[F interface{ Close() error }](b *bench) func(F, error) F {
	return func(f F, err error) F {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := f.Close(); err != nil {
				b.Error(err)
			}
		})
		return f
	}
}

// reply is an answer, read whole.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request; header lines are "Name: value".
func (b *bench) do(method, url, body string, header ...string) (reply, error) {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), method, url, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, content}, err
}

// must is do for requests that get an answer.
func (b *bench) must(method, url, body string, header ...string) reply {
	b.Helper()
	r, err := b.do(method, url, body, header...)
	if err != nil {
		b.Fatalf("%s %s: %v", method, url, err)
	}
	return r
}

// want checks the status and that the body holds some words.
func (b *bench) want(r reply, status int, words string) {
	b.Helper()
	if r.status != status || !bytes.Contains(r.body, []byte(words)) {
		b.Errorf("answer is %d %q, want %d with %q", r.status, r.body, status, words)
	}
}

func TestFaceSaysWhatIsWrongWithItsAddress(t *testing.T) {
	onLoopback(t, func(b *bench) {
		for _, addr := range []string{"nowhere", ":0"} {
			if f, err := NewCharts(ChartsConfig{Config: Config{World: b.world, Addr: addr}}); err == nil {
				_ = f.Close()
				t.Errorf("a face opened at %q", addr)
			}
		}
	})
	if _, err := NewForge(ForgeConfig{Config: Config{Addr: "127.0.0.1:0"}, Kind: GitHub}); err == nil {
		t.Error("a face opened without a world")
	}
}

func TestFaceServesPlainHTTPAndClosesTwice(t *testing.T) {
	everywhere(t, func(b *bench) {
		c := b.config("charts")
		c.Plain = true
		charts := open[*Charts](b)(NewCharts(ChartsConfig{Config: c}))
		if !strings.HasPrefix(charts.URL(), "http://") {
			b.Fatalf("URL is %s", charts.URL())
		}
		b.want(b.must("GET", charts.URL()+"/index.yaml", ""), 200, "apiVersion: v1")
		if err := charts.Close(); err != nil {
			b.Fatal(err)
		}
		if _, err := b.do("GET", charts.URL()+"/index.yaml", ""); err == nil {
			b.Error("a closed face answers")
		}
	})
}

// A face that closes while it sends breaks the connection and comes back at
// once.
func TestFaceCloseBreaksWhatIsUnderWay(t *testing.T) {
	inMemory(t, func(b *bench) {
		charts := open[*Charts](b)(NewCharts(ChartsConfig{Config: b.config("charts")}))
		failed := make(chan error)
		go func() {
			_, err := b.do("GET", charts.URL()+"/cilium-1.19.3.tgz", "")
			failed <- err
		}()
		synctest.Wait() // the face sleeps over the archive
		if err := charts.Close(); err != nil {
			b.Fatal(err)
		}
		if err := <-failed; err == nil || errors.Is(err, context.Canceled) {
			b.Errorf("the download ended with %v", err)
		}
	})
}
