package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/harden"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/sources"
)

const defaultConfig = "/etc/talos-agent/config.yaml"

func newRun(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon",
		Long: `Run the daemon: follow the repository and make the host match it, until
stopped. It speaks to systemd (readiness, one-line status, watchdog) and to the
journal. SIGHUP, or a change of the config, the policy or any file that the
config names, loads all of them anew. What cannot be loaded leaves in force what
was loaded before; only a policy that cannot be loaded leaves nothing allowed.
` + "`talos-agent status`" + ` tells it until it is mended.`,
		Args: cobra.NoArgs,
	}
	config := cmd.Flags().String("config", defaultConfig, "the host's config file")
	verbose := cmd.Flags().BoolP("verbose", "v", false, "log what is decided as well as what is done")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		w, ok := env.stderr.(*os.File)
		if !ok {
			w = os.Stderr
		}
		if err := harden.Process(); err != nil {
			return err
		}
		frugal(os.Getenv("GOGC"))
		// The library for chat services uses it, and would wait for ever.
		http.DefaultClient.Timeout = sendWithin
		d := &service{path: *config, told: newTold()}
		d.log = logging.New(logging.Config{Output: terminal.NewCleaner(w), Journal: logging.Journal(), Verbose: *verbose, Observe: d.told.take})
		return d.run(cmd.Context())
	}
	return cmd
}

// idleGC is the collector's percentage of the daemon. It rests nearly always:
// what it holds counts for more than a collector that runs twice as often.
const idleGC = 50

// frugal keeps the daemon small, unless the administrator's GOGC says how large
// it may be.
func frugal(gogc string) {
	if gogc == "" {
		debug.SetGCPercent(idleGC)
	}
}

// service is the daemon around an agent: the files it is configured by, its
// socket, and systemd.
type service struct {
	path string
	log  *slog.Logger

	settings config.Settings
	files    state.Dir
	agent    *agent
	socket   *api.Server
	door     *door
	monitor  *monitor
	told     *told
	hooks    io.Closer    // nil: nobody may knock
	own      config.Watch // of the last load, whether it succeeded or not

	mu     sync.Mutex
	began  time.Time                 // when the agent was started
	states map[string]cluster.Status // of the clusters it has told of
}

// run is the daemon's life.
func (d *service) run(ctx context.Context) error {
	s, problems := config.Load(d.path)
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
	d.told.open(d.files, logging.WithoutObserver(d.log))
	d.door = &door{events: d.told}
	if d.socket, err = api.Listen(s.Socket, d.door, d.log); err != nil {
		return err
	}
	defer func() {
		if err := d.socket.Close(); err != nil {
			d.log.Debug("close the socket", "err", err)
		}
	}()
	d.monitor = newMonitor(d.door, d.lacks, d.log)
	defer d.monitor.retire()
	d.door.measured(d.monitor.Text)
	if err := d.begin(ctx, d.lacks); err != nil {
		return err
	}
	defer d.quit()
	d.monitor.Reload(true, time.Now())

	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	d.notify(daemon.SdNotifyReady + "\n" + "STATUS=" + d.line())
	d.log.Info("talos-agent " + version + " follows " + s.Source())
	return d.serve(ctx, hup)
}

// lookEvery is how often the daemon looks whether its own files have changed.
const lookEvery = time.Second

