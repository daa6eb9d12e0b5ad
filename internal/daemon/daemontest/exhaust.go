package daemontest

import "testing"

// LeaveToExhaust skips a test where the race detector runs a part of all tests: others run
// the same parts of the program at once, in less time. "make exhaust" runs it in full.
func LeaveToExhaust(t testing.TB) {
	t.Helper()
	if Thinner > 1 && testing.Short() {
		t.Skip("run without the race detector, by make exhaust")
	}
}
