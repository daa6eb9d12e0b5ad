package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources"
)

const defaultConfig = "/etc/talos-agent/config.yaml"

func newRun(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon",
		Long: `Run the daemon: follow the repository and make the host match it, until
stopped. It speaks to systemd (readiness, one-line status, watchdog) and to the
journal. SIGHUP, or a change of the config or policy file, loads both anew; a
config that cannot be loaded leaves the old one in force and is told in
` + "`talos-agent status`" + `.`,
		Args: cobra.NoArgs,
	}
	config := cmd.Flags().String("config", defaultConfig, "the host's config file")
	verbose := cmd.Flags().BoolP("verbose", "v", false, "log what is decided as well as what is done")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		w, ok := env.stderr.(*os.File)
		if !ok {
			w = os.Stderr
		}
		d := &service{path: *config, log: newLog(w, *verbose)}
		return d.run(cmd.Context())
	}
	return cmd
}

// service is the daemon around an agent: the files it is configured by, its
// socket, and systemd.
type service struct {
	path string
	log  *slog.Logger

	settings settings
	files    stateFiles
	agent    *agent
	socket   *api.Server
	door     *door

	mu     sync.Mutex
	states map[string]cluster.Status
}

// run is the daemon's life.
func (d *service) run(ctx context.Context) error {
	s, problems := loadConfig(d.path)
	if err := problems.Err(); err != nil {
		return err
	}
	d.settings = s
	var unlock func()
	var err error
	if d.files, unlock, err = openState(s.stateDir); err != nil {
		return err
	}
	defer unlock()
	d.states = map[string]cluster.Status{}
	d.door = &door{}
	if d.socket, err = api.Listen(s.socket, d.door, d.log); err != nil {
		return err
	}
	defer func() {
		if err := d.socket.Close(); err != nil {
			d.log.Debug("close the socket", "err", err)
		}
	}()
	if err := d.begin(ctx); err != nil {
		return err
	}
	defer func() { d.end() }()

	changed, stopWatching, err := watchFiles(ctx, d.log, d.path, s.policyPath)
	if err != nil {
		return err
	}
	defer stopWatching()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	d.notify(daemon.SdNotifyReady + "\n" + "STATUS=" + d.line())
	d.log.Info("talos-agent " + version + " follows " + s.source())
	return d.serve(ctx, hup, changed)
}

// serve reacts to signals, changed files and the watchdog's clock until ctx
// ends.
func (d *service) serve(ctx context.Context, hup <-chan os.Signal, changed <-chan struct{}) error {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read the watchdog's period: %w", err)
	}
	tick := time.NewTicker(tickEvery(period))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			d.notify(daemon.SdNotifyStopping)
			d.log.Info("stopping: what is under way has a few seconds, what runs in Proxmox VE goes on and is found again")
			return nil
		case <-hup:
			d.reload(ctx)
		case <-changed:
			d.reload(ctx)
		case <-tick.C:
			state := "STATUS=" + d.line()
			if stuck := d.stuck(time.Now()); stuck == "" {
				state += "\n" + daemon.SdNotifyWatchdog
			} else {
				d.log.Error("a cluster's loop makes no progress; the watchdog will restart the agent", "cluster", stuck)
			}
			d.notify(state)
		}
	}
}

// tickEvery is how often systemd is told: often enough for its watchdog.
func tickEvery(watchdog time.Duration) time.Duration {
	if watchdog > 0 {
		return min(watchdog/3, 5*time.Second)
	}
	return 5 * time.Second
}

// begin starts an agent with the settings in force.
func (d *service) begin(ctx context.Context) error {
	w, err := d.settings.wiring(d.files, d.log)
	if err != nil {
		return err
	}
	w.onStatus = func(s cluster.Status) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.states[s.Cluster] = s
	}
	a, err := newAgent(w)
	if err != nil {
		return err
	}
	a.config = d.path
	if err := a.start(ctx); err != nil {
		return err
	}
	if dir := d.settings.directory(); dir != "" {
		a.wg.Go(func() {
			if err := sources.Watch(a.ctx, dir, a.lookAll); err != nil && a.ctx.Err() == nil {
				d.log.Warn("cannot watch the repository's directory; it is read every interval", "err", err)
			}
		})
	}
	d.agent = a
	d.door.open(a)
	return nil
}

// end stops the agent.
func (d *service) end() {
	if d.agent != nil {
		d.door.shut()
		d.agent.stop()
		d.agent = nil
	}
}

