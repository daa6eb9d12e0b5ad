package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/callgate"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/kube"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/reconcile/talos"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/forge"
)

// wiring is everything an agent is made of, resolved: files are read, and the
// adapters' own configs are filled in.
type wiring struct {
	owner    string
	clusters []string // empty: all in the repository
	interval time.Duration
	policy   func() cluster.Policy
	files    reconcile.Files // of the journal
	known    []string        // clusters that have a journal already
	cacheDir string
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	log      *slog.Logger

	sources sources.Config
	store   closer // of sources.Store
	proxmox proxmox.Config
	factory factory.Config
	charts  helm.Config // API, OnChange, CacheDir and Log are filled per cluster
	forge   *forge.Config
	notify  []config.Notification
	spoken  *spoken
	host    string // its name

	// prepare, when set, has a hand in every snapshot before it is used: a
	// rehearsal puts throw-away keys and stand-ins for charts into it.
	prepare func(cluster.Snapshot) (cluster.Snapshot, error)
	// onStatus is called after every pass of any cluster, onPass with how long it
	// took, and onAction when an action ended; they must not block.
	onStatus func(cluster.Status)
	onPass   func(name string, took time.Duration)
	onAction func(name string, o cluster.Outcome)
	// onNotified is told how each attempt to notify a target ended.
	onNotified func(target string, err error)
	// onUnheard is told of somebody outside who could not be told how a cluster
	// stands, and with nil that they could be again.
	onUnheard func(who string, err error)
	// told, chronicle and pulse keep and tell what happens, for people; nil: in
	// memory, for as long as the agent lives.
	told      *told
	chronicle *chronicle
	pulse     *history.Pulse // beats whenever a status may have changed
}

type closer interface{ Close() error }

// agent reconciles the clusters of one repository on one host.
type agent struct {
	w      wiring
	hub    *hub
	gate   *callgate.Gate // of everything that is asked of others
	pve    *proxmox.Client
	images *images
	// consoles listens to machines that do not come up.
	consoles  *consoles
	forge     *forge.Client // nil: none
	examining chan struct{} // held by the one examination that is under way
	notifiers []*notifier
	outage    outage // of the repository; whoever fetches has it
	started   time.Time
	config    string

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	asked chan time.Time // one slot: since when the clusters of the repository are asked for

	mu       sync.Mutex
	managed  map[string]*managed
	refused  map[string]cluster.Status // clusters that cannot be looked after
	unread   error                     // why the clusters of the repository are not known
	stopping bool
}

// managed is one cluster the agent looks after.
type managed struct {
	name     string
	r        *reconcile.Reconciler
	source   *source
	fleet    *talos.Fleet
	kube     *kube.Cluster
	helm     *helm.Releaser
	render   *renderer
	reporter *reporter
	sight    sight
}

// newAgent wires an agent. Nothing is asked or changed before start.
func newAgent(w wiring) (*agent, error) {
	repo, err := sources.New(w.sources)
	if err != nil {
		return nil, err
	}
	if w.told == nil {
		w.told = newTold()
	}
	if w.chronicle == nil {
		w.chronicle = newChronicle(nil, history.DefaultKeep, w.log)
	}
	if w.pulse == nil {
		w.pulse = &history.Pulse{}
	}
	a := &agent{w: w, started: time.Now(), examining: make(chan struct{}, 1), asked: make(chan time.Time, 1), managed: map[string]*managed{}, refused: map[string]cluster.Status{}}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.gate = callgate.New(a.ctx)
	w.proxmox.Wrap, w.factory.Wrap = a.gate.HTTP("proxmox"), a.gate.HTTP("factory")
	if a.pve, err = proxmox.New(w.proxmox); err != nil {
		return nil, err
	}
	f, err := factory.New(w.factory)
	if err != nil {
		a.pve.Close()
		return nil, err
	}
	a.images = &images{factory: f, pve: a.pve}
	a.consoles = &consoles{read: a.pve.Console, log: w.log, done: w.pulse.Beat, ctx: a.ctx, wg: &a.wg,
		nodes: map[consoleKey]*listened{}, wanted: map[consoleKey]int{}, cancel: map[consoleKey]context.CancelFunc{}}
	if w.forge != nil {
		f := *w.forge
		f.Wrap = a.gate.HTTP("forge")
		if a.forge, err = forge.New(f); err != nil {
			a.pve.Close()
			return nil, err
		}
	}
	a.hub = &hub{repo: repo, did: a.fetched, lock: make(chan struct{}, 1)}
	if err := a.announce(); err != nil {
		a.pve.Close()
		return nil, err
	}
	return a, nil
}

