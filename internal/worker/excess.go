package worker

import (
	"errors"
	"maps"
	"sync"
	"time"
)

// ExcessFor is how long what took too much is not tried again.
const ExcessFor = time.Hour

// Excesses remember what took too much of a worker, by the digest of what it was given: it would again.
// The zero value remembers nothing yet.
type Excesses struct {
	mu    sync.Mutex
	known map[string]excess
}

type excess struct {
	err   error
	until time.Time
}

// Try does something unless it took too much before, and remembers whether it does. What
// took long may have waited for a busy host or the API, and is not remembered.
func (e *Excesses) Try(digest string, do func() error) error {
	e.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(e.known, func(_ string, x excess) bool { return now.After(x.until) })
	x, known := e.known[digest]
	e.mu.Unlock()
	if known {
		return x.err
	}
	err := do()
	if exceeded := (*Exceeded)(nil); errors.As(err, &exceeded) && exceeded.What != Time {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.known == nil {
			e.known = map[string]excess{}
		}
		e.known[digest] = excess{err, now.Add(ExcessFor)}
	}
	return err
}
