package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/plan"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

const beingDestroyed = "being destroyed"

func suspendedWords(name string) string {
	return "suspended; `talos-agent resume " + name + "` goes on"
}

func nothingBuiltWords(name string) string {
	return "suspended, and none of its VMs exists; `talos-agent resume " + name + "` builds it"
}

// setCondition sets the condition of a cluster with its first reason.
func setCondition(s *cluster.Status, d cluster.Desired, o cluster.Observed, p plan.Plan, fetchErr error) {
	set := func(c cluster.Condition, reason cluster.Reason, message, hint string) {
		s.Condition, s.Reason, s.Message, s.Hint = c, reason, message, hint
	}
	blocked := func(prefix string, b cluster.Block) {
		set(cluster.Stalled, b.Reason, prefix+b.Subject+": "+b.Message, b.Hint)
		s.Concerns, s.About = b.Subject, b.About
	}
	late := slices.IndexFunc(s.Waiting, isOverdue)
	overdue := func(prefix string) {
		w := s.Waiting[late]
		why := prefix + w.Subject + ": " + w.Message
		if w.Within > time.Second { // otherwise it was wrong from the first moment
			why += " (for longer than it should)"
		}
		set(cluster.Stalled, w.Reason, why, w.Hint)
		s.Concerns, s.About = w.Subject, w.About
	}
	switch {
	case o.Facts.Destroying() && p.Destroyed, o.Facts.Suspended() && !o.Facts.Destroying() && nothingBuilt(o, p):
		set(cluster.Suspended, cluster.SuspendedByAdmin, nothingBuiltWords(d.Spec.Name), "")
	case o.Facts.Destroying() && late >= 0:
		overdue("being destroyed: ")
	case o.Facts.Destroying() && len(p.Blocked) > 0 && len(p.Actions) == 0 && len(o.Running) == 0:
		blocked("being destroyed: ", p.Blocked[0])
	case o.Facts.Destroying():
		set(cluster.Reconciling, cluster.Destroying, beingDestroyed, "")
	case len(o.Facts.LeftOver()) > 0:
		blocked("suspended, and not all of it was destroyed: ", o.Facts.LeftOver()[0])
	case o.Facts.Suspended():
		set(cluster.Suspended, cluster.SuspendedByAdmin, suspendedWords(d.Spec.Name), "")
	case len(p.Blocked) > 0:
		blocked("", p.Blocked[0])
	case nothingSeen(o, p):
		set(cluster.Unknown, cluster.NodeUnknown, "nothing can be seen", "")
		for _, w := range s.Waiting {
			set(cluster.Unknown, w.Reason, w.Subject+": "+w.Message, w.Hint)
			s.Concerns, s.About = w.Subject, w.About
			break
		}
	case late >= 0:
		overdue("")
	case !isChanging(o, p) && len(p.Waiting) > 0 && !slices.ContainsFunc(p.Waiting, func(w cluster.Wait) bool { return w.Reason != cluster.ManifestsUnknown }):
		set(cluster.Unknown, cluster.ManifestsUnknown, p.Waiting[0].Message, "") // as while an agent starts, which has no connection yet
	case isChanging(o, p) || len(p.Waiting) > 0:
		set(cluster.Reconciling, cluster.Progressing, describeProgress(s.Nodes, o, p), "")
	default:
		msg := fmt.Sprintf("%d nodes are Ready at %s", len(d.Spec.Nodes), d.Revision.Short())
		if len(d.Spec.Nodes) == 1 {
			msg = "1 node is Ready at " + d.Revision.Short()
		}
		if fetchErr != nil {
			msg += "; the repository cannot be fetched: " + text.OneLine(fetchErr.Error())
		}
		set(cluster.Ready, cluster.Converged, msg, fault.HintOf(fetchErr))
	}
}

func isOverdue(w cluster.WaitStatus) bool { return w.Overdue }

// nothingSeen reports whether no node can be seen.
func nothingSeen(o cluster.Observed, p plan.Plan) bool {
	for name, ph := range p.Phases {
		// Whose machine answers can be seen.
		if ph != cluster.PhaseUnknown || o.Machines[name].Reach == cluster.Configured {
			return false
		}
	}
	return len(p.Phases) > 0
}

// nothingBuilt reports whether every node is seen to have no VM: to resume such a
// cluster is to build it. A destruction may have left others.
func nothingBuilt(o cluster.Observed, p plan.Plan) bool {
	if len(o.Facts.LeftOver()) > 0 && (!o.Orphans.Known || len(o.Orphans.Value) > 0) {
		return false
	}
	for _, ph := range p.Phases {
		if ph != cluster.PhaseAbsent {
			return false
		}
	}
	return len(p.Phases) > 0
}

// describeProgress puts on one line what goes on.
func describeProgress(nodes []cluster.NodeStatus, o cluster.Observed, p plan.Plan) string {
	ready, out := 0, ""
	for _, n := range nodes {
		if n.Phase == cluster.PhaseReady {
			ready++
		}
	}
	if cordoned := countCordoned(nodes); cordoned > 0 {
		out = fmt.Sprintf(", %d of them cordoned", cordoned)
	}
	what := ""
	switch {
	case len(o.Running) > 0:
		first := slices.MinFunc(o.Running, func(a, b cluster.Running) int { return cmp.Compare(a.Since.UnixNano(), b.Since.UnixNano()) })
		what = string(first.Kind) + " " + first.Subject
	case len(p.Actions) > 0:
		what = p.Actions[0].Info().Text
	default:
		w := readiness.RootOf(p.Waiting)
		what = w.Subject + ": " + w.Message
	}
	return fmt.Sprintf("%d of %s Ready%s; %s", ready, text.Count(len(nodes), "node"), out, what)
}

// countCordoned is how many Ready nodes are cordoned.
func countCordoned(nodes []cluster.NodeStatus) (n int) {
	for _, ns := range nodes {
		if ns.Phase == cluster.PhaseReady && ns.Cordoned {
			n++
		}
	}
	return n
}
