package plan

import (
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/placement"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// maxRounds bounds a forecast. A bring-up takes about ten rounds, and addons add one each at worst; a turn takes
// five, and each round looks at every node.
func maxRounds(nodes int) int { return max(200, 60_000/max(1, nodes)) }

// Forecast runs the planner forward over the expected effects of its own
// actions, until nothing is left to do or only a person can go on. What it
// returns is everything that is going to happen, in order: one planner, no
// second opinion. What waits for approval is in it as if it were approved, and what waits
// for a window, a gate or a soak as if that were over, each with its wait. Under a policy that is not known it is what would
// happen if the rules of before were still those of the host, and blocked.
func Forecast(d cluster.Desired, o cluster.Observed, p cluster.Policy) cluster.Forecast {
	return runForward(d, o, p, maxRounds(len(d.Spec.Nodes)))
}

// runForward is Forecast of so many rounds at most.
func runForward(d cluster.Desired, o cluster.Observed, p cluster.Policy, rounds int) cluster.Forecast {
	d = placement.Resolve(d, o, p)
	f := cluster.Forecast{Cluster: d.Spec.Name, Revision: d.Revision, Problems: readiness.Warnings(d, o)}
	o = effect.Clone(o)
	o.Snapshots = cluster.EtcdSnapshots{} // they change nothing, and are due by the clock: a digest must not be
	// What is under way ends, what rests is tried again: neither is news here.
	for _, r := range o.Running {
		endRunning(&d, &o, r)
	}
	o.Running, o.Backoffs = nil, nil
	o.Facts.Drop(cluster.IntendWatch)
	o.Facts.Moved = nil

	own, hosts, gates, soak, jobs := d.Spec.Window, p.Window, o.Gates, d.Spec.Soak, o.Jobs
	d.Spec.Upgrade, p.Upgrade = bounds.UpgradeInOpenWindow(d.Spec, p) // which is not off because that is left out below
	_, fewer := bounds.MaxUnavailable(d.Spec, p)
	if f.Unapproved = awaitsApproval(decide(d, o, p)); f.Unapproved {
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendApproved, Revision: d.Repository().Revision, VMs: Deletions(d, o)})
	}
	var last Plan
	for round := 1; ; round++ {
		if round > rounds {
			f.Notes = append(f.Notes, fmt.Sprintf("this is not all: what comes after these %d steps is not worked out", len(f.Steps)))
			break
		}
		d.Spec.Window, p.Window, o.Gates, d.Spec.Soak, o.Jobs = own, hosts, gates, soak, jobs
		addOpenings(&f, d, o, p)
		d.Spec.Window, p.Window, o.Gates, d.Spec.Soak, soak, o.Jobs = window.Window{}, window.Window{}, upgrade.OpenGates(d), 0, 0, cluster.Seen[map[cluster.ObjectName]cluster.Job]{} // until when later ones soak is not known
		last = decide(d, o, p)
		if fewer != "" && len(f.Notes) == 0 && slices.ContainsFunc(last.Waiting, func(w cluster.Wait) bool { return w.Hint == fewer }) {
			f.Notes = append(f.Notes, fewer)
		}
		for _, a := range last.Actions {
			step := a.Info().Step()
			step.Round = round
			f.Steps = append(f.Steps, step)
			if form := step.Approvable(); form != "" && f.Unapproved {
				f.Changes = append(f.Changes, form)
			}
			if a, ok := a.(action.DeleteVM); ok && f.Unapproved { // what is kept is not approved either
				f.VMs = append(f.VMs, a.VM.VMID)
			}
			effect.Of(&d, &o, a)
		}
		if len(last.Actions) == 0 && !settleWorld(d, &o) {
			break
		}
	}
	f.Waiting, f.Blocked = append(f.Waiting, last.Waiting...), append(bounds.BlockUnknown(d.Spec.Name, p), last.Blocked...)
	upgrade.AddWay(&f, d, o)
	slices.Sort(f.VMs)
	if f.Unapproved = len(f.Changes) > 0; f.Unapproved { // else nothing that is known goes on when it is approved
		upgrade.KeepWay(&f, d)
	}
	f.Digest = action.DigestOf(f)
	return f
}

// addOpenings adds what would wait for a window, a gate or a soak now to a forecast, unless an earlier round has
// it: there may be several turns, and each waits by itself.
func addOpenings(f *cluster.Forecast, d cluster.Desired, o cluster.Observed, p cluster.Policy) {
	if d.Spec.Window.Zone == nil && p.Window.Zone == nil && len(d.Repository().Spec.Gates) == 0 && d.Spec.Soak == 0 {
		return
	}
	for _, w := range decide(d, o, p).Waiting {
		opens := w.Reason == cluster.WaitingForWindow || w.Reason == cluster.WaitingForGate || w.Reason == cluster.WaitingForSoak
		if opens && !slices.ContainsFunc(f.Waiting, func(other cluster.Wait) bool { return other.Key() == w.Key() }) {
			f.Waiting = append(f.Waiting, w)
		}
	}
}

// endRunning lets an action that is under way come to its end.
func endRunning(d *cluster.Desired, o *cluster.Observed, r cluster.Running) {
	n, stays := d.Spec.Node(r.Subject)
	leaves := !stays || drift.IsReplaced(n, o.VMs[n.Name], o.Facts) || r.Subject == lost.DeadNode(*d, *o) || lost.IsForgotten(*o, r.Subject)
	vm, _ := lost.VMOf(*d, *o, cluster.Node{Name: r.Subject})
	effect.OfRunning(d, o, r, leaves, vm)
}

// settleWorld lets the world do by itself what the plan waits for. It reports
// whether anything changed.
func settleWorld(d cluster.Desired, o *cluster.Observed) bool {
	changed := effect.Settle(d, o, quorum.WasSeen(*o))
	return leftover.Settle(d, o) || changed
}
