// Package copying is what all that is written onto one storage shares: the lock under which
// volumes are allocated, and the speed at which they are filled.
package copying

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// FullSpeed is how many copies at once are each as fast as one alone. One qemu-img
// convert reads, looks for zeros and writes in turn, and leaves a storage idle for half of
// the time; more copies than these share the speed of the storage.
const FullSpeed = 2

// ErrLocked means that others kept the lock for too long.
var ErrLocked = errors.New("got timeout")

// Lock is what one worker at a time has. Who has it gives it back by receiving from it.
type Lock chan struct{}

// NewLock makes a lock that nobody has.
func NewLock() Lock { return make(Lock, 1) }

// Take takes the lock, and calls waiting, unless it is nil, where that takes time. It is ErrLocked
// when the lock is not free within so much time.
func (l Lock) Take(ctx context.Context, within time.Duration, waiting func()) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	if waiting != nil {
		waiting()
	}
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case l <- struct{}{}:
		return nil
	case <-timeout.C:
		return ErrLocked
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Storage is one storage. Several workers use it at once.
type Storage struct {
	Lock // under which volumes are allocated

	mu      sync.Mutex
	copies  int           // that are under way
	changed chan struct{} // closed when there are more or fewer
}

// New makes a storage onto which nothing is copied.
func New() *Storage { return &Storage{Lock: NewLock(), changed: make(chan struct{})} }

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

// Transferred is what copying so many bytes leaves in a task's log.
func Transferred(bytes int64) []string {
	n, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n >= 1024 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	size := fmt.Sprintf("%.1f %s", n, units[i])
	all := fmt.Sprintf("transferred %s of %[1]s (100.00%%)", size)
	return []string{fmt.Sprintf("transferred 0.0 B of %s (0.00%%)", size), all, all}
}
