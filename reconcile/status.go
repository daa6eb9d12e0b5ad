package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/clock"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/plan"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// keepPasses is how many passes the status remembers. Only those that began,
// lost or found something count: a quiet one replaces the quiet one before it.
const keepPasses = 20

// reportUnknown publishes that there is nothing to work from yet.
func (r *Reconciler) reportUnknown(now time.Time) {
	m := &r.memo
	s := cluster.Status{Cluster: r.c.Cluster, Revision: m.seen, Applied: r.c.Journal.Facts().Applied, Subject: m.subject, Problems: m.problems}
	s.Suspended, s.Destroying = r.c.Journal.Facts().Suspended(), r.c.Journal.Facts().Destroying()
	switch {
	case m.problems.HasErrors():
		// In the words of a cluster that was valid before: to whoever was notified, a
		// restart is no news.
		b := r.findRefusal().block
		s.Condition, s.Reason, s.Concerns, s.About, s.Message, s.Hint, s.Blocked = cluster.Stalled, b.Reason, b.Subject, b.About, b.Subject+": "+b.Message, b.Hint, r.stampBlocks(now, []cluster.Block{b})
	case m.fetchErr != nil:
		s.Condition, s.Reason, s.Message, s.Hint = cluster.Unknown, cmp.Or(cluster.ReasonOf(m.fetchErr), cluster.RepositoryUnavailable), "cannot fetch the repository: "+text.OneLine(m.fetchErr.Error()), fault.HintOf(m.fetchErr)
	default:
		s.Condition, s.Reason, s.Message = cluster.Unknown, cluster.Starting, "starting"
	}
	r.publish(now, s, "")
}

// reportPass turns a pass into the status.
func (r *Reconciler) reportPass(began time.Time, d cluster.Desired, o cluster.Observed, p plan.Plan, started []string) {
	m := &r.memo
	now := time.Now()
	p.Blocked = r.stampBlocks(now, p.Blocked)
	s := cluster.Status{Cluster: r.c.Cluster, Revision: m.seen, Applied: o.Facts.Applied, Subject: m.subject, Suspended: o.Facts.Suspended(),
		Blocked: p.Blocked, Problems: d.Warnings}
	if m.problems.HasErrors() {
		s.Problems = m.problems
	}
	s.Problems = slices.Concat(s.Problems, readiness.Warnings(d, o), readiness.WarnOfUnplaced(o))
	s.Waiting = r.waiting(now, p)
	s.Nodes = r.nodes(now, d, o, p, s.Waiting)
	s.Addons = r.addons(now, d, o)
	s.Snapshots, s.Upgrade = statusOfSnapshots(d.Spec.Name, o), upgrade.StatusOf(d, r.c.Policy(), p.Blocked, o.Facts, m.seenRunning)
	setCondition(&s, d, o, p, m.fetchErr)
	var begins []cluster.ActionKind
	for _, a := range p.Actions {
		begins = append(begins, a.Info().Kind)
	}
	m.standing = upgrade.StandingOf(d, s, m.seenRunning, begins, o.Running)
	if stop, v := r.findRefusal(), r.view.Load(); stop != nil && v != nil && v.inForce && s.Condition == cluster.Stalled && s.Cause() == stop.block.Key() {
		s.Message += "; " + d.Revision.Short() + " stays in force: " + r.standUnder(stop, s, d, o, p)
	}
	s.Destroying = r.c.Journal.Facts().Destroying()
	failed := r.exec.takeFailed()
	r.keepPass(cluster.PassStatus{At: began.UTC(), DurationMS: now.Sub(began).Milliseconds(), Revision: d.Revision, Started: started, Failed: failed,
		Waiting: len(p.Waiting), Blocked: len(p.Blocked)})
	r.publish(now, s, signPlan(p, o))
}

// standUnder is how the cluster stands at the last good revision, apart from the newest
// one that is not in force.
func (r *Reconciler) standUnder(stop *refusal, s cluster.Status, d cluster.Desired, o cluster.Observed, p plan.Plan) string {
	p.Blocked = slices.DeleteFunc(slices.Clone(p.Blocked), func(b cluster.Block) bool { return b.Key() == stop.block.Key() })
	setCondition(&s, d, o, p, nil)
	if s.Condition == cluster.Ready {
		return "all nodes are Ready"
	}
	return s.Message
}

