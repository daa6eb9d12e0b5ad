package setup

import (
	"strings"
	"testing"
)

// TestUndoLeavesWhatWasOnlyMended: a file of somebody's whose mode init has fixed
// is theirs still.
func TestUndoLeavesWhatWasOnlyMended(t *testing.T) {
	f, g := installed(), packaged(t)
	w, path := wished(f), Credential(SSHKey)
	f.Files[path] = File{Data: []byte("theirs"), Mode: 0o644}
	r := Record{Version: 1, Wishes: w}
	steps := Make(f, w, g, r, Options{}).Steps
	if !strings.Contains(shown(steps), "file "+path+" (root:root 0600)") {
		t.Fatalf("its mode is not mended:\n%s", shown(steps))
	}
	f, r = carryOut(f, r, steps)
	if have := f.Files[path]; string(have.Data) != "theirs" || have.Mode != 0o600 {
		t.Errorf("it is %q, mode %04o", have.Data, have.Mode)
	}
	g.SSHKey = []byte("another")
	if plan := Make(f, w, g, r, Options{}); len(plan.Conflicts) != 1 {
		t.Errorf("it would be replaced unasked:\n%s", shown(plan.Steps))
	}
	plan, problems := Undo(f, r, false)
	if problems.HasErrors() || strings.Contains(shown(plan.Steps), path) || !strings.Contains(strings.Join(plan.Notes, "\n"), path+" stays") {
		t.Errorf("%v\n%s%q", problems, shown(plan.Steps), plan.Notes)
	}
}

// TestARestartThatWasCutOff: the agent works with the old keys until it is started
// again, so that a run that was interrupted before has that left to do.
func TestARestartThatWasCutOff(t *testing.T) {
	f, g := installed(), packaged(t)
	w := wished(f)
	f, r := carryOut(f, Record{Version: 1, Wishes: w}, Make(f, w, g, Record{}, Options{Start: true}).Steps)
	plan := Make(f, w, g, r, Options{RotateToken: true})
	r = r.Begun(w, plan)
	last := len(plan.Steps) - 1
	if plan.Steps[last].Name != restartStep {
		t.Fatalf("the agent goes on with the old token:\n%s", shown(plan.Steps))
	}
	f, r = carryOut(f, r, plan.Steps[:last])
	again := Make(f, w, g, r, Options{})
	if got := shown(again.Steps); got != "systemctl restart talos-agent.service\n" {
		t.Errorf("left to do is %q", got)
	}
	f, r = carryOut(f, r.Begun(w, again), again.Steps)
	if third := Make(f, w, g, r, Options{}); len(third.Steps) > 0 {
		t.Errorf("a third run finds something to do:\n%s", shown(third.Steps))
	}
}
