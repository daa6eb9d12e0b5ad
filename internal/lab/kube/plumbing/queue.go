package plumbing

import (
	"container/heap"
	"time"
)

// Queue is what will happen, in the order of the clock.
type Queue struct {
	effects effects
	made    int
}

// Add plans f. What is planned for one moment happens in the order in which it was planned.
func (q *Queue) Add(at time.Time, f func()) {
	q.made++
	heap.Push(&q.effects, &effect{at: at, n: q.made, f: f})
}

// TakeDue takes out what is to happen first, if that is not after now.
func (q *Queue) TakeDue(now time.Time) (f func(), ok bool) {
	if next, ok := q.Next(); !ok || next.After(now) {
		return nil, false
	}
	return heap.Pop(&q.effects).(*effect).f, true
}

// Next is when the first will happen; false: nothing is planned.
func (q *Queue) Next() (at time.Time, ok bool) {
	if len(q.effects) == 0 {
		return time.Time{}, false
	}
	return q.effects[0].at, true
}

// effect is something that will happen.
type effect struct {
	at time.Time
	n  int // breaks ties: first planned, first done
	f  func()
}

// effects is a heap of them, the next one first.
type effects []*effect

func (e effects) Len() int      { return len(e) }
func (e effects) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e effects) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].n < e[j].n
}
func (e *effects) Push(x any) { *e = append(*e, x.(*effect)) }
func (e *effects) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return x
}
