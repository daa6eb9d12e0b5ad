package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// executor carries out actions beside the loop. What it knows is forgotten
// with the process: a running action of a dead agent is found again by looking.
type executor struct {
	r    *Reconciler
	wake chan struct{} // one slot: an action ended

	run    context.Context // of the loop: when it ends the agent stops
	ctx    context.Context // of all actions
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	running  map[cluster.ActionID]*cluster.Running
	ends     map[cluster.ActionID]context.CancelCauseFunc // of those that run
	backoffs map[cluster.ActionID]cluster.Backoff
	undone   map[cluster.ActionID]undoing
	failed   []string // since the last pass, in words
	ended    bool
}

func newExecutor(r *Reconciler) *executor {
	return &executor{r: r, wake: make(chan struct{}, 1), running: map[cluster.ActionID]*cluster.Running{}, ends: map[cluster.ActionID]context.CancelCauseFunc{}, backoffs: map[cluster.ActionID]cluster.Backoff{}, undone: map[cluster.ActionID]undoing{}}
}

func compareIDs(a, b cluster.ActionID) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject))
}

// snapshot returns what is under way and what backs off, sorted.
func (e *executor) snapshot() (running []cluster.Running, backoffs []cluster.Backoff) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.running {
		running = append(running, *r)
	}
	slices.SortFunc(running, func(a, b cluster.Running) int { return compareIDs(a.ActionID, b.ActionID) })
	for _, b := range e.backoffs {
		backoffs = append(backoffs, b)
	}
	slices.SortFunc(backoffs, func(a, b cluster.Backoff) int { return compareIDs(a.ActionID, b.ActionID) })
	return running, backoffs
}

// addRunning puts what is under way now into a status: into its list, and into that
// of the node that each action concerns. The nodes of s may be shared and are not
// written to.
func (e *executor) addRunning(s cluster.Status) cluster.Status {
	running, _ := e.snapshot()
	usual, logs, now := e.r.c.Usual(), e.r.taskLogs(), time.Now()
	s.Running = make([]cluster.RunningStatus, 0, len(running))
	of := map[string][]cluster.RunningStatus{}
	for _, r := range running {
		within := action.Within(r.Kind, usual)
		rs := cluster.RunningStatus{Action: r.Kind, Subject: r.Subject, Since: r.Since, Done: r.Done, Total: r.Total, Unit: r.Unit, UPID: r.UPID,
			ExpectedMS: within.Milliseconds(), Overdue: now.Sub(r.Since) > within, Waits: r.Waits, Log: logs[r.UPID]}
		s.Running = append(s.Running, rs)
		of[r.Node] = append(of[r.Node], rs)
	}
	s.Nodes = slices.Clone(s.Nodes)
	for i, n := range s.Nodes {
		s.Nodes[i].Running = append([]cluster.RunningStatus{}, of[n.Name]...)
	}
	return s
}

// taskLogs are the ends of the logs of tasks, by UPID, as the last pass saw them.
func (r *Reconciler) taskLogs() map[string][]string {
	out := map[string][]string{}
	if v := r.view.Load(); v != nil {
		for _, h := range v.observed.Hosts {
			for _, t := range h.Tasks.Value {
				if len(t.Log) > 0 {
					out[t.UPID] = t.Log
				}
			}
		}
	}
	return out
}

// takeFailed returns the failures since it was last asked.
func (e *executor) takeFailed() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.failed
	e.failed = nil
	return f
}

