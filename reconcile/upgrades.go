package reconcile

import (
	"cmp"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// Upgrade lets the upgrade of the revision in force do what an administrator has ordered, besides what was ordered for
// it before. It is refused where there is no upgrade, where a switch holds it, and for a node that the
// inventory does not have (ErrUnknownNode).
func (r *Reconciler) Upgrade(order cluster.UpgradeOrder) error {
	v := r.view.Load()
	if v == nil {
		return fmt.Errorf("upgrade %s: %w", r.c.Cluster, ErrNoInventory)
	}
	for _, node := range order.Despite {
		if _, ok := v.desired.Spec.Node(node); !ok {
			return fmt.Errorf("upgrade %s despite %s: %w", r.c.Cluster, text.OneLine(node), ErrUnknownNode)
		}
	}
	asked := v.desired.Repository()
	switch {
	case v.stop != nil:
		return cluster.WithReason(v.stop.block.Reason, fault.Errorf(v.stop.block.Hint, "upgrade %s: the newest revision is not in force: %s", r.c.Cluster, v.stop.block.Message))
	case asked.NoWay != "" && !upgrade.IsUnderWay(v.desired, v.observed):
		return cluster.WithReason(cluster.TalosVersionDrift, fault.Errorf("`talos-agent status "+r.c.Cluster+"` shows at each node what can be asked for", "upgrade %s: there is no way: %s", r.c.Cluster, asked.NoWay))
	case !upgrade.IsUnderWay(v.desired, v.observed):
		return cluster.WithReason(cluster.NothingToDo, fault.Errorf("`talos-agent status "+r.c.Cluster+"` shows what they run; a push is known after `talos-agent reconcile`", "upgrade %s: there is nothing to upgrade", r.c.Cluster))
	case asked.Held != "":
		return cluster.WithReason(asked.Held, fault.Errorf(fmt.Sprintf("`talos-agent plan %s` shows what would be done; `talos-agent approve` approves it, where the switch is approve", r.c.Cluster), "upgrade %s: %s", r.c.Cluster, asked.HeldBy))
	}
	order.By = text.OneLine(order.By)
	return r.command("ordered the upgrade of "+asked.Revision.Short()+": "+order.String(), func(f *cluster.Facts) {
		at := drift.Attempt(asked, *f)
		if order.Now {
			upgrade.Retry(f, at)
		}
		f.Intend(cluster.Intent{Kind: cluster.IntendUpgrade, Revision: at, Order: f.UpgradeOrder(at).And(order), At: time.Now().UTC()})
	})
}

// CancelUpgrade withdraws what was ordered of the upgrade of the revision in force. What is under way ends.
func (r *Reconciler) CancelUpgrade(by string) error {
	in, ordered := r.c.Journal.Facts().Intent(cluster.IntendUpgrade)
	if !ordered {
		return cluster.WithReason(cluster.NothingToDo, fault.Errorf("`talos-agent upgrade "+r.c.Cluster+"` shows what holds it", "upgrade %s: there is no order to withdraw", r.c.Cluster))
	}
	return r.command(fmt.Sprintf("withdrew the order about the upgrade of %s, by order of %s", in.Revision.Short(), userOf(by)), func(f *cluster.Facts) {
		if now, _ := f.Intent(cluster.IntendUpgrade); now.Equal(in) { // and none that came meanwhile
			f.Drop(cluster.IntendUpgrade)
		}
	})
}

// userOf is who has commanded something.
func userOf(by string) string { return cmp.Or(text.OneLine(by), "root") }

// dropOrders takes the orders out of f that are for another revision, or whose upgrade or rollback has ended. refused is why a
// rollback is not carried out any more.
func (r *Reconciler) dropOrders(f *cluster.Facts, d cluster.Desired, o cluster.Observed) (refused cluster.Block) {
	in, ok := f.Intent(cluster.IntendUpgrade)
	if ok && (in.Revision != drift.Attempt(d, *f) || upgrade.IsEnded(d, o, r.memo.seenRunning.Ran)) {
		f.Drop(cluster.IntendUpgrade)
	}
	if in, ok = f.Intent(cluster.IntendRollback); ok {
		var ended bool
		o.Facts = *f
		in, ended, refused = upgrade.FollowRollback(d, o, in)
		if f.Intend(in); ended {
			f.Drop(cluster.IntendRollback)
		}
	}
	return refused
}
