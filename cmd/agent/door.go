package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/eventlog"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/text"
)

// door is what the socket serves while agents come and go behind it.
type door struct {
	mu    sync.RWMutex
	a     *agent
	names []string          // of the last agent's clusters; nil: there was none yet
	wrong []string          // with the daemon's own files
	lack  map[string]string // what cannot be had, and who cannot be told, by the config's field

	// numbers are the daemon's metrics as text; nil: there are none yet.
	numbers func() (string, error)

	// What outlives the agents.
	events *eventlog.Events
	pulse  history.Pulse
}

func (d *door) open(a *agent) {
	d.mu.Lock()
	d.a = a
	d.mu.Unlock()
	d.pulse.Beat()
}

// shut lets nobody through until another agent is there. Its clusters will be
// those of this one, as far as anybody knows.
func (d *door) shut() {
	names := d.About().Clusters
	d.mu.Lock()
	d.names = names
	d.mu.Unlock()
	d.open(nil)
}

// trouble sets what is told to be wrong with the daemon's own files, and reports
// whether that is news.
func (d *door) trouble(words []string) bool {
	d.mu.Lock()
	changed := !slices.Equal(words, d.wrong)
	d.wrong = words
	d.mu.Unlock()
	if changed {
		d.pulse.Beat()
	}
	return changed
}

// lacks notes that what a field of the config names cannot be had, or with nil
// that it can. It reports whether that is news.
func (d *door) lacks(field string, err error) bool {
	if err == nil {
		return d.note(field, "")
	}
	return d.note(field, err.Error()+"; it is tried again")
}

// unreachable notes that somebody whom the config names cannot be told how the
// clusters stand, or with nil that they can.
func (d *door) unreachable(who string, err error) {
	if err == nil {
		d.note(who, "")
		return
	}
	words := "cannot be told how things stand: " + text.OneLine(err.Error())
	if hint := fault.HintOf(err); hint != "" {
		words += " (" + hint + ")"
	}
	d.note(who, words)
}

// note keeps what is wrong with a field of the config, "" for nothing, and reports
// whether anything is wrong now that was not before, or the other way round.
func (d *door) note(field, wrong string) bool {
	words := ""
	if wrong != "" {
		words = field + ": " + wrong
	}
	d.mu.Lock()
	before := d.lack[field]
	switch {
	case words == "":
		delete(d.lack, field)
	case d.lack == nil:
		d.lack = map[string]string{field: words}
	default:
		d.lack[field] = words
	}
	d.mu.Unlock()
	if words != before {
		d.pulse.Beat()
	}
	return (words == "") != (before == "")
}

// lacksNothing forgets what the config of before could not have.
func (d *door) lacksNothing() { d.mu.Lock(); clear(d.lack); d.mu.Unlock() }

var errStarting = fault.WithHint(errors.New("the daemon is starting"), "ask again in a moment")

func (d *door) get() (*agent, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.a == nil {
		return nil, errStarting
	}
	return d.a, nil
}

func through[T any](d *door, f func(*agent) (T, error)) (T, error) {
	a, err := d.get()
	if err != nil {
		var zero T
		return zero, err
	}
	return f(a)
}

func (d *door) tell(f func(*agent) error) error {
	_, err := through(d, func(a *agent) (struct{}, error) { return struct{}{}, f(a) })
	return err
}

func (d *door) Examine(ctx context.Context) (doctor.Examination, error) {
	return through(d, func(a *agent) (doctor.Examination, error) { return a.Examine(ctx) })
}

func (d *door) About() api.About {
	about, err := through(d, func(a *agent) (api.About, error) { return a.About(), nil })
	if err != nil {
		about = api.About{Version: version}
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err != nil {
		about.Clusters = d.names
	}
	about.Trouble = slices.Concat(d.wrong, about.Trouble, slices.Sorted(maps.Values(d.lack)))
	return about
}

func (d *door) Clusters() []string {
	names, _ := through(d, func(a *agent) ([]string, error) { return a.Clusters(), nil })
	return names
}

func (d *door) Status(n string) (cluster.Status, error) {
	return through(d, func(a *agent) (cluster.Status, error) { return a.Status(n) })
}

func (d *door) Changed() <-chan struct{} { return d.pulse.Next() }

func (d *door) Events(q cluster.EventQuery) []cluster.Event { return d.events.Select(q) }

func (d *door) EventsChanged() <-chan struct{} { return d.events.Changed() }

func (d *door) History(n string) ([]cluster.Run, error) {
	return through(d, func(a *agent) ([]cluster.Run, error) { return a.History(n) })
}

func (d *door) Inside() api.Inside {
	d.mu.RLock()
	numbers := d.numbers
	d.mu.RUnlock()
	if numbers == nil {
		return inside(errStarting.Error())
	}
	text, err := numbers()
	if err != nil {
		text = err.Error()
	}
	return inside(text)
}

// measured says where the daemon's metrics come from.
func (d *door) measured(numbers func() (string, error)) {
	d.mu.Lock()
	d.numbers = numbers
	d.mu.Unlock()
}

func (d *door) Console(ctx context.Context, n, node string, each func(string) error) error {
	return d.tell(func(a *agent) error { return a.Console(ctx, n, node, each) })
}

func (d *door) Forecast(n string) (cluster.Forecast, error) {
	return through(d, func(a *agent) (cluster.Forecast, error) { return a.Forecast(n) })
}

func (d *door) ForecastDir(ctx context.Context, n string, files fs.FS) (cluster.Forecast, error) {
	return through(d, func(a *agent) (cluster.Forecast, error) { return a.ForecastDir(ctx, n, files) })
}

func (d *door) ForecastDestroy(n string) (cluster.Forecast, error) {
	return through(d, func(a *agent) (cluster.Forecast, error) { return a.ForecastDestroy(n) })
}

func (d *door) Reconcile(n string) error {
	return d.tell(func(a *agent) error { return a.Reconcile(n) })
}
func (d *door) Suspend(n string) error { return d.tell(func(a *agent) error { return a.Suspend(n) }) }
func (d *door) Resume(n string) error  { return d.tell(func(a *agent) error { return a.Resume(n) }) }
func (d *door) Destroy(n string) error { return d.tell(func(a *agent) error { return a.Destroy(n) }) }
func (d *door) AcceptBootstrap(n string) error {
	return d.tell(func(a *agent) error { return a.AcceptBootstrap(n) })
}

func (d *door) Accept(n string, r cluster.Revision) error {
	return d.tell(func(a *agent) error { return a.Accept(n, r) })
}

func (d *door) Kubeconfig(n string) ([]byte, error) {
	return through(d, func(a *agent) ([]byte, error) { return a.Kubeconfig(n) })
}

func (d *door) Talosconfig(n string) ([]byte, error) {
	return through(d, func(a *agent) ([]byte, error) { return a.Talosconfig(n) })
}
