// Package clock is since when things are as they are.
//
// The package is pure: it is handed the time. It must not know what is in a state.
package clock

import "time"

// Clocks are since when a cluster, its nodes and its addons are as an earlier agent saw
// them last. They are for people: nothing is decided by them.
type Clocks struct {
	Condition     Clock
	Nodes, Addons map[string]Clock
}

// Clock is a state and since when it lasts. The zero value is none.
type Clock struct {
	State string
	Since time.Time
}

// Next is the clock of a state that is seen. One that only could not be seen for a
// while goes on.
func (c Clock) Next(state string, unknown bool, now time.Time) Clock {
	if state == c.State || unknown {
		return c
	}
	return Clock{State: state, Since: now}
}
