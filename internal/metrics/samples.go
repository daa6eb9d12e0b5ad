package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// What the labels can be. All are reported, with 0 for those that are not so: a
// series that comes and goes is hard to alert on.
var (
	conditions = []cluster.Condition{cluster.Ready, cluster.Reconciling, cluster.Stalled, cluster.Suspended, cluster.Unknown}
	phases     = []cluster.Phase{cluster.PhaseUnknown, cluster.PhaseAbsent, cluster.PhaseForeign, cluster.PhaseLocked, cluster.PhasePaused, cluster.PhaseCreating, cluster.PhaseStopped,
		cluster.PhaseBooting, cluster.PhaseMaintenance, cluster.PhaseJoining, cluster.PhaseReady, cluster.PhaseLeaving, cluster.PhaseUnreachable}
	// A release can be in more states than these, all of them short: "other".
	states     = []string{"unknown", "absent", "installing", "deployed", "ready", "failed", "other"}
	severities = []cluster.Severity{cluster.Error, cluster.Warning, cluster.Note}
)

// listSamples returns the last state of a cluster in numbers. Pure.
func listSamples(w seen) []prometheus.Metric {
	s := w.status
	name := s.Cluster
	out := []prometheus.Metric{
		conditionSince.sample(unixSeconds(s.Since), name),
		suspended.sample(boolNumber(s.Suspended), name),
		inForce.sample(boolNumber(s.Revision != "" && s.Revision == s.Applied), name),
		lastPass.sample(unixSeconds(w.at), name),
		nextPass.sample(unixSeconds(s.NextPass), name),
		drift.sample(countIf(s.Running, func(r cluster.RunningStatus) bool { return r.Action != cluster.TakeSnapshot }), name, "action"),
		drift.sample(float64(len(s.Waiting)), name, "wait"),
		drift.sample(float64(len(s.Blocked)), name, "block"),
		reason.sample(1, name, string(s.Reason)),
	}
	if !w.ready.IsZero() {
		out = append(out, lastReady.sample(unixSeconds(w.ready), name))
	}
	for _, c := range conditions {
		out = append(out, condition.sample(boolNumber(c == s.Condition), name, string(c)))
	}
	if s.Snapshots != nil {
		out = append(out, snapshotsKept.sample(float64(s.Snapshots.Kept), name), snapshotsDamaged.sample(float64(s.Snapshots.Damaged), name), snapshotBytes.sample(float64(s.Snapshots.Bytes), name), snapshotFails.sample(boolNumber(s.Snapshots.Error != ""), name))
		for f, at := range map[*Family]time.Time{&snapshotNewest: s.Snapshots.Newest, &snapshotVerified: s.Snapshots.Verified, &snapshotDue: s.Snapshots.Due} {
			if !at.IsZero() {
				out = append(out, f.sample(unixSeconds(at), name))
			}
		}
	}
	out = append(out, listUpgrade(name, s.Upgrade)...)
	late, oldest := 0, time.Time{}
	for _, wait := range s.Waiting {
		if wait.Overdue {
			late++
		}
		if oldest.IsZero() || wait.Since.Before(oldest) {
			oldest = wait.Since
		}
	}
	// There are dozens of reasons, and a cluster has a few at a time: those that it
	// has not are left out.
	out = append(out, byReason(waits, name, s.Waiting, func(w cluster.WaitStatus) cluster.Reason { return w.Reason })...)
	out = append(out, byReason(blocks, name, s.Blocked, func(b cluster.Block) cluster.Reason { return b.Reason })...)
	out = append(out, overdue.sample(float64(late), name))
	if !oldest.IsZero() {
		out = append(out, oldestWait.sample(unixSeconds(oldest), name))
	}
	for _, p := range phases {
		n := countIf(s.Nodes, func(n cluster.NodeStatus) bool { return n.Phase == p })
		out = append(out, nodes.sample(n, name, string(p)))
	}
	for _, state := range states {
		n := countIf(s.Addons, func(a cluster.AddonStatus) bool {
			return a.State == state || state == "other" && !slices.Contains(states, a.State)
		})
		out = append(out, addons.sample(n, name, state))
	}
	for _, severity := range severities {
		n := countIf(s.Problems, func(p cluster.Problem) bool { return cmp.Or(p.Severity, cluster.Error) == severity })
		out = append(out, problems.sample(n, name, string(severity)))
	}
	return out
}

// byReason counts values by their reason.
func byReason[T any](f Family, name string, all []T, of func(T) cluster.Reason) []prometheus.Metric {
	counts := map[cluster.Reason]int{}
	for _, v := range all {
		counts[of(v)]++
	}
	var out []prometheus.Metric
	for r, n := range counts {
		out = append(out, f.sample(float64(n), name, string(r)))
	}
	return out
}

func countIf[T any](all []T, is func(T) bool) float64 {
	n := 0
	for _, v := range all {
		if is(v) {
			n++
		}
	}
	return float64(n)
}

func boolNumber(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// unixSeconds returns a time as Prometheus writes it: seconds since 1970.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// listUpgrade returns how far an upgrade has come in numbers.
func listUpgrade(name string, u *cluster.UpgradeStatus) []prometheus.Metric {
	if u == nil {
		return []prometheus.Metric{upgradeHops.sample(0, name)}
	}
	out := []prometheus.Metric{upgradeHops.sample(float64(len(u.Hops)), name)}
	if !u.StuckSince.IsZero() {
		out = append(out, upgradeStuck.sample(unixSeconds(u.StuckSince), name))
	}
	return out
}
