package daemon

import (
	"runtime"
	"runtime/pprof"
	"strings"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
)

// The daemon is what the socket serves.
var _ api.Daemon = (*Daemon)(nil)

// current is the agent that runs; nil: none does.
func (d *Daemon) current() *agent.Agent {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.agent
}

// Agent implements api.Daemon.
func (d *Daemon) Agent() (api.Agent, error) {
	if a := d.current(); a != nil {
		return a, nil
	}
	if err := d.standsBy(); err != nil {
		return nil, err
	}
	return nil, api.ErrStarting
}

// clusters are the clusters of the agent that runs.
func (d *Daemon) clusters() []string {
	if a := d.current(); a != nil {
		return a.Clusters()
	}
	return nil
}

// certificates are those of a cluster, or with "" the host's. Between two agents
// there are none.
func (d *Daemon) certificates(name string) []cluster.Certificate {
	if a := d.current(); a != nil {
		return a.Certificates(name)
	}
	return nil
}

// About implements api.Daemon.
func (d *Daemon) About() api.About {
	about, problems := api.About{Version: d.c.Version}, []string(nil)
	if a := d.current(); a != nil {
		about.Started, about.Config, problems = a.Started().UTC(), d.c.Path, a.Trouble()
		about.Clusters = append([]string{}, a.Clusters()...)
	} else {
		d.mu.RLock()
		about.Clusters = d.names
		d.mu.RUnlock()
		if err := d.standsBy(); err != nil {
			about.StandsBy = err.Error()
		}
	}
	about.Problems = d.problems.list(problems)
	return about
}

// Changed implements api.Daemon.
func (d *Daemon) Changed() <-chan struct{} { return d.pulse.Next() }

// Events implements api.Daemon.
func (d *Daemon) Events(q cluster.EventQuery) []cluster.Event { return d.c.Events.Select(q) }

// EventsChanged implements api.Daemon.
func (d *Daemon) EventsChanged() <-chan struct{} { return d.c.Events.Changed() }

// Inside implements api.Daemon. It looks at this very process. Of the stacks it
// takes the places only: arguments are words of memory, and some of those are
// secret.
func (d *Daemon) Inside() api.Inside {
	var b strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		b.WriteString(err.Error())
	}
	metrics, err := d.monitor.Text()
	if err != nil {
		metrics = err.Error()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return api.Inside{Goroutines: b.String(), Metrics: metrics, Memory: map[string]int64{
		"heapInUse": int64(m.HeapInuse), "heapIdle": int64(m.HeapIdle), "heapObjects": int64(m.HeapObjects), "stacks": int64(m.StackInuse),
		"fromSystem": int64(m.Sys), "collections": int64(m.NumGC), "goroutines": int64(runtime.NumGoroutine()),
	}}
}
