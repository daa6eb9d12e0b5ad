package setup

import (
	"strings"
	"testing"
)

// TestUndoOfAnotherPool: of a pool that init made for earlier wishes undo knows,
// too: it refuses while there are VMs in it, and takes it away when it is empty.
func TestUndoOfAnotherPool(t *testing.T) {
	f, g := installed(), packaged(t)
	r := Record{Version: 1}
	for _, pool := range []string{"old", "talos"} {
		w := wished(f)
		w.Pool = pool
		plan := Make(f, w, g, r, Options{})
		f, r = carryOut(f, r.Begun(w, plan), plan.Steps)
	}
	f.VMs = []VM{{ID: 401, Name: "dev-cp-1", Pool: "old"}}
	if plan, problems := Undo(f, r, false); len(plan.Steps) > 0 || !strings.Contains(problems.Error(), "the pool old has 1 VMs: 401 dev-cp-1") {
		t.Errorf("with a VM in the old pool: %v\n%s", problems, shown(plan.Steps))
	}
	plan, _ := Undo(f, r, true)
	if notes := strings.Join(plan.Notes, "\n"); !strings.Contains(notes, "the pool old stays: it has 1 VMs") {
		t.Errorf("nothing is said of the old pool: %s", notes)
	}
	f.VMs = nil
	plan, problems := Undo(f, r, false)
	if f, _ = carryOut(f, r, plan.Steps); problems.HasErrors() || len(f.Pools) > 0 {
		t.Errorf("%v: left are the pools %v", problems, f.Pools)
	}
}
