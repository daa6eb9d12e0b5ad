// Package retry waits between two tries.
//
// It knows nothing of what is tried, nor when to give up: the context says that.
// Its time is the time of package time, so that it is virtual in a bubble of
// testing/synctest. A wait that something else can end early is a select of the
// room that waits, and not here.
package retry

import (
	"context"
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
