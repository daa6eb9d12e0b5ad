package plan

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/lost"
)

// TestStillForgotten: how long it is kept in mind that a machine does not come back.
func TestStillForgotten(t *testing.T) {
	for _, c := range []struct {
		what string
		left bool // its member has left etcd
		edit func(*testing.T, *world)
		kept bool
	}{
		{"nothing has happened", false, edits(), true},
		{"its VM is deleted", false, edits("vm cp-2 absent"), false},
		{"it is removed, and its VM is there", false, edits("remove cp-2"), true},
		{"it is removed, and nothing of it is left", false, edits("vm cp-2 absent", "remove cp-2", "members-only cp-1 10.10.0.11 cp-3 10.10.0.13"), false},
		{"it is removed, and not all is seen", false, edits("vm cp-2 absent", "remove cp-2", "members-only cp-1 10.10.0.11 cp-3 10.10.0.13", "vm cp-1 unknown"), true},
		{"it answers", false, edits("machine cp-2 configured"), false},
		{"it is Ready", false, edits("node-is cp-2 ready"), false},
		{"it was Ready before", false, edits("node-is cp-2 ready", "kubernetes-before"), true},
		{"it answers without its member", true, edits("machine cp-2 configured", "members-only cp-1 10.10.0.11 cp-3 10.10.0.13"), true},
		{"it answers with a new member", true, edits("machine cp-2 configured"), false},
		{"it answers, and its member was there before", true, edits("machine cp-2 configured", "members-before"), true},
		{"a day has passed", false, edits("clock 24h"), false},
		{"a day has passed without its member", true, edits("clock 24h"), true},
	} {
		w := newWorld(1, 0)
		edits("made cps=3", "dead cp-2 5m")(t, w)
		in := []cluster.Forgotten{{Node: "cp-2", At: w.o.Now, Left: c.left}}
		c.edit(t, w)
		if kept := len(lost.StillForgotten(in, w.d, w.o)) > 0; kept != c.kept {
			t.Errorf("%s: kept in mind: %v", c.what, kept)
		}
	}
}