// start begins an action. The durable facts it needs are written before
// anything else happens.
func (e *executor) start(d cluster.Desired, a action.Action) {
	info := a.Info()
	run := &cluster.Running{ActionID: info.ID(), Node: info.Node, Since: time.Now(), Claims: info.Claims, Disrupts: info.Disrupts}
	e.mu.Lock()
	if e.ended || e.running[info.ID()] != nil {
		e.mu.Unlock()
		return
	}
	ctx, end := context.WithCancelCause(e.ctx)
	e.running[info.ID()], e.ends[info.ID()] = run, end
	e.wg.Add(1)
	e.mu.Unlock()

	log := e.r.log.With(logging.Action, string(info.Kind), logging.Node, info.Node, logging.VMID, info.VMID, logging.Addon, info.Addon, logging.Revision, d.Revision.Short(), logging.Detail, info.Text)
	log.Info("action started")
	outcome := cluster.Outcome{Action: info.Kind, Subject: info.Subject, Text: info.Text, Began: run.Since.UTC()}
	e.r.c.OnBegin(outcome)
	go func() {
		defer e.wg.Done()
		defer end(nil)
		err := e.guard(ctx, d, a, func(p cluster.Progress) {
			e.mu.Lock()
			defer e.mu.Unlock()
			run.Progress = p
			if left := slices.DeleteFunc(slices.Clone(run.Claims), cluster.Claim.OfStorage); p.Allocated && len(left) < len(run.Claims) {
				run.Claims = left // the next may have its turn there
				e.wakeLoop()
			}
		})
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSwitchedOff) {
			err = cause
		}
		took := time.Since(run.Since)
		outcome.DurationMS = took.Milliseconds()
		if err != nil {
			outcome.Error, outcome.Hint = text.OneLine(err.Error()), fault.HintOf(err)
		}
		switch {
		case err == nil:
			outcome.Result = cluster.Done
			log.Info("action done", logging.DurationMS, took.Milliseconds())
		case e.run.Err() != nil:
			outcome.Result = cluster.ResultInterrupted
			log.Info("action interrupted, because the agent stops", logging.Err, err)
		default:
			outcome.Result = cluster.Failed
			log.Warn("action failed", logging.Err, err, logging.Hint, outcome.Hint, logging.DurationMS, took.Milliseconds())
		}
		e.r.c.OnAction(outcome)
		e.finish(info, err)
	}()
}

// guard turns a panic in an adapter into the failure of one action.
func (e *executor) guard(ctx context.Context, d cluster.Desired, a action.Action, p Progress) (err error) {
	defer func() {
		if v := recover(); v != nil {
			info := a.Info()
			err = fmt.Errorf("%s: %w", info, fault.Internal(v))
			e.r.log.Error("an action panicked", logging.Action, string(info.Kind), logging.Err, err, logging.Stack, string(debug.Stack()))
		}
	}()
	return e.r.execute(ctx, d, a, p)
}

func (e *executor) finish(info action.Info, err error) {
	id := info.ID()
	e.mu.Lock()
	delete(e.running, id)
	delete(e.ends, id)
	if err == nil {
		delete(e.backoffs, id)
		e.backOffUndone(id, time.Now())
	} else if e.run.Err() == nil {
		b := e.backoffs[id]
		b.ActionID, b.Error, b.Hint = id, err.Error(), fault.HintOf(err)
		b.Failed++
		b.Until = time.Now().Add(backoffAfter(err, b.Failed))
		e.backoffs[id] = b
		e.failed = append(e.failed, fmt.Sprintf("%s: %v", info, err))
	}
	e.mu.Unlock()
	e.wakeLoop()
}

// wakeLoop wakes the loop.
func (e *executor) wakeLoop() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// longestBackoff is how long an action is not tried again after many failures.
const longestBackoff = 5 * time.Minute

// backoffAfter is how long a failed action is not tried again: 1 s doubling to 5 min. A
// drain that ended with the node back in service is not tried again sooner: each one
// cordons the node and evicts what can be evicted, for what is still there.
func backoffAfter(err error, failed int) time.Duration {
	if errors.Is(err, cluster.ErrUndrained) || errors.Is(err, cluster.ErrUncordoned) {
		return longestBackoff
	}
	return min(time.Second<<min(failed-1, 12), longestBackoff)
}

// undoing is an action that undid what somebody else did.
type undoing struct {
	last  time.Time // when it was done
	times int       // in a row, none of them long after the one before
}

// An action that is done so often, each time so soon after the last, is one against
// something that goes on, rather than somebody: a controller, or a kubelet that is not to
// be trusted. undoneWithin is longer than longestBackoff, or each one would be the first.
const (
	undoneOften  = 3
	undoneWithin = 2 * longestBackoff
)

