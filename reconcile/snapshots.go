package reconcile

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/plan"
)

// isChanging reports whether something is done to the cluster, or begins. A snapshot of etcd
// changes nothing of it, and every few hours one is due: a cluster is Ready meanwhile.
func isChanging(o cluster.Observed, p plan.Plan) bool {
	return slices.ContainsFunc(p.Actions, func(a action.Action) bool { return a.Info().Kind != cluster.TakeSnapshot }) ||
		slices.ContainsFunc(o.Running, func(r cluster.Running) bool { return r.Kind != cluster.TakeSnapshot })
}

// statusOfSnapshots is what there is of snapshots of etcd; nil where this host takes none.
func statusOfSnapshots(name string, o cluster.Observed) *cluster.SnapshotStatus {
	seen := o.Snapshots
	if !seen.Enabled {
		return nil
	}
	s := &cluster.SnapshotStatus{Verified: seen.Verified.Value, Newest: seen.Newest, Due: seen.Due, Kept: seen.Kept, Damaged: seen.Damaged, Bytes: seen.Bytes, Requested: seen.Requested, Error: text.OneLine(seen.Verified.Why)}
	for _, b := range o.Backoffs {
		if b.Kind == cluster.TakeSnapshot && b.Subject == name {
			s.Error = text.OneLine(b.Error)
		}
	}
	return s
}

// RequestSnapshot has a snapshot of etcd taken now. It returns when that is decided; Status shows the rest.
func (r *Reconciler) RequestSnapshot() error {
	switch facts := r.c.Journal.Facts(); {
	case r.c.Snapshots == nil:
		return cluster.WithReason(cluster.NoSnapshots, fault.Errorf("remove `snapshots: {disabled: true}` from config.yaml of the host", "this host takes no snapshots of etcd"))
	case facts.Suspended() || facts.Destroying():
		return cluster.WithReason(cluster.NoSnapshots, fault.Errorf("`talos-agent resume "+r.c.Cluster+"`; or take one with `talosctl etcd snapshot`, and `talos-agent snapshot add`", "no snapshot of etcd is taken of a cluster that is suspended"))
	}
	r.c.Snapshots.Request()
	r.exec.endBackoffs()
	return r.command("asked for a snapshot of etcd", func(*cluster.Facts) {})
}

// applyRequest is the status of snapshots from before one was asked for, in the light of that.
func (r *Reconciler) applyRequest(s *cluster.SnapshotStatus) *cluster.SnapshotStatus {
	if s == nil || r.c.Snapshots == nil || !r.c.Snapshots.Requested() {
		return s
	}
	requested := *s
	requested.Requested, requested.Error = true, ""
	return &requested
}
