package pace

import (
	"testing"
	"time"
)

// follow looks at a task until its end, and returns how often, and how late that was seen.
func follow(p *Pace, took time.Duration) (looks int, late time.Duration) {
	for age := time.Duration(0); ; looks++ {
		if age >= took {
			p.Learn("qmcreate", took)
			return looks, age - took
		}
		age += p.Next("qmcreate", age)
	}
}

// TestPace: a task of a kind that is known is looked at seldom before its end, and as soon after it; one that takes longer or shorter than
// the one before is not missed.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		before, took time.Duration
		looks        int
		late         time.Duration
	}{
		{0, 8 * time.Second, 55, time.Second / 2},
		{8 * time.Second, 8 * time.Second, 12, time.Second / 8},
		{8 * time.Second, 7900 * time.Millisecond, 12, time.Second / 4},
		{8 * time.Second, 9 * time.Second, 16, time.Second / 4},
		{8 * time.Second, 2 * time.Second, 9, time.Second},
		{8 * time.Second, 50 * time.Millisecond, 1, 200 * time.Millisecond},
		{8 * time.Second, 80 * time.Second, 100, time.Second},
		{30 * time.Minute, 30 * time.Minute, 380, 5 * time.Second},
		{30 * time.Minute, time.Minute, 20, 5 * time.Second},
		{100 * time.Millisecond, 100 * time.Millisecond, 2, 100 * time.Millisecond},
	} {
		var p Pace
		if c.before > 0 {
			p.Learn("qmcreate", c.before)
		}
		if looks, late := follow(&p, c.took); looks > c.looks || late > c.late {
			t.Errorf("%v after %v: %d looks, %v late, want %d and %v at most", c.took, c.before, looks, late, c.looks, c.late)
		}
	}
}

// TestNextIsAPause: whatever is known, nobody is asked in a loop without a pause.
func TestNextIsAPause(t *testing.T) {
	for _, due := range []time.Duration{0, 1, time.Millisecond, time.Second, time.Hour} {
		var p Pace
		p.Learn("a", due)
		for age := time.Duration(0); age < 3*time.Hour; age += p.Next("a", age) {
			if pause := p.Next("a", age); pause < least/4 {
				t.Fatalf("%v after %v of %v", pause, age, due)
			}
		}
	}
}
