package follower

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/sources"
)

// Within bounds one fetch.
const Within = 5 * time.Minute

// After a failure the pause doubles from minRetry to maxRetry, but is never longer
// than the interval: a server may shut out whoever it refuses too often.
const (
	minRetry = 5 * time.Second
	maxRetry = time.Minute
)

// Config describes whom a follower asks, and who gets the results.
type Config struct {
	// Fetch reads the newest revision; it is called by one goroutine.
	Fetch func(context.Context) (sources.Tree, error)
	// Take gets every result, on the goroutine of Run. isNews is whether somebody
	// asked for the fetch, or it ended otherwise than the one before. With an error
	// the result was of no use, and the next fetch is due as soon as after a failure.
	Take     func(r Result, isNews bool) error
	Interval time.Duration
	Log      *slog.Logger
}

// Result is how a fetch ended.
type Result struct {
	Tree sources.Tree // none with Err
	Err  error
	// At is when the fetch began: whatever was pushed before is in the tree.
	At time.Time
}

// Follower fetches one repository.
type Follower struct {
	c     Config
	first chan struct{} // closed when there is a result
	wake  chan struct{} // one slot; full while somebody asks for a fetch

	panicked string // what the last fetch that panicked did it with, as it was logged; of Run alone

	mu     sync.Mutex
	newest *Result
	due    time.Time
}

// New makes a Follower. Run it.
func New(c Config) *Follower {
	return &Follower{c: c, first: make(chan struct{}), wake: make(chan struct{}, 1), due: time.Now()}
}

// Run fetches until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	pause := time.NewTimer(f.c.Interval)
	defer pause.Stop()
	var revision cluster.Revision // the newest that was read
	asked, failing, retry := false, false, minRetry
	for {
		f.schedule(0)
		r := f.fetch(ctx)
		if ctx.Err() != nil {
			return // what was interrupted is no result
		}
		isNews := asked || (r.Err != nil) != failing || r.Err == nil && r.Tree.Revision != revision
		if failing = r.Err != nil; !failing {
			revision = r.Tree.Revision
		}
		f.publish(&r)
		next := f.c.Interval
		if err := f.c.Take(r, isNews); err != nil {
			next = min(retry, f.c.Interval)
			retry = min(2*retry, maxRetry)
		} else {
			retry = minRetry
		}
		f.schedule(next)
		pause.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-f.wake: // emptied before the fetch begins: who asks from now on is not answered by it
			asked = true
		case <-pause.C:
			asked = false
		}
	}
}

// fetch reads the newest revision. What panics over it is an error.
func (f *Follower) fetch(parent context.Context) (r Result) {
	ctx, cancel := context.WithTimeoutCause(parent, Within, fmt.Errorf("the repository does not answer within %v", Within))
	defer cancel()
	r.At = time.Now()
	defer func() {
		if v := recover(); v != nil {
			r.Err = cluster.WithReason(cluster.InternalError, fault.Internal(v))
			if f.panicked != r.Err.Error() {
				f.panicked = r.Err.Error()
				f.c.Log.Error("a fetch of the repository panicked", logging.Err, r.Err, logging.Stack, string(debug.Stack()))
			}
		}
	}()
	r.Tree, r.Err = f.c.Fetch(ctx)
	if r.Err != nil && ctx.Err() != nil {
		r.Err = context.Cause(ctx)
	}
	return r
}

// publish makes a result the newest.
func (f *Follower) publish(r *Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.newest == nil {
		close(f.first)
	}
	f.newest = r
}

// schedule notes when the next fetch is due.
func (f *Follower) schedule(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.due = time.Now().Add(d)
}

// Due is when the next fetch is due, or when the one began that is under way.
func (f *Follower) Due() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.due
}

// Request has the repository fetched at once. While a fetch is under way, however
// often it is called, one more follows: what was pushed meanwhile may not be in
// that one.
func (f *Follower) Request() { outbox.Wake(f.wake) }

// Newest returns the newest result: the same pointer for the same result. It waits
// for the first one; the error is that of ctx, and one that has ended only keeps it
// from waiting.
func (f *Follower) Newest(ctx context.Context) (*Result, error) {
	select {
	case <-f.first:
	default:
		select {
		case <-f.first:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newest, nil
}
