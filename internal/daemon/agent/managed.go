package agent

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/kube"
	"github.com/talos-agent/talos-agent/reconcile/kube/manifests"
	"github.com/talos-agent/talos-agent/reconcile/leases"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/talos"
)

// managedCluster is one cluster that the agent manages, with what it is made of.
type managedCluster struct {
	*reconcile.Reconciler
	agent   *Agent
	name    string
	source  *source
	fleet   *talos.Fleet
	kube    *kube.Cluster
	helm    *helm.Releaser
	render  *renderer
	commits *reporting.Commits
	filter  reporting.Filter
	whole   bool // it was forgotten with its journal

	compared comparison
	used     usageReport
}

// assemble wires one cluster.
func (a *Agent) assemble(name string) (*managedCluster, error) {
	id := cluster.ClusterID(a.c.Owner, name)
	kept, err := journal.Open(a.c.Files, name, id)
	if err != nil {
		return nil, err
	}
	m := &managedCluster{agent: a, name: name, source: &source{repo: a.repo, newest: a.follower.Newest, name: name, prepare: a.c.Prepare, patience: firstWithin}, compared: comparison{turn: make(chan struct{}, 1)}, used: usageReport{turn: make(chan struct{}, 1)}}
	log := a.c.Log.With(logging.Cluster, name)
	look := func() {
		if m.Reconciler != nil {
			m.Look()
		}
	}
	m.kube = kube.New(kube.Config{Dial: a.c.Dial, Wrap: a.gate.HTTP("kubernetes"), Log: log, OnChange: look, Neighbour: a.c.Neighbour, Worker: a.c.Charts.Worker})
	book := &leases.Book{}
	m.render = &renderer{addresses: book, factory: a.images.factory, policy: a.c.Policy, builtWith: func(fingerprint string) (string, error) { return a.builtWith(fingerprint, name) }}
	charts := a.c.Charts
	charts.CacheDir = filepath.Join(a.c.CacheDir, "charts")
	charts.Dial, charts.Log, charts.OnChange = a.c.Dial, log, look
	charts.WrapCharts, charts.WrapAPI = a.gate.HTTP("charts"), a.gate.HTTP("kubernetes")
	charts.API = m.kube.API
	if m.helm, err = helm.New(charts); err != nil {
		return nil, err
	}
	// What has goroutines comes after what can fail.
	m.fleet = talos.New(talos.Config{Dial: a.c.Dial, Options: a.gate.GRPC("talos"), Log: log, Digest: m.render.configs.Digest, Summarize: m.render.configs.Summarize, MayDisconnect: machineconfig.MayDisconnect, TakeNetwork: machineconfig.TakeNetwork, OnChange: look})
	deployed := manifests.New(manifests.Config{API: m.kube.API, Dial: a.c.Dial, Wrap: a.gate.HTTP("kubernetes"), Rendered: m.fleet.Rendered, Configs: m.fleet.ConfigDigests})
	if a.forge != nil {
		m.commits = reporting.NewCommits(a.forge, func(err error) { a.c.OnUnreachable(forgeOf(name), err) }, log)
	}
	c := reconcile.Config{
		Cluster: name, ID: id, Source: m.source, Renderer: m.render, Journal: kept, Policy: a.c.Policy,
		Host:      a.pve,
		Observers: []reconcile.Observer{inOrder{m.fleet, lookout{book: book, find: a.c.Addresses, policy: a.c.Policy, look: look}}, inOrder{m.kube, m.helm, deployed}},
		Images:    a.images, VMs: vms{a.pve}, Machines: machines{m.fleet}, Nodes: nodes{m.kube}, Gates: m.kube, Releases: m.helm, Manifests: deployed,
		Interval: a.c.Interval, Log: a.c.Log, EndRemoved: len(a.c.Clusters) == 0,
		Earlier:  a.c.Earlier(name),
		Usual:    func() map[cluster.ActionKind]time.Duration { return a.c.Runs.Usual(name) },
		OnStatus: m.report,
		OnPass:   func(took time.Duration) { a.c.OnPass(name, took) },
		OnBegin:  func(o cluster.Outcome) { a.c.Runs.AddBegun(name, o) },
		OnAction: func(o cluster.Outcome) {
			a.c.Runs.AddAction(name, o)
			a.c.OnAction(name, o)
		},
		OnForgotten: func(whole bool) { m.whole = whole },
		OnCommand:   func(what string, turns bool) { a.c.Runs.AddCommand(name, what, turns) },
	}
	if a.c.Snapshots != nil {
		c.Snapshots = newKeeper(a.c.Snapshots, name, m.fleet, look)
	}
	if m.Reconciler, err = reconcile.New(c); err != nil {
		return nil, err
	}
	if kept.Fresh() {
		a.c.Runs.Hold(name)
	}
	return m, nil
}

// builtWith returns a cluster beside this one that was built with the bundle of a
// fingerprint: by the journals of all that have one, for its folder may be removed.
func (a *Agent) builtWith(fingerprint, beside string) (string, error) {
	a.mu.Lock()
	names := slices.AppendSeq(slices.Clone(a.c.Known), maps.Keys(a.managed))
	a.mu.Unlock()
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name == beside {
			continue
		}
		built, err := journal.ReadFingerprint(a.c.Files, name)
		if err != nil || built == fingerprint {
			return name, err
		}
	}
	return "", nil
}

// report takes a status to everybody who gets one.
func (m *managedCluster) report(s cluster.Status) {
	a, now := m.agent, time.Now()
	if m.filter.Passes(s, now) {
		if m.commits != nil {
			m.commits.Report(s)
		}
		a.notifier.Report(s)
		a.c.Runs.AddStatus(s, now, m.Foretold)
	}
	a.consoles.watch(s, now)
	m.reserve(now)
	m.forward(s, now)
	a.c.OnStatus(s)
	a.c.Pulse.Beat()
}

// find returns a cluster that is managed.
func (a *Agent) find(name string) (*managedCluster, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.managed[name]; m != nil {
		return m, nil
	}
	if s, ok := a.refused[name]; ok {
		return nil, cluster.WithReason(s.Reason, fault.WithHint(unmanaged(s.Message), s.Hint))
	}
	err := fmt.Errorf("%w: %q", api.ErrUnknownCluster, name)
	if known := slices.Sorted(maps.Keys(a.managed)); len(known) > 0 {
		return nil, fault.WithHint(err, "this host manages "+strings.Join(known, ", "))
	}
	return nil, fault.WithHint(err, "no cluster has been read from the repository yet: `talos-agent status` shows why")
}

// unmanaged is why a cluster is not managed.
type unmanaged string

func (u unmanaged) Error() string { return string(u) }

// Is makes it an api.ErrUnmanaged.
func (unmanaged) Is(target error) bool { return target == api.ErrUnmanaged }
