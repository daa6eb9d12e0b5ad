package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Sleep(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("an hour: %v after %v", err, time.Since(began))
		}
		began = time.Now()
		for _, d := range []time.Duration{0, -time.Second} {
			if err := Sleep(t.Context(), d); err != nil || time.Since(began) != 0 {
				t.Errorf("%v: %v after %v", d, err, time.Since(began))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("a context of a minute: %v after %v", err, time.Since(began))
		}
		if err := Sleep(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a context that has ended: %v", err)
		}
	})
}
