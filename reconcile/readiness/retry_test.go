package readiness

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestAwaitRetry: what fails is waited for, and is a stall after three failures in a row; what somebody else undoes
// is no failure.
func TestAwaitRetry(t *testing.T) {
	b := cluster.Backoff{ActionID: cluster.ActionID{Kind: cluster.StartVM, Subject: "cp-1"}, Failed: StalledAfter - 1, Error: "it is locked", Hint: "unlock it"}
	want := cluster.Wait{Subject: "cp-1", Reason: cluster.ActionFailed, About: string(cluster.StartVM), Message: string(cluster.StartVM) + " failed and is tried again: it is locked", Hint: "unlock it", Within: time.Hour}
	if got := AwaitRetry(b); got.Key() != want.Key() || got.Message != want.Message || got.Hint != want.Hint || got.Within != want.Within {
		t.Errorf("%+v", got)
	}
	b.Failed++
	if got := AwaitRetry(b); got.Within != time.Nanosecond {
		t.Errorf("after %d failures it may take %v", b.Failed, got.Within)
	}
	b.Undone = true
	if got := AwaitRetry(b); got.Message != string(cluster.StartVM)+" is done again later: it is locked" {
		t.Errorf("what is undone: %s", got.Message)
	}
}
