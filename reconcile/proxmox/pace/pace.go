// Package pace is when to look again at what takes its time.
package pace

import (
	"sync"
	"time"
)

// The bounds of a pause.
const (
	least  = 100 * time.Millisecond
	most   = time.Second
	rarely = 5 * time.Second
)

// Since returns how long to pause before looking again at what has taken so long: an eighth of that, so that
// the end of what is short and of what is long is noticed late by the same small share.
func Since(age time.Duration) time.Duration { return min(max(age/8, least), most) }

// Pace knows how long tasks of a kind took last. The zero value knows nothing; it may be used from many goroutines.
type Pace struct {
	mu   sync.Mutex
	took map[string]time.Duration
}

// Learn notes that a task of a kind has ended: at that age it was seen to, and at the other one it was last seen to run. What is known is
// when the end is looked for, so it goes down a little where that was after it, or one would be late once more with each.
func (p *Pace) Learn(kind string, ran, ended time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.took == nil {
		p.took = map[string]time.Duration{}
	}
	switch due := p.took[kind]; {
	case ran >= due:
		p.took[kind] = ran
	case ended >= due:
		p.took[kind] = due - due/64
	default:
		p.took[kind] = (ran + ended) / 2
	}
}

// Next returns how long to pause before looking again at a task of a kind that has taken so long. Where one is known, the end is
// looked for when it is due, and then every thirty-second part; and seldom before, after a quarter of its age and at least every rarely,
// because this one may be shorter.
func (p *Pace) Next(kind string, age time.Duration) time.Duration {
	p.mu.Lock()
	due := p.took[kind]
	p.mu.Unlock()
	switch {
	case age < due:
		return min(max(age/4, 2*least), rarely, due+max(due/64, least/8)-age)
	case age < due+due/4:
		return min(max(due/32, least), most)
	}
	return Since(age)
}