// publish completes and stores a status. sig identifies what the cluster is doing;
// while it stays the same, looking is done at growing distances.
func (r *Reconciler) publish(now time.Time, s cluster.Status, sig string) {
	m := &r.memo
	r.logCondition(s)
	if s.Condition != m.condition {
		earlier := r.c.Earlier.Condition
		if m.since = now; (m.condition == "" || m.condition == cluster.Unknown) && earlier.State == string(s.Condition) {
			m.since = earlier.Since
		}
		m.condition = s.Condition
		if s.Condition != cluster.Unknown {
			r.c.Earlier.Condition = clock.Clock{}
		}
	}
	m.cause, m.causedAt = s.Cause(), s.Revision
	if sig != m.signature || m.changed.IsZero() {
		m.signature, m.changed = sig, now
	}
	s.Since, s.Fetched = m.since.UTC(), m.fetched
	m.stands.Stamp(&s, m.standing, now)
	s.Passes = append([]cluster.PassStatus{}, m.passes...)
	// Readers of the JSON get empty lists, never null.
	s.Nodes = append([]cluster.NodeStatus{}, s.Nodes...)
	s.Addons = append([]cluster.AddonStatus{}, s.Addons...)
	s.Waiting = append([]cluster.WaitStatus{}, s.Waiting...)
	s.Blocked = append([]cluster.Block{}, s.Blocked...)
	s.Problems = append(cluster.Problems{}, s.Problems...)
	if err := m.fetchErr; err != nil && !mentionsFetch(s) {
		// Whoever pushes the fix of something else waits for it in vain.
		s.Problems = append(s.Problems, cluster.Problem{Severity: cluster.Warning, Message: "the repository cannot be fetched: " + text.OneLine(err.Error()), Hint: fault.HintOf(err)})
	}
	r.status.Store(&s)
	r.obeyed.Store(m.commands)
}

// mentionsFetch reports whether the message of a status has why the repository
// cannot be fetched.
func mentionsFetch(s cluster.Status) bool {
	return s.Condition == cluster.Ready || s.Reason == cluster.RepositoryUnavailable || s.Reason == cluster.HistoryUnknown
}

// logCondition logs a condition that is new, and a Stalled one whose cause is
// new, or the same at another revision: whoever pushed that must learn that it
// has not helped.
func (r *Reconciler) logCondition(s cluster.Status) {
	m := &r.memo
	switch {
	case s.Condition == cluster.Stalled && m.condition == cluster.Stalled && (s.Cause() != m.cause || s.Revision != m.causedAt):
	case s.Condition == m.condition, m.condition == "" && s.Condition == cluster.Ready:
		return
	}
	r.log.Info("cluster condition changed", logging.Detail, string(s.Condition)+": "+s.Message, logging.Condition, string(s.Condition), logging.Revision, s.Revision.Short(),
		logging.Reason, string(s.Reason), logging.Hint, s.Hint)
}

// signPlan identifies what a cluster is doing, apart from the words for it: what is
// planned, waited for and blocked, and how far each node and action has come.
func signPlan(p plan.Plan, o cluster.Observed) string {
	var b strings.Builder
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "do %q\n", a.Info().ID())
	}
	for _, w := range p.Waiting {
		fmt.Fprintf(&b, "wait %q\n", w.Key())
	}
	for _, k := range p.Blocked {
		fmt.Fprintf(&b, "block %q\n", k.Key())
	}
	for _, run := range o.Running {
		fmt.Fprintf(&b, "runs %q\n", run.ActionID)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Phases)) {
		fmt.Fprintf(&b, "%s is %s\n", name, p.Phases[name])
	}
	return b.String()
}

// keepPass keeps the passes worth showing, newest first.
func (r *Reconciler) keepPass(p cluster.PassStatus) {
	m := &r.memo
	quiet := func(p cluster.PassStatus) bool { return len(p.Started) == 0 && len(p.Failed) == 0 && p.Error == "" }
	if len(m.passes) > 0 && quiet(p) && quiet(m.passes[0]) {
		m.passes[0] = p
		return
	}
	m.passes = append([]cluster.PassStatus{p}, m.passes...)
	if len(m.passes) > keepPasses {
		m.passes = m.passes[:keepPasses]
	}
}

