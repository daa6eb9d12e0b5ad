package clock

import (
	"testing"
	"time"
)

// TestClockGoesOn: a clock begins again with another state, and not with one that only
// cannot be seen.
func TestClockGoesOn(t *testing.T) {
	began, now := time.Unix(1, 0), time.Unix(100, 0)
	c := Clock{State: "Ready", Since: began}
	for _, x := range []struct {
		state   string
		unknown bool
		want    Clock
	}{{"Ready", false, c}, {"Unknown", true, c}, {"Stalled", false, Clock{"Stalled", now}}} {
		if got := c.Next(x.state, x.unknown, now); got != x.want {
			t.Errorf("%s: %v, want %v", x.state, got, x.want)
		}
	}
}
