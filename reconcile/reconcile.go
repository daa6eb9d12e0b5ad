package reconcile

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/clock"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// Config wires one Reconciler.
type Config struct {
	Cluster string // name
	ID      string // cluster.ClusterID
	Source  Source
	// Host observes hosts, VMs and orphans; it alone is asked when somebody
	// wants the plan of an inventory that is not the pushed one.
	Host      Observer
	Observers []Observer // all others
	Renderer  Renderer
	Images    Images
	VMs       VMs
	Machines  Machines
	Nodes     Nodes
	Releases  Releases
	Gates     Gates     // nil: none is looked at
	Manifests Manifests // nil: nothing is seen of them, either
	Snapshots Snapshots // nil: none are taken
	Journal   *journal.Journal
	Policy    func() cluster.Policy
	// Interval is how often a quiet cluster is looked at; 0: one minute.
	Interval time.Duration
	// Earlier are the clocks of an agent before this one, for the status.
	Earlier clock.Clocks
	// EndRemoved: Run returns when the cluster is no longer in the repository and
	// nothing of it is left.
	EndRemoved bool
	// ObserveWithin bounds one observation; 0: 15 seconds.
	ObserveWithin time.Duration
	// Grace is how long actions in flight may go on after the context of Run
	// ends; 0: 8 seconds.
	Grace time.Duration
	// Usual is how long an action of each kind took at most, as far as is
	// remembered; nil: nothing is.
	Usual func() map[cluster.ActionKind]time.Duration
	// OnStatus is called after every pass, on the loop's goroutine; it must
	// not block.
	OnStatus func(cluster.Status)
	// OnPass gets how long every pass took, on the loop's goroutine, and
	// OnBegin every action that begins, without a result, on it too and before the
	// status that has it; OnAction how every action ended, on the action's and before
	// a pass can know of it; they must not block.
	OnPass   func(took time.Duration)
	OnBegin  func(cluster.Outcome)
	OnAction func(cluster.Outcome)
	// OnForgotten is called when Run ends because of EndRemoved, with whether no journal
	// is left either.
	OnForgotten func(whole bool)
	// OnCommand is called when an administrator has given a command, before a pass can know of
	// it, and whether it is carried out in the place of what is under way; it must not block.
	OnCommand func(what string, turns bool)
	Log       *slog.Logger
}

// Validate names the field that is missing.
func (c Config) Validate() error {
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"Cluster", c.Cluster != ""}, {"ID", c.ID != ""}, {"Source", c.Source != nil}, {"Host", c.Host != nil}, {"Renderer", c.Renderer != nil},
		{"Images", c.Images != nil}, {"VMs", c.VMs != nil}, {"Machines", c.Machines != nil}, {"Releases", c.Releases != nil},
		{"Journal", c.Journal != nil}, {"Policy", c.Policy != nil},
	} {
		if !f.ok {
			return fmt.Errorf("reconcile: config field %s is not set", f.name)
		}
	}
	return nil
}

// Reconciler makes one cluster match its inventory.
type Reconciler struct {
	c   Config
	log *slog.Logger

	trigger  chan struct{} // one slot: look now
	status   atomic.Pointer[cluster.Status]
	view     atomic.Pointer[view]
	commands atomic.Int64 // how many an administrator has given
	obeyed   atomic.Int64 // how many of them the status knows

	// previews lets one destruction be previewed at a time: each asks for every VM.
	previews sync.Mutex

	exec *executor
	base base
	memo memo
}

// view is the last complete look at the world, for forecasts.
type view struct {
	desired  cluster.Desired
	observed cluster.Observed
	seen     upgrade.Seen
	stop     *refusal // why the newest revision is not in force; nil: it is
	inForce  bool     // desired is: the newest revision, or the last good one
}

