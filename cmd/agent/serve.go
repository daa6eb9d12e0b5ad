package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// The agent is what the socket serves.
var _ api.Agent = (*agent)(nil)

// About implements api.Agent.
func (a *agent) About() api.About {
	return api.About{Version: version, Started: a.started.UTC(), Config: a.config, Trouble: a.trouble(), Clusters: append([]string{}, a.Clusters()...)}
}

// Clusters implements api.Agent.
func (a *agent) Clusters() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(a.managed)), slices.Collect(maps.Keys(a.refused))...)))
}

// Status implements api.Agent.
func (a *agent) Status(name string) (cluster.Status, error) {
	a.mu.Lock()
	s, refused := a.refused[name]
	a.mu.Unlock()
	if refused {
		return s, nil
	}
	m, err := a.find(name)
	if err != nil {
		return cluster.Status{}, err
	}
	return a.consoles.show(m.r.Status()), nil
}

// Inside implements api.Agent.
func (a *agent) Inside() api.Inside { return inside("an agent by itself has none") }

// inside looks at this very process. Of the stacks it takes the places only:
// arguments are words of memory, and some of those are secret.
func inside(metrics string) api.Inside {
	var b strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		b.WriteString(err.Error())
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return api.Inside{Goroutines: b.String(), Metrics: metrics, Memory: map[string]int64{
		"heapInUse": int64(m.HeapInuse), "heapIdle": int64(m.HeapIdle), "heapObjects": int64(m.HeapObjects), "stacks": int64(m.StackInuse),
		"fromSystem": int64(m.Sys), "collections": int64(m.NumGC), "goroutines": int64(runtime.NumGoroutine()),
	}}
}

// Changed implements api.Agent.
func (a *agent) Changed() <-chan struct{} { return a.w.pulse.Next() }

// Events implements api.Agent.
func (a *agent) Events(q cluster.EventQuery) []cluster.Event { return a.w.events.Select(q) }

// EventsChanged implements api.Agent.
func (a *agent) EventsChanged() <-chan struct{} { return a.w.events.Changed() }

// History implements api.Agent.
func (a *agent) History(name string) ([]cluster.Run, error) {
	if _, err := a.Status(name); err != nil {
		return nil, err
	}
	return a.w.runs.List(name), nil
}

// Forecast implements api.Agent.
func (a *agent) Forecast(name string) (cluster.Forecast, error) {
	m, err := a.find(name)
	if err != nil {
		return cluster.Forecast{}, err
	}
	return m.r.Forecast()
}

// ForecastDir implements api.Agent.
func (a *agent) ForecastDir(ctx context.Context, name string, files fs.FS) (cluster.Forecast, error) {
	m, err := a.find(name)
	if err != nil {
		return cluster.Forecast{}, err
	}
	snap, problems, err := m.source.of(ctx, files)
	if err != nil {
		return cluster.Forecast{}, err
	}
	if problems.HasErrors() {
		return cluster.Forecast{Cluster: name, Revision: sentDirectory, Problems: problems, Blocked: []cluster.Block{{Subject: name, Reason: "the inventory is invalid"}}}, nil
	}
	f, err := m.r.ForecastOf(ctx, snap)
	var found cluster.Problems
	if errors.As(err, &found) {
		return cluster.Forecast{Cluster: name, Revision: sentDirectory, Problems: found, Blocked: []cluster.Block{{Subject: name, Reason: "the inventory is invalid"}}}, nil
	}
	return f, err
}

// ForecastDestroy implements api.Agent.
func (a *agent) ForecastDestroy(name string) (cluster.Forecast, error) {
	m, err := a.find(name)
	if err != nil {
		return cluster.Forecast{}, err
	}
	return m.r.ForecastDestroy()
}

// Reconcile implements api.Agent.
func (a *agent) Reconcile(name string) error {
	m, err := a.find(name)
	if errors.Is(err, api.ErrUnknownCluster) {
		a.readClusters() // it may have been pushed a moment ago
	}
	if err != nil {
		return err
	}
	m.r.Look(true)
	return nil
}

// readClusters has the repository read for clusters that nobody knows yet.
func (a *agent) readClusters() {
	select {
	case a.asked <- time.Now():
	default: // somebody asked a moment ago, and was not heard yet
	}
}

// lookAll has every cluster fetch and look, those too that nobody knows yet.
func (a *agent) lookAll() {
	a.readClusters()
	for _, name := range a.Clusters() {
		if m, err := a.find(name); err == nil {
			m.r.Look(true)
		}
	}
}

// Suspend implements api.Agent.
func (a *agent) Suspend(name string) error {
	m, err := a.find(name)
	if err != nil {
		return err
	}
	return m.r.Suspend()
}

// Resume implements api.Agent.
func (a *agent) Resume(name string) error {
	m, err := a.find(name)
	if err != nil {
		return err
	}
	return m.r.Resume()
}

// Accept implements api.Agent.
func (a *agent) Accept(name string, revision cluster.Revision) error {
	m, err := a.find(name)
	if err != nil {
		return err
	}
	if seen := m.r.Status().Revision; revision == "" || revision != seen {
		return fault.WithHint(errors.New("the revision to accept is not the newest one seen, "+seen.Short()), "look at `talos-agent status "+name+"` and run accept again")
	}
	return m.r.Accept(revision)
}

// AcceptBootstrap implements api.Agent.
func (a *agent) AcceptBootstrap(name string) error {
	m, err := a.find(name)
	if err != nil {
		return err
	}
	return m.r.AcceptBootstrap()
}

// Destroy implements api.Agent.
func (a *agent) Destroy(name string) error {
	m, err := a.find(name)
	if err != nil {
		return err
	}
	return m.r.Destroy()
}

// peopleTTL is how long a kubeconfig or talosconfig for a person works. They
// are minted on demand, so that there is no reason to keep one for long.
const peopleTTL = 30 * 24 * time.Hour

// access mints credentials for a person.
func (a *agent) access(name string) (*managed, cluster.Desired, cluster.Access, error) {
	m, err := a.find(name)
	if err != nil {
		return nil, cluster.Desired{}, cluster.Access{}, err
	}
	d, ok := m.r.Desired()
	if !ok || d.Bundle.IsZero() {
		return nil, d, cluster.Access{}, fault.WithHint(errors.New("the cluster's secrets have not been read"), "look at `talos-agent status "+name+"`")
	}
	acc, err := machineconfig.Credentials(d.Bundle, time.Now(), peopleTTL)
	return m, d, acc, err
}

// Kubeconfig implements api.Agent.
func (a *agent) Kubeconfig(name string) ([]byte, error) {
	_, d, acc, err := a.access(name)
	if err != nil {
		return nil, err
	}
	return machineconfig.Kubeconfig(d.Spec, acc, d.Spec.Network.Endpoint)
}

// Talosconfig implements api.Agent.
func (a *agent) Talosconfig(name string) ([]byte, error) {
	_, d, acc, err := a.access(name)
	if err != nil {
		return nil, err
	}
	return machineconfig.Talosconfig(d.Spec, acc)
}
