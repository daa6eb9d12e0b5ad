package reconcile

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/plan"
)

// pass is one look at everything and one decision: fetch, render, observe,
// plan, begin what may be done, report.
func (r *Reconciler) pass(ctx context.Context) {
	began := time.Now()
	r.memo.commands = r.commands.Load()
	r.readSource(ctx)
	if ctx.Err() != nil {
		return
	}
	if r.memo.last == nil {
		r.reportUnknown(began)
		return
	}
	facts := r.c.Journal.Facts()
	d, problems := r.c.Renderer.Desired(r.memo.last.Snapshot, facts, began)
	if problems.HasErrors() {
		r.memo.problems = problems
	}
	o := r.observe(ctx, d, facts)
	if ctx.Err() != nil {
		return
	}
	if err := r.learnFacts(&o); err != nil {
		r.logUnwritable(err)
		r.reportPass(began, d, o, plan.Plan{Revision: d.Revision, Phases: phasesOf(d, o), Blocked: []cluster.Block{journalBlock(r.c.Cluster, err)}}, nil)
		return
	}
	stop := r.findRefusal()
	r.view.Store(&view{desired: d, observed: o, stop: stop})
	p := plan.Make(d, o, r.c.Policy())
	if stop != nil && !o.Facts.Destroying() {
		p = plan.Plan{Revision: r.memo.seen, Phases: p.Phases, Blocked: []cluster.Block{stop.block}}
	}
	var err error
	if p.Destroyed {
		if err = r.finishDestroy(); err != nil {
			p.Destroyed, p.Blocked = false, append(p.Blocked, journalBlock(r.c.Cluster, err))
		}
	}
	r.logUnwritable(err)
	var started []string
	for _, a := range p.Actions {
		r.exec.start(d, a)
		started = append(started, a.Info().Text)
	}
	r.reportPass(began, d, o, p, started)
}

// logUnwritable logs that the journal cannot be written, when that is news; nil: it
// can.
func (r *Reconciler) logUnwritable(err error) {
	before := r.memo.unwritten
	r.memo.unwritten = ""
	if err == nil {
		return
	}
	r.memo.unwritten = err.Error()
	if before != r.memo.unwritten {
		r.log.Error("cannot write the journal; nothing is changed until it can be written", logging.Err, err, logging.Hint, RecordsHint)
	}
}

// findRefusal returns why nothing is done about the newest revision, nil when it is in
// force: it is invalid, or refused.
func (r *Reconciler) findRefusal() *refusal {
	m := &r.memo
	if m.problems.HasErrors() {
		return &refusal{revision: m.seen, block: cluster.Block{Subject: r.c.Cluster, Reason: cluster.InventoryInvalid, About: m.problems.Place(), Message: "the inventory is invalid: " + m.problems.First(),
			Hint: "`talos-agent validate` in a clone of the repository lists everything that is wrong; fix it and push"}}
	}
	return m.refused
}

func journalBlock(name string, err error) cluster.Block {
	return cluster.Block{Subject: name, Reason: cluster.JournalUnwritable, Message: "the agent cannot write its state: " + err.Error(), Hint: RecordsHint}
}

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
	m.fetchErr, m.fetched = nil, f.At.UTC()
	if f.Revision != m.seen {
		r.log.Info("saw a new revision", logging.Revision, f.Revision.Short())
		r.exec.endBackoffs()
		m.seen = f.Revision
	}
	m.subject = f.Subject
	m.problems = f.Problems
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
			if m.last != nil {
				// What is in force is not this revision, and must not be reported as it.
				m.refused = &refusal{revision: f.Revision, block: cluster.Block{Subject: r.c.Cluster, Hint: fault.HintOf(err),
					Reason: cluster.HistoryUnknown, About: f.Revision.Short(), Message: fmt.Sprintf("cannot tell whether %s descends from %s, which was applied last: %s", f.Revision.Short(), applied.Short(), text.OneLine(err.Error()))}}
			}
			return
		}
		if !ok {
			if m.refused == nil || m.refused.revision != f.Revision {
				r.log.Warn("refuse a revision that does not descend from the applied one", logging.Revision, f.Revision.Short(), logging.Applied, applied.Short())
			}
			m.refused = &refusal{revision: f.Revision, history: true, block: cluster.Block{Subject: r.c.Cluster,
				Reason: cluster.HistoryRewritten, About: f.Revision.Short(), Message: fmt.Sprintf("%s does not descend from %s, which was applied last: the branch was force-pushed or rolled back", f.Revision.Short(), applied.Short()),
				Hint: fmt.Sprintf("if that was meant: `talos-agent accept %s`; otherwise restore the branch", r.c.Cluster)}}
			if m.last == nil {
				// Something must be looked at to show how things stand; nothing
				// is planned from it while the refusal lasts.
				m.last = &f
			}
			return
		}
	}
	m.refused = nil
	m.last = &f
}