// backOffUndone backs off from what the agent sets on a Node object if it was set again and again:
// a watch shows at once that it was changed, and two that both insist would write many
// times a second without end.
func (e *executor) backOffUndone(id cluster.ActionID, now time.Time) {
	if id.Kind != cluster.LabelNode {
		return
	}
	u := e.undone[id]
	if now.Sub(u.last) > undoneWithin {
		u.times = 0
	}
	u.last = now
	u.times++
	e.undone[id] = u
	if backoffs := u.times - undoneOften + 1; backoffs > 0 {
		e.backoffs[id] = cluster.Backoff{ActionID: id, Until: now.Add(backoffAfter(nil, backoffs)), Failed: backoffs, Undone: true,
			Error: fmt.Sprintf("what it set was changed soon after, %d times in a row", u.times),
			Hint:  "find out who writes it, which `talos-agent diff` shows where it is noted, and stop that, or remove it from nodes.yaml"}
	}
}

// errSwitchedOff is that an action waited for a machine whose VM is off.
var errSwitchedOff = errors.New("its vm is off: somebody has switched it off meanwhile")

// offFor is how long ago an action must have begun whose machine may be off by then: the reboot of a guest does not switch its VM off.
const offFor = 10 * time.Second

// endSwitchedOff ends the actions that wait for a machine to come back whose VM is seen to be off: nothing comes back before that is
// started, which is another action on the same node.
func (e *executor) endSwitchedOff(o cluster.Observed) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, run := range e.running {
		waits := slices.Contains([]cluster.ActionKind{cluster.RebootNode, cluster.UpgradeTalos, cluster.RollBackTalos}, id.Kind)
		if vm := o.VMs[run.Node]; waits && vm.Owner == cluster.Ours && vm.Power == cluster.Stopped && o.Now.Sub(run.Since) >= offFor {
			e.ends[id](errSwitchedOff)
		}
	}
}

// endBackoffs ends every backoff, so that a fix is tried at once: one that was
// pushed, or made by hand.
func (e *executor) endBackoffs() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.backoffs)
	clear(e.undone)
}

// stop lets no further action begin, gives those in flight the grace, then
// cuts them off, and returns when all have ended.
func (e *executor) stop(grace time.Duration) {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	if !waitFor(&e.wg, grace) {
		e.cancel()
		e.wg.Wait()
	}
	e.cancel()
}

