// Package world is what all services of the lab share: time that may run faster,
// a network that may be memory, the faults that strike calls, the record of
// what was asked and how long things took, and the nouns that pass between the
// services: a guest that is switched on, a disk that keeps its contents, a
// Kubernetes control plane that comes up.
//
// It must not know how the agent thinks. It knows the systems the agent talks
// to, and the rules the agent promised to keep.
package world

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Config sizes a world. The zero value is a world in memory at natural speed.
type Config struct {
	// Speed divides every duration the world spends; 0 means 1. It never
	// changes a timestamp.
	Speed   float64
	Latency Latencies // zero fields take the default profile
	Network Network   // nil: a network in memory
	Log     *slog.Logger
}

// Latencies are how long things take in the simulated host, before Speed.
type Latencies struct {
	Call      time.Duration // any API call, one way there and back
	Download  time.Duration // the factory builds and sends an image
	Upload    time.Duration // Proxmox VE takes an image in
	Import    time.Duration // a disk is imported from an image
	Create    time.Duration // the rest of making a VM
	Resize    time.Duration
	Start     time.Duration // power on until the guest runs
	Stop      time.Duration
	Delete    time.Duration
	Boot      time.Duration // the guest runs until Talos answers in maintenance mode
	Apply     time.Duration // machine config taken until mTLS answers
	Etcd      time.Duration // bootstrap until etcd is healthy
	Learn     time.Duration // a joining etcd member stays a learner
	ImagePull time.Duration // control-plane or kubelet images
	API       time.Duration // static pods until kube-apiserver is ready
	Manifest  time.Duration // a kubelet sees a changed manifest of a static pod
	Chart     time.Duration // a chart is fetched
	CNIPull   time.Duration // images of the container network, per node
	Ready     time.Duration // network up until the kubelet reports Ready
	Pods      time.Duration // a workload's pods become ready, once nodes are
	Install   time.Duration // an installer writes another version of Talos
}

// DefaultLatencies is the profile all published figures are taken with.
func DefaultLatencies() Latencies {
	const ms, s = time.Millisecond, time.Second
	return Latencies{
		Call: 2 * ms, Download: 25 * s, Upload: 2 * s, Import: 8 * s, Create: 1 * s, Resize: 200 * ms,
		Start: 1 * s, Stop: 1 * s, Delete: 1 * s, Boot: 12 * s, Apply: 500 * ms, Etcd: 6 * s, Learn: 5 * s,
		ImagePull: 20 * s, API: 8 * s, Manifest: 10 * s, Chart: 1 * s, CNIPull: 15 * s, Ready: 5 * s, Pods: 5 * s, Install: 15 * s,
	}
}

// World is what the services of one lab share.
type World struct {
	Net     Network
	Latency Latencies
	Log     *slog.Logger
	PKI     *PKI

	speed float64
	start time.Time

	mu         sync.Mutex
	closed     bool
	timers     map[*time.Timer]struct{}
	running    sync.WaitGroup
	images     map[string]Image
	installers func(schematic, version string) (Image, bool)
	faults     []*Fault
	calls      map[Call]int
	delivered  map[Call]int
	history    []CallRecord
	onCrash    func(Call)
	onCall     func(CallRecord)
	onConfig   func(GivenConfig)
	spans      []Span
	events     []Event
	onEvent    func(Event)
	struck     int
	violations []string
	guestClock time.Duration // how far the clocks of guests are ahead
	ctx        context.Context
	cancel     context.CancelFunc
}

// New makes a world. Close it when done.
func New(c Config) (*World, error) {
	if c.Speed == 0 {
		c.Speed = 1
	}
	if c.Speed < 0 {
		return nil, fmt.Errorf("speed %v is negative", c.Speed)
	}
	if c.Network == nil {
		c.Network = NewMemory()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	pki, err := NewPKI(pkix.Name{CommonName: "talos-agent lab"})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &World{
		Net:       c.Network,
		Latency:   c.Latency.withDefaults(),
		Log:       c.Log,
		PKI:       pki,
		speed:     c.Speed,
		start:     time.Now(),
		timers:    map[*time.Timer]struct{}{},
		images:    map[string]Image{},
		calls:     map[Call]int{},
		delivered: map[Call]int{},
		ctx:       ctx,
		cancel:    cancel,
	}, nil
}

// SetGuestClock sets how far the clocks of all guests are ahead of the host's. A
// host whose clock is wrong has guests that are behind or ahead: they know a time
// server.
func (w *World) SetGuestClock(ahead time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guestClock = ahead
}

// GuestNow is what the clocks of guests show. Certificates are issued and judged
// by it; how long things take is not.
func (w *World) GuestNow() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.guestClock)
}

