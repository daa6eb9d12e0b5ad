package talos

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
)

// watcher keeps an eye on the machine of one node. It holds one connection, or
// dials again and again: a fresh dial notices a machine that comes back seconds
// before a kept gRPC connection would (recorded: 1.4 to 4.8 s).
type watcher struct {
	f    *Fleet
	node cluster.Node
	stop context.CancelFunc
	look chan struct{} // one slot: look again now

	// Guarded by the fleet's lock. What machine refers to is never changed.
	machine     cluster.Machine
	readyAt     time.Time // when machine was last found to have been ready
	boot        string    // the last one that was seen, by its id
	bootedAt    time.Time // when that was seen first
	bootedWith  bootConfig
	secured     securedBoot   // of the watcher's own goroutine alone
	moved       chan struct{} // closed when machine changes
	first       chan struct{} // closed when machine was first published
	published   bool
	awaited     bool                // Observe waits for the first word: it is no news
	link        *link               // that was proven; nil: none
	dryRun      dryRun              // what the wanted config would do
	pulled      map[image]time.Time // when it was seen to have images for its next config
	installer   bootImage           // that it has pulled
	unreachable string              // the digest of a config with which the machine did not answer
	round       uint64              // of the fleet, when the inventory last had the node
}

// The pauses between two attempts to reach a machine.
const (
	shortPause = 250 * time.Millisecond
	longPause  = 2 * time.Second
)

// watch starts a watcher. The fleet's lock is held.
func (f *Fleet) watch(n cluster.Node) *watcher {
	ctx, stop := context.WithCancel(f.ctx)
	w := &watcher{
		f: f, node: n, stop: stop, awaited: true,
		machine: cluster.Machine{Why: "there is no answer yet"},
		look:    make(chan struct{}, 1), moved: make(chan struct{}), first: make(chan struct{}),
	}
	f.running.Go(func() {
		defer stop()
		w.run(ctx)
	})
	return w
}

// watches reports whether the watcher looks at this node as it is now.
func (w *watcher) watches(n *cluster.Node) bool {
	return w.node.IP == n.IP && w.node.UUID == n.UUID && w.node.MAC == n.MAC && w.node.Role == n.Role
}

// poke has the watcher look again now.
func (w *watcher) poke() {
	select {
	case w.look <- struct{}{}:
	default:
	}
}

func (w *watcher) run(ctx context.Context) {
	pause := shortPause
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.look:
		case <-timer.C:
		}
		start := time.Now()
		w.visit(ctx)
		if time.Since(start) > 2*(dialWithin+greetWithin) {
			// It was there for a while: it may be back at once.
			pause = shortPause
			timer.Reset(0)
			continue
		}
		timer.Reset(pause)
		pause = min(2*pause, longPause)
	}
}

// visit reaches the machine once and stays as long as it can.
func (w *watcher) visit(ctx context.Context) {
	k, err := w.f.currentKeys()
	if err == nil && !w.node.IP.IsValid() {
		err = errNoAddress
	}
	if err != nil {
		w.publish(cluster.Machine{Why: formatError(err)})
		return
	}
	l, err := w.f.connect(ctx, w.node.IP, k)
	if err != nil {
		if ctx.Err() == nil {
			w.publish(absentMachine(err))
		}
		return
	}
	defer l.close()
	stay := w.attend
	if l.standing == unclaimed {
		stay = w.idle
	}
	if m, ok := stay(ctx, l); !ok && ctx.Err() == nil {
		w.publish(m)
	}
}

// errNoAddress is of a node that a DHCP server gives its address.
var errNoAddress = errors.New("its address is not known")

// absentMachine returns a machine that could not be reached.
func absentMachine(err error) cluster.Machine {
	if u, ok := errors.AsType[*unreached](err); ok {
		return cluster.Machine{Reach: u.reach, Why: u.Error(), OtherAuthority: errors.Is(u, errOtherSigner)}
	}
	return cluster.Machine{Why: formatError(err)}
}

// unknownMachine returns a machine that answers, but not what is needed.
func unknownMachine(what string, err error) cluster.Machine {
	m := cluster.Machine{Why: fmt.Sprintf("%s, but cannot %s", what, formatError(err))}
	if strings.Contains(err.Error(), text.Expired) {
		m.Hint = clockHint
	}
	return m
}

// publish makes a state the last known one, and reports it when it is new. What
// the state refers to must not be changed any more.
func (w *watcher) publish(m cluster.Machine) {
	f := w.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !w.published {
		w.published = true
		close(w.first)
	}
	if w.machine.Reach == cluster.Configured && w.machine.Ready {
		w.readyAt = time.Now()
	}
	if m.Reach == cluster.Silent {
		m.ReadyAt = w.readyAt
	}
	if m.Since = w.machine.Since; m.Since.IsZero() || m.Reach != w.machine.Reach || m.Ready != w.machine.Ready {
		m.Since = time.Now()
	}
	if m.BootID != "" && m.BootID != w.boot {
		w.boot, w.bootedAt = m.BootID, time.Now()
	}
	if m.Installer = ""; m.BootID != "" && m.BootID == w.installer.boot {
		m.Installer = w.installer.image
	}
	if reflect.DeepEqual(w.machine, m) {
		return
	}
	if w.machine.Reach != m.Reach {
		f.log.Debug("machine reachability changed", logging.Detail, w.node.Name+" is "+reachWord(m.Reach), logging.Node, w.node.Name, logging.Err, m.Why)
	}
	w.machine = m
	if w.node.Role == cluster.ControlPlane {
		f.turn++
	}
	w.notify()
}

// notify has whoever waits for news of the machine look at it. The fleet's lock is held.
func (w *watcher) notify() {
	close(w.moved)
	w.moved = make(chan struct{})
	if !w.awaited {
		select {
		case w.f.changed <- struct{}{}:
		default:
		}
	}
}

func reachWord(r cluster.Reach) string {
	switch r {
	case cluster.Silent:
		return "silent"
	case cluster.Maintenance:
		return "in maintenance mode"
	case cluster.Configured:
		return "configured"
	case cluster.Unexpected:
		return "unexpected"
	default:
		return "unknown"
	}
}

// hold keeps the link at hand for calls while the machine is attended to.
func (w *watcher) hold(l *link) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.link = l
}

// bootConfig is the config that a machine booted with.
type bootConfig struct{ boot, digest string }

// noteBooted keeps it: what runs in its first version.
func (w *watcher) noteBooted(boot string, active savedConfig) {
	if boot == "" || active.digest == "" || active.of.Version().Value() != 1 {
		return
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.bootedWith = bootConfig{boot, active.digest}
}

// bootImage is an image that a machine has pulled during a boot.
type bootImage struct{ boot, image string }

// noteInstaller notes what a machine has pulled during a boot, and shows it with the last that is known of it.
func (f *Fleet) noteInstaller(n cluster.Node, boot, image string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.watchers[n.Name]
	if w == nil {
		return
	}
	w.installer = bootImage{boot, image}
	if w.machine.BootID == boot {
		w.machine.Installer = image
		w.notify()
	}
}