// serve reacts to signals, changed files and the watchdog's clock until ctx
// ends.
func (d *service) serve(ctx context.Context, hup <-chan os.Signal) error {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read the watchdog's period: %w", err)
	}
	tick := time.NewTicker(tickEvery(period))
	defer tick.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			d.notify(daemon.SdNotifyStopping)
			d.log.Info("stopping: what is under way has a few seconds, what runs in Proxmox VE goes on and is found again")
			return nil
		case <-hup:
			err = d.reload(ctx, true)
		case <-look.C:
			if d.own.Poll() {
				err = d.reload(ctx, false)
			}
		case <-tick.C:
			state := "STATUS=" + d.line()
			if stuck := d.stuck(time.Now()); stuck == "" {
				state += "\n" + daemon.SdNotifyWatchdog
			} else {
				d.log.Error("a cluster's loop makes no progress; the watchdog will restart the agent", "cluster", stuck)
			}
			d.notify(state)
		}
		if err != nil {
			return err
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

// begin starts an agent with the settings in force. Where it may begin without
// something that they name, lacks is told; nil: it may not.
func (d *service) begin(ctx context.Context, lacks lacking) (err error) {
	if err := d.monitor.open(d.settings.Metrics, lacks); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			d.monitor.close()
		}
	}()
	w, err := wireSettings(d.settings, d.files, d.log)
	if err != nil {
		return err
	}
	w.told, w.pulse, w.chronicle = d.told, &d.door.pulse, newChronicle(&d.files, d.settings.KeepRuns, d.log)
	w.onStatus = func(s cluster.Status) {
		d.monitor.status(s)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.states[s.Cluster] = s
	}
	w.onPass, w.onAction, w.onNotified, w.onUnheard = d.monitor.Pass, d.monitor.Action, d.monitor.notified, d.door.unheard
	a, err := newAgent(w)
	if err != nil {
		return errors.Join(err, w.store.Close())
	}
	hint := make(chan struct{}, 1)
	if d.hooks, err = openHooks(d.settings, hint, d.monitor.Webhook, lacks, d.log); err != nil {
		a.stop()
		return err
	}
	a.config = d.path
	d.monitor.counts(a.gate)
	d.mu.Lock()
	d.began, d.states = time.Now(), map[string]cluster.Status{}
	d.mu.Unlock()
	a.start(ctx)
	if dir := d.settings.Directory(); dir != "" {
		a.wg.Go(func() {
			if err := sources.Watch(a.ctx, dir, a.lookAll); err != nil && a.ctx.Err() == nil {
				d.log.Warn("cannot watch the repository's directory; it is read every interval", "err", err)
			}
		})
	}
	a.wg.Go(func() { paced(a.ctx.Done(), hint, leastBetweenHints, a.lookAll) })
	d.agent = a
	d.door.open(a)
	return nil
}

// end stops the agent.
func (d *service) end() {
	if d.agent != nil {
		d.door.shut()
		if d.hooks != nil {
			if err := d.hooks.Close(); err != nil {
				d.log.Debug("close the webhooks' listener", "err", err)
			}
			d.hooks = nil
		}
		d.agent.stop()
		d.agent = nil
		d.monitor.counts(nil)
		d.monitor.close()
		d.door.lacksNothing()
	}
}

// lacks tells of what the config names and cannot be had: the daemon goes on
// without it, and has it as soon as it can.
func (d *service) lacks(field string, err error) {
	switch changed := d.door.lacks(field, err); {
	case !changed:
	case err != nil:
		d.log.Warn(d.path+": "+field+" cannot be had yet; it is tried again", "err", err, "hint", cmp.Or(fault.HintOf(err), takenHint))
	default:
		d.log.Info(d.path + ": " + field + " is there now")
	}
}

// quitWithin is how long the daemon takes to stop, at most: what hangs even when
// its calls are cut off ends with the process.
const quitWithin = 9500 * time.Millisecond

// quit stops the agent for good.
func (d *service) quit() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.end()
	}()
	late := time.NewTimer(quitWithin)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
		d.log.Warn("something does not let go; the agent ends without waiting for it. What it was doing is found again by the next one")
	}
}

// reload loads config, policy and the files that they name anew, because some
// have changed or somebody asks for it. Only what differs is touched: a new
// policy is in force at the next pass, anything else restarts the agent inside
// the daemon. What cannot be loaded leaves everything as it is, but the policy:
// that on the disk is the one in force, and where it is not known which it is,
// nothing is changed. An error means that nothing works any more, neither with
// the new settings nor with the old ones.
func (d *service) reload(ctx context.Context, asked bool) error {
	d.notify(reloading())
	defer d.notify(daemon.SdNotifyReady)
	changed := cmp.Or(strings.Join(d.own.Changed(), ", "), d.path)
	running := d.settings
	next, problems := config.Reload(d.path, running.PolicyPath)
	d.own = config.NewWatch(next.Used)
	old := running.WithPolicy(policyBeside(running, next, problems))
	if problems.HasErrors() {
		next = old
	}
	if next.EqualButPolicy(running) && d.agent != nil {
		d.adopt(next)
		d.loaded(problems, asked)
		if differs := !reflect.DeepEqual(next.Policy, running.Policy); !problems.HasErrors() && (asked || differs) {
			d.log.Info("config and policy loaded", "hint", restartNote(next))
		} else if differs && next.Policy.Doubt == nil {
			d.log.Info("the policy is loaded, and holds whatever is wrong beside it")
		}
		d.agent.lookAll()
		return nil
	}
	if next.Socket != running.Socket || next.StateDir != running.StateDir {
		d.log.Warn("a changed socket or state_dir takes a restart of the daemon: `systemctl restart talos-agent`")
	}
	d.log.Info("starting over with the changed " + changed)
	// An address that the daemon does without already must not keep it from the
	// rest.
	lacks := d.lacks
	if next.Metrics != running.Metrics || next.Webhook.Listen != running.Webhook.Listen {
		lacks = nil
	}
	d.end()
	d.adopt(next)
	err := d.begin(ctx, lacks)
	if err == nil {
		d.loaded(problems, asked)
		return nil
	}
	d.adopt(old)
	d.loaded(cluster.Problems{{Severity: cluster.Error, File: changed, Message: "the agent cannot start with it: " + err.Error(),
		Hint: cmp.Or(fault.HintOf(err), "mend it") + "; then `systemctl reload talos-agent`"}}, asked)
	if err := d.begin(ctx, d.lacks); err != nil {
		return fmt.Errorf("start over with the old config: %w", err)
	}
	return nil
}

