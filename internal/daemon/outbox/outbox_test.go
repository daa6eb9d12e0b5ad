package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// post is an outbox of words about subjects, and what arrived when.
type post struct {
	out   *Outbox[string]
	began time.Time

	mu    sync.Mutex
	sent  []string
	fails int           // so many attempts fail
	takes time.Duration // an attempt
}

func newPost(gap time.Duration, burst int, refill time.Duration, told map[string]string) *post {
	p := &post{began: time.Now()}
	p.out = New(Config[string]{Send: p.send, Same: func(a, b string) bool { return a == b }, Gap: gap, Burst: burst, Refill: refill, Sent: told})
	return p
}

func (p *post) send(ctx context.Context, word string) error {
	p.mu.Lock()
	takes := p.takes
	p.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails > 0 {
		p.fails--
		return errors.New("no")
	}
	p.sent = append(p.sent, fmt.Sprintf("%s@%v", word, time.Since(p.began).Round(time.Second)))
	return nil
}

// behave sets how attempts go from now on.
func (p *post) behave(fails int, takes time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails, p.takes = fails, takes
}

func (p *post) arrived() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent)
}

func (p *post) want(t *testing.T, want string) {
	t.Helper()
	if got := strings.Join(p.arrived(), " "); got != want {
		t.Errorf("sent %s\nwant %s", got, want)
	}
}

// TestOutbox plays words into an outbox and looks what arrives when. Nothing falls
// on the same moment as something else, so that their order is certain.
func TestOutbox(t *testing.T) {
	type put struct {
		after   time.Duration // the one before
		subject string
		word    string
	}
	var busy []put
	for i := range 200 {
		busy = append(busy, put{time.Second, "x", fmt.Sprint("x", i)})
	}
	const drop, forget = "(drop)", "(forget)"
	for name, c := range map[string]struct {
		gap   time.Duration
		told  map[string]string
		fails int
		takes time.Duration
		puts  []put
		want  string
	}{
		"what was told is no news, after a restart either": {told: map[string]string{"dev": "ready"},
			puts: []put{{0, "dev", "ready"}, {time.Minute, "dev", "ready"}, {time.Minute, "dev", "stalled"}, {time.Second, "prod", "ready"}, {time.Minute, "dev", "stalled"}},
			want: "stalled@2m0s ready@2m1s"},
		"the newest word wins while there is no turn": {gap: time.Minute,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", "b"}, {0, "dev", "c"}, {0, "dev", "d"}},
			want: "a@0s d@1m0s"},
		"back to what was told is no news": {gap: time.Minute,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", "b"}, {time.Second, "dev", "a"}},
			want: "a@0s"},
		"what changes while it is told is told after it": {takes: 10 * time.Second,
			puts: []put{{0, "dev", "a"}, {11 * time.Second, "dev", "b"}, {time.Second, "dev", "a"}},
			want: "a@10s b@21s a@31s"},
		"what failed may have arrived": {told: map[string]string{"dev": "a"}, fails: 1,
			puts: []put{{0, "dev", "b"}, {time.Millisecond, "dev", "a"}},
			want: "a@1s"},
		"what is newer than what failed is sent in its place": {fails: 1, takes: 10 * time.Second,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", "b"}},
			want: "b@21s"},
		"failures are tried again at growing distances": {fails: 10, // 1+2+4+...+256 s, and five minutes
			puts: []put{{0, "dev", "a"}},
			want: "a@13m31s"},
		"no subject is forgotten behind another": {gap: time.Minute,
			puts: append([]put{{0, "x", "first"}, {500 * time.Millisecond, "dev", "a"}}, busy...),
			want: "first@0s a@1m0s x118@2m0s x178@3m0s x199@4m0s"},
		"what is dropped is not told": {gap: time.Minute,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", "b"}, {time.Second, "dev", drop}, {time.Hour, "dev", "a"}},
			want: "a@0s"},
		"what is forgotten is news": {gap: time.Minute,
			puts: []put{{0, "dev", "a"}, {time.Hour, "dev", forget}, {time.Second, "dev", "a"}},
			want: "a@0s a@1h0m1s"},
		"what is dropped while it is told is not tried again": {fails: 1, takes: 10 * time.Second,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", drop}},
			want: ""},
		"what is dropped while it is told, and said again, is": {fails: 1, takes: 10 * time.Second,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", drop}, {time.Second, "dev", "a"}},
			want: "a@21s"},
		"what is dropped while it is told and arrives is no news": {takes: 10 * time.Second,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", drop}, {time.Second, "dev", "a"}, {time.Hour, "dev", "a"}},
			want: "a@10s"},
		"what is forgotten while it is told is news": {takes: 10 * time.Second,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", forget}, {time.Hour, "dev", "a"}},
			want: "a@10s a@1h0m11s"},
		"what is forgotten while it is told, and said again, is told twice": {takes: 10 * time.Second,
			puts: []put{{0, "dev", "a"}, {time.Second, "dev", forget}, {time.Second, "dev", "a"}},
			want: "a@10s a@20s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(c.gap, 0, 0, c.told)
				defer p.out.Close()
				p.behave(c.fails, c.takes)
				for _, put := range c.puts {
					time.Sleep(put.after)
					switch put.word {
					case drop, forget:
						p.out.Drop(put.subject, put.word == forget)
					default:
						p.out.Put(put.subject, put.word)
					}
				}
				time.Sleep(time.Hour)
				p.want(t, c.want)
			})
		})
	}
}

