// Package retry waits between two tries, and ends one that stands still.
//
// It knows nothing of what is tried, nor when to give up: the context says that.
// Its time is the time of package time, so that it is virtual in a bubble of
// testing/synctest. A wait that something else can end early is a select of the
// room that waits, and not here.
package retry

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sleep returns nil after d, or the context's error when that ends first or has
// ended. No goroutine and no timer outlive it.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Watch bounds a call that shows that it goes on: the context ends after within, or when alive is not called for
// the time of a stall, with why as its cause. stop releases what it takes.
func Watch(ctx context.Context, within, stall time.Duration) (_ context.Context, alive, stop func()) {
	ctx, end := context.WithCancelCause(ctx)
	ctx, release := context.WithTimeoutCause(ctx, within, fmt.Errorf("it took longer than %v", within))
	watchdog := time.AfterFunc(stall, func() { end(fmt.Errorf("%w for %v", ErrStalled, stall)) })
	return ctx, func() { watchdog.Reset(stall) }, func() {
		watchdog.Stop()
		release()
		end(nil)
	}
}

// ErrStalled is why a call was ended that did not show any longer that it went on.
var ErrStalled = errors.New("it sent nothing")