// policyBeside is the policy on the disk, for the settings that run and beside
// those that were loaded. A config that is wrong and names another policy is no
// reason to hold to either.
func policyBeside(running, loaded config.Settings, problems cluster.Problems) cluster.Policy {
	p := loaded.Policy
	if problems.HasErrors() && p.Doubt == nil && loaded.PolicyPath != running.PolicyPath {
		p.Doubt = cluster.Problems{{Severity: cluster.Error, File: loaded.Path, Field: "policy_file",
			Message: "names another policy than " + running.PolicyPath + ", in a config that cannot be loaded", Hint: "mend what else is wrong with it"}}
	}
	return p
}

// adopt puts settings in force, and their policy with them.
func (d *service) adopt(s config.Settings) {
	s.PolicyNow = d.settings.PolicyNow
	s.PolicyNow.Store(&s.Policy)
	d.settings = s
}

// restartNote says what a reload cannot load anew, "" when it can load everything.
func restartNote(s config.Settings) string {
	if !s.CredentialsGiven {
		return ""
	}
	return "keys and tokens that systemd hands over are those of the start; new ones take `systemctl restart talos-agent`"
}

// loaded tells how it went to take up the daemon's own files: status has what is
// wrong with them until it is mended, and the log when it is news or somebody
// asked.
func (d *service) loaded(problems cluster.Problems, asked bool) {
	doubt := d.settings.Policy.Doubt
	rest := slices.DeleteFunc(slices.Clone(problems), func(p cluster.Problem) bool { return slices.Contains(doubt, p) })
	words := "the agent's own files cannot be taken up as they are now; what was loaded before stays in force"
	var trouble []string
	for _, p := range doubt {
		words = "it is not known what the host allows; nothing is changed until it is"
		trouble = append(trouble, p.String()+"; nothing is changed until it is mended")
	}
	for _, p := range rest {
		if p.Severity == cluster.Error {
			trouble = append(trouble, p.String()+"; what was loaded before stays in force")
		}
	}
	d.monitor.Reload(trouble == nil, time.Now())
	switch news := d.door.trouble(trouble); {
	case trouble == nil && !news, trouble != nil && !news && !asked:
	case trouble == nil:
		d.log.Info("the agent's own files are in order again")
	default:
		d.log.Error(words, "err", slices.Concat(doubt, rest))
	}
}

// reloading is what systemd is told when the files are loaded anew; it wants to
// know when that began, on its own clock.
func reloading() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return daemon.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000)
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
		parts = append(parts, fmt.Sprintf("%s %s: %s", name, s.Condition, text.Cut(s.Message, 100)))
	}
	return strings.Join(parts, "; ")
}

// overdue is how far behind its own announcement a loop may be before it counts
// as stuck: a pass may wait for the repository, for five minutes at most, and
// then for everybody else's answers.
const overdue = 6 * time.Minute

// stuck names a cluster whose loop makes no progress, "" when all do.
func (d *service) stuck(now time.Time) string {
	names := d.door.Clusters()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		due := d.began // before its first pass
		if s, ok := d.states[name]; ok {
			due = s.NextPass
		}
		if now.After(due.Add(overdue)) {
			return name
		}
	}
	return ""
}
