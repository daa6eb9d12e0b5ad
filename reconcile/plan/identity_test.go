package plan

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
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

// TestAddressOfADHCPServer: a node whose address no VM shows, and which does not answer at that of
// the inventory, names the way out that the others have.
func TestAddressOfADHCPServer(t *testing.T) {
	for mode, want := range map[cluster.AddressMode]bool{cluster.AddressStatic: false, cluster.AddressReserved: true} {
		w := newWorld(1, 1)
		for _, line := range []string{"made cps=1 workers=1", "settled", "machine wk-1 silent"} {
			w.run(t, line)
		}
		w.d.Spec.Network.Mode = mode
		var hint string
		for _, wait := range Make(w.d, w.o, w.p).Waiting {
			if wait.Subject == "wk-1" && wait.Reason == cluster.WaitingForBoot {
				hint = wait.Hint
			}
		}
		if hint == "" || strings.Contains(hint, "give it another `replace` in nodes.yaml") != want {
			t.Errorf("%s: %q", mode, hint)
		}
	}
}