// TestOutboxOfAFlapper: who flaps is told less and less, and keeps nobody else
// from being told.
func TestOutboxOfAFlapper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(time.Minute, 3, 15*time.Minute, nil)
		defer p.out.Close()
		for i := range 120 {
			p.out.Put("dev", []string{"up", "down"}[i%2])
			if i == 100 {
				p.out.Put("calm", "calm")
			}
			time.Sleep(61 * time.Second)
		}
		calm := 0
		sent := p.arrived()
		for _, w := range sent {
			if strings.HasPrefix(w, "calm@") {
				calm++
			}
		}
		if n := len(sent) - calm; n < 6 || n > 12 || calm != 1 {
			t.Errorf("%d words in two hours: %v", n, sent)
		}
	})
}

// TestOutboxEnds: an attempt that hangs is given up, and so is one under way when
// the outbox closes.
func TestOutboxEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(0, 0, 0, nil)
		p.behave(0, 1000*time.Hour)
		p.out.Put("dev", "a")
		time.Sleep(SendTimeout + time.Millisecond)
		p.behave(0, 0)
		time.Sleep(time.Hour)
		p.want(t, "a@31s")
		p.behave(0, 1000*time.Hour)
		p.out.Put("dev", "b")
		time.Sleep(time.Millisecond)
		p.out.Close()
		if since := time.Since(p.began); since > 2*time.Hour {
			t.Errorf("closed after %v", since)
		}
	})
}

// TestOutboxKnowsWhatArrivedAsItClosed: a word that arrives while the outbox
// closes was told, and the next outbox is to know; nothing more is sent.
func TestOutboxKnowsWhatArrivedAsItClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent, known []string
		o := New(Config[string]{
			Send: func(_ context.Context, word string) error {
				time.Sleep(time.Second) // it is on its way, whatever becomes of the sender
				sent = append(sent, word)
				return nil
			},
			Same:      func(a, b string) bool { return a == b },
			OnAttempt: func(_, word string, err error) { known = append(known, fmt.Sprint(word, " ", err)) },
		})
		o.Put("dev", "a")
		synctest.Wait()
		o.Put("dev", "b")
		o.Close()
		if got, want := fmt.Sprint(sent, known), "[a] [a <nil>]"; got != want {
			t.Errorf("sent and known %s, want %s", got, want)
		}
	})
}

// TestOutboxRemoves: nothing is kept of a subject that there is no more, also when it was
// removed while a value about it was sent; what is put afterwards is news.
func TestOutboxRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(0, 5, time.Hour, nil)
		defer p.out.Close()
		slots := func() int {
			p.out.mu.Lock()
			defer p.out.mu.Unlock()
			return len(p.out.slots)
		}
		p.out.Put("a", "one")
		time.Sleep(time.Second)
		p.out.Remove("a")
		p.out.Remove("never seen")
		if n := slots(); n > 0 {
			t.Errorf("%d subjects are kept", n)
		}
		for _, fails := range []int{0, 1} {
			p.behave(fails, time.Second)
			p.out.Put("a", "one")
			synctest.Wait()
			p.out.Remove("a")
			time.Sleep(10 * time.Second)
			if n := slots(); n > 0 || p.out.Sent("a") != nil || slots() > 0 {
				t.Errorf("%d failures: %d subjects are kept", fails, n)
			}
		}
		p.out.Put("a", "one")
		synctest.Wait()
		p.out.Remove("a")
		p.out.Put("a", "two")
		time.Sleep(10 * time.Second)
		if got := strings.Join(p.arrived(), " "); got != "one@0s one@2s one@22s two@23s" {
			t.Errorf("arrived: %s", got)
		}
	})
}

