package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// TestResetIsNoted: the reset of a VM is durable before it is asked for, and taken back only where it is known not to have been
// begun. A second one for the same revision is not asked for, nor one for another boot than was judged.
func TestResetIsNoted(t *testing.T) {
	n := cluster.Node{Name: "wk-1"}
	earlier := cluster.Reset{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Revision: "main@sha1:1"}
	for name, c := range map[string]struct {
		boot     string // "" : that which was noted
		was      cluster.Reset
		repeated bool // at the same revision
		err      error
		dies     bool // the journal cannot be written
		asks     bool
		noted    bool
	}{
		"done":                         {asks: true, noted: true},
		"done at an earlier revision":  {was: earlier, asks: true, noted: true},
		"done already":                 {repeated: true, noted: true},
		"cut off":                      {err: context.Canceled, asks: true, noted: true},
		"no answer":                    {err: errors.New("EOF"), asks: true, noted: true},
		"not begun":                    {err: fmt.Errorf("reset: %w", cluster.ErrNotBegun), asks: true},
		"not begun, and it was before": {was: earlier, err: fmt.Errorf("reset: %w", cluster.ErrNotBegun), asks: true},
		"unwritten":                    {dies: true},
		"another boot":                 {boot: "later"},
	} {
		t.Run(name, func(t *testing.T) {
			s, r, files, d := newSteps(t)
			revision := d.Repository().Revision
			if c.repeated {
				c.was = cluster.Reset{At: earlier.At, Revision: revision}
			}
			boot := "boot"
			if err := r.c.Journal.Update(func(f *cluster.Facts) {
				f.Restarts[n.Name] = cluster.Restart{Target: "t", Boot: boot, Revision: revision, Reset: c.was}
			}); err != nil {
				t.Fatal(err)
			}
			if c.boot != "" {
				boot = c.boot
			}
			if c.dies {
				files.DieAt = files.Steps + 1
			}
			if c.err != nil {
				s.fails, s.why = "reset", c.err
			}
			asked := false
			s.after = func(what string) {
				asked = asked || what == "reset"
				if reset := r.c.Journal.Facts().Restarts[n.Name].Reset; reset.Revision != revision || reset.At.IsZero() {
					t.Errorf("noted before: %+v", reset)
				}
			}
			err := r.execute(t.Context(), d, action.ResetVM{Node: n, Boot: boot}, nil)
			if ok := c.asks && c.err == nil; (err == nil) != ok || asked != c.asks {
				t.Errorf("asked: %t, %v", asked, err)
			}
			reset := r.c.Journal.Facts().Restarts[n.Name].Reset
			if noted := reset.Revision == revision && !reset.At.IsZero(); noted != c.noted || !noted && reset != c.was {
				t.Errorf("noted: %+v", reset)
			}
		})
	}
}

// TestResetOutlivesAReboot: a node that is rebooted once more for the same has had its reset.
func TestResetOutlivesAReboot(t *testing.T) {
	for target, kept := range map[string]bool{"t": true, "other": false} {
		_, r, _, d := newSteps(t)
		n := d.Spec.Nodes[3]
		reset := cluster.Reset{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Revision: d.Repository().Revision}
		if err := r.c.Journal.Update(func(f *cluster.Facts) {
			f.Restarts[n.Name] = cluster.Restart{Target: "t", Boot: "boot", Reset: reset}
		}); err != nil {
			t.Fatal(err)
		}
		if err := r.execute(t.Context(), d, action.RebootNode{Node: n, Restart: cluster.Restart{Target: target, Boot: "later"}}, nil); err != nil {
			t.Fatal(err)
		}
		if got := r.c.Journal.Facts().Restarts[n.Name]; got.Boot != "later" || (got.Reset == reset) != kept {
			t.Errorf("rebooted for %s: %+v", target, got)
		}
	}
}
