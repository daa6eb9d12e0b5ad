package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/placement"
	"github.com/talos-agent/talos-agent/reconcile/plan"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// pass is one look at everything and one decision: fetch, render, observe,
// plan, begin what may be done, report.
func (r *Reconciler) pass(ctx context.Context) {
	began := time.Now()
	r.memo.commands, r.memo.ended = r.commands.Load(), false
	r.readSource(ctx)
	if ctx.Err() != nil {
		return
	}
	// Before the facts: an action that ended since has left its own in the journal.
	running, backoffs := r.exec.snapshot()
	facts := r.c.Journal.Facts()
	d, inForce := r.renderInForce(ctx, facts, began)
	if ctx.Err() != nil {
		return
	}
	if d.Spec.Name == "" {
		r.memo.ended = r.seesRemoved() && r.c.Journal.Fresh() // it never was valid, so nothing was made
		r.reportUnknown(began)
		return
	}
	d.Removed, d.Silent = r.memo.removing, r.memo.silent
	o := r.observe(ctx, d, cluster.Observed{Now: time.Now(), Facts: facts, Usual: r.c.Usual(), Running: running, Backoffs: backoffs, DeadSince: r.memo.dead})
	if ctx.Err() != nil {
		return
	}
	if r.memo.seenRunning = r.memo.seenRunning.Watch(d, o); r.isOtherStage(d, r.memo.seenRunning, facts) {
		d, inForce = r.renderInForce(ctx, facts, began)
		d.Removed, d.Silent = r.memo.removing, r.memo.silent
	}
	r.learnWatched(&d, &o)
	if err := r.learnFacts(d, &o); err != nil {
		r.logUnwritable(err)
		r.reportPass(began, d, o, plan.Plan{Revision: d.Revision, Phases: phasesOf(d, o), Blocked: []cluster.Block{journalBlock(r.c.Cluster, err)}}, nil)
		return
	}
	d = placement.Resolve(r.keepRunning(ctx, d, o), o, r.c.Policy())
	d.Removed = r.memo.removing
	o.ImageCached, o.Installers = r.c.Images.Cached(d, o.Facts), r.c.Images.Installers()
	stop := r.findRefusal()
	r.view.Store(&view{desired: d, observed: o, seen: r.memo.seenRunning, stop: stop, inForce: inForce})
	r.memo.ended = r.seesRemoved() && len(running) == 0 && r.seesNothingLeft(d, o)
	p := plan.Make(d, o, r.c.Policy())
	switch {
	case stop == nil || o.Facts.Destroying():
	case inForce:
		p.Blocked = append([]cluster.Block{stop.block}, p.Blocked...)
	default:
		p = plan.Plan{Revision: r.memo.seen, Phases: p.Phases, Blocked: []cluster.Block{stop.block}}
	}
	var err error
	destroy, _ := o.Facts.Intent(cluster.IntendDestroy)
	if p.Destroyed {
		if err = r.finishDestroy(); err != nil {
			p.Destroyed, p.Blocked = false, append(p.Blocked, journalBlock(r.c.Cluster, err))
		}
	}
	if len(p.Left) > 0 {
		if err = r.endDestroy(destroy, p.Left); err != nil {
			p.Blocked = append(p.Blocked, journalBlock(r.c.Cluster, err))
		}
		o.Facts = r.c.Journal.Facts()
	}
	if err == nil {
		err = r.learnReady(o, &p)
	}
	if len(p.Actions) > 0 {
		if unkept := r.c.Journal.Keep(); unkept != nil {
			p.Actions, p.Blocked, err = nil, append(p.Blocked, journalBlock(r.c.Cluster, unkept)), cmp.Or(err, unkept)
		}
	}
	r.logUnwritable(err)
	r.exec.endSwitchedOff(o)
	var started []string
	for _, a := range p.Actions {
		r.exec.start(d, a)
		started = append(started, a.Info().Text)
	}
	r.reportPass(began, d, o, p, started)
}