func (r *Reconciler) nodes(now time.Time, d cluster.Desired, o cluster.Observed, p plan.Plan, waits []cluster.WaitStatus) []cluster.NodeStatus {
	out := make([]cluster.NodeStatus, 0, len(d.Spec.Nodes))
	for _, n := range d.AllNodes() {
		if _, planned := p.Phases[n.Name]; !planned {
			continue // nothing but a member of etcd is left of it
		}
		ns := cluster.NodeStatus{Name: n.Name, Role: n.Role, VMID: n.VMID, Host: cmp.Or(o.VMs[n.Name].Host, n.Placement.Pin), Address: n.Address(), Phase: r.holdPhase(n.Name, p.Phases[n.Name], readiness.IsTakenDown(n.Name, o.Running), now),
			Talos: o.Machines[n.Name].Talos, Waiting: []cluster.WaitStatus{}, Blocked: []cluster.Block{}}
		addConcerns(&ns, o, p, waits)
		if kn, ok := o.Nodes.Value[n.Name]; ok {
			ns.Kubernetes, ns.Cordoned, ns.InTurn = kn.Kubelet, kn.Cordoned, kn.Turn != ""
		}
		ns.Since = stampChange(r.memo.phases, r.c.Earlier.Nodes, n.Name, string(ns.Phase), now, func(from string) {
			if from == "" {
				return
			}
			text := fmt.Sprintf("%s is %s", n.Name, ns.Phase)
			if from == string(cluster.PhaseReady) && ns.WaitsFor != "" {
				text += ", no longer Ready: " + ns.WaitsFor
			}
			r.log.Info("node phase changed", logging.Detail, text, logging.Node, n.Name, logging.VMID, n.VMID, logging.Phase, string(ns.Phase))
		})
		out = append(out, ns)
	}
	maps.DeleteFunc(r.memo.passing, func(node string, _ stamp) bool { _, planned := p.Phases[node]; return !planned })
	return out
}

// passingWithin is how long a phase must have been seen before it is reported, where it
// is often over within a second: a machine that was started is silent before Proxmox VE
// reports its new uptime, one that takes its config changes its certificates, a VM that
// was made is started, and a Ready control plane misses a look while another joins. What is
// seen to be stopped else is, however short.
const passingWithin = 5 * time.Second

// holdPhase returns the phase of a node to report: the one that is seen, or for a while
// still the one before, unless it was Ready and is taken down.
func (r *Reconciler) holdPhase(node string, seen cluster.Phase, down bool, now time.Time) cluster.Phase {
	before, ok := r.memo.phases[node]
	if was := cluster.Phase(before.word); !ok || !isPassing(was, seen) || down && was == cluster.PhaseReady {
		delete(r.memo.passing, node)
		return seen
	}
	since := stampChange(r.memo.passing, nil, node, string(seen), now, func(string) {})
	if now.Sub(since) < passingWithin {
		return cluster.Phase(before.word)
	}
	delete(r.memo.passing, node)
	return seen
}

// isPassing reports whether a phase that follows another may be over at once.
func isPassing(before, seen cluster.Phase) bool {
	switch seen {
	case before:
		return false
	case cluster.PhaseUnknown, cluster.PhaseUnreachable:
		return true
	case cluster.PhaseStopped:
		return before == cluster.PhaseAbsent || before == cluster.PhaseCreating
	case cluster.PhaseBooting, cluster.PhaseMaintenance, cluster.PhaseJoining:
		return before == cluster.PhaseReady
	}
	return false
}

// addConcerns collects the waits and blocks that concern a node, and in WaitsFor what
// a table has room for: first what is done about it. What runs is added whenever the
// status is asked for.
func addConcerns(ns *cluster.NodeStatus, o cluster.Observed, p plan.Plan, waits []cluster.WaitStatus) {
	for _, b := range p.Blocked {
		if b.Subject == ns.Name {
			ns.Blocked = append(ns.Blocked, b)
		}
	}
	for _, w := range waits {
		if w.Subject == ns.Name {
			ns.Waiting = append(ns.Waiting, w)
		}
	}
	begins := slices.IndexFunc(p.Actions, func(a action.Action) bool { return a.Info().Node == ns.Name })
	runs := slices.IndexFunc(o.Running, func(r cluster.Running) bool { return r.Node == ns.Name })
	late := slices.IndexFunc(ns.Waiting, func(w cluster.WaitStatus) bool {
		return w.Reason == cluster.TaskOverdue || w.Reason == cluster.ActionOverdue
	})
	switch {
	case late >= 0:
		ns.WaitsFor = ns.Waiting[late].Message
	case begins >= 0:
		ns.WaitsFor = string(p.Actions[begins].Info().Kind)
	case runs >= 0:
		ns.WaitsFor = string(o.Running[runs].Kind)
	case len(ns.Blocked) > 0:
		ns.WaitsFor = ns.Blocked[0].Message
	case len(ns.Waiting) > 0:
		ns.WaitsFor = ns.Waiting[0].Message
	case o.VMs[ns.Name].Lock != "":
		// It may be slow, or go off any moment.
		ns.WaitsFor = fmt.Sprintf("nothing; Proxmox VE has locked the vm (%s)", o.VMs[ns.Name].Lock)
	}
}

