package agent

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/callgate"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/follower"
	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/forge"
)

// Agent reconciles the clusters of one repository on one host.
type Agent struct {
	c        Config
	repo     *sources.Repository
	follower *follower.Follower // who fetches it
	gate     *callgate.Gate     // of everything that is asked of others
	pve      *proxmox.Client
	images   *images
	// consoles reads those of machines that do not come up.
	consoles *consoles
	forge    *forge.Client // nil: none
	notifier *reporting.Notifier
	reserved *outbox.Outbox[reserved] // nil: none are written
	// forwarded is which ports of the host lead to nodes; nil: that is written nowhere.
	forwarded *outbox.Outbox[forwarded]
	outage    *reporting.Outage // of the repository; the follower's goroutine has it
	started   time.Time

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	managed  map[string]*managedCluster
	refused  map[string]refusedCluster
	examined *examination // the newest
	unread   error        // why the clusters of the repository are not known
	misnamed []string     // what is wrong with folders that could be clusters, beside those that are
	stopping bool
}

// New wires an agent. Nothing is asked or changed before Start.
func New(c Config) (*Agent, error) {
	repo, err := sources.New(c.Sources)
	if err != nil {
		return nil, err
	}
	c.setDefaults()
	a := &Agent{c: c, repo: repo, started: time.Now(), managed: map[string]*managedCluster{}, refused: map[string]refusedCluster{}}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.gate = callgate.New(a.ctx)
	c.Proxmox.Wrap, c.Factory.Wrap = a.gate.HTTP("proxmox"), a.gate.HTTP("factory")
	c.Proxmox.Copies = func() int { return c.Policy().Capacity.Copies() }
	if a.pve, err = proxmox.New(c.Proxmox); err != nil {
		return nil, err
	}
	f, err := factory.New(c.Factory)
	if err != nil {
		a.pve.Close()
		return nil, err
	}
	a.images = &images{factory: f, pve: a.pve}
	a.consoles = &consoles{read: a.pve.Console, log: c.Log, done: c.Pulse.Beat, ctx: a.ctx, wg: &a.wg,
		nodes: map[consoleKey]*listened{}, wanted: map[consoleKey]int{}, cancel: map[consoleKey]context.CancelFunc{}, refused: map[string]refusal{}}
	if c.Forge != nil {
		f := *c.Forge
		f.Wrap = a.gate.HTTP("forge")
		if a.forge, err = forge.New(f); err != nil {
			a.pve.Close()
			return nil, err
		}
	}
	a.follower = follower.New(follower.Config{Fetch: repo.Fetch, Take: a.takeFetched, Interval: c.Interval, Log: c.Log})
	if err := a.startNotifier(); err != nil {
		a.pve.Close()
		return nil, err
	}
	a.startReservations()
	a.startForwards()
	return a, nil
}

// Start begins to reconcile: the named clusters at once, the clusters of the
// repository as soon as it is read. Stop ends it.
func (a *Agent) Start(ctx context.Context) {
	context.AfterFunc(ctx, a.cancel)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(a.c.Clusters), a.c.Known...)))) {
		if len(a.c.Clusters) > 0 && !slices.Contains(a.c.Clusters, name) {
			continue // its journal stays, for the day it is named again
		}
		a.manage(name)
	}
	a.wg.Go(func() { a.follower.Run(a.ctx) })
	if a.c.Directory != "" {
		a.wg.Go(a.watchDirectory)
	}
	if a.c.Pushed != nil {
		a.wg.Go(func() { outbox.RunPaced(a.ctx.Done(), a.c.Pushed, minPushGap, a.follower.Request) })
	}
}

// minPushGap is how far apart webhooks have the repository fetched at least: so
// much costs a stolen secret, and no more.
const minPushGap = 5 * time.Second

// watchDirectory has the repository fetched whenever the directory changes that is the repository.
func (a *Agent) watchDirectory() {
	if err := sources.Watch(a.ctx, a.c.Directory, a.follower.Request); err != nil && a.ctx.Err() == nil {
		a.c.Log.Warn("cannot watch the repository's directory; it is read every interval", logging.Err, err)
	}
}

// manage begins to manage a cluster, unless that is done already. One that cannot
// be managed is reported as Stalled; the others are not concerned.
func (a *Agent) manage(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.managed[name] != nil || a.stopping {
		return
	}
	m, err := a.assemble(name)
	if err != nil {
		a.refuse(name, err)
		return
	}
	delete(a.refused, name)
	a.managed[name] = m
	a.wg.Go(func() {
		m.Run(a.ctx)
		m.helm.Close()
		m.kube.Close()
		m.fleet.Close()
		if m.commits != nil {
			m.commits.Close()
		}
		if a.ctx.Err() == nil {
			a.forget(m)
		}
	})
}

