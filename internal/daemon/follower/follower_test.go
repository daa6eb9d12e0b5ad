package follower

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/sources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer is how a repository answers.
type answer struct {
	takes    time.Duration
	revision cluster.Revision
	err      error
	panics   bool
	useless  bool // what it serves cannot be used
}

// server is a repository that is fetched in virtual time.
type server struct {
	began time.Time

	mu      sync.Mutex
	answer  answer
	fetches []time.Duration // when each began
	news    []bool          // of each
}

func (s *server) set(a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = a
}

func (s *server) fetch(ctx context.Context) (sources.Tree, error) {
	s.mu.Lock()
	s.fetches = append(s.fetches, time.Since(s.began))
	a := s.answer
	s.mu.Unlock()
	select {
	case <-time.After(a.takes):
	case <-ctx.Done():
		return sources.Tree{}, ctx.Err()
	}
	if a.panics {
		panic("index out of range")
	}
	return sources.Tree{Revision: a.revision}, a.err
}

func (s *server) take(r Result, isNews bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.news = append(s.news, isNews)
	if s.answer.useless {
		return errors.New("no cluster is in it")
	}
	return r.Err
}

func (s *server) expect(t *testing.T, fetches []time.Duration, news []bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if fetches != nil && !slices.Equal(s.fetches, fetches) {
		t.Errorf("fetched at %v, want %v", s.fetches, fetches)
	}
	if news != nil && !slices.Equal(s.news, news) {
		t.Errorf("news: %v, want %v", s.news, news)
	}
}

// follow runs a follower of a server in virtual time.
func follow(t *testing.T, interval time.Duration, at answer, do func(t *testing.T, s *server, f *Follower)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{began: time.Now(), answer: at}
		f := New(Config{Fetch: s.fetch, Take: s.take, Interval: interval, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { f.Run(ctx); close(ended) }()
		do(t, s, f)
		cancel()
		<-ended
	})
}

// seconds are times since the start.
func seconds(all ...int) (out []time.Duration) {
	for _, n := range all {
		out = append(out, time.Duration(n)*time.Second)
	}
	return out
}

var (
	good = answer{revision: "a"}
	down = answer{err: errors.New("down")}
)

// TestInterval: an unattended repository is fetched once an interval, and a fetch that
// shows nothing new is none.
func TestInterval(t *testing.T) {
	follow(t, time.Minute, answer{takes: time.Second, revision: "a"}, func(t *testing.T, s *server, _ *Follower) {
		time.Sleep(150 * time.Second)
		s.set(answer{takes: time.Second, revision: "b"})
		time.Sleep(2 * time.Minute)
		s.expect(t, seconds(0, 61, 122, 183, 244), []bool{true, false, false, true, false})
	})
}

// TestRetries: after a failure, of the fetch or with what it brought, the repository is
// fetched sooner, but not so often that a server shuts the host out.
func TestRetries(t *testing.T) {
	for name, bad := range map[string]answer{"no answer": down, "a panic": {panics: true}, "nothing of use": {useless: true}} {
		t.Run(name, func(t *testing.T) {
			follow(t, time.Hour, bad, func(t *testing.T, s *server, _ *Follower) {
				time.Sleep(200 * time.Second)
				s.set(good)
				time.Sleep(time.Hour)
				s.set(bad)
				time.Sleep(200 * time.Second)
				s.expect(t, seconds(0, 5, 15, 35, 75, 135, 195, 255, 3855, 3860, 3870, 3890, 3930, 3990), nil)
			})
		})
	}
	follow(t, 7*time.Second, down, func(t *testing.T, s *server, _ *Follower) {
		time.Sleep(30 * time.Second)
		s.expect(t, seconds(0, 5, 12, 19, 26), nil)
	})
}

// TestNewsOfFailures: the first failure is news, and the first success after it.
func TestNewsOfFailures(t *testing.T) {
	follow(t, time.Minute, good, func(t *testing.T, s *server, _ *Follower) {
		time.Sleep(30 * time.Second)
		s.set(down)
		time.Sleep(time.Minute)
		s.set(good)
		time.Sleep(time.Minute)
		s.expect(t, seconds(0, 60, 65, 75, 95), []bool{true, true, false, false, true})
	})
}

// TestRequests: a request is answered by a fetch that began after it, and any number of
// them while one is under way by one more.
func TestRequests(t *testing.T) {
	follow(t, time.Hour, answer{takes: 10 * time.Second, revision: "a"}, func(t *testing.T, s *server, f *Follower) {
		time.Sleep(5 * time.Second)
		s.set(answer{takes: 10 * time.Second, revision: "b"}) // the first fetch had its answer before
		for range 100 {
			f.Request()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute - time.Since(s.began))
		if r, err := f.Newest(t.Context()); err != nil || r.Tree.Revision != "b" || r.At != s.began.Add(10*time.Second) {
			t.Errorf("%+v, %v", r, err)
		}
		s.expect(t, seconds(0, 10), []bool{true, true})
		f.Request()
		time.Sleep(time.Minute)
		s.expect(t, seconds(0, 10, 60), []bool{true, true, true})
	})
}

// TestNewest: the first result is waited for; from then on the newest is there at once,
// whatever the server does, and is the same until the next one.
func TestNewest(t *testing.T) {
	follow(t, time.Minute, answer{takes: 10 * time.Second, revision: "a"}, func(t *testing.T, s *server, f *Follower) {
		first, err := f.Newest(t.Context())
		if err != nil || first.Tree.Revision != "a" || time.Since(s.began) != 10*time.Second {
			t.Errorf("%+v, %v after %v", first, err, time.Since(s.began))
		}
		time.Sleep(65 * time.Second) // the second one is under way
		if again, err := f.Newest(t.Context()); again != first || err != nil {
			t.Errorf("%+v, %v", again, err)
		}
		time.Sleep(10 * time.Second)
		if next, err := f.Newest(t.Context()); next == first || err != nil {
			t.Errorf("%+v, %v", next, err)
		}
	})
}

// TestGivesUp: whoever waits may give up, and a server that never answers is given up.
func TestGivesUp(t *testing.T) {
	follow(t, time.Minute, answer{takes: time.Hour}, func(t *testing.T, _ *server, f *Follower) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.Newest(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		r, err := f.Newest(t.Context())
		if want := fmt.Sprintf("the repository does not answer within %v", Within); err != nil || r.Err == nil || r.Err.Error() != want {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestPanic: what panics over the repository is an internal error, and logged once.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{began: time.Now(), answer: answer{panics: true}}
		var log strings.Builder
		f := New(Config{Fetch: s.fetch, Take: s.take, Interval: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		f.Run(ctx)
		r, err := f.Newest(t.Context())
		if err != nil || cluster.ReasonOf(r.Err) != cluster.InternalError || r.Err.Error() != "internal error: index out of range" || fault.HintOf(r.Err) == "" {
			t.Errorf("%+v, %v", r, err)
		}
		if n := strings.Count(log.String(), "a fetch of the repository panicked"); n != 1 || len(s.fetches) < 60 {
			t.Errorf("logged %d times in %d fetches", n, len(s.fetches))
		}
	})
}