// stampChange returns since when a subject has had a word, and calls changed when it
// is a new one. What an earlier agent saw last goes on where this one sees the same
// first.
func stampChange(in map[string]stamp, earlier map[string]clock.Clock, subject, word string, now time.Time, changed func(from string)) time.Time {
	st, ok := in[subject]
	if ok && st.word == word {
		return st.at
	}
	changed(st.word)
	isUnknown := func(word string) bool { return strings.EqualFold(word, string(cluster.PhaseUnknown)) }
	before := st.word
	st = stamp{word: word, at: now.UTC()}
	if c, ok := earlier[subject]; ok && c.State == word && (before == "" || isUnknown(before)) {
		st.at = c.Since
	}
	if !isUnknown(word) {
		delete(earlier, subject)
	}
	in[subject] = st
	return st.at
}

func (r *Reconciler) addons(now time.Time, d cluster.Desired, o cluster.Observed) []cluster.AddonStatus {
	out := make([]cluster.AddonStatus, 0, len(d.Spec.Addons))
	for _, a := range d.Spec.Addons {
		as := cluster.AddonStatus{Name: a.Name, Namespace: a.Namespace, Version: a.Chart.Version}
		rel, ok := o.Releases.Value[a.Name]
		switch {
		case slices.ContainsFunc(o.Running, func(run cluster.Running) bool {
			return run.ActionID == cluster.ActionID{Kind: cluster.InstallAddon, Subject: a.Name}
		}):
			as.State = "installing"
		case !o.Releases.Known:
			as.State, as.Message = "unknown", o.Releases.Why
		case !ok:
			as.State = "absent"
		case rel.Status != "deployed":
			as.State, as.Message = rel.Status, rel.Why
		case rel.Ready:
			as.State = "ready"
		default:
			as.State, as.Message = "deployed", rel.Why
		}
		as.Since = stampChange(r.memo.addons, r.c.Earlier.Addons, a.Name, as.State, now, func(from string) {
			if from != "" {
				r.log.Info("addon state changed", logging.Detail, fmt.Sprintf("addon %s is %s", a.Name, as.State), logging.Addon, a.Name, logging.State, as.State)
			}
		})
		out = append(out, as)
	}
	return out
}

// stampBlocks returns blocks with since when each of them is there.
func (r *Reconciler) stampBlocks(now time.Time, all []cluster.Block) []cluster.Block {
	var keys []cluster.Key
	for _, b := range all {
		keys = append(keys, b.Key())
	}
	r.memo.blocks = keepSince(r.memo.blocks, keys, now)
	return withSince(all, r.memo.blocks)
}

// withSince returns blocks with since when each of them is there, where that is known.
func withSince(all []cluster.Block, since map[cluster.Key]time.Time) []cluster.Block {
	out := slices.Clone(all)
	for i, b := range out {
		if at := since[b.Key()]; !at.IsZero() {
			out[i].Since = at.UTC()
		}
	}
	return out
}

func (r *Reconciler) waiting(now time.Time, p plan.Plan) []cluster.WaitStatus {
	m := &r.memo
	since := make(map[cluster.Key]time.Time, len(p.Waiting))
	out := make([]cluster.WaitStatus, 0, len(p.Waiting))
	for _, w := range p.Waiting {
		key := w.Key()
		at, ok := m.waits[key]
		switch {
		case !w.Began.IsZero():
			at = w.Began
		case !ok:
			at = now
		}
		since[key] = at
		ws := cluster.WaitStatus{Wait: w, Since: at.UTC(), Overdue: w.Within > 0 && now.Sub(at) > w.Within}
		if !ws.Overdue {
			ws.Hint = "" // there is nothing to fix yet
		}
		out = append(out, ws)
	}
	m.waits = since
	return out
}
