package plan

import (
	"testing"

	"github.com/talos-agent/talos-agent/reconcile/action"
)

// TestMarkHasItsOwnToken: a VM whose mark was edited away gets the token that its machine was made
// for, so that a replacement which was asked for in the meantime is still to come. Where that is
// not known it gets the one of the inventory, and the machine is kept.
func TestMarkHasItsOwnToken(t *testing.T) {
	for _, c := range []struct {
		had  []string
		want string
	}{{[]string{"a", "b"}, "b"}, {nil, "c"}} {
		w := newWorld(1, 1)
		for _, line := range []string{"made cps=1 workers=1", "node wk-1 replace=c", "edit wk-1 unmarked"} {
			w.run(t, line)
		}
		w.o.Facts.Replaced = map[string][]string{"wk-1": c.had}
		p := Make(w.d, w.o, w.p)
		if len(p.Actions) != 1 {
			t.Fatalf("%v: %s", c.had, p)
		}
		if a, ok := p.Actions[0].(action.ChangeVM); !ok || a.Node.Replace != c.want {
			t.Errorf("%v: %+v", c.had, p.Actions)
		}
	}
}
