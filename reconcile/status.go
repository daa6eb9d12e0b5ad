package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/plan"
)

// keepPasses is how many passes the status remembers. Only those that began,
// lost or found something count: a quiet one replaces the quiet one before it.
const keepPasses = 20

// tellBlind tells that there is nothing to work from yet.
func (r *Reconciler) tellBlind(now time.Time) {
	m := &r.memo
	s := cluster.Status{Cluster: r.c.Cluster, Revision: m.seen, Applied: r.c.Journal.Facts().Applied, Subject: m.subject, Problems: m.problems}
	s.Suspended = r.c.Journal.Facts().Suspended
	switch {
	case m.problems.HasErrors():
		// In the words of a cluster that was valid before: to whoever was told, a
		// restart is no news.
		b := r.stopper().block
		s.Condition, s.Message, s.Hint, s.Blocked = cluster.Stalled, b.Subject+": "+b.Reason, b.Hint, []cluster.Block{b}
	case m.fetchErr != nil:
		s.Condition, s.Message, s.Hint = cluster.Blind, "cannot fetch the repository: "+text.OneLine(m.fetchErr.Error()), fault.HintOf(m.fetchErr)
	default:
		s.Condition, s.Message = cluster.Blind, "starting"
	}
	r.publish(now, s, "")
}

// tell turns a pass into the status.
func (r *Reconciler) tell(began time.Time, d cluster.Desired, o cluster.Observed, p plan.Plan, started []string) {
	m := &r.memo
	now := time.Now()
	s := cluster.Status{Cluster: r.c.Cluster, Revision: m.seen, Applied: o.Facts.Applied, Subject: m.subject, Suspended: o.Facts.Suspended,
		Blocked: p.Blocked, Problems: d.Warnings}
	if len(m.problems) > 0 {
		s.Problems = m.problems
	}
	s.Problems = slices.Concat(s.Problems, plan.Elsewhere(d, o))
	s.Nodes = r.nodes(now, d, o, p)
	s.Addons = r.addons(now, d, o)
	s.Waiting = r.waiting(now, p)
	s.Condition, s.Message, s.Hint = condition(d, o, p, s.Waiting, m.fetchErr)
	failed := r.exec.takeFailed()
	r.remember(cluster.PassStatus{At: began.UTC(), DurationMS: now.Sub(began).Milliseconds(), Revision: d.Revision, Started: started, Failed: failed,
		Waiting: len(p.Waiting), Blocked: len(p.Blocked)})
	r.publish(now, s, signature(p, s))
}

// publish completes and stores a status. sig says what the cluster is doing;
// while it stays the same, looking is done at growing distances.
func (r *Reconciler) publish(now time.Time, s cluster.Status, sig string) {
	m := &r.memo
	if s.Condition != m.condition {
		if m.condition != "" || s.Condition != cluster.Ready {
			r.log.Info("the cluster is "+string(s.Condition)+": "+s.Message, "revision", s.Revision.Short(), "hint", s.Hint)
		}
		m.condition, m.since = s.Condition, now
	}
	if sig != m.signature || m.changed.IsZero() {
		m.signature, m.changed = sig, now
	}
	s.Since, s.Fetched = m.since.UTC(), m.fetched
	s.Passes = append([]cluster.PassStatus{}, m.passes...)
	// Readers of the JSON get empty lists, never null.
	s.Nodes = append([]cluster.NodeStatus{}, s.Nodes...)
	s.Addons = append([]cluster.AddonStatus{}, s.Addons...)
	s.Waiting = append([]cluster.WaitStatus{}, s.Waiting...)
	s.Blocked = append([]cluster.Block{}, s.Blocked...)
	s.Problems = append(cluster.Problems{}, s.Problems...)
	if err := m.fetchErr; err != nil && !strings.Contains(s.Message, text.OneLine(err.Error())) {
		// Whoever pushes the cure of something else waits for it in vain.
		s.Problems = append(s.Problems, cluster.Problem{Severity: cluster.Warning, Message: "the repository cannot be fetched: " + text.OneLine(err.Error()), Hint: fault.HintOf(err)})
	}
	r.status.Store(&s)
	r.heard.Store(m.heard)
}

