package main

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestQuiet lets a daemon look at a converged cluster again and again: it says
// nothing, changes nothing, and tells the forge nothing.
func TestQuiet(t *testing.T) {
	r := newRig(t, lab.Config{})
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	r.told(commit, "success")
	r.until("the first snapshot of etcd is there", func() bool {
		s := r.untilReady(commit)
		return s.Snapshots != nil && !s.Snapshots.Verified.IsZero() && len(s.Running) == 0
	})
	asked := func() int {
		n := 0
		for _, times := range r.calls(func(c world.CallRecord) bool { return c.System == "git" }) {
			n += times
		}
		return n
	}
	log, statuses := r.log.String(), len(r.lab.Forge.Statuses())
	r.lab.World.ForgetCalls()
	for pass := range 10 {
		before := asked()
		r.run(exitOK, do("reconcile"))
		r.until("another pass asks the repository", func() bool { return asked() > before })
		if s := r.untilReady(commit); len(s.Running) != 0 {
			t.Errorf("pass %d does %v", pass, s.Running)
		}
	}
	if got := r.log.String(); got != log {
		t.Errorf("said in quiet passes: %s", got[len(log):])
	}
	if n := r.calls(func(c world.CallRecord) bool { return c.Mutating }); len(n) != 0 {
		t.Errorf("changed in quiet passes: %v", n)
	}
	if n := len(r.lab.Forge.Statuses()); n != statuses {
		t.Errorf("%d more commit statuses", n-statuses)
	}
	if n := r.calls(func(c world.CallRecord) bool { return c.System == "git" && c.Op != "GET info/refs git-upload-pack" }); len(n) != 0 {
		t.Errorf("more than a list of references was asked for: %v", n)
	}
}
