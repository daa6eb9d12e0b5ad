package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/plan"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// What is asked of etcd right before one of its members goes away.

// forfeit has a member of etcd that leads give that up, so that the others do not wait for an
// election. Where it cannot, because Talos chooses one that is dead (Talos 1.13.9: seen), they
// wait, which is recorded; the quorum is a question of its own. It fails only when ctx ends.
func (r *Reconciler) forfeit(ctx context.Context, d cluster.Desired, n cluster.Node) error {
	if err := r.c.Machines.Forfeit(ctx, d, n); err != nil {
		r.log.Warn("a member of etcd goes away while it may lead", logging.Node, n.Name, logging.Err, err)
	}
	return context.Cause(ctx)
}

// removeMember removes a member from etcd. The quorum is looked at once more.
func (r *Reconciler) removeMember(ctx context.Context, d cluster.Desired, a action.RemoveMember) error {
	if a.Answers {
		if err := r.forfeit(ctx, d, a.Node); err != nil {
			return err
		}
	}
	if why := leftover.EtcdOf(d, r.askEtcd(ctx, d)).WithoutMember(a.Node.Name, a.Member.ID); why != "" {
		return fault.Errorf(fmt.Sprintf("`talos-agent status %s` shows what its control planes lack", r.c.Cluster), "the member of %s is not removed from etcd: %s", a.Node.Name, why)
	}
	if err := r.noteMemberLeaves(a.Node.Name); err != nil {
		return err
	}
	return r.c.Machines.RemoveMember(ctx, d, a.Node, a.Member)
}

// checkEtcd asks all members of etcd once more, right before one of them goes down, or may, and
// returns an error unless the others keep the quorum; or, where etcd is a pair, which never has one
// without the other, both work. For another Talos it may have no alarm either.
func (r *Reconciler) checkEtcd(ctx context.Context, d cluster.Desired, n cluster.Node, what string, ofPair, upgrades bool) error {
	o := r.askEtcd(ctx, d)
	why := plan.EtcdWithout(d, o, n.Name)
	if upgrades {
		why = cmp.Or(why, leftover.EtcdOf(d, o).Alarms())
	}
	if why != "" && !(ofPair && leftover.EtcdOf(d, o).IsPair()) {
		return fault.Errorf(fmt.Sprintf("`talos-agent status %s` shows what its control planes lack", r.c.Cluster), "%s is not %s: %s", n.Name, what, why)
	}
	return nil
}

// beginDeletion does what comes before the VM of a node that leaves is deleted: etcd is asked once
// more whether its member has left; and that its deletion is a removal is noted.
func (r *Reconciler) beginDeletion(ctx context.Context, d cluster.Desired, a action.DeleteVM) error {
	if a.Votes {
		if why := quorum.Keeps(r.askEtcd(ctx, d).Members, a.Node); why != "" {
			return fault.Errorf(fmt.Sprintf("`talos-agent status %s` shows what its control planes lack", r.c.Cluster), "the vm of %s is not deleted: %s", a.Node.Name, why)
		}
	}
	if a.Node.Name == "" {
		return nil
	}
	return r.noteRemoval(a.VM.VMID)
}

// noteRemoval makes durable that the removal of the node with a VM has begun.
func (r *Reconciler) noteRemoval(vmid int) error {
	if in, _ := r.c.Journal.Facts().Intent(cluster.IntendApproved); slices.Contains(in.VMs, vmid) {
		return nil
	}
	return r.c.Journal.Update(func(f *cluster.Facts) { f.BeginRemoval(vmid, time.Now()) })
}

// askEtcd asks all members of etcd who they are. A pass follows: what an observer shows here
// of machines it does not report to the loop once more.
func (r *Reconciler) askEtcd(ctx context.Context, d cluster.Desired) cluster.Observed {
	defer r.Look()
	ctx, cancel := context.WithTimeout(ctx, r.c.ObserveWithin)
	defer cancel()
	o := cluster.Observed{Now: time.Now(), Facts: r.c.Journal.Facts()}
	r.c.Machines.Forget(d.Spec.ID)
	r.c.Machines.Observe(ctx, d, &o)
	return o
}
