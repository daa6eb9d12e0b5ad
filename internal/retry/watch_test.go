package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatch: a call ends when nothing was received for the time of a stall, or at its bound however much was, and
// with the one that it is part of; why is the cause.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, alive, stop := Watch(t.Context(), time.Hour, time.Minute)
		defer stop()
		time.Sleep(50 * time.Second)
		alive()
		<-ctx.Done()
		if took := time.Since(began); took != 110*time.Second || !errors.Is(context.Cause(ctx), ErrStalled) {
			t.Errorf("%v: %v", took, context.Cause(ctx))
		}

		began = time.Now()
		ctx, alive, stop = Watch(t.Context(), time.Hour, time.Minute)
		defer stop()
		for ctx.Err() == nil {
			alive()
			_ = Sleep(ctx, 30*time.Second)
		}
		if took := time.Since(began); took != time.Hour || errors.Is(context.Cause(ctx), ErrStalled) || context.Cause(ctx).Error() != "it took longer than 1h0m0s" {
			t.Errorf("%v: %v", took, context.Cause(ctx))
		}

		mine := errors.New("mine")
		outer, end := context.WithCancelCause(t.Context())
		ctx, _, stop = Watch(outer, time.Hour, time.Minute)
		defer stop()
		end(mine)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), mine) {
			t.Error(context.Cause(ctx))
		}
	})
}
