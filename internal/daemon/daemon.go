package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/eventlog"
	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/internal/daemon/sandbox"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/harden"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// Config is what a daemon is started with.
type Config struct {
	Path    string // of config.yaml
	Version string // of this program
	Log     *slog.Logger
	// Events keeps what Log reports. OwnLog is Log without it: for trouble with
	// Events itself, which must not go round in a circle.
	Events *eventlog.Events
	OwnLog *slog.Logger
}

// Run runs a daemon until ctx ends.
func Run(ctx context.Context, c Config) error {
	if err := harden.Process(); err != nil {
		return err
	}
	setGC(os.Getenv("GOGC"))
	// The library for chat services uses it, and would wait for ever.
	http.DefaultClient.Timeout = outbox.SendTimeout
	// Helm's function for templates writes there what a template asks for, secrets too
	// (pkg/engine, lookup_func.go). The agent's own log is another.
	log.SetOutput(io.Discard)
	d := &Daemon{c: c, log: c.Log}
	return d.run(ctx)
}

// idleGC is the collector's percentage of the daemon. It is idle nearly always:
// what it holds counts for more than a collector that runs twice as often.
const idleGC = 50

// setGC keeps the daemon small, unless the administrator's GOGC says how large it
// may be.
func setGC(gogc string) {
	if gogc == "" {
		debug.SetGCPercent(idleGC)
	}
}

// Daemon is the service around an agent: the files it is configured by, its
// socket, and systemd. It is what the socket serves.
type Daemon struct {
	c   Config
	log *slog.Logger

	settings config.Settings
	files    state.Dir
	socket   *api.Server
	monitor  *monitor
	hooks    io.Closer    // nil: no webhooks
	own      config.Watch // of the last load, whether it succeeded or not
	problems problems     // that are no cluster's
	pulse    history.Pulse

	standby standby

	mu     sync.RWMutex
	agent  *agent.Agent              // nil: none runs; only the goroutine of run sets it
	names  []string                  // of the last agent's clusters; nil: there was none yet
	began  time.Time                 // when the agent was started
	states map[string]cluster.Status // of the clusters that have reported
}

// run is the daemon's life.
func (d *Daemon) run(ctx context.Context) error {
	s, problems := config.Load(d.c.Path)
	if err := problems.Err(); err != nil {
		return err
	}
	d.settings, d.own = s, config.NewWatch(s.Used)
	var unlock func()
	var err error
	if d.files, unlock, err = state.Open(s.StateDir); err != nil {
		return err
	}
	defer unlock()
	d.c.Events.Open(d.files, d.c.OwnLog)
	d.monitor = newMonitor(d, d.log)
	if err := d.prepareElection(s.Election); err != nil {
		return err
	}
	if d.socket, err = api.Listen(s.Socket, d, d.log); err != nil {
		return err
	}
	defer func() {
		if err := d.socket.Close(); err != nil {
			d.log.Debug("close the socket", logging.Err, err)
		}
	}()
	defer d.monitor.retire()
	defer func() { d.leave(d.quit()) }()
	if s.Election.Pool != "" {
		d.takePart(ctx)
	} else if err := d.startAgent(ctx, d.setMissing); err != nil {
		return err
	}
	d.monitor.Reload(true, time.Now())

	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	d.notify(daemon.SdNotifyReady + "\n" + "STATUS=" + d.statusLine())
	d.log.Info("talos-agent started", logging.Detail, "version "+d.c.Version+" follows "+s.Source())
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() { reportConfinement(ctx, sandbox.New(sandbox.Config{}).FindConfinement, d.log) })
	return d.serve(ctx, hup)
}

// pollEvery is how often the daemon looks whether its own files have changed.
const pollEvery = time.Second

// serve reacts to signals, changed files and the watchdog's clock until ctx
// ends.
func (d *Daemon) serve(ctx context.Context, hup <-chan os.Signal) error {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read the watchdog's period: %w", err)
	}
	tick := time.NewTicker(notifyEvery(period))
	defer tick.Stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	acting, stop := context.WithCancel(ctx)
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			d.notify(daemon.SdNotifyStopping)
			d.log.Info("stopping: what is under way has a few seconds, what runs in Proxmox VE goes on and is found again")
			return nil
		case lease := <-d.leases():
			stop()
			acting, stop = context.WithCancel(ctx)
			go endWith(lease.Done, acting, stop)
			err = d.begin(acting, lease)
		case <-d.leaseEnds():
			err = d.yield()
		case <-hup:
			err = d.reload(acting, true)
		case <-poll.C:
			d.keepSocket()
			if d.own.Poll() {
				err = d.reload(acting, false)
			}
		case <-tick.C:
			d.notifyWatchdog()
		}
		if err != nil {
			return err
		}
	}
}

