package drift

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestAttempt: what failed counts for the revision with which the files of the cluster became what they are. Another content is another
// attempt, and so is each commit where what they are is unknown, or was not noted yet.
func TestAttempt(t *testing.T) {
	at := func(revision cluster.Revision, content string) cluster.Desired {
		return cluster.Desired{Snapshot: cluster.Snapshot{Revision: revision, Content: content}}
	}
	var f cluster.Facts
	for i, c := range []struct {
		d             cluster.Desired
		before, after cluster.Revision // it is noted
	}{
		{at("r0", ""), "r0", "r0"},
		{at("r1", "a"), "r1", "r1"},
		{at("r2", "a"), "r1", "r1"},
		{at("r3", ""), "r3", "r3"},
		{at("r4", "a"), "r1", "r1"},
		{at("r5", "b"), "r5", "r5"},
		{at("r6", "a"), "r6", "r6"},
		{at("r7", "a"), "r6", "r6"},
	} {
		if got := Attempt(c.d, f); got != c.before {
			t.Errorf("%d: before it is noted: %s", i, got)
		}
		NoteContent(&f, c.d)
		if got := Attempt(c.d, f); got != c.after {
			t.Errorf("%d: %s", i, got)
		}
	}
	asked := at("r8", "a")
	running := at("r1", "old")
	running.Asked = &asked
	if got := Attempt(running, f); got != "r6" {
		t.Errorf("of what the repository has: %s", got)
	}
}