func (r *Reconciler) logProblems(f Fetched) {
	if r.memo.problems != nil && r.status.Load().Revision == f.Revision {
		return // logged before
	}
	for _, p := range f.Problems {
		if p.Severity == cluster.Error {
			r.log.Error("the inventory is invalid", logging.Detail, p.String(), logging.Revision, f.Revision.Short())
		}
	}
}

// observe asks every observer at once, each for its own part.
func (r *Reconciler) observe(ctx context.Context, d cluster.Desired, facts cluster.Facts) cluster.Observed {
	ctx, cancel := context.WithTimeout(ctx, r.c.ObserveWithin)
	defer cancel()
	o := cluster.Observed{Now: time.Now(), Facts: facts}
	o.Running, o.Backoffs = r.exec.snapshot()
	var wg sync.WaitGroup
	for _, ob := range append([]Observer{r.c.Host}, r.c.Observers...) {
		wg.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					r.log.Error("an observer panicked; what it sees is unknown", logging.Err, fmt.Sprint(v), logging.Stack, string(debug.Stack()))
				}
			}()
			ob.Observe(ctx, d, &o)
		})
	}
	wg.Wait()
	return o
}

// learnFacts writes down what the world showed and must not be forgotten. It runs
// before anything is planned, so that no VM of ours ever exists without a
// journal that knows the cluster.
func (r *Reconciler) learnFacts(o *cluster.Observed) error {
	before := r.c.Journal.Facts()
	after := cloneFacts(before)
	switch nothing, seen := nothingOfOurs(*o), plan.SeesAllVMs(*o); {
	case !after.Lost:
	case seen && nothing:
		// Nothing was made, or nothing is left: there is nothing to remember.
		after.Lost = false
	case nothing && r.c.Journal.Fresh():
		return nil // it is decided when everything is seen
	case !r.memo.warnedLost:
		r.memo.warnedLost = true
		r.log.Warn("the agent's records of this cluster are lost: pins are taken anew, a suspension is forgotten, and nothing is bootstrapped until etcd is seen", logging.Why, r.c.Journal.Why())
	}
	if in, ok := after.Intent(cluster.IntendBootstrap); o.Members.Known && len(o.Members.Value) > 0 && !in.Done {
		if !ok {
			in = cluster.Intent{Kind: cluster.IntendBootstrap, At: o.Now.UTC()}
		}
		in.Done = true
		after.Intend(in)
		after.Lost = false
	}
	if rev := r.memo.last.Revision; r.memo.refused == nil && !r.memo.problems.HasErrors() && rev != after.Applied {
		after.Applied = rev
	}
	if !r.c.Journal.Fresh() && sameFacts(before, after) {
		return nil
	}
	err := r.c.Journal.Update(func(f *cluster.Facts) {
		f.Lost, f.Applied = after.Lost, after.Applied
		if in, ok := after.Intent(cluster.IntendBootstrap); ok {
			f.Intend(in)
		}
	})
	if err != nil {
		return err
	}
	o.Facts = r.c.Journal.Facts()
	return nil
}

func sameFacts(a, b cluster.Facts) bool {
	done := func(f cluster.Facts) bool { in, _ := f.Intent(cluster.IntendBootstrap); return in.Done }
	return a.Lost == b.Lost && a.Applied == b.Applied && done(a) == done(b)
}

func nothingOfOurs(o cluster.Observed) bool {
	for _, vm := range o.VMs {
		if vm.Presence == cluster.Present && vm.Owner == cluster.Ours {
			return false
		}
	}
	return len(o.Orphans.Value) == 0
}

