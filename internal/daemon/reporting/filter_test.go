package reporting

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestALapseIsNoNews: a Ready cluster that only waits again is told of when it
// has waited for a while; of anything else it is told at once.
func TestALapseIsNoNews(t *testing.T) {
	const one, two cluster.Revision = "main@sha1:1111111111111111111111111111111111111111", "main@sha1:2222222222222222222222222222222222222222"
	begin := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	at := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second) }
	ready := func(rev cluster.Revision) cluster.Status {
		return cluster.Status{Condition: cluster.Ready, Revision: rev}
	}
	waits := func(rev cluster.Revision, since int) cluster.Status {
		return cluster.Status{Condition: cluster.Reconciling, Revision: rev, Since: at(since), Passes: []cluster.PassStatus{{Waiting: 1}, {Started: []string{"create vm"}}}}
	}
	began, runs, going, stalled, blind := waits(one, 1), waits(one, 1), waits(one, 1), waits(one, 1), waits(one, 1)
	began.Passes = []cluster.PassStatus{{Started: []string{"start vm"}}}
	runs.Running = []cluster.RunningStatus{{Action: "start vm"}}
	going.Suspended = true // as while it is destroyed
	stalled.Condition, blind.Condition = cluster.Stalled, cluster.Unknown
	for name, c := range map[string]struct {
		before cluster.Status
		after  int
		s      cluster.Status
		want   bool
	}{
		"it waits":                          {ready(one), 2, waits(one, 1), false},
		"it waits, nearly for too long":     {ready(one), 30, waits(one, 1), false},
		"it waits for too long":             {ready(one), 31, waits(one, 1), true},
		"it cannot be seen for a moment":    {ready(one), 2, blind, false},
		"it acts":                           {ready(one), 2, began, true},
		"something is under way":            {ready(one), 2, runs, true},
		"it is destroyed":                   {ready(one), 2, going, true},
		"it is Stalled":                     {ready(one), 2, stalled, true},
		"another revision":                  {ready(one), 2, waits(two, 1), true},
		"the first waits of all":            {cluster.Status{}, 2, waits(one, 1), true},
		"it was told already that it waits": {began, 2, waits(one, 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			var f Filter
			f.Passes(c.before, at(0))
			if got := f.Passes(c.s, at(c.after)); got != c.want {
				t.Errorf("passes: %v, want %v", got, c.want)
			}
		})
	}
	var f Filter
	f.Passes(ready(one), at(0))
	f.Passes(blind, at(1))
	if f.Passes(waits(one, 2), at(3)) {
		t.Error("a lapse after a blind moment is told")
	}
}
