package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/journal"
)

// Which revision is in force: the newest one, or the last good one while that is none.

// readSource takes what the source found last. A source that does not answer leaves
// the last good snapshot in force.
func (r *Reconciler) readSource(ctx context.Context) {
	m := &r.memo
	f, err := r.c.Source.Fetch(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		// Some servers word it differently each time; another hint is news.
		if m.fetchErr == nil || fault.HintOf(m.fetchErr) != fault.HintOf(err) {
			r.log.Warn("cannot fetch the repository", logging.Err, err, logging.Hint, fault.HintOf(err))
		}
		m.fetchErr = err
		return
	}
	accepted := m.refused != nil && m.refused.revision == r.c.Journal.Facts().Applied
	if f.At.Equal(m.fetched) && !accepted {
		return // it was judged before
	}
	if m.fetchErr != nil {
		r.log.Info("the repository answers again")
	}
	m.fetchErr, m.fetched, m.recalled, m.recalls = nil, f.At.UTC(), "", time.Time{}
	if f.Revision != m.seen {
		r.log.Info("saw a new revision", logging.Revision, f.Revision.Short())
		r.exec.endBackoffs()
		m.seen = f.Revision
	}
	m.subject = f.Subject
	m.problems, m.fixedReason, m.removed = f.Problems, "", f.Removed
	if f.Problems.HasErrors() {
		r.logProblems(f)
		return
	}
	r.admitSnapshot(ctx, f)
}

// admitSnapshot puts a valid snapshot in force, unless its revision does not descend
// from the last applied one: history that was rewritten, or a replay.
func (r *Reconciler) admitSnapshot(ctx context.Context, f Fetched) {
	m := &r.memo
	applied := r.c.Journal.Facts().Applied
	if applied != "" && applied != f.Revision && applied.Commit() != "" {
		ok, err := r.c.Source.Descends(ctx, f.Revision, applied)
		if err != nil {
			m.fetchErr = err
			r.log.Warn("cannot check whether the new revision descends from the applied one", logging.Err, err)
			// What is in force is not this revision, and must not be reported as it.
			m.refused = &refusal{revision: f.Revision, block: cluster.Block{Subject: r.c.Cluster, Hint: fault.HintOf(err),
				Reason: cluster.HistoryUnknown, About: f.Revision.Short(), Message: fmt.Sprintf("cannot tell whether %s descends from %s, which was applied last: %s", f.Revision.Short(), applied.Short(), text.OneLine(err.Error()))}}
			return
		}
		if !ok {
			if m.refused == nil || m.refused.revision != f.Revision {
				r.log.Warn("refuse a revision that does not descend from the applied one", logging.Revision, f.Revision.Short(), logging.Applied, applied.Short())
			}
			m.refused = &refusal{revision: f.Revision, history: true, block: cluster.Block{Subject: r.c.Cluster,
				Reason: cluster.HistoryRewritten, About: f.Revision.Short(), Message: fmt.Sprintf("%s does not descend from %s, which was applied last: the branch was force-pushed or rolled back", f.Revision.Short(), applied.Short()),
				Hint: fmt.Sprintf("if that was meant: `talos-agent accept %s`; otherwise restore the branch", r.c.Cluster)}}
			m.shown = &f
			return
		}
	}
	m.refused = nil
	r.keepApproval(ctx, f)
	m.last = &f
}

// keepApproval has an approval hold for a revision that is new, where that asks for the same as the one
// in force whose changes were approved: the plan is the one that was shown. Where that cannot be
// compared the changes wait for another approval.
func (r *Reconciler) keepApproval(ctx context.Context, f Fetched) {
	facts, before := r.c.Journal.Facts(), r.memo.last
	in, _ := facts.Intent(cluster.IntendApproved)
	if in.Revision == "" || in.Revision != facts.Applied || in.Revision == f.Revision {
		return
	}
	if before == nil || before.Revision != in.Revision { // the agent was started since
		was, err := r.c.Source.At(ctx, in.Revision)
		if err != nil {
			r.log.Warn("cannot read the revision that was approved, to compare the new one with it", logging.Revision, in.Revision.Short(), logging.Err, err)
			return
		}
		before = &was
	}
	if !asksSame(before.Snapshot, f.Snapshot) {
		return
	}
	err := r.c.Journal.Update(func(facts *cluster.Facts) {
		if now, _ := facts.Intent(cluster.IntendApproved); now.Revision == in.Revision { // another may have come since
			now.Revision = f.Revision
			facts.Intend(now)
		}
	})
	if err != nil {
		r.log.Error("cannot write that an approval holds for a revision that asks for the same", logging.Revision, f.Revision.Short(), logging.Err, err, logging.Hint, journal.RecordsHint(err))
		return
	}
	r.log.Info("the approval holds: the new revision asks for the same", logging.Revision, f.Revision.Short())
}

// asksSame reports whether two snapshots ask for the same of a cluster, and of nothing else: a patch
// whose lines have moved counts as another one.
func asksSame(a, b cluster.Snapshot) bool {
	return reflect.DeepEqual(a.Spec, b.Spec) && a.Bundle.Equal(b.Bundle)
}

