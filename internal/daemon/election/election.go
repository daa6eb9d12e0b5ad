package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/retry"
)

// StopWithin is how long an agent takes to stop once it may not act any more, at most: what does not stop ends with its process.
const StopWithin = 10 * time.Second

// Config is what an agent takes part with.
type Config struct {
	Terms Terms
	Host  string
	// State identifies the agent's state directory, and Run this process.
	State, Run string
	// Lease is how long an agent acts after its last renewal.
	Lease time.Duration
	// Most is the longest Lease that any agent may have: how long one acts whose term somebody has removed.
	Most time.Duration
	// Suspended are the clusters of which a next leader must change nothing.
	Suspended func() []string
	Log       *slog.Logger
}

// Lease is that this agent leads.
type Lease struct {
	Done   <-chan struct{} // closed when the agent may not act any more
	Number int             // of the term
	// Led is the State of the agent that led before, "" where that is not known, and Suspended what its note had.
	Led       string
	Suspended []string
	taken     chan chan<- error
	ended     chan struct{}
	once      *sync.Once
}

var errLate = errors.New("it may not act any more")

// Take notes that this agent is the one that led last, before it acts: what it remembers fits that by now. Without that the agent must
// not act.
func (l Lease) Take() error {
	done := make(chan error, 1)
	select {
	case l.taken <- done:
	case <-l.Done:
		return errLate
	}
	return <-done
}

// End notes that the agent has stopped to act.
func (l Lease) End() { l.once.Do(func() { close(l.ended) }) }

// State is how it stands, for people.
type State struct {
	Leads  bool
	Leader string // the host of the newest term; "": none is known
	Number int
	Why    string // why it is not known, or what this agent waits for
}

// Elector takes part for one agent.
type Elector struct {
	c      Config
	leases chan Lease

	mu    sync.Mutex
	state State
}

// New returns an Elector, which does nothing before Run.
func New(c Config) *Elector { return &Elector{c: c, leases: make(chan Lease)} }

// Leases has a lease each time this agent begins to lead.
func (e *Elector) Leases() <-chan Lease { return e.leases }

// State returns how it stands.
func (e *Elector) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

func (e *Elector) set(s State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.Why != "" && s.Why != e.state.Why || s.Leads != e.state.Leads || s.Leader != e.state.Leader {
		e.c.Log.Info("leader election", logging.Detail, s.String())
	}
	e.state = s
}

// String puts a state into words.
func (s State) String() string {
	switch {
	case s.Leads:
		return fmt.Sprintf("this agent leads, in term %d", s.Number)
	case s.Leader == "" && s.Why == "":
		return "no agent leads yet"
	case s.Leader == "":
		return s.Why
	case s.Why != "":
		return fmt.Sprintf("%s led last, in term %d: %s", s.Leader, s.Number, s.Why)
	}
	return fmt.Sprintf("%s leads, in term %d", s.Leader, s.Number)
}

// pause is how long it waits between two looks, or renewals.
func (e *Elector) pause() time.Duration { return e.c.Lease / 3 }

// silence is after what time a leader whose note does not change is taken for dead: each may have another lease.
func (e *Elector) silence(n Note) time.Duration { return max(e.c.Lease, n.Lease) * 3 / 2 }

// others is how long an agent of an earlier term, which has some lease, may act once there is a newer one: a lease, and what it takes to
// stop; a quarter more is for clocks that do not run as fast as each other.
func (e *Elector) others(lease time.Duration) time.Duration {
	return (max(e.c.Lease, lease) + StopWithin) * 5 / 4
}

// Run takes part until ctx ends. A term that it has then has ended, once the holder of its lease has stopped.
func (e *Elector) Run(ctx context.Context) {
	for {
		own, ok := e.campaign(ctx)
		if !ok {
			return
		}
		e.lead(ctx, own)
	}
}