// TestOutboxAmends: what ends something is sent where that was, or may have been, and takes
// back what was not sent yet.
func TestOutboxAmends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(time.Minute, 0, 0, map[string]string{"before": "began"})
		defer p.out.Close()
		p.behave(0, 10*time.Second)
		p.out.Amend("never", "over")
		time.Sleep(time.Second)
		p.want(t, "")
		p.out.Put("dev", "began")
		synctest.Wait()
		p.out.Amend("dev", "over") // it is being sent
		p.out.Put("late", "began") // it is not sent yet
		p.out.Amend("late", "over")
		time.Sleep(time.Hour)
		p.out.Amend("before", "over")
		time.Sleep(time.Hour)
		p.want(t, "began@11s over@1m21s over@1h0m11s")
		if got := p.out.Sent("dev"); got == nil || *got != "over" || p.out.Sent("never") != nil || p.out.Sent("not asked for") != nil {
			t.Errorf("sent: %v", got)
		}
	})
}

// TestOutboxKeepsAnOrder: of many subjects the one that has waited longest is next, and each
// that has to wait is sent when its own time has come.
func TestOutboxKeepsAnOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(0, 1, time.Hour, nil)
		defer p.out.Close()
		p.behave(0, 30*time.Second) // for the first; the others wait meanwhile
		var want []string
		for i := range 12 {
			p.out.Put(fmt.Sprint("s", i), fmt.Sprint("w", i))
			time.Sleep(time.Second)
			p.behave(0, 0)
			want = append(want, fmt.Sprint("w", i, "@30s"))
		}
		time.Sleep(time.Minute)
		p.want(t, strings.Join(want, " "))
	})
	synctest.Test(t, func(t *testing.T) {
		p := newPost(0, 1, time.Hour, nil)
		defer p.out.Close()
		var want []string
		for i := range 12 {
			p.out.Put(fmt.Sprint("s", i), "first")
			want = append(want, fmt.Sprint("first@", time.Duration(i)*time.Minute))
			time.Sleep(time.Minute)
		}
		for i := range 12 {
			p.out.Put(fmt.Sprint("s", i), fmt.Sprint("w", i))
			want = append(want, fmt.Sprint("w", i, "@", time.Hour+time.Duration(i)*time.Minute))
		}
		time.Sleep(3 * time.Hour)
		p.want(t, strings.Join(want, " "))
	})
}

// TestOutboxSendsNothingWhenClosed: an attempt that closing has interrupted did not end, and
// what waits for its turn is not tried.
func TestOutboxSendsNothingWhenClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, takes := range []time.Duration{time.Hour, 0} {
			tried, ended := 0, 0
			o := New(Config[string]{
				Send: func(ctx context.Context, _ string) error {
					tried++
					select {
					case <-time.After(takes):
					case <-ctx.Done():
					}
					return ctx.Err()
				},
				Same:      func(a, b string) bool { return a == b },
				Gap:       time.Minute,
				OnAttempt: func(string, string, error) { ended++ },
			})
			o.Put("dev", "a")
			synctest.Wait()
			o.Put("dev", "b")
			o.Close()
			if want := map[time.Duration]int{time.Hour: 0, 0: 1}[takes]; tried != 1 || ended != want {
				t.Errorf("an attempt of %v: tried %d times, %d ended", takes, tried, ended)
			}
		}
	})
}

// TestOneFailureIsLoggedOnce: a failure is news when it is another than the one before, or
// comes after a success.
func TestOneFailureIsLoggedOnce(t *testing.T) {
	var last LastError
	for i, c := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {errors.New("no"), true}, {errors.New("no"), false}, {errors.New("other"), true}, {nil, false}, {errors.New("other"), true}, {errors.New(""), true}, {errors.New(""), false},
	} {
		if got := last.Changed(c.err); got != c.want {
			t.Errorf("%d: %v: %v", i, c.err, got)
		}
	}
}
