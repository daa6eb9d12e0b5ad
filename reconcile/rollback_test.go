package reconcile

import (
	"errors"
	"fmt"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// TestRollbackIsNoted: before a machine is asked to go back it is noted that it was and does not go forth again; where it refuses, what
// was noted before holds.
func TestRollbackIsNoted(t *testing.T) {
	do := action.RollBackTalos{Node: cluster.Node{Name: "wk-1"}, Image: "i", Restart: cluster.Restart{Target: "t", Boot: "boot"}}
	for name, c := range map[string]struct {
		err   error
		was   *cluster.Install
		noted string // why it does not get the image
		order bool   // it is still commanded
		down  bool
	}{
		"done":                         {noted: "by order of ann", order: true, down: true},
		"no answer":                    {err: errors.New("EOF"), noted: "by order of ann", order: true, down: true},
		"refused":                      {err: fmt.Errorf("%w: %w", cluster.ErrNotBegun, cluster.ErrNoWayBack)},
		"not asked":                    {err: cluster.ErrNotBegun, order: true},
		"not asked, and failed before": {err: cluster.ErrNotBegun, was: &cluster.Install{Image: "i", Failed: "code 7"}, noted: "code 7", order: true},
		"done, and something was else": {was: &cluster.Install{Image: "o", Done: true}, noted: "by order of ann", order: true, down: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, r, _, d := newSteps(t)
			err := r.c.Journal.Update(func(f *cluster.Facts) {
				f.Intend(cluster.Intent{Kind: cluster.IntendRollback, Node: "wk-1", Target: "boot", By: "ann", Versions: cluster.Versions{Talos: "v1.13.9"}})
				f.Earlier["wk-1"] = "v1.13.9"
				if c.was != nil {
					f.Installs["wk-1"] = *c.was
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if s.why = c.err; c.err != nil {
				s.fails = string(cluster.RollBackTalos)
			}
			s.after = func(what string) {
				in, _ := r.c.Journal.Facts().Intent(cluster.IntendRollback)
				if back := r.c.Journal.Facts().Installs["wk-1"]; what == string(cluster.RollBackTalos) && (!in.Done || !back.Back || back.Failed == "" || back.Boot != "boot") {
					t.Errorf("noted before: %+v %+v", in, back)
				}
			}
			if err := r.execute(t.Context(), d, do, nil); !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			facts := r.c.Journal.Facts()
			in, order := facts.Intent(cluster.IntendRollback)
			if order && in.Done == errors.Is(c.err, cluster.ErrNotBegun) {
				t.Errorf("asked: %t", in.Done)
			}
			if _, down := facts.Restarts["wk-1"]; order != c.order || down != c.down || facts.Installs["wk-1"].Failed != c.noted {
				t.Errorf("commanded: %t, taken down: %t, noted: %+v", order, down, facts.Installs["wk-1"])
			}
		})
	}
}
