package readiness

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// StalledAfter is how many failures in a row count as a stall; the agent keeps
// trying all the same.
const StalledAfter = 3

// AwaitRetry is the wait for another try of an action.
func AwaitRetry(b cluster.Backoff) cluster.Wait {
	w := cluster.Wait{Subject: b.Subject, Reason: cluster.ActionFailed, About: string(b.Kind), Message: string(b.Kind) + " failed and is tried again: " + b.Error, Hint: b.Hint, Within: time.Hour}
	if b.Undone {
		w.Message = string(b.Kind) + " is done again later: " + b.Error
	}
	if b.Failed >= StalledAfter {
		w.Within = time.Nanosecond
	}
	return w
}
