package daemontest

import (
	"os"
	"strconv"
	"testing"
)

// LeaveToExhaust skips a test where the race detector runs a part of all tests: others run
// the same parts of the program at once, in less time. "make exhaust" runs it in full.
func LeaveToExhaust(t testing.TB) {
	t.Helper()
	if Thinner > 1 && testing.Short() {
		t.Skip("run without the race detector, by make exhaust")
	}
}

// Thin is by how much fewer crash points and seeds of a simulation are run than there are: Thinner, times what TALOS_AGENT_THIN has, with
// which .ci/run makes do with a part of them.
func Thin(t testing.TB) int {
	t.Helper()
	n := 1
	if text := os.Getenv("TALOS_AGENT_THIN"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			t.Fatalf("TALOS_AGENT_THIN is %q, and must be a number from 1", text)
		}
	}
	return Thinner * n
}
