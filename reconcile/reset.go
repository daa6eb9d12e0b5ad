package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// resetVM resets the VM of a node whose machine does not come back from the reboot of its upgrade. That is made
// durable before it is asked for, and taken back only where it is known not to have been begun: an agent that ends
// meanwhile does not reset it a second time.
func (r *Reconciler) resetVM(ctx context.Context, d cluster.Desired, a action.ResetVM, p Progress) error {
	facts := r.c.Journal.Facts()
	was, revision := facts.Restarts[a.Node.Name], drift.Attempt(d, facts)
	if was.Boot != a.Boot || was.Reset.Revision == revision {
		return errors.New("it was reset, or rebooted once more, meanwhile")
	}
	set := func(reset cluster.Reset) error {
		return r.c.Journal.Update(func(f *cluster.Facts) {
			restart := f.Restarts[a.Node.Name]
			restart.Reset = reset
			f.Restarts[a.Node.Name] = restart
		})
	}
	if err := set(cluster.Reset{At: time.Now().UTC(), Revision: revision}); err != nil {
		return err
	}
	err := r.c.VMs.Reset(ctx, d, a.Node, p)
	if !errors.Is(err, cluster.ErrNotBegun) {
		return err
	}
	if unwritten := set(was.Reset); unwritten != nil {
		return errors.Join(err, fmt.Errorf("the journal has it as done: %w", unwritten))
	}
	return err
}
