package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shared is where several agents have their terms.
type shared struct {
	mu    sync.Mutex
	terms map[int]Note
}

func (s *shared) list() (out []Term) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(s.terms)) {
		out = append(out, Term{n, s.terms[n]})
	}
	return out
}

func (s *shared) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.terms)
}

// link is the way of one agent to what is shared.
type link struct {
	*shared
	mu    sync.Mutex
	cut   bool   // its host has no quorum: nothing is written, and what it lists is old
	lossy bool   // what it writes is written, and the answer is lost
	slow  bool   // an answer takes as long as it may
	old   []Term // what it lists while it is cut
	rand  *rand.Rand
}

var errCut = errors.New("cfs-lock 'file-user_cfg' error: no quorum")

// way is how a call goes: whether it is done, and what it is answered.
func (l *link) way(ctx context.Context) (done bool, err error) {
	l.mu.Lock()
	cut, lossy, slow, part := l.cut, l.lossy && l.rand.IntN(2) == 0, l.slow, time.Duration(l.rand.IntN(1000))*time.Millisecond
	l.mu.Unlock()
	if slow {
		part *= 12
	}
	if err := retry.Sleep(ctx, part); err != nil {
		return l.isDoneLate(), err
	}
	switch {
	case cut:
		return false, errCut
	case lossy:
		return true, errors.New("connection reset by peer")
	}
	return true, nil
}

// isDoneLate reports whether a call is done that was given up.
func (l *link) isDoneLate() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.cut && l.rand.IntN(2) == 0
}

func (l *link) List(ctx context.Context) ([]Term, error) {
	_, err := l.way(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, errCut) {
		return l.old, nil
	}
	if err == nil {
		l.old = l.list()
	}
	return l.old, err
}

func (l *link) change(ctx context.Context, f func(map[int]Note) error) error {
	done, err := l.way(ctx)
	if done {
		l.shared.mu.Lock()
		defer l.shared.mu.Unlock()
		err = errors.Join(err, f(l.terms))
	}
	return err
}

func (l *link) Create(ctx context.Context, t Term) error {
	return l.change(ctx, func(terms map[int]Note) error {
		if _, ok := terms[t.Number]; ok {
			return ErrTaken
		}
		terms[t.Number] = t.Note
		return nil
	})
}

func (l *link) Write(ctx context.Context, t Term) error {
	return l.change(ctx, func(terms map[int]Note) error {
		if _, ok := terms[t.Number]; !ok {
			return ErrRemoved
		}
		terms[t.Number] = t.Note
		return nil
	})
}

func (l *link) Remove(ctx context.Context, number int) error {
	return l.change(ctx, func(terms map[int]Note) error { delete(terms, number); return nil })
}

func (l *link) set(f func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

// stage has some agents, and sees who acts.
type stage struct {
	mu      sync.Mutex
	acting  map[string]time.Time
	led     []string // the agents that led, in order
	leases  []Lease
	twoAct  string
	suspend map[string][]string // what an agent has suspended
}

func newStage() *stage { return &stage{acting: map[string]time.Time{}, suspend: map[string][]string{}} }

func (st *stage) begins(run string, lease Lease) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.acting[run] = time.Now()
	st.led, st.leases = append(st.led, run), append(st.leases, lease)
	if len(st.acting) > 1 {
		st.twoAct = fmt.Sprint(st.acting)
	}
}

func (st *stage) stops(run string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.acting, run)
}

func (st *stage) who() (out []string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Sorted(maps.Keys(st.acting))
}

func (st *stage) last() (lease Lease, runs []string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.leases) == 0 {
		return lease, nil
	}
	return st.leases[len(st.leases)-1], slices.Clone(st.led)
}

// member is one agent that takes part.
type member struct {
	link  *link
	e     *Elector
	stop  context.CancelFunc
	done  chan struct{}
	stage *stage
	run   string
}

const lease, mostLease = 30 * time.Second, time.Minute

// join has an agent take part. It takes up to stops to stop.
func (st *stage) join(s *shared, state, run string, seed uint64, stops, lease time.Duration) *member {
	m := &member{link: &link{shared: s, rand: rand.New(rand.NewPCG(seed, 1))}, done: make(chan struct{}), stage: st, run: run}
	m.e = New(Config{Terms: m.link, Host: "host-" + state, State: state, Run: run, Lease: lease, Most: mostLease, Log: slog.New(slog.DiscardHandler),
		Suspended: func() []string { st.mu.Lock(); defer st.mu.Unlock(); return st.suspend[state] }})
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	go func() {
		defer close(m.done)
		m.e.Run(ctx)
	}()
	go func() {
		for {
			select {
			case l := <-m.e.Leases():
				if l.Take() == nil {
					st.begins(run, l)
					<-l.Done
					_ = retry.Sleep(context.Background(), stops)
					st.stops(run)
				}
				l.End()
			case <-m.done:
				return
			}
		}
	}()
	return m
}

