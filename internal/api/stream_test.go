package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/httpserver"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestWatch: whoever watches is given what is, then what changes, and nothing
// when nothing has changed.
func TestWatch(t *testing.T) {
	a, c, _ := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked, lines, ended := make(chan struct{}), make(chan cluster.Status), make(chan error, 1)
	go func() {
		ended <- c.Watch(ctx, "dev", func() { close(asked) }, func(s cluster.Status) error { lines <- s; return nil }, nil)
	}()
	<-asked
	if s := <-lines; s.Condition != cluster.Ready {
		t.Errorf("first %+v", s)
	}
	quiet := cluster.Status{Cluster: "dev", Condition: cluster.Reconciling, NextPass: time.Now(), Passes: []cluster.PassStatus{{Waiting: 1}}}
	a.change(func() { a.state = quiet })
	if s := <-lines; s.Condition != cluster.Reconciling {
		t.Errorf("second %+v", s)
	}
	quiet.NextPass, quiet.Passes = time.Now().Add(time.Hour), []cluster.PassStatus{{Waiting: 1, DurationMS: 3}}
	a.change(func() { a.state = quiet })
	quiet.Message = "something happens"
	a.change(func() { a.state = quiet })
	if s := <-lines; s.Message == "" {
		t.Error("a pass in which nothing happened is told")
	}
	// What runs has its progress reported although nobody reports that it changed.
	quiet.Running = []cluster.RunningStatus{{Action: "upload image", Done: 1}}
	a.change(func() { a.state = quiet })
	<-lines
	a.mu.Lock()
	a.state.Running = []cluster.RunningStatus{{Action: "upload image", Done: 2}}
	a.mu.Unlock()
	if s := <-lines; len(s.Running) != 1 || s.Running[0].Done != 2 {
		t.Errorf("progress %+v", s.Running)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the end: %v", err)
	}
}

// TestWatchTheDaemon: a client receives the daemon's own problem, when it comes
// and when it goes, and who does not ask is not.
func TestWatchTheDaemon(t *testing.T) {
	a, c, _ := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines, abouts, ended := make(chan cluster.Status), make(chan About), make(chan error, 2)
	go func() {
		ended <- c.Watch(ctx, "dev", func() {}, func(cluster.Status) error { return nil }, func(v About) error { abouts <- v; return nil })
	}()
	go func() {
		ended <- c.Watch(ctx, "dev", func() {}, func(s cluster.Status) error { lines <- s; return nil }, nil)
	}()
	if v := <-abouts; v.Version != "v0" || v.Problems != nil {
		t.Errorf("at first: %+v", v)
	}
	if s := <-lines; s.Cluster != "dev" {
		t.Errorf("who watches clusters is told %+v", s)
	}
	a.change(func() { a.trouble = []string{"a key is gone"} })
	if v := <-abouts; !reflect.DeepEqual(v.Problems, []string{"a key is gone"}) {
		t.Errorf("the trouble: %+v", v)
	}
	// Nothing of a change elsewhere, then that it is over.
	a.change(func() { a.state = cluster.Status{Cluster: "dev", Condition: cluster.Stalled} })
	if s := <-lines; s.Condition != cluster.Stalled {
		t.Errorf("who watches clusters is told %+v", s)
	}
	a.change(func() { a.trouble = nil })
	if v := <-abouts; v.Problems != nil {
		t.Errorf("when it is over: %+v", v)
	}
	cancel()
	for range 2 {
		<-ended
	}
}

// TestWatchAClusterThatGoes: a client receives which clusters there are, and one
// that comes back how it stands, though that is what it was before.
func TestWatchAClusterThatGoes(t *testing.T) {
	a, c, _ := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines, ended := make(chan string), make(chan error, 1)
	go func() {
		ended <- c.Watch(ctx, "", func() {}, func(s cluster.Status) error { lines <- s.Cluster; return nil },
			func(v About) error { lines <- strings.Join(v.Clusters, "+"); return nil })
	}()
	want := func(all ...string) {
		t.Helper()
		for _, w := range all {
			if got := <-lines; got != w {
				t.Errorf("told %q, want %q", got, w)
			}
		}
	}
	want("dev", "dev")
	a.change(func() { a.more = []string{"prod"} })
	want("prod", "dev+prod")
	a.change(func() { a.more = nil })
	want("dev")
	a.change(func() { a.more = []string{"prod"} })
	want("prod", "dev+prod")
	cancel()
	<-ended
}

