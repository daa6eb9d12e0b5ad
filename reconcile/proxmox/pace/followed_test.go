package pace

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func running(names ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// TestFollowed: what a list shows of a task counts from when the list was asked for, and only of the tasks of its host that
// had begun by then.
func TestFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Followed
		before := time.Now()
		time.Sleep(time.Second)
		task, stop := f.Follow("pve1", "UPID:a")
		missing := func() bool {
			select {
			case <-task.missing:
				return true
			default:
				return false
			}
		}
		f.Show("pve1", before, running())
		f.Show("pve1", task.Began, running())
		time.Sleep(time.Second)
		f.Show("pve2", time.Now(), running())
		if missing() || !task.RanAt().Equal(task.Began) {
			t.Error("a list that cannot have it shows something of it")
		}
		asked := time.Now()
		time.Sleep(time.Second)
		f.Show("pve1", asked, running("UPID:a", "UPID:b"))
		f.Show("pve1", asked.Add(-time.Millisecond), running("UPID:a"))
		task.Ran(before)
		if missing() || !task.RanAt().Equal(asked) {
			t.Errorf("seen to run %v after it began", task.RanAt().Sub(task.Began))
		}
		for range 3 { // without a receiver it does not block
			f.Show("pve1", time.Now(), running("UPID:b"))
		}
		if !missing() || missing() {
			t.Error("its end is not shown, or more than once")
		}
		stop()
		f.Show("pve1", time.Now(), running())
		if missing() || len(f.tasks) != 0 {
			t.Error("it is followed still")
		}
	})
}

// TestAwait: a task that lists show to run is not asked about, one that a list does not show is at once, and without lists it is
// after its pause.
func TestAwait(t *testing.T) {
	pause := func(time.Duration) time.Duration { return 2 * time.Second }
	synctest.Test(t, func(t *testing.T) {
		var f Followed
		task, stop := f.Follow("pve1", "UPID:a")
		defer stop()
		waited := func(asked time.Time) time.Duration {
			t.Helper()
			began := time.Now()
			if err := task.Await(t.Context(), asked, pause); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		if got := waited(time.Now()); got != 2*time.Second {
			t.Errorf("without a list: %v", got)
		}
		show := func(times int) {
			for range times {
				time.Sleep(time.Second)
				f.Show("pve1", time.Now(), running("UPID:a"))
			}
		}
		go show(2)
		if got := waited(time.Now()); got != 4*time.Second {
			t.Errorf("with lists that show it: %v", got)
		}
		go show(20)
		if got := waited(time.Now()); got != rarely {
			t.Errorf("with a list that shows it for ever: %v", got)
		}
		time.Sleep(20 * time.Second)
		go func() {
			time.Sleep(time.Second)
			f.Show("pve1", time.Now(), running())
		}()
		if got := waited(time.Now()); got != time.Second {
			t.Errorf("with a list that does not: %v", got)
		}
		if got := waited(time.Now().Add(-time.Minute)); got != 0 {
			t.Errorf("long after it was asked about: %v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := task.Await(ctx, time.Now(), pause); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("for want of patience: %v", err)
		}
	})
}