// finishDestroy ends the destruction of a cluster: nothing of the cluster is left, so that neither the
// intent nor the keys' fingerprint mean anything any more. It stays suspended.
func (r *Reconciler) finishDestroy() error {
	err := r.c.Journal.Update(func(f *cluster.Facts) {
		f.Drop(cluster.IntendDestroy, cluster.IntendBootstrap)
		f.Fingerprint, f.Lost = "", false
		if !f.Suspended() {
			f.Intend(cluster.Intent{Kind: cluster.IntendSuspend, At: time.Now().UTC()})
		}
	})
	if err != nil {
		return err
	}
	r.log.Info("the cluster is destroyed; it stays suspended", logging.Detail, "until `talos-agent resume "+r.c.Cluster+"`")
	return nil
}

func phasesOf(d cluster.Desired, o cluster.Observed) map[string]cluster.Phase {
	m := map[string]cluster.Phase{}
	for _, n := range d.Spec.Nodes {
		m[n.Name] = plan.Classify(n, o)
	}
	return m
}

// Forecast lists everything that is going to happen for the pushed revision.
func (r *Reconciler) Forecast() (cluster.Forecast, error) {
	v := r.view.Load()
	if v == nil {
		return cluster.Forecast{}, ErrNoInventory
	}
	if v.stop != nil {
		return cluster.Forecast{Cluster: r.c.Cluster, Revision: v.stop.revision, Blocked: []cluster.Block{v.stop.block}}, nil
	}
	o := v.observed
	o.Facts = r.c.Journal.Facts()
	o.Running, o.Backoffs = r.exec.snapshot()
	if !o.Facts.Destroying() {
		o.Facts.Drop(cluster.IntendSuspend) // what resume would do
	}
	f := plan.Forecast(v.desired, o, r.c.Policy())
	f.Problems = slices.Concat(v.desired.Warnings, f.Problems)
	return f, nil
}

// Foretold is what was going to happen when the last pass looked, before it began
// anything: the plan of what goes on. whole is false while the image's name is
// not known, and with it nothing behind it.
func (r *Reconciler) Foretold() (steps []cluster.Step, whole bool) {
	v := r.view.Load()
	if v == nil || v.stop != nil {
		return nil, true
	}
	return plan.Forecast(v.desired, v.observed, r.c.Policy()).Steps, v.desired.Schematic != "" || v.observed.Facts.Destroying()
}

// ForecastDestroy lists what a destruction would delete.
func (r *Reconciler) ForecastDestroy() (cluster.Forecast, error) {
	v := r.view.Load()
	if v == nil {
		return cluster.Forecast{}, fmt.Errorf("%w; nodes that say `protect: true` could not be spared", ErrNoInventory)
	}
	o := v.observed
	o.Facts = r.c.Journal.Facts()
	o.Facts.Intend(cluster.Intent{Kind: cluster.IntendDestroy})
	o.Running, o.Backoffs = r.exec.snapshot()
	return plan.Forecast(v.desired, o, r.c.Policy()), nil
}

// ForecastOf lists what would happen if a snapshot were pushed.
func (r *Reconciler) ForecastOf(ctx context.Context, snap cluster.Snapshot) (cluster.Forecast, error) {
	facts := r.c.Journal.Facts()
	d, problems := r.c.Renderer.Desired(snap, facts, time.Now())
	if problems.HasErrors() {
		return cluster.Forecast{Cluster: snap.Spec.Name, Revision: snap.Revision, Problems: problems}, problems
	}
	var o cluster.Observed
	if v := r.view.Load(); v != nil {
		o = v.observed
	}
	o.Now, o.Facts = time.Now(), facts
	o.Facts.Drop(cluster.IntendSuspend)
	o.Running, o.Backoffs = r.exec.snapshot()
	// Other nodes may be asked for than the ones that are watched: their VMs
	// are looked at, their machines are silent as far as anybody knows.
	r.c.Host.Observe(ctx, d, &o)
	machines := map[string]cluster.Machine{}
	for _, n := range d.Spec.Nodes {
		m, ok := o.Machines[n.Name]
		if !ok {
			m = cluster.Machine{Reach: cluster.Silent}
		}
		machines[n.Name] = m
	}
	o.Machines = machines
	f := plan.Forecast(d, o, r.c.Policy())
	f.Problems = slices.Concat(snap.Warnings, problems, f.Problems)
	return f, nil
}
