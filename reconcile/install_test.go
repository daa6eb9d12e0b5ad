package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// TestInstallIsNoted: what is to be installed is durable before it is asked for, and how it ended as far as
// that is known. What was not begun may be asked for again, and the node was not taken down for it.
func TestInstallIsNoted(t *testing.T) {
	const image = "factory.talos.dev/nocloud-installer/376567988ad3:v1.14.1"
	failed := &cluster.InstallError{Code: 7, Output: "no space left on device"}
	for name, c := range map[string]struct {
		err              error
		noted, done      bool
		failed, restarts bool
		dies             bool // the journal cannot be written afterwards
	}{
		"done":                 {noted: true, done: true, restarts: true},
		"done, unwritten":      {noted: true, dies: true, restarts: true},
		"the installer failed": {err: failed, noted: true, failed: true},
		"failed for now":       {err: &cluster.InstallError{Code: 5, Output: "the signature could not be fetched"}},
		"not begun":            {err: fmt.Errorf("install: %w", cluster.ErrNotBegun)},
		"refused":              {err: cluster.ErrSequenceRefused},
		"cut off":              {err: context.Canceled, noted: true, restarts: true},
		"no answer":            {err: errors.New("EOF"), noted: true, restarts: true},
	} {
		for _, do := range []action.Action{
			action.InstallTalos{Node: cluster.Node{Name: "wk-1"}, Image: image, Boot: "boot"},
			action.UpgradeTalos{Node: cluster.Node{Name: "wk-1"}, Image: image, Restart: cluster.Restart{Target: "t", Boot: "boot"}},
		} {
			t.Run(fmt.Sprintf("%s/%s", name, do.Info().Kind), func(t *testing.T) {
				s, r, files, d := newSteps(t)
				s.fails, s.why = string(do.Info().Kind), c.err
				if c.err == nil {
					s.fails = ""
				}
				must(r.c.Journal.Update(func(f *cluster.Facts) { f.Earlier["wk-1"] = "v1.13.8" }))
				s.after = func(what string) {
					if what != string(do.Info().Kind) {
						return
					}
					if _, kept := r.c.Journal.Facts().Earlier["wk-1"]; kept {
						t.Error("the slot that is written is known still")
					}
					if in := r.c.Journal.Facts().Installs["wk-1"]; in.Image != image || in.Boot != "boot" || in.Done || in.At.IsZero() {
						t.Errorf("noted before: %+v", in)
					}
					if c.dies {
						files.DieAt = files.Steps + 1
					}
				}
				err := r.execute(t.Context(), d, do, nil)
				if c.err != nil && !errors.Is(err, c.err) || (err != nil) != (c.err != nil || c.dies) {
					t.Errorf("%v, want %v", err, c.err)
				}
				facts := r.c.Journal.Facts()
				in, noted := facts.Installs["wk-1"]
				if noted != c.noted || in.Done != c.done || (in.Failed != "") != c.failed {
					t.Errorf("noted: %t, %+v", noted, in)
				}
				if _, kept := facts.Earlier["wk-1"]; kept != (errors.Is(c.err, cluster.ErrNotBegun) || errors.Is(c.err, cluster.ErrSequenceRefused)) {
					t.Errorf("what the other slot has is known: %t", kept)
				}
				if _, down := facts.Restarts["wk-1"]; do.Info().Kind == cluster.UpgradeTalos && down != c.restarts {
					t.Errorf("taken down: %t", down)
				}
			})
		}
	}
}

// TestInstallIsRepeatedOnce: what is asked for in another boot, since it is not known how it ended before, is noted as
// that. Where it is not begun what was noted before holds, and may be asked for again.
func TestInstallIsRepeatedOnce(t *testing.T) {
	const image = "factory.talos.dev/nocloud-installer/376567988ad3:v1.14.1"
	for name, c := range map[string]struct {
		was   cluster.Install
		err   error
		again bool
		boot  string // that is noted
	}{
		"another boot":     {was: cluster.Install{Image: image, Boot: "before"}, again: true, boot: "boot"},
		"not begun":        {was: cluster.Install{Image: image, Boot: "before"}, err: cluster.ErrNotBegun, boot: "before"},
		"its end was seen": {was: cluster.Install{Image: image, Boot: "before", Done: true}, boot: "boot"},
		"its failure was":  {was: cluster.Install{Image: image, Boot: "before", Failed: "exit code 7"}, boot: "boot"},
		"another image":    {was: cluster.Install{Image: "other", Boot: "before"}, boot: "boot"},
		"another commit":   {was: cluster.Install{Image: image, Boot: "before", Revision: "main@sha1:0"}, boot: "boot"},
		"no end once more": {was: cluster.Install{Image: image, Boot: "before"}, err: errors.New("EOF"), again: true, boot: "boot"},
		"in the same boot": {was: cluster.Install{Image: image, Boot: "boot"}, boot: "boot"},
	} {
		for _, do := range []action.Action{
			action.InstallTalos{Node: cluster.Node{Name: "wk-1"}, Image: image, Boot: "boot"},
			action.UpgradeTalos{Node: cluster.Node{Name: "wk-1"}, Image: image, Restart: cluster.Restart{Target: "t", Boot: "boot"}},
		} {
			t.Run(fmt.Sprintf("%s/%s", name, do.Info().Kind), func(t *testing.T) {
				s, r, _, d := newSteps(t)
				if c.was.Revision == "" {
					c.was.Revision = d.Repository().Revision
				}
				if err := r.c.Journal.Update(func(f *cluster.Facts) { f.Installs["wk-1"] = c.was }); err != nil {
					t.Fatal(err)
				}
				if s.why = c.err; c.err != nil {
					s.fails = string(do.Info().Kind)
				}
				if err := r.execute(t.Context(), d, do, nil); !errors.Is(err, c.err) {
					t.Errorf("%v, want %v", err, c.err)
				}
				if in := r.c.Journal.Facts().Installs["wk-1"]; in.Again != c.again || in.Boot != c.boot {
					t.Errorf("noted: %+v", in)
				}
			})
		}
	}
}
