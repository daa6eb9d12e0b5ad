// Package copying is what all that is written onto one storage shares: the lock under which
// volumes are allocated, and the speed at which they are filled.
package copying

import (
	"context"
	"errors"
	"sync"
	"time"
)

// FullSpeed is how many copies at once are each as fast as one alone. One qemu-img
// convert reads, looks for zeros and writes in turn, and leaves a storage idle for half of
// the time; more copies than these share the speed of the storage.
const FullSpeed = 2

// ErrLocked means that others kept the lock for too long.
var ErrLocked = errors.New("got timeout")

// Storage is one storage. Several workers use it at once.
type Storage struct {
	lock chan struct{}

	mu      sync.Mutex
	copies  int           // that are under way
	changed chan struct{} // closed when there are more or fewer
}

// New makes a storage onto which nothing is copied.
func New() *Storage { return &Storage{lock: make(chan struct{}, 1), changed: make(chan struct{})} }

// Lock takes the lock for an allocation. It is ErrLocked when it is not free within so much
// time.
func (s *Storage) Lock(ctx context.Context, within time.Duration) (unlock func(), err error) {
	unlock = func() { <-s.lock }
	select {
	case s.lock <- struct{}{}:
		return unlock, nil
	default:
	}
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case s.lock <- struct{}{}:
		return unlock, nil
	case <-timeout.C:
		return nil, ErrLocked
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Copy takes the time of a copy that would take d alone, and longer beside others.
func (s *Storage) Copy(ctx context.Context, d time.Duration) error {
	s.join(1)
	defer s.join(-1)
	for left := d; left > 0; {
		speed, changed := s.speed()
		began, end := time.Now(), time.NewTimer(time.Duration(float64(left)/speed))
		select {
		case <-end.C:
			return ctx.Err()
		case <-changed:
			left -= time.Duration(float64(time.Since(began)) * speed)
			end.Stop()
		case <-ctx.Done():
			end.Stop()
			return context.Cause(ctx)
		}
	}
	return ctx.Err()
}

// join adds copies to those under way.
func (s *Storage) join(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies += n
	close(s.changed)
	s.changed = make(chan struct{})
}

// speed is that of each copy, where 1 is that of one alone, and what ends it.
func (s *Storage) speed() (float64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(1, float64(FullSpeed)/float64(s.copies)), s.changed
}