func TestFollow(t *testing.T) {
	a, c, _ := serve(t)
	a.events = []cluster.Event{{Seq: 1, Cluster: "prod"}, {Seq: 2, Cluster: "dev", Node: "cp-1"}, {Seq: 3, Message: "the daemon"}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines, ended := make(chan cluster.Event), make(chan error, 1)
	go func() {
		ended <- c.Follow(ctx, cluster.EventQuery{Cluster: "dev"}, func() {}, func(e cluster.Event) error { lines <- e; return nil })
	}()
	for _, want := range []uint64{2, 3} {
		if e := <-lines; e.Seq != want {
			t.Errorf("event %d, want %d", e.Seq, want)
		}
	}
	a.change(func() {
		a.events = append(a.events, cluster.Event{Seq: 4, Cluster: "prod"}, cluster.Event{Seq: 5, Cluster: "dev"})
	})
	if e := <-lines; e.Seq != 5 {
		t.Errorf("event %d, want 5", e.Seq)
	}
	cancel()
	<-ended
}

// TestStreamsEnd: the daemon's end is the end of its streams, and a question
// that is wrong is none.
func TestStreamsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	srv, err := Listen(path, &stub{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(path)
	asked, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.Watch(t.Context(), "", func() { close(asked) }, func(cluster.Status) error { return nil }, nil)
	}()
	<-asked
	var e *Error
	if err := c.Watch(t.Context(), "other", func() { t.Error("asked") }, nil, nil); !errors.As(err, &e) || e.Status != http.StatusNotFound {
		t.Errorf("unknown cluster: %v", err)
	}
	broken := errors.New("broken pipe")
	if err := c.Watch(t.Context(), "dev", func() {}, func(cluster.Status) error { return broken }, nil); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, ErrEnded) {
		t.Errorf("the end: %v", err)
	}
	if err := c.Watch(t.Context(), "", func() {}, nil, nil); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("no daemon: %v", err)
	}
}

// TestStreamsOutliveTheRequest: the time that a question may take to arrive is
// not the time that its answer may take. Nobody is late but by waiting: time is
// virtual.
func TestStreamsOutliveTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := world.NewMemory()
		l, err := n.Listen("10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		a := &stub{}
		log := slog.New(slog.DiscardHandler)
		h := newHTTPServer(a, log)
		srv := httpserver.Serve(l, h, log)
		c := &Client{http: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return n.DialContext(ctx, "tcp", "10.0.0.1:80")
			},
			DisableKeepAlives: true,
		}}}
		asked, lines, ended := make(chan struct{}), make(chan cluster.Event), make(chan error, 1)
		go func() {
			ended <- c.Follow(t.Context(), cluster.EventQuery{}, func() { close(asked) }, func(e cluster.Event) error { lines <- e; return nil })
		}()
		<-asked
		time.Sleep(2 * max(h.ReadTimeout, h.WriteTimeout)) // until the deadlines have passed
		a.change(func() { a.events = []cluster.Event{{Seq: 1}} })
		select {
		case <-lines:
		case err := <-ended:
			t.Errorf("it ended by itself: %v", err)
			ended <- err
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
}

// TestStreamsAreBounded: those who watch leave room for those who ask.
func TestStreamsAreBounded(t *testing.T) {
	_, c, _ := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, maxStreams)
	for range maxStreams {
		asked := make(chan struct{})
		go func() {
			ended <- c.Watch(ctx, "", func() { close(asked) }, func(cluster.Status) error { return nil }, nil)
		}()
		<-asked
	}
	var e *Error
	if err := c.Follow(ctx, cluster.EventQuery{}, func() {}, nil); !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable || e.Hint == "" {
		t.Errorf("one more: %v", err)
	}
	if _, err := c.StatusAll(ctx); err != nil {
		t.Errorf("a short question: %v", err)
	}
	cancel()
	for range maxStreams {
		<-ended
	}
}

func TestEventQueryCrosses(t *testing.T) {
	a, c, _ := serve(t)
	at := time.Date(2026, 3, 1, 10, 0, 0, 5, time.UTC)
	a.events = []cluster.Event{{Seq: 6, At: at.Add(-1)}, {Seq: 7, At: at, Cluster: "dev", Node: "cp-1"}}
	got, err := c.Events(t.Context(), cluster.EventQuery{Cluster: "dev", Node: "cp-1", After: 5, Since: at, Last: 9})
	if err != nil || !reflect.DeepEqual(got, a.events[1:]) {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{"after=-1", "since=yesterday", "last=x", "last=-1"} {
		name, _, _ := strings.Cut(bad, "=")
		var e *Error
		if _, err := requestJSON[[]cluster.Event](t.Context(), c, "GET", "/v1/events?"+bad, nil); !errors.As(err, &e) || e.Status != http.StatusBadRequest || !strings.Contains(e.Message, name) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestOneRun(t *testing.T) {
	_, c, _ := serve(t)
	if run, err := c.Run(t.Context(), "dev", 7); err != nil || run.Number != 7 {
		t.Errorf("%+v %v", run, err)
	}
	var e *Error
	if _, err := c.Run(t.Context(), "dev", 3); !errors.As(err, &e) || e.Status != http.StatusNotFound || !strings.Contains(e.Hint, "7 to 8") {
		t.Errorf("a run that is not kept: %v", err)
	}
}