// start begins to reconcile: the named clusters at once, the clusters of the
// repository as soon as it is read. stop ends it.
func (a *agent) start(ctx context.Context) {
	context.AfterFunc(ctx, a.cancel)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(a.w.clusters), a.w.known...)))) {
		if len(a.w.clusters) > 0 && !slices.Contains(a.w.clusters, name) {
			continue // its journal stays, for the day it is named again
		}
		a.manage(name)
	}
	a.wg.Go(a.discover)
}

// manage begins to look after a cluster, unless that is done already. One that
// cannot be looked after is told as Stalled; the others are not concerned.
func (a *agent) manage(name string) {
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
		m.r.Run(a.ctx)
		m.helm.Close()
		m.kube.Close()
		m.fleet.Close()
		if m.reporter != nil {
			m.reporter.close()
		}
	})
}

// refuse tells why a cluster is not looked after, in the log only when that is
// news. a.mu is held.
func (a *agent) refuse(name string, err error) {
	now := time.Now().UTC()
	s := cluster.Status{Cluster: name, Condition: cluster.Stalled, Message: "nothing is done about this cluster: " + text.OneLine(err.Error()), Hint: fault.HintOf(err),
		Since: now, NextPass: now.Add(a.w.interval), Nodes: []cluster.NodeStatus{}, Addons: []cluster.AddonStatus{}, Running: []cluster.RunningStatus{},
		Waiting: []cluster.WaitStatus{}, Blocked: []cluster.Block{}, Problems: cluster.Problems{}, Passes: []cluster.PassStatus{}}
	if before, ok := a.refused[name]; ok && before.Message == s.Message {
		s.Since = before.Since
	} else {
		a.w.log.Error("cannot look after a cluster", "cluster", name, "err", err, "hint", s.Hint)
	}
	a.refused[name] = s
	a.notify(s)
	if a.w.onStatus != nil {
		a.w.onStatus(s)
	}
	a.w.pulse.Beat()
}