// recallAgain is how long what cannot be read is not asked for again.
const recallAgain = 2 * time.Minute

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
		r.log.Error("cannot write the journal; nothing is changed until it can be written", logging.Err, err, logging.Hint, journal.RecordsHint(err))
	}
}

func journalBlock(name string, err error) cluster.Block {
	return cluster.Block{Subject: name, Reason: cluster.JournalUnwritable, Message: "the agent cannot write its state: " + err.Error(), Hint: journal.RecordsHint(err)}
}

// seesRemoved reports whether the newest fetch has shown that the cluster is no longer
// in the repository.
func (r *Reconciler) seesRemoved() bool {
	return r.memo.removed && r.memo.fetchErr == nil && !r.memo.fetched.IsZero()
}

// seesNothingLeft reports whether nothing of the cluster is left. Where no action was ever
// begun for it, a VM that cannot be seen is not its own: that none in its pool has its mark
// is enough, and not even that is asked of pools that the policy refuses.
func (r *Reconciler) seesNothingLeft(d cluster.Desired, o cluster.Observed) bool {
	switch {
	case !nothingOfOurs(o):
		return false
	case !r.c.Journal.Fresh():
		return leftover.SeesAllVMs(o) && !o.Facts.BootstrapSent() && !o.Facts.Destroying()
	}
	pool := r.c.Policy().Pool
	return o.Orphans.Known || pool != "" && !slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool { return n.Pool == pool })
}

// maxLogged is how many errors of a revision the log has of each cluster: one push may
// change the folders of all of them, and the journal is the host's.
const maxLogged = 10

// observe asks every observer at once, each for its own part.
func (r *Reconciler) observe(ctx context.Context, d cluster.Desired, o cluster.Observed) cluster.Observed {
	ctx, cancel := context.WithTimeout(ctx, r.c.ObserveWithin)
	defer cancel()
	var wg sync.WaitGroup
	all := append([]Observer{r.c.Host}, r.c.Observers...)
	if r.c.Snapshots != nil {
		all = append(all, r.c.Snapshots)
	}
	safely := func(see func()) {
		defer func() {
			if v := recover(); v != nil {
				r.log.Error("an observer panicked; what it sees is unknown", logging.Err, fmt.Sprint(v), logging.Stack, string(debug.Stack()))
			}
		}()
		see()
	}
	for _, ob := range all {
		wg.Go(func() { safely(func() { ob.Observe(ctx, d, &o) }) })
	}
	wg.Wait()
	if r.c.Gates != nil {
		safely(func() {
			if upgrade.AsksGates(d, o) { // about what all of them saw
				o.Gates = r.c.Gates.CheckGates(ctx, d, o)
			}
			o.Jobs = r.c.Gates.SeeJobs(ctx, d, upgrade.JobsToSee(d, o))
		})
	}
	return o
}

func phasesOf(d cluster.Desired, o cluster.Observed) map[string]cluster.Phase {
	m := map[string]cluster.Phase{}
	for _, n := range d.Spec.Nodes {
		m[n.Name] = readiness.Classify(n, o)
	}
	return m
}

// Forecast lists everything that is going to happen for the pushed revision, with the pods that are
// lost by that.
func (r *Reconciler) Forecast(ctx context.Context) (cluster.Forecast, error) {
	f, err := r.forecast(ctx)
	if err == nil {
		r.nameLostPods(ctx, r.view.Load().desired, &f)
	}
	return f, err
}

