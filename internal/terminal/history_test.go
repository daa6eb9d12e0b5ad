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

// TestGatesOfAForecast: a gate that holds several nodes is one line with their names, and its hint stands there once.
func TestGatesOfAForecast(t *testing.T) {
	gate := func(node, name string) cluster.Wait {
		return cluster.Wait{Subject: node, Reason: cluster.WaitingForGate, About: name, Message: "the gate " + name + " does not hold", Hint: "look at " + name}
	}
	other := cluster.Wait{Subject: "wk-3", Reason: cluster.WaitingForTurn, Message: "waits"}
	var out strings.Builder
	Printer{w: &out}.PrintForecast(cluster.Forecast{Waiting: []cluster.Wait{gate("wk-1", "a"), gate("wk-1", "b"), other, gate("wk-2", "a"), gate("wk-2", "b"), other}})
	want := "  waits for wk-1, wk-2: the gate a does not hold\n    -> look at a\n  waits for wk-1, wk-2: the gate b does not hold\n    -> look at b\n  waits for wk-3: waits\n  waits for wk-3: waits\n"
	if !strings.HasSuffix(out.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestDoctorFindsNoDecision: what waits for an approval is a decision of people, and no cause is to be looked for.
func TestDoctorFindsNoDecision(t *testing.T) {
	for reason, want := range map[cluster.Reason]bool{cluster.ChangeUnapproved: false, cluster.ApplyingOff: false, cluster.NodeUnknown: true} {
		var out strings.Builder
		Printer{w: &out}.PrintDoctorHint([]cluster.Status{{Condition: cluster.Stalled, Reason: reason}}, nil)
		if strings.Contains(out.String(), "doctor") != want {
			t.Errorf("%s: %q", reason, out.String())
		}
	}
}