// New makes a Reconciler. Run it.
func New(c Config) (*Reconciler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Interval == 0 {
		c.Interval = time.Minute
	}
	if c.ObserveWithin == 0 {
		c.ObserveWithin = 15 * time.Second
	}
	if c.Grace == 0 {
		c.Grace = 8 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Usual == nil {
		c.Usual = func() map[cluster.ActionKind]time.Duration { return nil }
	}
	if c.OnStatus == nil {
		c.OnStatus = func(cluster.Status) {}
	}
	if c.OnPass == nil {
		c.OnPass = func(time.Duration) {}
	}
	if c.OnBegin == nil {
		c.OnBegin = func(cluster.Outcome) {}
	}
	if c.OnAction == nil {
		c.OnAction = func(cluster.Outcome) {}
	}
	if c.OnForgotten == nil {
		c.OnForgotten = func(bool) {}
	}
	if c.OnCommand == nil {
		c.OnCommand = func(string, bool) {}
	}
	r := &Reconciler{c: c, log: c.Log.With(logging.Cluster, c.Cluster), trigger: make(chan struct{}, 1), memo: newMemo()}
	r.exec, r.memo.drifts = newExecutor(r), drift.NotesOf(c.Journal.Facts().Drifts)
	s := cluster.Status{Cluster: c.Cluster, Condition: cluster.Unknown, Reason: cluster.Starting, Message: "starting", Since: time.Now()}
	r.status.Store(&s)
	return r, nil
}

// Status returns how things stand. The value is shared: do not write to it.
func (r *Reconciler) Status() cluster.Status {
	obeyed := r.obeyed.Load() // first: a status is never older than what it knows
	s := *r.status.Load()
	if obeyed < r.commands.Load() {
		s = r.applyCommand(s)
	}
	return r.exec.addRunning(s)
}

// applyCommand is a status from before root's last word in the light of that word. To
// whoever waits for the end of a tear-down, the older one would be its end.
func (r *Reconciler) applyCommand(s cluster.Status) cluster.Status {
	before, facts := s.Condition, r.c.Journal.Facts()
	switch {
	case facts.Destroying():
		s.Condition, s.Reason, s.Message, s.Hint, s.Blocked = cluster.Reconciling, cluster.Destroying, beingDestroyed, "", []cluster.Block{}
	case facts.Suspended():
		s.Condition, s.Reason, s.Message, s.Hint = cluster.Suspended, cluster.SuspendedByAdmin, suspendedWords(s.Cluster), ""
	case before == cluster.Suspended || before == cluster.Stalled:
		s.Condition, s.Reason, s.Message, s.Hint, s.Blocked = cluster.Reconciling, cluster.Progressing, "about to look again", "", []cluster.Block{}
	}
	s.Suspended, s.Destroying = facts.Suspended(), facts.Destroying()
	s.Snapshots = r.applyRequest(s.Snapshots)
	if s.Condition != before {
		s.Since = time.Now().UTC()
	}
	return s
}

// Desired returns what should be, as of the last pass.
func (r *Reconciler) Desired() (cluster.Desired, bool) {
	v := r.view.Load()
	if v == nil {
		return cluster.Desired{}, false
	}
	return v.desired, true
}

// Look wakes the loop.
func (r *Reconciler) Look() {
	select {
	case r.trigger <- struct{}{}:
	default:
	}
}

// Refresh has everything looked at again now, also what is remembered from an
// earlier pass, and tries at once what has failed.
func (r *Reconciler) Refresh() {
	for _, ob := range append([]Observer{r.c.Host}, r.c.Observers...) {
		if f, ok := ob.(Forgetter); ok {
			f.Forget(r.c.ID)
		}
		if f, ok := ob.(Retrier); ok {
			f.Retry()
		}
	}
	r.exec.endBackoffs()
	r.Look()
}

// Suspend keeps the agent from changing the cluster until Resume.
func (r *Reconciler) Suspend() error {
	return r.command("suspended", func(f *cluster.Facts) {
		f.Intend(cluster.Intent{Kind: cluster.IntendSuspend, At: time.Now().UTC()})
	})
}

// Resume ends a suspension. A tear-down that has not ended is given up: what
// is left of the cluster is built up again.
func (r *Reconciler) Resume() error {
	return r.command("resumed", func(f *cluster.Facts) { f.Drop(cluster.IntendSuspend, cluster.IntendDestroy) })
}

// Accept lets a head that does not descend from the last applied revision be
// applied. It is for the revision that was refused, and for nothing else: any
// other would become the one that later heads must descend from.
func (r *Reconciler) Accept(revision cluster.Revision) error {
	v := r.view.Load()
	switch {
	case v == nil || v.stop == nil || v.stop.revision != revision:
		return cluster.WithReason(cluster.NothingToAccept, fmt.Errorf("there is nothing to accept: %s was not refused", revision.Short()))
	case !v.stop.history:
		return cluster.WithReason(cluster.NothingToAccept, fmt.Errorf("there is nothing to accept: %s was not refused for its history: %s", revision.Short(), v.stop.block.Message))
	}
	return r.command("accepted "+revision.Short(), func(f *cluster.Facts) { f.Applied = revision })
}

// Approve lets the plan go that waits for approval, if it still is the one with this
// digest, of which a beginning is enough. A plan that changes afterwards waits again: by what
// somebody pushes, another node that leaves the inventory, or a step that was not shown.
func (r *Reconciler) Approve(digest string) error {
	f, err := r.forecast(r.exec.ctx)
	switch {
	case err != nil:
		return err
	case !f.Unapproved:
		return cluster.WithReason(cluster.NothingToAccept, fault.Errorf(fmt.Sprintf("`talos-agent plan %s` shows what is done, and what else keeps that from being done", r.c.Cluster), "there is nothing to approve: no step waits for that"))
	case len(digest) < leastDigest || !strings.HasPrefix(f.Digest, digest):
		return cluster.WithReason(cluster.NotConfirmed, fault.Errorf(fmt.Sprintf("look at `talos-agent plan %s` again, and approve the digest that it ends with", r.c.Cluster), "the plan that waits for approval is not %s", digest))
	}
	return r.command("approved "+f.Digest[:leastDigest], func(facts *cluster.Facts) {
		facts.Intend(cluster.Intent{Kind: cluster.IntendApproved, Target: f.Digest, Revision: f.Revision, VMs: f.VMs, Changes: f.Changes, At: time.Now().UTC()})
	})
}

// leastDigest is how much of a digest identifies a plan.
const leastDigest = 12

// AcceptBootstrap declares, by root's word, that there is no etcd of this cluster,
// where the agent cannot know: that bootstrap was never sent although the state that
// would show it is lost, or that none is left on a VM that is not proven to be ours
// or another's.
func (r *Reconciler) AcceptBootstrap() error {
	facts, v := r.c.Journal.Facts(), r.view.Load()
	switch {
	case facts.Lost:
		return r.command("accepted that bootstrap was never sent", func(f *cluster.Facts) { f.Lost = false })
	case facts.BootstrapSent() && v != nil && isLeftUnproven(v.desired, v.observed):
		return r.command("accepted that no etcd is left", func(f *cluster.Facts) {
			forgetFounding(f)
			f.Intend(cluster.Intent{Kind: cluster.IntendSuspend, At: time.Now().UTC()})
		})
	}
	return cluster.WithReason(cluster.NothingToAccept, &fault.Error{Op: "there is nothing to accept: the agent's records of this cluster are not lost, and no control plane that it deleted is unaccounted for", Hint: "`talos-agent status " + r.c.Cluster + "` shows what the cluster waits for"})
}

// command writes root's word down and has the world looked at in its light.
func (r *Reconciler) command(what string, change func(*cluster.Facts)) error {
	return r.carryOut(what, false, change)
}

// carryOut notes a command and looks at the cluster with it. turns: it is carried out in the place of what is under way.
func (r *Reconciler) carryOut(what string, turns bool, change func(*cluster.Facts)) error {
	if err := r.c.Journal.Update(change); err != nil {
		return err
	}
	r.commands.Add(1)
	r.forgetHost() // an administrator may just have changed what the command is about
	r.c.OnCommand(what, turns)
	r.log.Info("admin command", logging.Detail, what)
	r.Look()
	return nil
}

// ErrNoInventory is returned where an inventory is needed and none was read
// since the agent started.
var ErrNoInventory = cluster.WithReason(cluster.InventoryUnread, &fault.Error{Op: "the inventory of this cluster has not been read yet", Hint: "`talos-agent status` shows why"})

// Destroy begins the tear-down of the cluster: it is suspended, so that the
// next pass does not build it again, and everything of it that is provably ours
// is deleted. It returns once that is durably decided; Status shows the rest.
//
// Without an inventory it refuses, because `protect: true` could not be
// honoured.
//
// shown are the VMs that the administrator saw before: no others are deleted; without
// them they are those that the last pass has seen. despite names VMs that are deleted
// although they are protected in Proxmox VE.
func (r *Reconciler) Destroy(shown, despite []int) error {
	v := r.view.Load()
	if v == nil {
		return fmt.Errorf("destroy cluster %s: %w; nodes that say `protect: true` could not be spared", r.c.Cluster, ErrNoInventory)
	}
	if err := r.checkDespite(v, despite); err != nil {
		return fmt.Errorf("destroy cluster %s: %w", r.c.Cluster, err)
	}
	if len(shown) == 0 {
		shown = leftover.Deletable(v.desired, v.observed)
	}
	r.exec.endBackoffs() // what failed in a destruction before counts no more
	return r.command("asked for the cluster to be destroyed", func(f *cluster.Facts) {
		now := time.Now().UTC()
		f.Intend(cluster.Intent{Kind: cluster.IntendSuspend, At: now})
		f.Intend(cluster.Intent{Kind: cluster.IntendDestroy, At: now, Despite: despite, VMs: shown})
	})
}

// memo is what the loop remembers between passes for reporting, never for
// deciding.
type memo struct {
	seenRunning upgrade.Seen     // what the nodes run
	commands    int64            // of administrators, when the pass began
	last        *Fetched         // newest that was valid and accepted
	good        *Fetched         // newest of these from which configs could be made: it is in force
	shown       *Fetched         // one that was refused, to show how things stand where nothing is in force
	removed     bool             // the newest revision does not have the cluster
	ended       bool             // and nothing of it is left
	recalled    cluster.Revision // what was recalled, which may be invalid: not to be read in each pass
	recalls     time.Time        // when what could not be recalled is tried again
	fetchErr    error
	unwritten   string // why the journal could not be written, as it was logged
	refused     *refusal
	problems    cluster.Problems // of the newest revision
	// fixedReason is set when the problems are that it changes what the cluster keeps.
	fixedReason cluster.Reason
	fixed       map[fixedKey]fixedChange // what was found of revisions
	unproven    bool                     // what is in force may change that, and is not noted as applied
	seen        cluster.Revision         // newest revision, valid or not
	subject     string                   // of its commit
	fetched     time.Time                // when the source looked for it

	removing []cluster.Node                         // leftover.RemovedNodes
	silent   []string                               // nodes whose machines did not answer
	lost     map[uint64]time.Time                   // leftover.LostMembers, since when
	learners map[uint64]cluster.Learner             // lost.Learners
	evicted  map[string]time.Time                   // leftover.EvictedPlanes, since when
	dead     map[string]time.Time                   // plan.DeadNodes, since when
	drifts   map[cluster.DriftKey]cluster.DriftNote // drift.Notes
	looked   time.Time                              // seenUntil

	waits      map[cluster.Key]time.Time // since when each wait lasts
	blocks     map[cluster.Key]time.Time // and each block
	phases     map[string]stamp          // as reported
	passing    map[string]stamp          // seen, and not reported yet
	addons     map[string]stamp
	condition  cluster.Condition
	since      time.Time
	cause      cluster.Key      // of the condition
	causedAt   cluster.Revision // the newest one then
	standing   upgrade.Standing // whether the upgrade goes on
	stands     upgrade.Clock
	passes     []cluster.PassStatus
	signature  string // of the plan; delay grows while it stays the same
	changed    time.Time
	warnedLost bool
	panicked   string // what the last pass that panicked did it with, as it was logged
}

type stamp struct {
	word string
	at   time.Time
}

type refusal struct {
	revision cluster.Revision
	history  bool // it does not descend from the applied one; accept lifts this
	block    cluster.Block
}

func newMemo() memo {
	return memo{waits: map[cluster.Key]time.Time{}, phases: map[string]stamp{}, passing: map[string]stamp{}, addons: map[string]stamp{}, fixed: map[fixedKey]fixedChange{}}
}

// waitFor waits for a group, but no longer than d.
func waitFor(wg *sync.WaitGroup, d time.Duration) bool {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
