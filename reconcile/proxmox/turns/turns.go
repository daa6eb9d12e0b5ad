// Package turns lets only so many at a time do what Proxmox VE does for few at a time, and names who has a turn.
package turns

import (
	"context"
	"slices"
	"sync"
)

// Turns lets only so many at a time do something that has a name. The zero value is ready.
type Turns struct {
	mu  sync.Mutex
	all map[string]*turn
}

type turn struct {
	holders []*holder
	queue   []*holder
}

// holder has a turn, or waits for one until ready is closed.
type holder struct {
	who    string     // in words
	places func() int // how many may have a turn beside each other, itself included
	ready  chan struct{}
}

// Alone is the places of who has a turn beside nobody.
func Alone() int { return 1 }

// Take waits until no more have a turn of a name than the places of each of them, in the order of those
// who ask, and calls waits with one who has it if that takes time. The caller, which is called who,
// gives it back with done. How many places there are may change meanwhile.
func (t *Turns) Take(ctx context.Context, name, who string, places func() int, waits func(holder string)) (done func(), err error) {
	mine := &holder{who: who, places: places, ready: make(chan struct{})}
	t.mu.Lock()
	if t.all == nil {
		t.all = map[string]*turn{}
	}
	w := t.all[name]
	if w == nil {
		w = &turn{}
		t.all[name] = w
	}
	w.queue = append(w.queue, mine)
	w.admit()
	before := ""
	if len(w.holders) > 0 {
		before = w.holders[0].who
	}
	t.mu.Unlock()
	done = func() { t.leave(name, mine) }
	select {
	case <-mine.ready:
		return done, nil
	default:
		waits(before)
	}
	select {
	case <-mine.ready:
		return done, nil
	case <-ctx.Done():
		t.leave(name, mine)
		return nil, ctx.Err()
	}
}

// admit gives a turn to those who wait while there are places. Turns.mu is held.
func (w *turn) admit() {
	for len(w.queue) > 0 {
		places := w.queue[0].places()
		for _, h := range w.holders {
			places = min(places, h.places())
		}
		if len(w.holders) > 0 && len(w.holders) >= places {
			return
		}
		close(w.queue[0].ready)
		w.holders, w.queue = append(w.holders, w.queue[0]), w.queue[1:]
	}
}

// leave ends a turn, or the wait for one.
func (t *Turns) leave(name string, mine *holder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.all[name]
	is := func(h *holder) bool { return h == mine }
	w.holders, w.queue = slices.DeleteFunc(w.holders, is), slices.DeleteFunc(w.queue, is)
	w.admit()
	if len(w.holders) == 0 {
		delete(t.all, name)
	}
}
