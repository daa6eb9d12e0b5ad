package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/plan"
)

// ForecastForget is what Forget of a node leads to: the steps, and in the notes what that
// means. It is refused as Forget is.
func (r *Reconciler) ForecastForget(node string) (cluster.Forecast, error) {
	v := r.view.Load()
	if v == nil {
		return cluster.Forecast{}, fmt.Errorf("forget %s: %w", node, ErrNoInventory)
	}
	n, ok := findNode(v, node)
	if !ok {
		return cluster.Forecast{}, fmt.Errorf("forget %s: %w", node, ErrUnknownNode)
	}
	o := v.observed
	o.Now, o.Facts = time.Now(), r.c.Journal.Facts()
	o.Running, o.Backoffs = r.exec.snapshot()
	if b := lost.RefuseForget(v.desired, o, n); b.Reason != "" {
		return cluster.Forecast{}, cluster.WithReason(b.Reason, fault.WithHint(fmt.Errorf("forget %s: %s", node, b.Message), b.Hint))
	}
	notes := lost.ConsequencesOfForget(v.desired, o, n)
	unfenced := lost.ForgetsUnfenced(v.desired, o, n)
	o.Facts.Forget(cluster.Forgotten{Node: node, At: o.Now.UTC(), Unfenced: unfenced})
	f := plan.Forecast(v.desired, o, r.c.Policy())
	f.Notes, f.Unfenced = append(notes, f.Notes...), unfenced
	if i := slices.IndexFunc(f.Blocked, func(b cluster.Block) bool { return b.Subject == node }); i >= 0 && !slices.ContainsFunc(f.Steps, func(s cluster.Step) bool { return s.Subject == node }) {
		b := f.Blocked[i]
		return cluster.Forecast{}, cluster.WithReason(b.Reason, fault.WithHint(fmt.Errorf("forget %s: %s", node, b.Message), b.Hint))
	}
	return f, nil
}

// ErrUnknownNode is returned for a node that the cluster does not have.
var ErrUnknownNode = errors.New("the cluster has no such node, nor one that is being removed")

// findNode is a node of the inventory, or one that is being removed.
func findNode(v *view, name string) (cluster.Node, bool) {
	if n, ok := v.desired.Spec.Node(name); ok {
		return n, true
	}
	removed := leftover.RemovedNodes(v.desired, v.observed)
	if i := slices.IndexFunc(removed, func(n cluster.Node) bool { return n.Name == name }); i >= 0 {
		return removed[i], true
	}
	return cluster.Node{}, false
}

// Forget takes the machine of a node for lost, by an admin command: it does not come back. What
// it has left in etcd and in Kubernetes is removed, its VM is deleted when that is
// possible, and a node of the inventory gets a new one. A machine that answers, one whose
// state is not known, and a member without which etcd could not go on are refused.
//
// unfenced: whoever confirmed it was shown that its VM cannot be deleted yet. Without that
// it is refused when this is so by now.
func (r *Reconciler) Forget(node string, unfenced bool) error {
	f, err := r.ForecastForget(node)
	switch {
	case err != nil:
		return err
	case f.Unfenced && !unfenced:
		return cluster.WithReason(cluster.NotConfirmed, fault.Errorf("look at what it means again, and confirm that", "forget %s: its vm cannot be seen any more", node))
	}
	r.exec.endBackoffs()
	return r.command("took the machine of "+node+" for lost", func(facts *cluster.Facts) {
		word := cluster.Forgotten{Node: node, At: time.Now().UTC(), Unfenced: f.Unfenced}
		for _, before := range facts.Forgotten {
			word.Left = word.Left || before.Node == node && before.Left
		}
		facts.Forget(word)
	})
}

// noteMemberLeaves writes down that the member of a machine that is taken for lost leaves
// etcd, before it does: whatever comes afterwards, that machine cannot join again.
func (r *Reconciler) noteMemberLeaves(node string) error {
	is := func(n cluster.Forgotten) bool { return n.Node == node }
	if !slices.ContainsFunc(r.c.Journal.Facts().Forgotten, is) {
		return nil
	}
	return r.c.Journal.Update(func(f *cluster.Facts) {
		if i := slices.IndexFunc(f.Forgotten, is); i >= 0 {
			word := f.Forgotten[i]
			word.Left = true
			f.Forget(word)
		}
	})
}
