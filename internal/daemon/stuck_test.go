package daemon

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestStuck holds the watchdog to the progress of every cluster's loop, and to
// nothing else: a slow clone and a cluster that was dropped are no reason to
// restart the daemon.
func TestStuck(t *testing.T) {
	now := time.Now()
	next := func(due time.Duration) map[string]cluster.Status {
		return map[string]cluster.Status{"dev": {NextPass: now.Add(due)}}
	}
	for _, c := range []struct {
		name   string
		began  time.Duration
		states map[string]cluster.Status
		want   string
	}{
		{"at rest", -time.Hour, next(time.Hour), ""},
		{"a pass under way", -time.Hour, next(-time.Minute), ""},
		{"waiting for a slow clone", -time.Hour, next(-5*time.Minute - 20*time.Second), ""},
		{"hanging", -time.Hour, next(-10 * time.Minute), "dev"},
		{"in its first pass", -time.Minute, nil, ""},
		{"hanging in its first pass", -10 * time.Minute, nil, "dev"},
		{"one that is not looked after any more", -time.Hour, map[string]cluster.Status{"dev": {NextPass: now}, "gone": {NextPass: now.Add(-time.Hour)}}, ""},
	} {
		if got := findStuck([]string{"dev"}, now.Add(c.began), c.states, now); got != c.want {
			t.Errorf("%s: %q is called stuck, want %q", c.name, got, c.want)
		}
	}
}

// TestStuckFetch holds the watchdog to the loop that fetches, too: a library that
// does not return would leave every cluster at what was pushed before.
func TestStuckFetch(t *testing.T) {
	now := time.Now()
	for due, want := range map[time.Duration]bool{time.Hour: false, -5*time.Minute - 20*time.Second: false, -10 * time.Minute: true} {
		if got := isStuck(now.Add(due), now); got != want {
			t.Errorf("a fetch due in %v: %t", due, got)
		}
	}
}