// reload loads config and policy anew. Only what changed is touched: a new
// policy is in force at the next pass, anything else restarts the agent inside
// the daemon. What cannot be loaded leaves everything as it is.
func (d *service) reload(ctx context.Context) {
	d.notify(daemon.SdNotifyReloading)
	defer d.notify(daemon.SdNotifyReady)
	s, problems := loadConfig(d.path)
	if err := problems.Err(); err != nil {
		d.log.Error("the changed config cannot be loaded; the old one stays in force", "err", err)
		var trouble []string
		for _, p := range problems {
			trouble = append(trouble, p.String())
		}
		d.agent.trouble.Store(&trouble)
		return
	}
	d.agent.trouble.Store(nil)
	same := s.sameBut(d.settings)
	old := d.settings
	d.settings = s
	d.settings.policyNow.Store(&s.policy)
	if same {
		old.policyNow.Store(&s.policy)
		d.settings.policyNow = old.policyNow
		d.log.Info("config and policy loaded")
		d.agent.lookAll()
		return
	}
	if s.socket != old.socket || s.stateDir != old.stateDir {
		d.log.Warn("a changed socket or state_dir takes a restart of the daemon: `systemctl restart talos-agent`")
	}
	d.log.Info("the config has changed; starting over with it")
	d.end()
	if err := d.begin(ctx); err != nil {
		d.log.Error("cannot start with the changed config; the old one is in force again", "err", err, "hint", cluster.HintOf(err))
		d.settings = old
		if err := d.begin(ctx); err != nil {
			d.log.Error("cannot start with the old config either", "err", err)
		}
	}
}

// notify tells systemd, where it listens.
func (d *service) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		d.log.Debug("tell systemd", "err", err)
	}
}

// line is the one-line state of the daemon.
func (d *service) line() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.states) == 0 {
		return "reading the repository"
	}
	var names []string
	for name := range d.states {
		names = append(names, name)
	}
	slices.Sort(names)
	var parts []string
	for _, name := range names {
		s := d.states[name]
		parts = append(parts, fmt.Sprintf("%s %s: %s", name, s.Condition, cut(s.Message, 100)))
	}
	return strings.Join(parts, "; ")
}

// overdue is how far behind its own announcement a loop may be before it counts
// as stuck: a pass may wait for answers up to its deadline.
const overdue = 60 * time.Second

// stuck names a cluster whose loop makes no progress, "" when all do.
func (d *service) stuck(now time.Time) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, s := range d.states {
		if now.After(s.NextPass.Add(overdue)) {
			return name
		}
	}
	return ""
}

// watchFiles tells when one of the files changes. It watches their folders,
// because editors and package managers replace files.
func watchFiles(ctx context.Context, log *slog.Logger, paths ...string) (<-chan struct{}, func(), error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil, fmt.Errorf("watch the config: %w", err)
	}
	watched := map[string]bool{}
	for _, p := range paths {
		abs, err := filepath.Abs(p)
		if err != nil {
			return nil, nil, errors.Join(err, w.Close())
		}
		watched[abs] = true
		if err := w.Add(filepath.Dir(abs)); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, nil, errors.Join(fmt.Errorf("watch %s: %w", filepath.Dir(abs), err), w.Close())
		}
	}
	changed := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A file is written in several steps; the last one counts.
		var settle <-chan time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case ev, ok := <-w.Events:
				if !ok {
					return
				}
				if watched[ev.Name] {
					settle = time.After(200 * time.Millisecond)
				}
			case err, ok := <-w.Errors:
				if !ok {
					return
				}
				log.Debug("watch the config", "err", err)
			case <-settle:
				settle = nil
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
	}()
	return changed, func() { _ = w.Close(); <-done }, nil
}

// door is what the socket serves while agents come and go behind it.
type door struct {
	mu sync.RWMutex
	a  *agent
}

func (d *door) open(a *agent) { d.mu.Lock(); d.a = a; d.mu.Unlock() }
func (d *door) shut()         { d.open(nil) }

var errStarting = &hinted{err: errors.New("the daemon is starting"), hint: "ask again in a moment"}

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

func (d *door) About() api.About {
	about, err := through(d, func(a *agent) (api.About, error) { return a.About(), nil })
	if err != nil {
		return api.About{Version: version}
	}
	return about
}

func (d *door) Clusters() []string {
	names, _ := through(d, func(a *agent) ([]string, error) { return a.Clusters(), nil })
	return names
}

func (d *door) Status(n string) (cluster.Status, error) {
	return through(d, func(a *agent) (cluster.Status, error) { return a.Status(n) })
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