func (r *Reconciler) logProblems(f Fetched) {
	if r.memo.problems != nil && r.status.Load().Revision == f.Revision {
		return // logged before
	}
	logged, more := 0, 0
	for _, p := range f.Problems {
		switch {
		case p.Severity != cluster.Error:
		case logged == maxLogged:
			more++
		default:
			r.log.Error("the inventory is invalid", logging.Detail, p.String(), logging.Revision, f.Revision.Short())
			logged++
		}
	}
	if more > 0 {
		r.log.Error("the inventory is invalid", logging.Detail, fmt.Sprintf("%d more errors are in the status", more), logging.Revision, f.Revision.Short())
	}
}

// renderInForce renders what is in force: the newest revision, or the last good one
// while that is invalid, refused or cannot be fetched, or changes what the cluster keeps;
// after a restart it is recalled. Without one, and where the cluster was removed from the
// repository, it renders what there is to look at, and nothing is done about it. What changes
// what the cluster keeps is in force where nothing better is known: the planner refuses that.
func (r *Reconciler) renderInForce(ctx context.Context, facts cluster.Facts, now time.Time) (d cluster.Desired, inForce bool) {
	m := &r.memo
	if m.fixedReason != "" {
		m.fixedReason, m.problems = "", m.last.Problems
	}
	m.unproven = false
	var fixed fixedChange
	if m.last != nil {
		// Rendered by turns, what has other keys and what is in force would have new
		// credentials made in every pass.
		if fixed = m.fixed[keyOfFixed(m.last, facts)]; len(fixed.problems) == 0 {
			newest, problems := r.desire(m.last.Snapshot, m.seenRunning, facts, now)
			if !problems.HasErrors() {
				fixed = r.findFixed(ctx, m.last, newest, facts, now)
			}
			if !problems.HasErrors() && len(fixed.problems) == 0 {
				m.good = m.last
				return newest, !m.removed
			}
			if d = newest; problems.HasErrors() {
				m.problems = problems
			}
		}
	}
	if m.good == nil {
		r.recall(ctx, facts.Applied, now)
	}
	if m.good != nil && m.good != m.last {
		old, problems := r.desire(m.good.Snapshot, m.seenRunning, facts, now)
		if !problems.HasErrors() && (len(fixed.problems) == 0 || len(r.findFixed(ctx, m.good, old, facts, now).problems) == 0) {
			if len(fixed.problems) > 0 && !m.problems.HasErrors() {
				m.problems, m.fixedReason = fixed.problems, fixed.reason
			}
			return old, !m.removed
		}
	}
	if len(fixed.problems) > 0 {
		// A revision that could not be recalled may be good: this one is not noted as applied.
		m.unproven = facts.Applied != "" && facts.Applied != m.last.Revision && facts.Applied != m.recalled
		if d, _ = r.desire(m.last.Snapshot, m.seenRunning, facts, now); !m.unproven {
			m.good = m.last
		}
		return d, !m.removed
	}
	if d.Spec.Name == "" && m.shown != nil {
		d, _ = r.desire(m.shown.Snapshot, m.seenRunning, facts, now)
	}
	return d, false
}

// recall reads the revision again that was in force when the agent ended. Whether an error
// passes is not known: a host that has just started is busy.
func (r *Reconciler) recall(ctx context.Context, applied cluster.Revision, now time.Time) {
	m := &r.memo
	if wait := m.recalls.Sub(now); applied == "" || applied == m.recalled || 0 < wait && wait <= recallAgain {
		return
	}
	f, err := r.c.Source.Recall(ctx, applied)
	if err == nil {
		m.recalled = applied
	} else {
		m.recalls = now.Add(recallAgain)
	}
	switch {
	case err != nil:
		r.log.Debug("cannot recall the applied revision", logging.Revision, applied.Short(), logging.Err, err)
	case f.Problems.HasErrors():
		r.log.Debug("the applied revision is not valid any more", logging.Revision, applied.Short(), logging.Err, f.Problems.First())
	default:
		r.log.Info("the revision that was applied last is recalled", logging.Revision, applied.Short())
		if m.good = &f; m.seen == "" { // nothing was fetched since the start
			m.seen, m.subject, m.removed = f.Revision, f.Subject, f.Removed
		}
	}
}

// findRefusal returns why nothing is done about the newest revision, nil when it is in
// force: it is invalid, or refused.
func (r *Reconciler) findRefusal() *refusal {
	m := &r.memo
	if m.removed && !r.c.Journal.Fresh() {
		return &refusal{revision: m.seen, block: cluster.Block{Subject: r.c.Cluster, Reason: cluster.ClusterRemoved, Message: "the cluster is no longer in the repository, and something of it is left",
			Hint: fmt.Sprintf("bring its folder back, or `talos-agent destroy %s`", r.c.Cluster)}}
	}
	if p, ok := m.problems.FirstError(); ok && m.fixedReason != "" {
		b := cluster.Block{Subject: r.c.Cluster, Reason: m.fixedReason, About: m.problems.Place(), Hint: p.Hint}
		p.Hint = ""
		b.Message = "the revision is refused: " + p.String()
		return &refusal{revision: m.seen, block: b}
	}
	if p, ok := m.problems.FirstError(); ok {
		hint := "`talos-agent validate` in a clone of the repository lists everything that is wrong; fix it and push"
		if m.removed { // there is nothing to validate
			hint, p.Hint = cmp.Or(p.Hint, hint), ""
		}
		return &refusal{revision: m.seen, block: cluster.Block{Subject: r.c.Cluster, Reason: cluster.InventoryInvalid, About: m.problems.Place(), Message: "the inventory is invalid: " + p.String(), Hint: hint}}
	}
	return m.refused
}
