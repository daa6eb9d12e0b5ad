// Package turns lets one at a time do what Proxmox VE does one at a time, and names who has the turn.
package turns

import (
	"context"
	"sync"
)

// Turns lets one at a time do something that has a name. The zero value is ready.
type Turns struct {
	mu      sync.Mutex
	waiting map[string]*turn
}

type turn struct {
	slot   chan struct{}
	users  int
	holder string // who has it, in words
}

// Take waits for the turn of a name, and calls waits with who has it if that is
// somebody else. The caller, which is called who, gives it back with done.
func (t *Turns) Take(ctx context.Context, name, who string, waits func(holder string)) (done func(), err error) {
	t.mu.Lock()
	if t.waiting == nil {
		t.waiting = map[string]*turn{}
	}
	w := t.waiting[name]
	if w == nil {
		w = &turn{slot: make(chan struct{}, 1)}
		t.waiting[name] = w
	}
	w.users++
	holder := w.holder
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if w.users--; w.users == 0 {
			delete(t.waiting, name)
		}
	}
	hold := func() (func(), error) {
		t.hold(w, who)
		return func() { t.hold(w, ""); <-w.slot; leave() }, nil
	}
	select {
	case w.slot <- struct{}{}:
		return hold()
	default:
		waits(holder)
	}
	select {
	case w.slot <- struct{}{}:
		return hold()
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// hold notes who has a turn.
func (t *Turns) hold(w *turn, who string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.holder = who
}
