package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// InForce returns what should be and what is, as of the last pass, where there is
// anything in force.
func (r *Reconciler) InForce() (cluster.Desired, cluster.Observed, error) {
	v := r.view.Load()
	switch {
	case v == nil:
		return cluster.Desired{}, cluster.Observed{}, ErrNoInventory
	case v.stop != nil && !v.inForce:
		b := v.stop.block
		return cluster.Desired{}, cluster.Observed{}, cluster.WithReason(b.Reason, fault.WithHint(fmt.Errorf("nothing is in force of cluster %s: %s", r.c.Cluster, b.Message), b.Hint))
	}
	return v.desired, v.observed, nil
}

// LookNow returns the same, with every VM looked at now. All else that is observed is
// watched, and as new as the last pass. Where somebody changed a VM since that pass, the next
// one begins.
func (r *Reconciler) LookNow(ctx context.Context) (cluster.Desired, cluster.Observed, error) {
	d, o, err := r.InForce()
	if err != nil {
		return d, o, err
	}
	r.previews.Lock()
	defer r.previews.Unlock()
	o.Now, o.Facts = time.Now(), r.c.Journal.Facts()
	r.forgetHost()
	ctx, cancel := context.WithTimeout(ctx, r.c.ObserveWithin)
	defer cancel()
	before := o.VMs
	r.c.Host.Observe(ctx, d, &o)
	for name, vm := range o.VMs {
		if vm.ChangedAfter != before[name].ChangedAfter {
			r.Look()
			break
		}
	}
	return d, o, nil
}

// forgetHost has the next look at the host rest on nothing that is remembered of it.
func (r *Reconciler) forgetHost() {
	if f, ok := r.c.Host.(Forgetter); ok {
		f.Forget(r.c.ID)
	}
}
