package pace

import (
	"testing"
	"time"
)

// follow looks at a task until its end, and returns how often, and how late that was seen, of which something is learnt.
func follow(p *Pace, took time.Duration) (looks int, late time.Duration) {
	for age, ran := time.Duration(0), time.Duration(0); ; looks++ {
		if age >= took {
			p.Learn("qmcreate", ran, age)
			return looks, age - took
		}
		ran = age
		age += p.Next("qmcreate", age)
	}
}

// TestPace: tasks of a kind that take as long as the one before are looked at seldom before their end, and soon after it, however many there
// are.
func TestPace(t *testing.T) {
	for took, most := range map[time.Duration]int{50 * time.Millisecond: 2, 100 * time.Millisecond: 3, 700 * time.Millisecond: 8, 1400 * time.Millisecond: 11, 3 * time.Second: 14, 8 * time.Second: 19, 104 * time.Second: 42, 30 * time.Minute: 500} {
		var p Pace
		first, _ := follow(&p, took)
		for i := range 50 {
			looks, late := follow(&p, took)
			if looks > most || looks > first || late > max(took/16, least) {
				t.Errorf("%v, no. %d: %d looks (%d at first), %v late", took, i+2, looks, first, late)
			}
		}
	}
}

// TestPaceOfOthers: one that takes longer or shorter than the one before is not missed, and the next is known again.
func TestPaceOfOthers(t *testing.T) {
	for _, c := range []struct{ before, took, late time.Duration }{
		{8 * time.Second, 7900 * time.Millisecond, time.Second / 4},
		{8 * time.Second, 9 * time.Second, time.Second / 4},
		{8 * time.Second, 2 * time.Second, time.Second / 2},
		{8 * time.Second, 50 * time.Millisecond, 200 * time.Millisecond},
		{8 * time.Second, 80 * time.Second, time.Second},
		{2 * time.Minute, 3050 * time.Millisecond, 800 * time.Millisecond},
		{30 * time.Minute, time.Minute, rarely},
	} {
		var p Pace
		for range 3 {
			follow(&p, c.before)
		}
		if _, late := follow(&p, c.took); late > c.late {
			t.Errorf("%v after %v: %v late, want %v at most", c.took, c.before, late, c.late)
		}
		follow(&p, c.took)
		follow(&p, c.took)
		if _, late := follow(&p, c.took); late > max(c.took/8, least) {
			t.Errorf("%v after two of it: %v late", c.took, late)
		}
	}
}

// TestNextIsAPause: whatever is known, nobody is asked in a loop without a pause.
func TestNextIsAPause(t *testing.T) {
	for _, due := range []time.Duration{0, 1, time.Millisecond, time.Second, time.Hour} {
		var p Pace
		p.Learn("a", due, due)
		for age := time.Duration(0); age < 3*time.Hour; age += p.Next("a", age) {
			if pause := p.Next("a", age); pause < least/8 {
				t.Fatalf("%v after %v of %v", pause, age, due)
			}
		}
	}
}
