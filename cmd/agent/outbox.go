package main

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// outbox sends what is new to one place, beside the loops: a place that is slow
// or down delays nothing. Only the newest word about each subject counts, so that
// the queue is one slot for each, and what was told already is not told again.
type outbox[T any] struct {
	outboxConfig[T]

	mu    sync.Mutex
	slots map[string]*outboxSlot[T]
	wake  chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

// outboxConfig says how an outbox sends. Send and Same are required.
type outboxConfig[T any] struct {
	Send func(context.Context, T) error
	// Same reports whether two words tell the same.
	Same func(a, b T) bool
	// Gap is the least time between two words to the place, Burst how many there
	// may be about one subject before they must be Refill apart; 0: no limit.
	Gap    time.Duration
	Burst  int
	Refill time.Duration
	// Rest is how long the place wants to be left alone after a failure; nil: it
	// never says.
	Rest func(error) time.Duration
	// Told is called after each attempt; nil: nobody is.
	Told func(subject string, word T, err error)
}

// outboxSlot is what is known of one subject.
type outboxSlot[T any] struct {
	next  *T        // to be told
	since time.Time // next
	busy  *T        // being told
	told  *T        // what the place has; nil: nobody knows
	over  bool      // busy was taken back meanwhile: it is not tried again
	past  bool      // busy was forgotten meanwhile: the same is news
	hold  time.Time // nothing is told before
	pace  *rate.Limiter
}

// complaint keeps one trouble from being told at every attempt that it spoils.
type complaint struct{ said string }

// news reports whether an attempt failed otherwise than the one before; nil ends
// the trouble.
func (c *complaint) news(err error) bool {
	before := c.said
	c.said = ""
	if err != nil {
		c.said = err.Error()
	}
	return err != nil && c.said != before
}

// sendWithin bounds one attempt, and resend how far apart attempts are that fail.
const (
	sendWithin  = 30 * time.Second
	leastResend = time.Second
	mostResend  = 5 * time.Minute
)

// newOutbox starts an outbox that has told what told says.
func newOutbox[T any](c outboxConfig[T], told map[string]T) *outbox[T] {
	o := &outbox[T]{outboxConfig: c, slots: map[string]*outboxSlot[T]{}, wake: make(chan struct{}, 1), done: make(chan struct{})}
	for subject, word := range told {
		o.slot(subject).told = &word
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	go o.run()
	return o
}

// close gives up what is not sent yet.
func (o *outbox[T]) close() {
	o.cancel()
	<-o.done
}

// slot returns the slot of a subject. o.mu is held, or nobody else is there yet.
func (o *outbox[T]) slot(subject string) *outboxSlot[T] {
	s := o.slots[subject]
	if s == nil {
		s = &outboxSlot[T]{}
		if o.Burst > 0 {
			s.pace = rate.NewLimiter(rate.Every(o.Refill), o.Burst)
		}
		o.slots[subject] = s
	}
	return s
}

// put takes a word; it never blocks. Back to what is told already is no news.
func (o *outbox[T]) put(subject string, word T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.slot(subject)
	last := s.told
	if s.busy != nil {
		last = s.busy
	}
	switch {
	case last != nil && !s.past && o.Same(*last, word):
		s.next, s.over = nil, false
	case s.next == nil:
		s.next, s.since = &word, time.Now()
		nudge(o.wake)
	case !o.Same(*s.next, word):
		s.next = &word
		nudge(o.wake)
	}
}

// amend takes a word that is news only where another was told before: nobody needs
// to know the end of what they never heard of.
func (o *outbox[T]) amend(subject string, word T) {
	o.mu.Lock()
	s := o.slot(subject)
	heard := s.told != nil || s.busy != nil
	o.mu.Unlock()
	if heard {
		o.put(subject, word)
	} else {
		o.drop(subject, false)
	}
}

// drop takes back what is not sent yet; with forget the next word is news
// whatever was told before.
func (o *outbox[T]) drop(subject string, forget bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.slot(subject)
	s.next, s.over = nil, s.busy != nil
	if forget {
		s.told, s.past = nil, s.busy != nil
	}
}

// known returns what the place has been told of a subject; nil: nobody knows.
func (o *outbox[T]) known(subject string) *T {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.slot(subject).told
}

// pick takes the word that has waited longest, or says how long none is due.
func (o *outbox[T]) pick() (subject string, s *outboxSlot[T], wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	wait = -1 // for ever
	for name, slot := range o.slots {
		if slot.next == nil {
			continue
		}
		if rest := slot.hold.Sub(now); rest > 0 {
			if wait < 0 || rest < wait {
				wait = rest
			}
			continue
		}
		if s == nil || slot.since.Before(s.since) {
			subject, s = name, slot
		}
	}
	if s != nil {
		s.busy, s.next = s.next, nil
	}
	return subject, s, wait
}

func (o *outbox[T]) run() {
	defer close(o.done)
	again := leastResend
	for {
		subject, s, wait := o.pick()
		if s == nil {
			if !o.rest(wait, o.wake) {
				return
			}
			continue
		}
		word := *s.busy
		ctx, cancel := context.WithTimeout(o.ctx, sendWithin)
		err := o.Send(ctx, word)
		cancel()
		closed := o.ctx.Err() != nil
		if closed && err != nil {
			return
		}
		o.ended(s, word, err)
		if o.Told != nil {
			o.Told(subject, word, err)
		}
		if closed {
			return
		}
		pause := o.Gap
		if err == nil {
			again = leastResend
		} else {
			pause = max(pause, again)
			again = min(2*again, mostResend)
			if o.Rest != nil {
				pause = max(pause, o.Rest(err))
			}
		}
		if pause > 0 && !o.rest(pause, nil) {
			return
		}
	}
}

// ended takes how an attempt ended.
func (o *outbox[T]) ended(s *outboxSlot[T], word T, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	over, past := s.over, s.past
	s.busy, s.over, s.past = nil, false, false
	if err != nil {
		s.told = nil // it may have arrived all the same
		if s.next == nil && !over {
			s.next = &word
		}
		return
	}
	if s.told = &word; past {
		s.told = nil
	}
	if s.pace != nil {
		s.pace.Allow()
		next := s.pace.Reserve()
		s.hold = time.Now().Add(next.Delay())
		next.Cancel()
	}
}

// rest waits, until woken, unless the outbox is closed; less than 0: until woken.
func (o *outbox[T]) rest(d time.Duration, wake <-chan struct{}) bool {
	var over <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-o.ctx.Done():
		return false
	case <-wake:
	case <-over:
	}
	return true
}
