package history

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Pulse notifies everybody who waits that something has changed. The zero value
// is ready.
type Pulse struct {
	mu   sync.Mutex
	next chan struct{}
}

// Next returns a channel that is closed at the next Beat. Take it before
// looking at what may change: then no change is missed.
func (p *Pulse) Next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = make(chan struct{})
	}
	return p.next
}

// Beat wakes everybody who waits.
func (p *Pulse) Beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil {
		close(p.next)
		p.next = nil
	}
}

// Ring keeps the newest events. It may be used by many goroutines. Readers ask
// for what they have not seen, so that a slow one holds up no other and costs
// nothing.
type Ring struct {
	keep  int
	pulse Pulse

	mu     sync.Mutex
	events []cluster.Event // oldest first
	last   uint64          // Seq of the newest there ever was
}

// farthest is a number that no clock comes to. One that is larger leaves no room
// for what comes after it.
const farthest = uint64(math.MaxInt64)

// NewRing makes a ring of at most keep events.
func NewRing(keep int) *Ring { return &Ring{keep: keep} }

// Recall lays events of an earlier life before those that are there. They may
// come in any order, for concurrent writers wrote them in any; of two with one
// number the first counts.
func (r *Ring) Recall(old []cluster.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := farthest
	if len(r.events) > 0 {
		before = r.events[0].Seq
	}
	old = slices.Clone(old)
	slices.SortStableFunc(old, func(a, b cluster.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	kept := old[:0:0]
	for _, e := range old {
		if e.Seq < before && (len(kept) == 0 || e.Seq > kept[len(kept)-1].Seq) {
			kept = append(kept, e)
		}
	}
	r.events = append(kept, r.events...)
	r.cut()
	if n := len(r.events); n > 0 {
		r.last = max(r.last, r.events[n-1].Seq)
	}
}

// Add numbers an event and keeps it. The number is the time in microseconds, or
// the next one: so it grows even when the events before were lost.
func (r *Ring) Add(e cluster.Event) cluster.Event {
	r.mu.Lock()
	r.last = max(r.last+1, uint64(max(e.At.UnixMicro(), 0)))
	e.Seq = r.last
	r.events = append(r.events, e)
	r.cut()
	r.mu.Unlock()
	r.pulse.Beat()
	return e
}

func (r *Ring) cut() {
	if over := len(r.events) - r.keep; over > 0 {
		r.events = slices.Delete(r.events, 0, over)
	}
}

// Changed is closed when there is one event more. Take it before Select.
func (r *Ring) Changed() <-chan struct{} { return r.pulse.Next() }

// Select returns the events a query picks, oldest first.
func (r *Ring) Select(q cluster.EventQuery) []cluster.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []cluster.Event{}
	for _, e := range r.events {
		if q.Picks(e) {
			out = append(out, e)
		}
	}
	if q.Last > 0 && len(out) > q.Last {
		out = out[len(out)-q.Last:]
	}
	return out
}