// assemble wires one cluster.
func (a *agent) assemble(name string) (*managed, error) {
	id := cluster.ClusterID(a.w.owner, name)
	journal, err := reconcile.OpenJournal(a.w.files, name, id)
	if err != nil {
		return nil, err
	}
	m := &managed{name: name, source: &source{hub: a.hub, name: name, prepare: a.w.prepare}}
	log := a.w.log.With("cluster", name)
	look := func() {
		if m.r != nil {
			m.r.Look(false)
		}
	}
	m.kube = kube.New(kube.Config{Dial: a.w.dial, Wrap: a.gate.HTTP("kubernetes"), Log: log, OnChange: look})
	m.render = &renderer{factory: a.images.factory, policy: a.w.policy}
	charts := a.w.charts
	charts.CacheDir = filepath.Join(a.w.cacheDir, "charts")
	charts.Dial, charts.Log, charts.OnChange = a.w.dial, log, look
	charts.WrapCharts, charts.WrapAPI = a.gate.HTTP("charts"), a.gate.HTTP("kubernetes")
	charts.API = m.kube.API
	if m.helm, err = helm.New(charts); err != nil {
		return nil, err
	}
	// What has goroutines comes after what can fail.
	m.fleet = talos.New(talos.Config{Dial: a.w.dial, Options: a.gate.GRPC("talos"), Log: log, Digest: machineconfig.Digest, OnChange: look})
	if a.forge != nil {
		m.reporter = newReporter(a.forge, func(err error) { a.unheard("forge: "+name, err) }, log)
	}
	m.r, err = reconcile.New(reconcile.Config{
		Cluster: name, ID: id, Source: m.source, Renderer: m.render, Journal: journal, Policy: a.w.policy,
		Host:      a.pve,
		Observers: []reconcile.Observer{a.images, m.fleet, inOrder{m.kube, m.helm}},
		Images:    a.images, VMs: vms{a.pve}, Machines: m.fleet, Releases: m.helm,
		Interval: a.w.interval, Log: a.w.log,
		OnStatus: func(s cluster.Status) {
			if m.sight.worthTelling(s, time.Now()) {
				if m.reporter != nil {
					m.reporter.report(s)
				}
				a.notify(s)
				a.w.chronicle.told(s, time.Now(), m.r.Foretold)
			}
			a.consoles.told(s, time.Now())
			if a.w.onStatus != nil {
				a.w.onStatus(s)
			}
			a.w.pulse.Beat()
		},
		OnPass: func(took time.Duration) {
			if a.w.onPass != nil {
				a.w.onPass(name, took)
			}
		},
		OnAction: func(o cluster.Outcome) {
			a.w.chronicle.did(name, o)
			if a.w.onAction != nil {
				a.w.onAction(name, o)
			}
		},
		OnCommand: func(what string) { a.w.chronicle.said(name, what) },
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// stop ends everything: nothing new is asked of anybody, calls in flight have
// the grace to be answered, and when it returns nothing of the agent runs any
// more.
func (a *agent) stop() {
	a.mu.Lock()
	a.stopping = true
	a.mu.Unlock()
	a.cancel()
	a.wg.Wait()
	a.hush()
	a.w.chronicle.close()
	a.pve.Close()
	if a.w.store != nil {
		if err := a.w.store.Close(); err != nil {
			a.w.log.Debug("close the repository", "err", err)
		}
	}
}

// inOrder lets one observer see what the one before it found.
type inOrder []reconcile.Observer

func (obs inOrder) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	for _, ob := range obs {
		ob.Observe(ctx, d, o)
	}
}

// vms gives the Proxmox VE client the shape the executor wants.
type vms struct{ c *proxmox.Client }

func (v vms) Create(ctx context.Context, d cluster.Desired, n cluster.Node, host string, boot cluster.Boot, p reconcile.Progress) error {
	return v.c.Create(ctx, d, n, host, boot, p)
}

func (v vms) Start(ctx context.Context, d cluster.Desired, n cluster.Node, p reconcile.Progress) error {
	return v.c.Start(ctx, d, n, p)
}

func (v vms) Delete(ctx context.Context, d cluster.Desired, vm cluster.VM, p reconcile.Progress) error {
	return v.c.Delete(ctx, d, vm, p)
}

// images brings the image from the factory over the host's cache to its
// storages.
type images struct {
	factory *factory.Factory
	pve     *proxmox.Client
}

// Observe implements reconcile.Observer.
func (i *images) Observe(_ context.Context, d cluster.Desired, o *cluster.Observed) {
	if d.Image.Name != "" {
		o.ImageCached = cluster.Saw(i.factory.Cached(d.Image, o.Facts.Images[d.Image.Name]))
	}
}

func (i *images) Register(ctx context.Context, s cluster.Schematic) error {
	_, err := i.factory.Schematic(ctx, s)
	return err
}

func (i *images) Download(ctx context.Context, d cluster.Desired, p reconcile.Progress) (cluster.ImagePin, error) {
	progress := func(done, total int64) { p(cluster.Progress{Done: done, Total: total, Unit: "bytes"}) }
	pin, err := i.factory.Download(ctx, d.Image, progress)
	if errors.Is(err, factory.ErrUnknownSchematic) {
		// The id comes from the journal, and this factory was never told.
		id, regErr := i.factory.Schematic(ctx, d.Spec.Schematic)
		if regErr != nil {
			return cluster.ImagePin{}, regErr
		}
		if id != d.Image.Schematic {
			return cluster.ImagePin{}, fmt.Errorf("%w; it gives %s for what the inventory asks", err, id)
		}
		pin, err = i.factory.Download(ctx, d.Image, progress)
	}
	return pin, err
}

func (i *images) Upload(ctx context.Context, host, datastore string, img cluster.Image, p reconcile.Progress) error {
	f, size, err := i.factory.Open(img)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return i.pve.Upload(ctx, host, datastore, img.Name, size, f, p)
}

// find returns a managed cluster.
func (a *agent) find(name string) (*managed, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.managed[name]; m != nil {
		return m, nil
	}
	if s, ok := a.refused[name]; ok {
		return nil, fault.WithHint(errors.New(s.Message), s.Hint)
	}
	err := fmt.Errorf("%w: %q", api.ErrUnknownCluster, name)
	if known := slices.Sorted(maps.Keys(a.managed)); len(known) > 0 {
		return nil, fault.WithHint(err, "this host looks after "+strings.Join(known, ", "))
	}
	return nil, fault.WithHint(err, "no cluster has been read from the repository yet: `talos-agent status` says why")
}
