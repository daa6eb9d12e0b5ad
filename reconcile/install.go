package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// Another Talos is installed once for each node, image and commit: what was asked for is made durable
// before, and how it ended after that.

// installTalos installs another Talos beside the one that a machine runs.
func (r *Reconciler) installTalos(ctx context.Context, d cluster.Desired, a action.InstallTalos, p Progress) error {
	if a.Node.Role == cluster.ControlPlane { // its reboot is what comes next
		if err := r.checkEtcd(ctx, d, a.Node, "upgraded", false, true); err != nil {
			return err
		}
	}
	in := cluster.Install{Image: a.Image, Boot: a.Boot, Revision: drift.Attempt(d, r.c.Journal.Facts()), At: time.Now().UTC(), From: a.From}
	takeBack, err := r.intendInstall(a.Node, &in)
	if err != nil {
		return err
	}
	return r.endInstall(a.Node, in, takeBack, r.c.Machines.InstallTalos(ctx, d, a.Node, a.Image, a.Boot, p))
}

// upgradeTalos has the machine of a drained node install another Talos on its way down.
func (r *Reconciler) upgradeTalos(ctx context.Context, d cluster.Desired, a action.UpgradeTalos, p Progress) error {
	before := r.c.Journal.Facts()
	if err := r.beginRestart(ctx, d, action.RebootNode{Node: a.Node, Restart: a.Restart, Fields: a.Fields, Into: a.Version}, p); err != nil {
		return err
	}
	in := cluster.Install{Image: a.Image, Boot: a.Restart.Boot, Revision: drift.Attempt(d, r.c.Journal.Facts()), At: time.Now().UTC(), From: a.From}
	takeBack, err := r.intendInstall(a.Node, &in)
	if err != nil {
		return err
	}
	err = r.c.Machines.UpgradeTalos(ctx, d, a.Node, a.Image, a.Restart.Boot, p)
	if isUntouched(err) { // it was not taken down for that
		err = r.restoreRestart(a.Node, before, err)
	}
	return r.endInstall(a.Node, in, takeBack, err)
}

// isUntouched reports whether an error of an installation means that the machine is as it was.
func isUntouched(err error) bool {
	return errors.Is(err, cluster.ErrNotBegun) || errors.Is(err, cluster.ErrSequenceRefused) || errors.As(err, new(*cluster.InstallError))
}

// intendInstall makes durable what is to be installed on the machine of a node, before it is. What it returns takes that back: what
// was noted before holds again.
func (r *Reconciler) intendInstall(n cluster.Node, in *cluster.Install) (takeBack func(*cluster.Facts), err error) {
	facts := r.c.Journal.Facts()
	was, noted := facts.Installs[n.Name]
	earlier, known := facts.Earlier[n.Name]
	in.Again = noted && in.Follows(was)
	takeBack = func(f *cluster.Facts) {
		if delete(f.Installs, n.Name); noted {
			f.Installs[n.Name] = was
		}
		if known {
			f.Earlier[n.Name] = earlier
		}
	}
	return takeBack, r.c.Journal.Update(func(f *cluster.Facts) {
		f.Installs[n.Name] = *in
		delete(f.Earlier, n.Name) // the installer writes the slot that has it
	})
}

// endInstall makes durable how an installation ended, as far as that is known: it is done, or has
// failed and is not tried again, or may be tried again, for it was not begun or has left nothing, so that it is taken back. It returns the
// error that it ended with.
func (r *Reconciler) endInstall(n cluster.Node, in cluster.Install, takeBack func(*cluster.Facts), err error) error {
	var failed *cluster.InstallError
	end := func(f *cluster.Facts) { f.Installs[n.Name] = in }
	switch {
	case err == nil:
		in.Done = true
	case errors.As(err, &failed) && !failed.MayPass():
		in.Failed = text.Sanitize(failed.Error(), mostWords)
	case isUntouched(err):
		end = func(f *cluster.Facts) {
			if takeBack(f); failed != nil {
				delete(f.Earlier, n.Name) // it ran, and may have written there
			}
		}
	default:
		return err // how it ended is seen when the machine has booted again
	}
	if unwritten := r.c.Journal.Update(end); unwritten != nil {
		return errors.Join(err, fmt.Errorf("the journal does not have how the installation ended: %w", unwritten))
	}
	return err
}