func (m *member) leave() {
	m.stop()
	<-m.done
}

// TestElection: one of three leads; a stop hands over at once, a death after the time that is needed, with what was suspended and
// whose files are the newest.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, st := &shared{terms: map[int]Note{}}, newStage()
		a, b := st.join(s, "a", "a1", 1, time.Second, lease), st.join(s, "b", "b1", 2, time.Second, lease)
		time.Sleep(3 * time.Minute)
		first, led := st.last()
		if len(led) != 1 || first.Led != "" || len(st.who()) != 1 {
			t.Fatalf("led: %v, %+v; acting %v", led, first, st.who())
		}
		leads, stands := a, b
		if led[0] == "b1" {
			leads, stands = b, a
		}
		if state := stands.e.State(); state.Leads || state.Leader != leads.e.c.Host || !strings.Contains(state.String(), "leads, in term") {
			t.Errorf("the other one: %s", state)
		}
		if state := leads.e.State(); !state.Leads || !strings.HasPrefix(state.String(), "this agent leads") {
			t.Errorf("it: %s", state)
		}

		st.mu.Lock()
		st.suspend[leads.e.c.State] = []string{"dev"}
		st.mu.Unlock()
		began := time.Now()
		leads.leave()
		time.Sleep(2*lease/3 + 5*time.Second)
		second, led := st.last()
		if len(led) != 2 || second.Led != leads.e.c.State || !slices.Equal(second.Suspended, []string{"dev"}) {
			t.Fatalf("%s after a stop: %v, %+v", time.Since(began), led, second)
		}

		// It dies: its link is cut, and nothing is noted.
		third := st.join(s, "c", "c1", 3, time.Second, lease)
		time.Sleep(lease)
		stands.link.set(func(l *link) { l.cut = true })
		time.Sleep(lease + StopWithin)
		if who := st.who(); len(who) > 0 {
			t.Errorf("without quorum: %v act", who)
		}
		if state := stands.e.State(); state.Leads {
			t.Errorf("without quorum its state is %s", state)
		}
		time.Sleep(4 * lease)
		last, led := st.last()
		if len(led) != 3 || led[2] != "c1" || last.Led != stands.e.c.State || len(s.list()) != 1 {
			t.Errorf("after a death: %v, %+v; terms %v", led, last, s.list())
		}
		third.leave()
		stands.leave()
		if st.twoAct != "" {
			t.Error("two acted: ", st.twoAct)
		}
	})
}

// TestNeverTwo: whatever happens to the hosts, the answers and the terms, never do two act; and when it is over, one does.
func TestNeverTwo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		var broken string
		synctest.Test(t, func(*testing.T) { broken = act(rand.New(rand.NewPCG(seed, 0))) })
		if broken != "" {
			rt.Fatal(broken)
		}
	})
}

// act has up to four agents take part for half an hour in which things happen, and returns what is wrong.
func act(r *rand.Rand) string {
	s, st := &shared{terms: map[int]Note{}}, newStage()
	var members []*member
	runs := 0
	join := func(state string) {
		runs++
		members = append(members, st.join(s, state, fmt.Sprintf("%s%d", state, runs), r.Uint64(), time.Duration(r.Int64N(int64(StopWithin))), []time.Duration{lease / 2, lease, mostLease}[r.IntN(3)]))
	}
	for i := range 2 + r.IntN(3) {
		join(string(rune('a' + i)))
	}
	for range r.IntN(30) {
		time.Sleep(time.Duration(r.Int64N(int64(2 * mostLease))))
		switch m := members[r.IntN(len(members))]; r.IntN(9) {
		case 0, 1:
			m.link.set(func(l *link) { l.cut = !l.cut })
		case 2:
			m.link.set(func(l *link) { l.lossy = !l.lossy })
		case 3:
			m.link.set(func(l *link) { l.slow = !l.slow })
		case 4, 5:
			i := slices.Index(members, m)
			m.leave()
			members = slices.Delete(members, i, i+1)
			join(m.e.c.State)
		case 6: // somebody tidies up
			s.clear()
		}
	}
	for _, m := range members {
		m.link.set(func(l *link) { l.cut, l.lossy, l.slow = false, false, false })
	}
	time.Sleep(8 * mostLease)
	who := st.who()
	for _, m := range members {
		m.leave()
	}
	time.Sleep(StopWithin)
	switch {
	case st.twoAct != "":
		return "two acted: " + st.twoAct
	case len(who) != 1:
		return fmt.Sprintf("at the end %v act; led: %v; terms %v", who, st.led, s.list())
	}
	return ""
}