// execute is the one switch from an action to one adapter call.
func (r *Reconciler) execute(ctx context.Context, d cluster.Desired, a action.Action, p Progress) error {
	if err := r.noteBegun(d, a.Info()); err != nil {
		return err
	}
	switch a := a.(type) {
	case action.RegisterSchematic:
		return r.c.Images.Register(ctx, a.Schematic)
	case action.DownloadImage:
		pin, err := r.c.Images.Download(ctx, d, p)
		if err != nil {
			return err
		}
		pin.For = d.Spec.Schematic.Digest()
		return r.c.Journal.Update(func(f *cluster.Facts) { f.Images[a.Image.Name] = pin })
	case action.UploadImage:
		return r.c.Images.Upload(ctx, a.Host, a.Datastore, a.Image, p)
	case action.CreateVM:
		return r.c.VMs.Create(ctx, d, a.Node, a.Host, a.Image, p)
	case action.StartVM:
		return r.c.VMs.Start(ctx, d, a.Node, p)
	case action.ResumeVM:
		return r.c.VMs.Resume(ctx, d, a.Node, p)
	case action.ResetVM:
		return r.resetVM(ctx, d, a, p)
	case action.ApplyConfig:
		if err := r.pinConfig(d); err != nil {
			return err
		}
		return r.c.Machines.Apply(ctx, d, a.Node, a.Config)
	case action.Bootstrap:
		if err := r.intendBootstrap(a.Node); err != nil {
			return err
		}
		return r.c.Machines.Bootstrap(ctx, d, a.Node)
	case action.FetchChart:
		return r.fetchChart(ctx, a.Addon)
	case action.InstallAddon:
		return r.c.Releases.Install(ctx, d, a.Addon, a.Digest)
	case action.MarkAddon:
		return r.c.Releases.Mark(ctx, d, a.Addon, a.Good)
	case action.RollBackAddon:
		return r.c.Releases.RollBack(ctx, d, a.Addon, a.To, a.Digest)
	case action.UninstallAddon:
		return r.c.Releases.Uninstall(ctx, d, a.Release)
	case action.LabelNamespace:
		return r.c.Releases.LabelNamespace(ctx, d, a.Namespace, a.Meta)
	case action.DeleteVM:
		if a.Drained {
			if err := r.c.Nodes.CheckDrained(ctx, d, cluster.Node{Name: a.VM.Node}, len(d.Spec.Nodes) == 1); err != nil {
				return err
			}
		}
		if err := r.beginDeletion(ctx, d, a); err != nil {
			return err
		}
		return r.c.VMs.Delete(ctx, d, a.VM, p)
	case action.ChangeVM:
		if a.Moves {
			if err := r.beginMove(ctx, d, a); err != nil {
				return err
			}
		}
		if err := r.c.VMs.Change(ctx, d, a.Node, a.Host, a.Fields(), p); err != nil || !a.Moves {
			return err
		}
		return watchNode(ctx, p)
	case action.PullImages:
		return r.c.Machines.PullImages(ctx, a.In(d.Repository()), a.Node, p)
	case action.ChangeConfig:
		return r.changeConfig(ctx, d, a, p)
	case action.DropConfig:
		return r.c.Machines.DropStaged(ctx, d.Repository(), a.Node, a.Config)
	case action.DrainNode:
		if a.Target == cluster.TurnRemoval {
			if err := r.noteRemoval(a.Node.VMID); err != nil {
				return err
			}
		}
		return r.c.Nodes.Drain(ctx, d, a.Node, a.Target, a.How, p)
	case action.ShutDownVM:
		if err := r.beginRestart(ctx, d, action.RebootNode(a), p); err != nil {
			return err
		}
		return r.c.VMs.ShutDown(ctx, d, a.Node, p)
	case action.RebootNode:
		before := r.c.Journal.Facts()
		if err := r.beginRestart(ctx, d, a, p); err != nil {
			return err
		}
		err := r.c.Machines.Reboot(ctx, d, a.Node, a.Restart.Boot, p)
		return r.withdrawRestart(a.Node, before, err)
	case action.CheckInstallers:
		return r.c.Images.CheckInstallers(ctx, d, a.Images)
	case action.PullInstaller:
		return r.c.Machines.PullInstaller(ctx, d, a.Node, a.Image, p)
	case action.InstallTalos:
		return r.installTalos(ctx, d, a, p)
	case action.UpgradeTalos:
		return r.upgradeTalos(ctx, d, a, p)
	case action.RollBackTalos:
		return r.rollBackTalos(ctx, d, a, p)
	case action.SetAvailability:
		return r.c.VMs.SetAvailability(ctx, d, a.VM, a.State, p)
	case action.SetApart:
		return r.c.VMs.SetApart(ctx, d, a.VMs, p)
	case action.UncordonNode:
		return r.c.Nodes.Uncordon(ctx, d, a.Node)
	case action.RemoveMember:
		return r.removeMember(ctx, d, a)
	case action.DeleteNode:
		return r.c.Nodes.DeleteNode(ctx, d, a.Node, p)
	case action.LabelNode:
		return r.c.Nodes.Label(ctx, d, a.Node, a.Left)
	case action.SyncManifests:
		return r.c.Manifests.Sync(ctx, d, a.Manifests)
	case action.StartJob:
		return r.c.Gates.StartJob(ctx, d, a.Gate, a.Name, a.Revision)
	case action.DeleteJob:
		return r.c.Gates.DeleteJob(ctx, d, a.Job)
	case action.TakeSnapshot:
		return r.c.Snapshots.Take(ctx, d, a.For, p)
	default:
		return fmt.Errorf("%s: internal error: %T cannot be carried out", a.Info(), a)
	}
}

// giveConfig gives a machine that runs its config, or what of it is about the network.
func (r *Reconciler) giveConfig(ctx context.Context, d cluster.Desired, a action.ChangeConfig) error {
	if a.Network != "" {
		return r.c.Machines.ChangeNetwork(ctx, d, a.Node, a.Config)
	}
	return r.c.Machines.Change(ctx, d, a.Node, a.Config, false)
}

// fetchChart fetches a chart under the pin of the inventory, else under the one
// taken at first use, else takes that pin now.
func (r *Reconciler) fetchChart(ctx context.Context, a cluster.Addon) error {
	pin := a.Chart.Digest
	if pin == "" {
		pin = r.c.Journal.Facts().Charts[a.Chart.Ref()]
	}
	digest, err := r.c.Releases.FetchChart(ctx, a, pin)
	if err != nil || pin != "" || a.Chart.Path != "" {
		return err
	}
	return r.c.Journal.Update(func(f *cluster.Facts) { f.Charts[a.Chart.Ref()] = digest })
}
