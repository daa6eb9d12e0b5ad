package reconcile

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/journal"
)

// Run makes passes until ctx ends. Errors never leave it: they are reported in the
// status and tried again. When ctx ends no new action begins, those in flight
// have the grace, and Run returns when all have ended.
func (r *Reconciler) Run(ctx context.Context) {
	r.exec.run = ctx
	r.exec.ctx, r.exec.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer r.noteLooked()
	defer r.exec.stop(r.c.Grace)
	timer := time.NewTimer(0)
	defer timer.Stop()
	last, busy := time.Time{}, time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.trigger:
		case <-r.exec.wake:
		}
		// Many things change at once while a cluster comes up; one look sees
		// them all.
		pause := gap
		if busy > bustle {
			pause = crowded
		}
		if pause -= time.Since(last); pause > 0 {
			if retry.Sleep(ctx, pause) != nil {
				return
			}
		}
		r.clearWakes()
		began := time.Now()
		r.guardPass(ctx)
		if ctx.Err() != nil {
			return
		}
		if r.memo.ended && r.c.EndRemoved {
			discarded, err := r.c.Journal.Discard()
			if err != nil {
				r.log.Warn("cannot remove the journal of a cluster of which nothing is left", logging.Err, err, logging.Hint, journal.RecordsHint(err))
			}
			r.log.Info("the cluster is no longer in the repository, and nothing of it is left; it is forgotten")
			r.c.OnForgotten(discarded)
			return
		}
		now := time.Now()
		r.c.OnPass(now.Sub(began))
		busy = max(0, busy+crowded-now.Sub(last))
		last = now
		d := r.delay(last)
		s := *r.status.Load()
		s.NextPass = last.Add(d)
		r.status.Store(&s)
		r.c.OnStatus(r.exec.addRunning(s))
		if !timer.Stop() {
			select {
			case <-timer.C:
			default:
			}
		}
		timer.Reset(d)
	}
}

// clearWakes drops what has woken the loop by now: the pass that begins looks at all of it.
func (r *Reconciler) clearWakes() {
	for _, slot := range []<-chan struct{}{r.trigger, r.exec.wake} {
		select {
		case <-slot:
		default:
		}
	}
}

// guardPass makes a pass. What panics in it is reported like everything that keeps
// the agent from seeing, and tried again: the daemon has other clusters too.
func (r *Reconciler) guardPass(ctx context.Context) {
	began := time.Now()
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err := fault.Internal(v)
		what := err.Error()
		if r.memo.panicked != what {
			r.memo.panicked = what
			r.log.Error("a pass panicked", logging.Err, what, logging.Stack, string(debug.Stack()))
		}
		r.publish(began, cluster.Status{Cluster: r.c.Cluster, Revision: r.memo.seen, Applied: r.c.Journal.Facts().Applied,
			Suspended: r.c.Journal.Facts().Suspended(), Condition: cluster.Unknown, Reason: cluster.InternalError, Message: what, Hint: fault.HintOf(err)}, what)
	}()
	r.pass(ctx)
	r.memo.panicked = ""
}

// gap is the least time between two passes. It becomes crowded when passes
// have followed each other faster than that for so long that they are bustle
// ahead: no cluster takes so many to come up, but a machine that never comes to
// rest must not have Proxmox VE asked fifty times a second.
const (
	gap     = 20 * time.Millisecond
	crowded = 200 * time.Millisecond
	bustle  = 5 * time.Minute
)

// The bounds of delay.
const (
	shortest = time.Second
	longest  = 10 * time.Second
)

// delay is how long to pause before looking again unasked. Machines, Kubernetes and our own
// actions report what changes, and a pass begins at once; the pause is for what nothing
// reports, such as a VM that somebody stops, or an API that becomes ready. What is waited for is looked at again after a tenth of
// the time it has taken so far, so that looking too late never costs more than that share; a
// quiet cluster is looked at every interval, and again soon while the status has a node as it was before.
func (r *Reconciler) delay(now time.Time) time.Duration {
	s := r.status.Load()
	most := r.c.Interval
	if len(r.memo.passing) > 0 {
		most = min(most, passingWithin)
	}
	switch s.Condition {
	case cluster.Ready, cluster.Suspended:
		return most
	case cluster.Stalled:
	default:
		most = min(most, longest)
	}
	return min(max(now.Sub(r.memo.changed)/10, shortest), most)
}
