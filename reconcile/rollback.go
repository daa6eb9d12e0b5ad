package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// RollBack has the machine of a node boot the Talos that it ran before, by the command of a user, until another commit
// comes. It is refused where that is not known, or the machine could not run it, for a node that the inventory
// does not have (ErrUnknownNode), and while another node is rolled back.
func (r *Reconciler) RollBack(node, by string) error {
	v := r.view.Load()
	if v == nil {
		return fmt.Errorf("roll back %s: %w", text.OneLine(node), ErrNoInventory)
	}
	n, ok := v.desired.Spec.Node(node)
	if !ok {
		return fmt.Errorf("roll back %s: %w", text.OneLine(node), ErrUnknownNode)
	}
	o := v.observed
	o.Facts = r.c.Journal.Facts()
	in, refused := upgrade.JudgeRollback(v.desired, o, n)
	if refused.Reason != "" {
		return cluster.WithReason(refused.Reason, fault.Errorf(refused.Hint, "roll back %s: %s", node, refused.Message))
	}
	in.At, in.By = time.Now().UTC(), userOf(by)
	return r.carryOut(fmt.Sprintf("ordered that %s goes back to Talos %s, by order of %s", node, in.Versions.Talos, in.By), true, func(f *cluster.Facts) { f.Intend(in) })
}

// CancelRollback withdraws the command that a node is rolled back. It is refused where there is none, for a node that the
// inventory does not have (ErrUnknownNode), and when its machine was asked, or is being asked.
func (r *Reconciler) CancelRollback(node, by string) error {
	if v := r.view.Load(); v != nil {
		if _, ok := v.desired.Spec.Node(node); !ok {
			return fmt.Errorf("withdraw the rollback of %s: %w", text.OneLine(node), ErrUnknownNode)
		}
	}
	refused := r.refuseCancel(node)
	if refused != nil {
		return refused
	}
	err := r.command(fmt.Sprintf("withdrew the rollback of %s, by order of %s", node, userOf(by)), func(f *cluster.Facts) {
		if in, _ := f.Intent(cluster.IntendRollback); in.Node == node && !in.Done {
			f.Drop(cluster.IntendRollback)
		}
	})
	if _, left := r.c.Journal.Facts().Intent(cluster.IntendRollback); left && err == nil { // it was asked meanwhile
		err = r.refuseCancel(node)
	}
	return err
}

// refuseCancel is why the command that a node is rolled back cannot be withdrawn; nil: it can.
func (r *Reconciler) refuseCancel(node string) error {
	switch in, ordered := r.c.Journal.Facts().Intent(cluster.IntendRollback); {
	case !ordered || in.Node != node:
		return cluster.WithReason(cluster.NothingToDo, fault.Errorf("`talos-agent status "+r.c.Cluster+"` shows what is done", "withdraw the rollback of %s: there is no order to withdraw", node))
	case in.Done:
		return cluster.WithReason(cluster.RolledBack, fault.Errorf("a commit that changes the cluster's files has it upgraded again", "withdraw the rollback of %s: its machine was asked to go back already", node))
	}
	return nil
}

// rollBackTalos has the machine of a drained node boot the Talos that it ran before. That it went back is made durable before
// it is asked, and so is that it was asked: it is asked once. Where it is not, nothing of that holds, and where it refuses the
// command has ended.
func (r *Reconciler) rollBackTalos(ctx context.Context, d cluster.Desired, a action.RollBackTalos, p Progress) error {
	name, begun := a.Node.Name, r.c.Journal.Facts()
	err := r.beginRestart(ctx, d, action.RebootNode{Node: a.Node, Restart: a.Restart, Config: a.Config, Fields: a.Fields, Undrained: a.Undrained}, p)
	if err != nil {
		return err
	}
	before := r.c.Journal.Facts()
	was, noted := before.Installs[name]
	in, _ := before.Intent(cluster.IntendRollback)
	switch {
	case in.Node != name || in.Target != a.Restart.Boot || in.Done:
		err = errors.New("no command has it go back in this boot any longer")
	case before.Earlier[name] != in.Versions.Talos:
		err = errors.New("another Talos was installed on it since")
	default:
		withdrawn := false
		err = r.c.Journal.Update(func(f *cluster.Facts) {
			if now, _ := f.Intent(cluster.IntendRollback); !now.Equal(in) {
				withdrawn = true
				return
			}
			f.Installs[name] = cluster.Install{Image: a.Image, Boot: a.Restart.Boot, Revision: drift.Attempt(d, *f), At: time.Now().UTC(), Back: true, Failed: "by order of " + in.By}
			asked := in
			asked.Done = true
			f.Intend(asked)
		})
		if err == nil && withdrawn {
			err = errors.New("the command was withdrawn, or is for another boot")
		}
	}
	if err != nil {
		return r.restoreRestart(a.Node, begun, err)
	}
	err = r.c.Machines.RollBackTalos(ctx, d, a.Node, a.Restart.Boot, p)
	if !errors.Is(err, cluster.ErrNotBegun) {
		return err // what it runs is seen when it has booted
	}
	failed := r.c.Journal.Update(func(f *cluster.Facts) {
		if f.Intend(in); errors.Is(err, cluster.ErrNoWayBack) {
			f.Drop(cluster.IntendRollback)
		}
		if delete(f.Installs, name); noted {
			f.Installs[name] = was
		}
	})
	return errors.Join(r.restoreRestart(a.Node, begun, err), failed)
}