// forget ends the management of a cluster whose loop has ended by itself. The
// repository is fetched again: it may have the cluster back already.
func (a *Agent) forget(m *managedCluster) {
	a.mu.Lock()
	a.dropTraces(m.name, m.whole)
	delete(a.managed, m.name)
	a.mu.Unlock()
	a.c.Pulse.Beat()
	a.follower.Request()
}

// dropTraces drops what is remembered of a cluster beside its status, so that folders that
// come and go add up to nothing. whole: its history, too, for it has no journal. a.mu is
// held, so that it is not managed again before.
func (a *Agent) dropTraces(name string, whole bool) {
	a.consoles.forget(name)
	a.unreserve(name)
	a.endForwards(name)
	a.notifier.Forget(name)
	a.c.Runs.Forget(name, whole)
	a.c.OnUnreachable(forgeOf(name), nil)
	a.c.OnForgotten(name)
}

// forgeOf is who is reported not to be reached when commit statuses of a cluster cannot be sent.
func forgeOf(name string) string { return "forge: " + name }

// refusedCluster is a cluster that cannot be managed.
type refusedCluster struct {
	cluster.Status
	err string // as it was logged
}

// refuse reports why a cluster is not managed, in the log only when that is news.
// a.mu is held.
func (a *Agent) refuse(name string, err error) {
	now := time.Now().UTC()
	s := cluster.Status{Cluster: name, Condition: cluster.Stalled, Reason: cmp.Or(cluster.ReasonOf(err), cluster.ClusterUnmanaged), Concerns: name, Message: "nothing is done about this cluster: " + text.OneLine(err.Error()), Hint: fault.HintOf(err),
		Since: now, NextPass: now.Add(a.c.Interval), Nodes: []cluster.NodeStatus{}, Addons: []cluster.AddonStatus{}, Running: []cluster.RunningStatus{},
		Waiting: []cluster.WaitStatus{}, Blocked: []cluster.Block{}, Problems: cluster.Problems{}, Passes: []cluster.PassStatus{}}
	if before, ok := a.refused[name]; ok && before.err == err.Error() {
		s.Since = before.Since
	} else {
		a.c.Log.Error("cannot manage a cluster", logging.Cluster, name, logging.Err, err, logging.Hint, s.Hint)
	}
	a.refused[name] = refusedCluster{s, err.Error()}
	a.notifier.Report(s)
	a.c.OnStatus(s)
	a.c.Pulse.Beat()
}

// Stop ends everything: nothing new is asked of anybody, calls in flight have
// the grace to be answered, and when it returns nothing of the agent runs any
// more.
func (a *Agent) Stop() {
	a.mu.Lock()
	a.stopping = true
	a.mu.Unlock()
	a.cancel()
	a.wg.Wait()
	a.notifier.Close()
	if a.reserved != nil {
		a.reserved.Close()
	}
	if a.forwarded != nil {
		a.forwarded.Close()
	}
	a.c.Runs.Close()
	a.pve.Close()
	if a.c.Snapshots != nil {
		if err := a.c.Snapshots.Close(); err != nil {
			a.c.Log.Debug("close the folder of snapshots", logging.Err, err)
		}
	}
	if a.c.Store != nil {
		if err := a.c.Store.Close(); err != nil {
			a.c.Log.Debug("close the repository", logging.Err, err)
		}
	}
}

// startNotifier starts to notify, and to watch for outages of the repository.
func (a *Agent) startNotifier() (err error) {
	a.notifier, err = reporting.NewNotifier(reporting.Config{
		Agent: a.c.Owner, Host: a.c.Host, Targets: a.c.Notify, Sent: a.c.Sent, Gate: a.gate, Log: a.c.Log,
		OnAttempt: func(target string, err error) {
			a.c.OnUnreachable("notifications: "+target, err)
			a.c.OnNotified(target, err)
		},
	})
	a.outage = &reporting.Outage{Notifier: a.notifier, Covered: a.isUnreadSinceStart, Log: a.c.Log}
	return err
}

// isUnreadSinceStart reports whether no cluster was read since the agent started:
// each of them is Unknown, and is reported to be.
func (a *Agent) isUnreadSinceStart() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.managed {
		if s := m.Status(); !s.Fetched.IsZero() || s.Condition != cluster.Unknown {
			return false
		}
	}
	return len(a.managed) > 0
}
