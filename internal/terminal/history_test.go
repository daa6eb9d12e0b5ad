package terminal

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestPrintRun: what the end of the agent interrupted has not failed, and what began before its
// run did.
func TestPrintRun(t *testing.T) {
	began := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	var out strings.Builder
	Printer{w: &out}.PrintRun(cluster.Run{Number: 1, Cluster: "dev", Began: began, Ended: began.Add(40 * time.Second), Result: cluster.Interrupted, Actions: []cluster.Outcome{
		{Text: "take a snapshot", Began: began.Add(-26 * time.Second), DurationMS: 60_000, Result: cluster.Done},
		{Text: "start vm", Began: began.Add(-2 * time.Millisecond), DurationMS: 1000, Result: cluster.Failed, Error: "no"},
		{Text: "drain", Began: began.Add(35 * time.Second), DurationMS: 5000, Result: cluster.ResultInterrupted, Error: "context canceled"},
	}})
	for _, want := range []string{"  -26s   1m00s  take a snapshot\n", "  0s     1.0s   FAILED start vm: no\n", "  35s    5.0s   INTERRUPTED drain: context canceled\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