func signature(p plan.Plan, s cluster.Status) string {
	var b strings.Builder
	b.WriteString(p.String())
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, "%s %s %s\n", n.Name, n.Phase, n.WaitsFor)
	}
	return b.String()
}

// remember keeps the passes worth telling, newest first.
func (r *Reconciler) remember(p cluster.PassStatus) {
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

func (r *Reconciler) nodes(now time.Time, d cluster.Desired, o cluster.Observed, p plan.Plan) []cluster.NodeStatus {
	reason := map[string]string{}
	for _, b := range p.Blocked {
		if reason[b.Subject] == "" {
			reason[b.Subject] = b.Reason
		}
	}
	for _, w := range p.Waiting {
		if reason[w.Subject] == "" {
			reason[w.Subject] = w.Reason
		}
	}
	for _, run := range o.Running {
		reason[run.Subject] = run.Action
	}
	for _, a := range p.Actions {
		reason[a.Subject()] = a.Kind()
	}
	out := make([]cluster.NodeStatus, 0, len(d.Spec.Nodes))
	for _, n := range d.Spec.Nodes {
		ns := cluster.NodeStatus{Name: n.Name, Role: n.Role, VMID: n.VMID, Host: cmp.Or(o.VMs[n.Name].Host, n.Host), Address: n.IP.String(), Phase: p.Phases[n.Name],
			Talos: o.Machines[n.Name].Talos, WaitsFor: reason[n.Name]}
		if kn, ok := o.Nodes.Value[n.Name]; ok {
			ns.Kubernetes = kn.Kubelet
		}
		ns.Since = r.stamp(r.memo.phases, n.Name, string(ns.Phase), now, func(from string) {
			if from == "" {
				return
			}
			text := fmt.Sprintf("%s is %s", n.Name, ns.Phase)
			if from == string(cluster.PhaseReady) && ns.WaitsFor != "" {
				text += ", no longer Ready: " + ns.WaitsFor
			}
			r.log.Info(text, "node", n.Name, "vmid", n.VMID, "phase", string(ns.Phase))
		})
		out = append(out, ns)
	}
	return out
}

// stamp returns since when a subject has had a word, and calls changed when it
// is a new one.
func (r *Reconciler) stamp(in map[string]stamp, subject, word string, now time.Time, changed func(from string)) time.Time {
	st, ok := in[subject]
	if !ok || st.word != word {
		changed(st.word)
		st = stamp{word: word, at: now.UTC()}
		in[subject] = st
	}
	return st.at
}

func (r *Reconciler) addons(now time.Time, d cluster.Desired, o cluster.Observed) []cluster.AddonStatus {
	out := make([]cluster.AddonStatus, 0, len(d.Spec.Addons))
	for _, a := range d.Spec.Addons {
		as := cluster.AddonStatus{Name: a.Name, Namespace: a.Namespace, Version: a.Chart.Version}
		rel, ok := o.Releases.Value[a.Name]
		switch {
		case slices.ContainsFunc(o.Running, func(run cluster.Running) bool {
			return run.Subject == a.Name && run.Action == plan.InstallAddon{}.Kind()
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
		as.Since = r.stamp(r.memo.addons, a.Name, as.State, now, func(from string) {
			if from != "" {
				r.log.Info(fmt.Sprintf("addon %s is %s", a.Name, as.State), "addon", a.Name)
			}
		})
		out = append(out, as)
	}
	return out
}

func (r *Reconciler) waiting(now time.Time, p plan.Plan) []cluster.WaitStatus {
	m := &r.memo
	since := make(map[string]time.Time, len(p.Waiting))
	out := make([]cluster.WaitStatus, 0, len(p.Waiting))
	for _, w := range p.Waiting {
		key := keyOf(w.Subject, w.Kind())
		at, ok := m.waits[key]
		if !ok {
			at = now
		}
		since[key] = at
		ws := cluster.WaitStatus{Wait: w, Since: at.UTC(), Overdue: w.Within > 0 && now.Sub(at) > w.Within}
		if !ws.Overdue {
			ws.Hint = "" // the cure is told when there is something to cure
		}
		out = append(out, ws)
	}
	m.waits = since
	return out
}

const beingDestroyed = "being destroyed"

func suspendedWords(name string) string {
	return "suspended; `talos-agent resume " + name + "` goes on"
}

func nothingBuiltWords(name string) string {
	return "suspended, and none of its VMs exists; `talos-agent resume " + name + "` builds it"
}

// condition is the one word for a cluster, with the first reason in words.
func condition(d cluster.Desired, o cluster.Observed, p plan.Plan, waits []cluster.WaitStatus, fetchErr error) (cluster.Condition, string, string) {
	if o.Facts.Destroying {
		if p.Gone {
			return cluster.Suspended, nothingBuiltWords(d.Spec.Name), ""
		}
		if len(p.Blocked) > 0 && len(p.Actions) == 0 && len(o.Running) == 0 {
			return cluster.Stalled, "being destroyed: " + p.Blocked[0].Subject + ": " + p.Blocked[0].Reason, p.Blocked[0].Hint
		}
		return cluster.Reconciling, beingDestroyed, ""
	}
	if o.Facts.Suspended {
		if nothingBuilt(p) {
			return cluster.Suspended, nothingBuiltWords(d.Spec.Name), ""
		}
		return cluster.Suspended, suspendedWords(d.Spec.Name), ""
	}
	if len(p.Blocked) > 0 {
		b := p.Blocked[0]
		return cluster.Stalled, b.Subject + ": " + b.Reason, b.Hint
	}
	unseen := 0
	for name, ph := range p.Phases {
		// Who hears from the machine is not blind.
		if ph == cluster.PhaseUnknown && o.Machines[name].Reach != cluster.Configured {
			unseen++
		}
	}
	if unseen > 0 && unseen == len(p.Phases) {
		why := "nothing can be seen"
		for _, w := range waits {
			why = w.Subject + ": " + w.Reason
			break
		}
		return cluster.Blind, why, ""
	}
	for _, w := range waits {
		if w.Overdue {
			why := w.Subject + ": " + w.Reason
			if w.Within > time.Second { // otherwise it was wrong from the first moment
				why += " (for longer than it should)"
			}
			return cluster.Stalled, why, w.Hint
		}
	}
	if len(p.Actions)+len(o.Running)+len(p.Waiting) > 0 {
		return cluster.Reconciling, progress(d, o, p), ""
	}
	msg := fmt.Sprintf("%d nodes are Ready at %s", len(d.Spec.Nodes), d.Revision.Short())
	if len(d.Spec.Nodes) == 1 {
		msg = "1 node is Ready at " + d.Revision.Short()
	}
	if fetchErr != nil {
		msg += "; the repository cannot be fetched: " + text.OneLine(fetchErr.Error())
	}
	return cluster.Ready, msg, fault.HintOf(fetchErr)
}

// nothingBuilt reports whether every node is seen to have no VM: to resume such a
// cluster is to build it.
func nothingBuilt(p plan.Plan) bool {
	for _, ph := range p.Phases {
		if ph != cluster.PhaseAbsent {
			return false
		}
	}
	return len(p.Phases) > 0
}

// progress says in one line what goes on.
func progress(d cluster.Desired, o cluster.Observed, p plan.Plan) string {
	ready := 0
	for _, ph := range p.Phases {
		if ph == cluster.PhaseReady {
			ready++
		}
	}
	what := ""
	switch {
	case len(o.Running) > 0:
		first := slices.MinFunc(o.Running, func(a, b cluster.Running) int { return cmp.Compare(a.Since.UnixNano(), b.Since.UnixNano()) })
		what = first.Action + " " + first.Subject
	case len(p.Actions) > 0:
		what = p.Actions[0].String()
	default:
		what = p.Waiting[0].Subject + ": " + p.Waiting[0].Reason
	}
	return fmt.Sprintf("%d of %d nodes Ready; %s", ready, len(d.Spec.Nodes), what)
}
