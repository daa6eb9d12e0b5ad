package outbox

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Outbox sends what is new to one place, beside the loops: a place that is slow
// or down delays nothing. Only the newest value about each subject counts, so that
// the queue is one slot for each, and what was sent already is not sent again.
type Outbox[T any] struct {
	c Config[T]

	mu    sync.Mutex
	slots map[string]*slot[T]
	wake  chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

// Config describes how an outbox sends. Send and Same are required.
type Config[T any] struct {
	Send func(context.Context, T) error
	// Same reports whether two values mean the same.
	Same func(a, b T) bool
	// Gap is the least time between two values to the place, Burst how many there
	// may be about one subject before they must be Refill apart; 0: no limit.
	Gap    time.Duration
	Burst  int
	Refill time.Duration
	// RetryAfter is how long the place asks to be left alone after a failure;
	// nil: it never asks.
	RetryAfter func(error) time.Duration
	// OnAttempt is called after each attempt; nil: nobody is.
	OnAttempt func(subject string, value T, err error)
	// Sent is what the place has already, by subject.
	Sent map[string]T
}

// slot is what is known of one subject.
type slot[T any] struct {
	next      *T        // to be sent
	since     time.Time // next
	busy      *T        // being sent
	sent      *T        // what the place has; nil: unknown
	dropped   bool      // busy was dropped meanwhile: it is not tried again
	forgotten bool      // busy was forgotten meanwhile: the same is news
	notBefore time.Time // nothing is sent before
	pace      *rate.Limiter
}

// SendTimeout bounds one attempt.
const SendTimeout = 30 * time.Second

// minRetry and maxRetry are how far apart attempts are that fail.
const (
	minRetry = time.Second
	maxRetry = 5 * time.Minute
)

// New starts an outbox. Close ends it.
func New[T any](c Config[T]) *Outbox[T] {
	o := &Outbox[T]{c: c, slots: map[string]*slot[T]{}, wake: make(chan struct{}, 1), done: make(chan struct{})}
	for subject, value := range c.Sent {
		o.slot(subject).sent = &value
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	go o.run()
	return o
}

// Close gives up what is not sent yet. When it returns nothing is sent any more.
func (o *Outbox[T]) Close() {
	o.cancel()
	<-o.done
}

// slot returns the slot of a subject. o.mu is held, or nobody else is there yet.
func (o *Outbox[T]) slot(subject string) *slot[T] {
	s := o.slots[subject]
	if s == nil {
		s = &slot[T]{}
		if o.c.Burst > 0 {
			s.pace = rate.NewLimiter(rate.Every(o.c.Refill), o.c.Burst)
		}
		o.slots[subject] = s
	}
	return s
}

// Put takes a value; it never blocks. Back to what was sent already is no news.
func (o *Outbox[T]) Put(subject string, value T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.slot(subject)
	last := s.sent
	if s.busy != nil {
		last = s.busy
	}
	switch {
	case last != nil && !s.forgotten && o.c.Same(*last, value):
		s.next, s.dropped = nil, false
	case s.next == nil:
		s.next, s.since = &value, time.Now()
		Wake(o.wake)
	case !o.c.Same(*s.next, value):
		s.next = &value
		Wake(o.wake)
	}
}

// Amend takes a value that is news only where another was sent before: nobody
// needs to know the end of what they were never sent.
func (o *Outbox[T]) Amend(subject string, value T) {
	o.mu.Lock()
	s := o.slot(subject)
	known := s.sent != nil || s.busy != nil
	o.mu.Unlock()
	if known {
		o.Put(subject, value)
	} else {
		o.Drop(subject, false)
	}
}

// Drop takes back what is not sent yet; with forget the next value is news
// whatever was sent before.
func (o *Outbox[T]) Drop(subject string, forget bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.slot(subject)
	s.next, s.dropped = nil, s.busy != nil
	if forget {
		s.sent, s.forgotten = nil, s.busy != nil
	}
}

// Remove drops all that is known of a subject that there is no more.
func (o *Outbox[T]) Remove(subject string) {
	o.Drop(subject, true)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.slots, subject) // what is being sent is kept by who sends it
}

// Sent returns what the place has about a subject; nil: unknown.
func (o *Outbox[T]) Sent(subject string) *T {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.slots[subject]; s != nil {
		return s.sent
	}
	return nil
}

// pickNext takes the value that has waited longest, or reports how long none is due.
func (o *Outbox[T]) pickNext() (subject string, s *slot[T], wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	wait = -1 // for ever
	for name, candidate := range o.slots {
		if candidate.next == nil {
			continue
		}
		if rest := candidate.notBefore.Sub(now); rest > 0 {
			if wait < 0 || rest < wait {
				wait = rest
			}
			continue
		}
		if s == nil || candidate.since.Before(s.since) {
			subject, s = name, candidate
		}
	}
	if s != nil {
		s.busy, s.next = s.next, nil
	}
	return subject, s, wait
}

func (o *Outbox[T]) run() {
	defer close(o.done)
	backoff := minRetry
	for {
		subject, s, wait := o.pickNext()
		if s == nil {
			if !o.sleep(wait, o.wake) {
				return
			}
			continue
		}
		value := *s.busy
		ctx, cancel := context.WithTimeout(o.ctx, SendTimeout)
		err := o.c.Send(ctx, value)
		cancel()
		closed := o.ctx.Err() != nil
		if closed && err != nil {
			return
		}
		o.endAttempt(s, value, err)
		if o.c.OnAttempt != nil {
			o.c.OnAttempt(subject, value, err)
		}
		if closed {
			return
		}
		pause := o.c.Gap
		if err == nil {
			backoff = minRetry
		} else {
			pause = max(pause, backoff)
			backoff = min(2*backoff, maxRetry)
			if o.c.RetryAfter != nil {
				pause = max(pause, o.c.RetryAfter(err))
			}
		}
		if !o.sleep(pause, nil) {
			return
		}
	}
}

// endAttempt takes how an attempt ended.
func (o *Outbox[T]) endAttempt(s *slot[T], value T, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	dropped, forgotten := s.dropped, s.forgotten
	s.busy, s.dropped, s.forgotten = nil, false, false
	if err != nil {
		s.sent = nil // it may have arrived all the same
		if s.next == nil && !dropped {
			s.next = &value
		}
		return
	}
	if s.sent = &value; forgotten {
		s.sent = nil
	}
	if s.pace != nil {
		s.pace.Allow()
		next := s.pace.Reserve()
		s.notBefore = time.Now().Add(next.Delay())
		next.Cancel()
	}
}

// sleep waits, until woken, unless the outbox is closed; less than 0: until woken.
func (o *Outbox[T]) sleep(d time.Duration, wake <-chan struct{}) bool {
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

// LastError keeps one failure from being logged at every attempt that it spoils.
// The zero value has seen none.
type LastError struct{ text string }

// Changed reports whether an attempt failed otherwise than the one before; nil
// ends the failure.
func (e *LastError) Changed(err error) bool {
	before := e.text
	e.text = ""
	if err != nil {
		e.text = err.Error()
	}
	return err != nil && e.text != before
}
