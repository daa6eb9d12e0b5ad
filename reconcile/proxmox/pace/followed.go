package pace

import (
	"context"
	"sync"
	"time"
)

// Followed are the tasks that somebody waits for, with what lists of running tasks show of them, whoever asked for
// the list: what a list shows to run needs not be asked about, and what it does not show has probably ended. The zero value follows none; it
// may be used from many goroutines.
type Followed struct {
	mu    sync.Mutex
	tasks map[*Task]struct{}
}

// Task is one that is followed.
type Task struct {
	// Began is since when.
	Began time.Time

	host, name string
	mu         *sync.Mutex
	ran        time.Time
	missing    chan struct{} // has room for one
}

// Follow follows a task of a host, which has just begun, until stop.
func (f *Followed) Follow(host, name string) (t *Task, stop func()) {
	now := time.Now()
	t = &Task{Began: now, host: host, name: name, mu: &f.mu, ran: now, missing: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tasks == nil {
		f.tasks = map[*Task]struct{}{}
	}
	f.tasks[t] = struct{}{}
	return t, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.tasks, t)
	}
}

// Show notes what runs on a host, of all that the token may see there, as it was asked for at a time.
func (f *Followed) Show(host string, asked time.Time, runs func(name string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for t := range f.tasks {
		switch {
		case t.host != host || !asked.After(t.Began): // the list may be from before it
		case runs(t.name):
			t.ran = later(t.ran, asked)
		default:
			select {
			case t.missing <- struct{}{}:
			default:
			}
		}
	}
}

// Await waits until a task is to be asked about: a pause after it was asked about, or last seen to run, by its age then, but no longer than
// rarely after it was asked about; or when a list does not show it. Such a list is not always of this very moment, so that only the
// task itself shows that it has ended: Proxmox VE writes it when a task begins, or the process that began one sees it end, or
// pvestatd has its round (pve-common: RESTEnvironment, active_workers).
func (t *Task) Await(ctx context.Context, asked time.Time, pause func(age time.Duration) time.Duration) error {
	for {
		at := later(asked, t.RanAt())
		due := at.Add(pause(at.Sub(t.Began)))
		if last := asked.Add(rarely); due.After(last) {
			due = last
		}
		wait := time.Until(due)
		if wait <= 0 {
			return ctx.Err()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-t.missing:
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// Ran notes that it was seen to run, as of a time.
func (t *Task) Ran(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ran = later(t.ran, at)
}

// RanAt is when it was last seen to run.
func (t *Task) RanAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ran
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