// forecast is Forecast without those pods, for which Kubernetes is asked.
func (r *Reconciler) forecast(ctx context.Context) (cluster.Forecast, error) {
	v := r.view.Load()
	if v == nil {
		return cluster.Forecast{}, ErrNoInventory
	}
	if v.stop != nil && !v.inForce {
		return cluster.Forecast{Cluster: r.c.Cluster, Revision: v.stop.revision, Blocked: []cluster.Block{v.stop.block}}, nil
	}
	o := v.observed
	o.Facts = r.c.Journal.Facts()
	o.Running, o.Backoffs = r.exec.snapshot()
	if !o.Facts.Destroying() {
		o.Facts.Drop(cluster.IntendSuspend) // what resume would do
	}
	d, hops := r.asApproved(ctx, v, o)
	f := plan.Forecast(d, o, r.c.Policy())
	awaitHops(&f, hops)
	noteSuspended(&f, r.c.Journal.Facts())
	f.Problems = slices.Concat(v.desired.Warnings, f.Problems)
	if v.stop != nil {
		f.Blocked = append([]cluster.Block{v.stop.block}, f.Blocked...)
	}
	since := map[cluster.Key]time.Time{}
	for _, b := range r.status.Load().Blocked {
		since[b.Key()] = b.Since
	}
	f.Blocked = withSince(f.Blocked, since)
	return f, nil
}

// Foretold is what was going to happen when the last pass looked, before it began
// anything: the plan of what goes on. whole is false while the image's name is
// not known, and with it nothing behind it.
func (r *Reconciler) Foretold() (steps []cluster.Step, whole bool) {
	v := r.view.Load()
	if v == nil || !v.inForce {
		return nil, true
	}
	return plan.Forecast(v.desired, v.observed, r.c.Policy()).Steps, v.desired.Schematic != "" || v.observed.Facts.Destroying()
}

// ForecastDestroy lists what a destruction would delete, looking at every VM
// itself: despite names VMs that are deleted although they are protected in
// Proxmox VE.
func (r *Reconciler) ForecastDestroy(ctx context.Context, despite []int) (cluster.Forecast, error) {
	v := r.view.Load()
	if v == nil {
		return cluster.Forecast{}, fmt.Errorf("%w; nodes that say `protect: true` could not be spared", ErrNoInventory)
	}
	if err := r.checkDespite(v, despite); err != nil {
		return cluster.Forecast{}, err
	}
	r.previews.Lock()
	defer r.previews.Unlock()
	o := v.observed
	o.Now, o.Facts = time.Now(), r.c.Journal.Facts()
	o.Running, o.Backoffs = r.exec.snapshot()
	ctx, cancel := context.WithTimeout(ctx, r.c.ObserveWithin)
	defer cancel()
	o.Facts.Intend(cluster.Intent{Kind: cluster.IntendDestroy, Despite: despite})
	r.c.Host.Observe(ctx, v.desired, &o)
	shown := leftover.Deletable(v.desired, o)
	o.Facts.Intend(cluster.Intent{Kind: cluster.IntendDestroy, Despite: despite, VMs: shown})
	f := plan.Forecast(v.desired, o, r.c.Policy())
	f.VMs = shown
	return f, nil
}

// checkDespite refuses numbers that no VM of the cluster has.
func (r *Reconciler) checkDespite(v *view, despite []int) error {
	for _, vmid := range despite {
		isNode := slices.ContainsFunc(v.desired.Spec.Nodes, func(n cluster.Node) bool { return n.VMID == vmid })
		if !isNode && !slices.ContainsFunc(v.observed.Orphans.Value, func(vm cluster.VM) bool { return vm.VMID == vmid }) {
			return fault.WithHint(fmt.Errorf("cluster %s has no vm %d", r.c.Cluster, vmid), "`talos-agent destroy` without --despite-protection lists those that are protected")
		}
	}
	return nil
}