// endWith ends a context when something is closed.
func endWith(done <-chan struct{}, ctx context.Context, stop context.CancelFunc) {
	select {
	case <-done:
		stop()
	case <-ctx.Done():
	}
}

// keepSocket makes the socket again when somebody removed it.
func (d *Daemon) keepSocket() {
	if !d.socket.IsRemoved() {
		return
	}
	again, err := d.socket.Reopen(d, d.log)
	if err != nil {
		d.setMissing("socket", fault.WithHint(fmt.Errorf("it was removed, and cannot be made again: %w", err), "`systemctl restart talos-agent` makes its directory again"))
		return
	}
	d.socket = again
	d.setMissing("socket", nil)
	d.log.Warn("the socket was removed; it is made again", logging.Detail, d.settings.Socket)
}

// startAgent starts an agent with the settings in force. Where it may start without
// something that they name, missing is called with it; nil: it may not.
func (d *Daemon) startAgent(ctx context.Context, missing missingFunc) (err error) {
	if err := d.monitor.open(d.settings.Metrics, missing); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			d.monitor.close()
		}
	}()
	c, err := wireAgent(d.settings, d.files, d.c.Version, d.log)
	if err != nil {
		return err
	}
	pushed := make(chan struct{}, 1)
	c.Directory, c.Pushed = d.settings.Directory(), pushed
	c.Pulse, c.Runs = &d.pulse, eventlog.NewRuns(&d.files, d.settings.KeepRuns, d.log)
	c.Earlier = d.c.Events.Clocks
	c.OnStatus, c.OnPass, c.OnAction, c.OnNotified, c.OnUnreachable = d.setStatus, d.monitor.Pass, d.monitor.Action, d.monitor.notified, d.setUnreachable
	c.OnForgotten, c.OnReserved, c.OnForwarded = d.forgetStatus, d.setReserved, d.setForwarded
	a, err := agent.New(c)
	if err != nil {
		return errors.Join(err, c.Store.Close())
	}
	if d.hooks, err = openHooks(d.settings, pushed, d.monitor.Webhook, missing, d.log); err != nil {
		a.Stop()
		return err
	}
	d.monitor.counts(a.Gate())
	d.mu.Lock()
	d.began, d.states = time.Now(), map[string]cluster.Status{}
	d.mu.Unlock()
	a.Start(ctx)
	d.setAgent(a)
	return nil
}

// setStatus takes how a cluster stands.
func (d *Daemon) setStatus(s cluster.Status) {
	d.monitor.status(s)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states[s.Cluster] = s
}

// forgetStatus drops how a cluster stood that is not managed any more.
func (d *Daemon) forgetStatus(name string) {
	d.monitor.Forget(name)
	d.dropSuspended(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.states, name)
}

// setAgent sets the agent that the socket serves; nil: none.
func (d *Daemon) setAgent(a *agent.Agent) {
	d.mu.Lock()
	d.agent = a
	d.mu.Unlock()
	d.pulse.Beat()
}

// stopAgent stops the agent. The clusters of the next one will be those of this
// one, as far as anybody knows.
func (d *Daemon) stopAgent() {
	a := d.agent
	if a == nil {
		return
	}
	names := a.Clusters()
	d.mu.Lock()
	d.names = names
	d.mu.Unlock()
	d.setAgent(nil)
	if d.hooks != nil {
		if err := d.hooks.Close(); err != nil {
			d.log.Debug("close the webhooks' listener", logging.Err, err)
		}
		d.hooks = nil
	}
	a.Stop()
	d.monitor.counts(nil)
	d.monitor.close()
	d.problems.clearMissing()
}

// quitTimeout is how long the daemon takes to stop, at most: what hangs even when
// its calls are cut off ends with the process.
const quitTimeout = 9500 * time.Millisecond

// quit stops the agent for good, and reports whether that has ended.
func (d *Daemon) quit() bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.stopAgent()
	}()
	late := time.NewTimer(quitTimeout)
	defer late.Stop()
	select {
	case <-ended:
		return true
	case <-late.C:
		d.log.Warn("shutdown timed out; the agent ends without waiting for what is under way, which the next one finds again")
		return false
	}
}
