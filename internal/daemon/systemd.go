package daemon

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
)

// notifyEvery is how often systemd is notified: often enough for its watchdog.
func notifyEvery(watchdog time.Duration) time.Duration {
	if watchdog > 0 {
		return min(watchdog/3, 5*time.Second)
	}
	return 5 * time.Second
}

// notifyWatchdog notifies systemd of how things stand, and of being alive unless a
// loop is stuck.
func (d *Daemon) notifyWatchdog() {
	state := "STATUS=" + d.statusLine()
	now := time.Now()
	stuck := d.findStuck(now)
	switch a := d.current(); {
	case stuck != "":
		d.log.Error("a cluster's loop makes no progress; the watchdog will restart the agent", logging.Cluster, stuck)
	case a != nil && isStuck(a.NextFetch(), now):
		d.log.Error("a fetch of the repository does not end; the watchdog will restart the agent")
	default:
		state += "\n" + daemon.SdNotifyWatchdog
	}
	d.notify(state)
}

// isStuck reports whether a loop is stuck whose next turn is, or was, due then.
func isStuck(due, now time.Time) bool { return now.After(due.Add(agent.StuckAfter)) }

// reloadingState is what systemd is sent when the files are reloaded; it wants to
// know when that began, on its own clock.
func reloadingState() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return daemon.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000)
}

// notify sends a state to systemd, where it listens.
func (d *Daemon) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		d.log.Debug("notify systemd", logging.Err, err)
	}
}

// statusLine is the one-line state of the daemon.
func (d *Daemon) statusLine() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.standsBy(); d.agent == nil && err != nil {
		return err.Error()
	}
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

// findStuck names a cluster whose loop makes no progress, "" when all do.
func (d *Daemon) findStuck(now time.Time) string {
	names := d.clusters()
	d.mu.RLock()
	defer d.mu.RUnlock()
	return findStuck(names, d.began, d.states, now)
}

// findStuck names one of the clusters of an agent that began at a time, and whose
// loops stand so, that is stuck.
func findStuck(names []string, began time.Time, states map[string]cluster.Status, now time.Time) string {
	for _, name := range names {
		due := began // before its first pass
		if s, ok := states[name]; ok {
			due = s.NextPass
		}
		if isStuck(due, now) {
			return name
		}
	}
	return ""
}