// ForecastOf lists what would happen if a snapshot were pushed.
func (r *Reconciler) ForecastOf(ctx context.Context, snap cluster.Snapshot) (cluster.Forecast, error) {
	facts := r.c.Journal.Facts()
	var o cluster.Observed
	var seen upgrade.Seen
	if v := r.view.Load(); v != nil {
		o, seen = v.observed, v.seen
	}
	d, hops, problems := r.desireApproved(snap, seen, facts, time.Now())
	if problems.HasErrors() {
		return cluster.Forecast{Cluster: snap.Spec.Name, Revision: snap.Revision, Problems: problems}, problems
	}
	if fixed, _ := r.compareFixed(ctx, d, facts, time.Now()); len(fixed.problems) > 0 {
		return cluster.Forecast{Cluster: snap.Spec.Name, Revision: snap.Revision, Problems: slices.Concat(d.Warnings, problems), Blocked: fixed.blocks(snap.Spec.Name)}, nil
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
	warnings := d.Warnings
	d = r.keepRunning(ctx, d, o)
	o.ImageCached, o.Installers, o.Charts = r.c.Images.Cached(d, facts), r.c.Images.Installers(), r.c.Releases.CachedCharts(d, facts)
	notes := r.compareReleases(ctx, d, &o)
	f := plan.Forecast(d, o, r.c.Policy())
	awaitHops(&f, hops)
	f.Notes = append(f.Notes, notes...)
	noteSuspended(&f, facts)
	f.Digest = "" // only what was pushed can be approved
	f.Problems = slices.Concat(warnings, problems, f.Problems)
	r.nameLostPods(ctx, d, &f)
	return f, nil
}

// noteSuspended notes in a forecast, which is of what resume would do, that nothing of it is done before.
func noteSuspended(f *cluster.Forecast, facts cluster.Facts) {
	if facts.Suspended() && !facts.Destroying() {
		f.Notes = append([]string{"the cluster is suspended: nothing of this is done before `talos-agent resume " + f.Cluster + "`"}, f.Notes...)
	}
}

// mostNamed is how many pods, or nodes, are named before the rest is only counted.
const mostNamed = 5

// nameLostPods adds to each step that drains a node which of its pods that deletes, as they are now,
// and no controller starts again. Where Kubernetes does not answer that is noted.
func (r *Reconciler) nameLostPods(ctx context.Context, d cluster.Desired, f *cluster.Forecast) {
	if len(d.Spec.Nodes) == 1 {
		return // they stay where they are
	}
	ctx, cancel := context.WithTimeout(ctx, r.c.ObserveWithin)
	defer cancel()
	var named, unread []string
	var why error
	for i := range f.Steps {
		s := &f.Steps[i]
		if s.Action != cluster.DrainNode || slices.Contains(named, s.Subject) {
			continue
		}
		named = append(named, s.Subject)
		pods, err := r.c.Nodes.ListLostPods(ctx, d, s.Subject)
		if err != nil {
			why, unread = err, append(unread, s.Subject)
		} else if len(pods) > 0 {
			s.Text += "; deletes pods that no controller starts again: " + text.JoinSome(pods, mostNamed, ", ")
		}
	}
	if why != nil {
		f.Notes = append(f.Notes, fmt.Sprintf("which pods are deleted that no controller starts again is not known of %s: %v", text.JoinSome(unread, mostNamed, ", "), why))
	}
}

// mostWords bounds what is shown of what somebody else has written, in bytes.
const mostWords = 400

// compareReleases reads what the releases were made of that are to become something else, as an
// observer does for what was pushed, and returns what could not be read.
func (r *Reconciler) compareReleases(ctx context.Context, d cluster.Desired, o *cluster.Observed) (unread []string) {
	ctx, cancel := context.WithTimeout(ctx, r.c.ObserveWithin)
	defer cancel()
	o.Releases.Value = maps.Clone(o.Releases.Value)
	for _, a := range d.Spec.Addons {
		rel, chart := o.Releases.Value[a.Name], o.Charts[a.Name]
		if !o.IsOurs(a) {
			continue
		}
		if rel.Version, rel.OtherValues = "", ""; rel.Edited || !chart.Known || rel.Digest != chart.Value.Release {
			if made, err := r.c.Releases.MadeOf(ctx, r.view.Load().desired, a); err != nil {
				unread = append(unread, fmt.Sprintf("what changes of addon %s is not known: %v", a.Name, err))
			} else {
				rel.Version, rel.OtherValues = made.Version, text.Sanitize(made.OtherPaths(a.Values), mostWords)
			}
		}
		o.Releases.Value[a.Name] = rel
	}
	return unread
}