func (l Latencies) withDefaults() Latencies {
	d := DefaultLatencies()
	for _, f := range []struct{ have, def *time.Duration }{
		{&l.Call, &d.Call}, {&l.Download, &d.Download}, {&l.Upload, &d.Upload}, {&l.Import, &d.Import},
		{&l.Create, &d.Create}, {&l.Resize, &d.Resize}, {&l.Start, &d.Start}, {&l.Stop, &d.Stop},
		{&l.Delete, &d.Delete}, {&l.Boot, &d.Boot}, {&l.Apply, &d.Apply}, {&l.Etcd, &d.Etcd},
		{&l.Learn, &d.Learn}, {&l.ImagePull, &d.ImagePull}, {&l.API, &d.API}, {&l.Manifest, &d.Manifest}, {&l.Chart, &d.Chart},
		{&l.CNIPull, &d.CNIPull}, {&l.Ready, &d.Ready}, {&l.Pods, &d.Pods}, {&l.Install, &d.Install},
	} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	return l
}

// Context ends when the world is closed.
func (w *World) Context() context.Context { return w.ctx }

// Start returns when the world was made.
func (w *World) Start() time.Time { return w.start }

// Scale turns a duration of the simulated host into one of this process.
func (w *World) Scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) / w.speed)
}

// After runs f once d (scaled) has passed, unless the world is closed first or
// the returned function is called before. f runs on its own goroutine, and
// Close waits for it.
func (w *World) After(d time.Duration, f func()) (cancel func()) {
	return w.AfterReal(w.Scale(d), f)
}

// AfterReal is After for a duration that no speed shortens, such as one within which a
// client is to do something: clients are as fast as ever.
func (w *World) AfterReal(d time.Duration, f func()) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return func() {}
	}
	w.running.Add(1)
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		defer w.running.Done()
		w.mu.Lock()
		delete(w.timers, t)
		closed := w.closed
		w.mu.Unlock()
		if !closed {
			f()
		}
	})
	w.timers[t] = struct{}{}
	return func() {
		if t.Stop() {
			w.mu.Lock()
			delete(w.timers, t)
			w.mu.Unlock()
			w.running.Done()
		}
	}
}

// Sleep waits for d (scaled), or until ctx or the world ends.
func (w *World) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(w.Scale(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// Close stops every pending effect and waits for those that run.
func (w *World) Close() {
	w.mu.Lock()
	w.closed = true
	w.cancel()
	for t := range w.timers {
		if t.Stop() {
			w.running.Done()
		}
	}
	w.timers = map[*time.Timer]struct{}{}
	w.mu.Unlock()
	w.running.Wait()
}

// Event is one thing that happened in the world, whoever asked.
type Event struct {
	At      time.Duration // since the world began, in the host's time
	Subject string
	Text    string
}

// Report adds an event.
func (w *World) Report(subject, format string, args ...any) {
	w.mu.Lock()
	e := Event{At: w.sinceStart(), Subject: subject, Text: fmt.Sprintf(format, args...)}
	w.events = append(w.events, e)
	watch := w.onEvent
	w.mu.Unlock()
	w.Log.Debug("event", "subject", subject, "detail", e.Text)
	if watch != nil {
		watch(e)
	}
}

// OnEvent sets a watcher of the events.
func (w *World) OnEvent(f func(Event)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onEvent = f
}

// Events returns what happened so far.
func (w *World) Events() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Event(nil), w.events...)
}

// Now is the host's time, which goes as fast as the world does.
func (w *World) Now() time.Time { return w.start.Add(w.sinceStart()) }

// sinceStart is the host's time since the world began.
func (w *World) sinceStart() time.Duration {
	return time.Duration(float64(time.Since(w.start)) * w.speed)
}

// Violate records that a rule was broken. A lab that ends with violations has
// found a bug in the agent.
func (w *World) Violate(rule, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf("%s at %v: %s", rule, w.sinceStart().Round(time.Millisecond), fmt.Sprintf(format, args...))
	w.violations = append(w.violations, text)
	w.Log.Error("rule broken", "rule", rule, "what", fmt.Sprintf(format, args...))
}

// Violations returns every broken rule so far.
func (w *World) Violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.violations...)
}
