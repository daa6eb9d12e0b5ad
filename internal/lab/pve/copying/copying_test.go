package copying

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCopiesShareTheSpeed: as many as FullSpeed are each as fast as one, and more take as long
// as all that is copied does at the storage's speed.
func TestCopiesShareTheSpeed(t *testing.T) {
	for copies, want := range map[int]time.Duration{1: 8 * time.Second, 2: 8 * time.Second, 3: 12 * time.Second, 4: 16 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s, began := New(), time.Now()
			var wg sync.WaitGroup
			for range copies {
				wg.Go(func() {
					if err := s.Copy(t.Context(), 8*time.Second); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if got := time.Since(began).Round(time.Microsecond); got != want {
				t.Errorf("%d copies take %s, want %s", copies, got, want)
			}
		})
	}
}

// TestCopyThatComesLater: what was copied before others came is done.
func TestCopyThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := New(), time.Now()
		ends := make([]time.Duration, 4)
		var wg sync.WaitGroup
		for i := range ends {
			if i == 2 { // the others come when half of the first two is copied
				<-time.After(4 * time.Second)
			}
			wg.Go(func() {
				if err := s.Copy(t.Context(), 8*time.Second); err != nil {
					t.Error(err)
				}
				ends[i] = time.Since(began).Round(time.Microsecond)
			})
		}
		wg.Wait()
		// Half of the first two is left after 4 s and takes 8 at half the speed; then the
		// others have half of theirs left, and are alone.
		if ends[0] != 12*time.Second || ends[1] != 12*time.Second || ends[2] != 16*time.Second || ends[3] != 16*time.Second {
			t.Errorf("ended after %v", ends)
		}
	})
}

// TestCopyThatIsStopped: it ends with the reason, and the others are faster.
func TestCopyThatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		ctx, stop := context.WithCancelCause(t.Context())
		killed := errors.New("killed")
		done := make(chan error, 1)
		go func() { done <- s.Copy(ctx, time.Hour) }()
		synctest.Wait()
		stop(killed)
		if err := <-done; !errors.Is(err, killed) {
			t.Errorf("ended with %v", err)
		}
		if speed, _ := s.speed(); s.copies != 0 || speed != 1 {
			t.Errorf("%d copies are left", s.copies)
		}
	})
}

// TestLock: one at a time has it, and who waits for too long does not get it.
func TestLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		if err := s.Take(t.Context(), time.Second, nil); err != nil {
			t.Fatal(err)
		}
		waits := 0
		if err := s.Take(t.Context(), time.Second, func() { waits++ }); !errors.Is(err, ErrLocked) || waits != 1 {
			t.Errorf("a second one: %v", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := s.Take(ctx, time.Second, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("one that is stopped: %v", err)
		}
		time.AfterFunc(time.Second/2, func() { <-s.Lock })
		if err := s.Take(t.Context(), time.Second, nil); err != nil {
			t.Errorf("one that waits: %v", err)
		}
	})
}