// campaign waits until this agent may lead, and returns its term, whose note has what is known of the leader before.
func (e *Elector) campaign(ctx context.Context) (own Term, ok bool) {
	var seen, mine candidacy
	for {
		terms, err := e.list(ctx)
		last := newest(terms)
		switch now := time.Now(); {
		case err != nil:
			e.set(State{Why: "it cannot be seen which agent leads: " + err.Error()})
			seen = candidacy{} // whoever leads is not seen to be silent
		case e.isOwn(last):
			if mine.Number != last.Number {
				mine = candidacy{Term: last}
			}
			if e.comesUp(ctx, &mine, terms) {
				return mine.Term, true
			}
		case last.Number == 0 || last.Note.Ended || seen.Number == last.Number && seen.Note.equal(last.Note) && now.Sub(seen.since) >= e.silence(last.Note):
			e.create(ctx, last)
		default:
			e.set(State{Leader: last.Note.Host, Number: last.Number})
			if seen.Number != last.Number || !seen.Note.equal(last.Note) {
				seen = candidacy{Term: last, since: now}
			}
		}
		if retry.Sleep(ctx, e.pause()) != nil {
			return Term{}, false
		}
	}
}

// candidacy is a term, and since when it has been as it is; of an own one, since when there is none before it.
type candidacy struct {
	Term
	since   time.Time
	before  Term          // of an own one: the last one before it
	longest time.Duration // of an own one: the longest lease of those before it
}

// comesUp removes the terms before an own one, and reports whether the agents that led in them have stopped: the last one has noted
// that, or has had the time to.
func (e *Elector) comesUp(ctx context.Context, own *candidacy, terms []Term) bool {
	within, cancel := context.WithTimeout(ctx, e.pause())
	defer cancel()
	last := newest(slices.DeleteFunc(slices.Clone(terms), func(t Term) bool { return t.Number >= own.Number }))
	if own.since.IsZero() && last.Number == 0 && own.before.Number == 0 {
		own.longest = max(e.c.Most, own.Note.Before)
	} else if own.since.IsZero() && last.Number > 0 {
		own.Note.Led, own.Note.Suspended, own.before = last.Note.Led, last.Note.Suspended, last
	}
	own.Note.Beat++
	err := e.c.Terms.Write(within, own.Term)
	for _, t := range terms {
		if err == nil && t.Number < own.Number {
			own.longest = max(own.longest, t.Note.Lease, t.Note.Before)
			err = e.c.Terms.Remove(within, t.Number)
		}
	}
	switch {
	case err != nil:
		e.set(State{Leader: own.before.Note.Host, Number: own.before.Number, Why: "this agent cannot lead: " + err.Error()})
		return false
	case own.since.IsZero():
		own.since = time.Now()
	}
	if own.before.Note.Ended || time.Since(own.since) >= e.others(own.longest) {
		return true
	}
	e.set(State{Leader: own.before.Note.Host, Number: own.before.Number, Why: "this agent leads as soon as no other one can act any more"})
	return false
}

func (e *Elector) isOwn(t Term) bool { return t.Number > 0 && t.Note.Run == e.c.Run && !t.Note.Ended }

// create makes the term after another one. Whether that was done the next look shows.
func (e *Elector) create(ctx context.Context, last Term) {
	ctx, cancel := context.WithTimeout(ctx, e.pause())
	defer cancel()
	number := last.Number + 1
	if last.Number == 0 {
		number = int(time.Now().Unix()) // somebody may have removed them all: an agent may write still into one of them
	}
	note := Note{Host: e.c.Host, State: e.c.State, Run: e.c.Run, Lease: e.c.Lease, Before: max(last.Note.Lease, last.Note.Before), Led: last.Note.Led, Suspended: last.Note.Suspended}
	if err := e.c.Terms.Create(ctx, Term{Number: number, Note: note}); err != nil && !errors.Is(err, ErrTaken) {
		e.set(State{Leader: last.Note.Host, Number: last.Number, Why: "no new term can be made: " + err.Error()})
	}
}

func (e *Elector) list(ctx context.Context) ([]Term, error) {
	ctx, cancel := context.WithTimeout(ctx, e.pause())
	defer cancel()
	return e.c.Terms.List(ctx)
}
