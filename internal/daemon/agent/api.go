package agent

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/callgate"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// What the socket asks of the agent.
var _ api.Agent = (*Agent)(nil)

// Started is when the agent was made.
func (a *Agent) Started() time.Time { return a.started }

// Gate is the gate of everything that the agent asks of others.
func (a *Agent) Gate() *callgate.Gate { return a.gate }

// Clusters implements api.Agent.
func (a *Agent) Clusters() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(a.managed)), slices.Collect(maps.Keys(a.refused))...)))
}

// Status implements api.Agent.
func (a *Agent) Status(name string) (cluster.Status, error) {
	a.mu.Lock()
	s, refused := a.refused[name]
	a.mu.Unlock()
	if refused {
		return s.Status, nil
	}
	m, err := a.find(name)
	if err != nil {
		return cluster.Status{}, err
	}
	return a.consoles.show(m.Status()), nil
}

// History implements api.Agent.
func (a *Agent) History(name string) ([]cluster.Run, error) {
	if _, err := a.Status(name); err != nil {
		return nil, err
	}
	return a.c.Runs.List(name), nil
}

// Cluster implements api.Agent.
func (a *Agent) Cluster(name string) (api.Cluster, error) {
	m, err := a.find(name)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Reconcile implements api.Agent.
func (a *Agent) Reconcile(name string) error {
	defer a.follower.Request() // one that is not known may have been pushed a moment ago
	m, err := a.find(name)
	if errors.Is(err, api.ErrUnknownCluster) {
		return fault.WithHint(err, "the repository is fetched now, in case it was pushed a moment ago; `talos-agent status` shows what is in it")
	}
	if err != nil {
		return err
	}
	m.Refresh()
	return nil
}

// ReconcileAll implements api.Agent.
func (a *Agent) ReconcileAll() {
	defer a.follower.Request()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.managed {
		m.Refresh()
	}
}

// LookAll has every cluster look: at once, for not all that is new is in the
// repository, and again when that is fetched.
func (a *Agent) LookAll() {
	a.lookAtOnce()
	a.follower.Request()
}

// lookAtOnce has every cluster look, at what was fetched last.
func (a *Agent) lookAtOnce() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.managed {
		m.Look()
	}
}

// Certificates are those of a cluster, or with "" the host's.
func (a *Agent) Certificates(name string) []cluster.Certificate {
	if name == "" {
		if c, ok := a.pve.Certificate(); ok {
			return []cluster.Certificate{c}
		}
		return nil
	}
	m, err := a.find(name)
	if err != nil {
		return nil
	}
	if of := m.render.certificates.Load(); of != nil {
		return *of
	}
	return nil
}
