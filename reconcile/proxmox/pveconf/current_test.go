package pveconf

import "testing"

// TestPause: what stands still and what runs are two things, and so are what a person has
// paused and what was halted.
func TestPause(t *testing.T) {
	for status, want := range map[string][2]string{
		"running": {}, "": {}, "prelaunch": {}, "stopped": {},
		"paused": {"paused", ""}, "suspended": {"suspended", "suspended"}, "io-error": {"io-error", "io-error"},
	} {
		c := Current{QMPStatus: Scalar(status)}
		if got := [2]string{c.Pause(), c.Halt()}; got != want {
			t.Errorf("%q: %q, want %q", status, got, want)
		}
	}
}
