package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/callgate"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/metrics"
)

// monitor gathers the daemon's numbers for as long as the daemon lives, and
// shows them while an agent runs: to whoever asks, in a text file, or both.
type monitor struct {
	*metrics.Metrics
	missing missingFunc // called with a text file that cannot be written
	log     *slog.Logger

	to     config.Metrics
	server io.Closer // nil: nobody may ask

	mu      sync.Mutex
	gate    *callgate.Gate      // of the agent that runs; nil: none does
	earlier map[[2]string]int64 // calls of agents that ended, by system and outcome

	wake chan struct{} // one slot: the file is out of date
	stop chan struct{}
	wg   sync.WaitGroup
}

// minFileGap keeps a cluster that comes up from having the text file
// written at each of its passes.
const minFileGap = time.Second

func newMonitor(d *Daemon, log *slog.Logger) *monitor {
	m := &monitor{missing: d.setMissing, log: log, wake: make(chan struct{}, 1), earlier: map[[2]string]int64{}}
	m.Metrics = metrics.New(metrics.Config{Version: d.c.Version, Clusters: d.clusters, Certificates: d.certificates, Calls: m.calls})
	return m
}

// counts has the calls through a gate counted with those of all agents before;
// nil when the agent has ended.
func (m *monitor) counts(g *callgate.Gate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gate != nil {
		for _, c := range m.gate.Counts() {
			m.earlier[[2]string{c.System, string(c.Outcome)}] += c.N
		}
	}
	m.gate = g
}

// calls are the calls of all agents there were.
func (m *monitor) calls() []metrics.Calls {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.earlier)
	if m.gate != nil {
		for _, c := range m.gate.Counts() {
			all[[2]string{c.System, string(c.Outcome)}] += c.N
		}
	}
	var out []metrics.Calls
	for k, n := range all {
		out = append(out, metrics.Calls{System: k[0], Outcome: k[1], N: n})
	}
	return out
}

// open begins to show the numbers. What cannot be opened or written is an error; with missing
// it is reported and tried again.
func (m *monitor) open(to config.Metrics, missing missingFunc) error {
	if to.Textfile != m.to.Textfile {
		m.retire()
	}
	m.to = to
	if to.Textfile != "" {
		if err := unwritable(m.WriteText(to.Textfile)); err != nil {
			if missing == nil {
				return fault.WithHint(fmt.Errorf("metrics.textfile: %w", err), fault.HintOf(err))
			}
			missing("metrics.textfile", err)
		}
	}
	if to.Listen != "" {
		s, err := listenAt("metrics.listen", to.Listen, m.Handler(), missing, m.log)
		if err != nil {
			return err
		}
		m.server = s
	}
	m.stop = make(chan struct{})
	if to.Textfile != "" {
		m.wg.Go(m.write)
	}
	return nil
}

// close ends what open began. The text file stays: another agent begins in a
// moment.
func (m *monitor) close() {
	if m.server != nil {
		if err := m.server.Close(); err != nil {
			m.log.Debug("close the metrics' listener", logging.Err, err)
		}
		m.server = nil
	}
	if m.stop != nil {
		close(m.stop)
		m.wg.Wait()
		m.stop = nil
	}
}

// retire takes the text file away: nobody brings it up to date any more, and
// what it contains would be read as if it were so.
func (m *monitor) retire() {
	if m.to.Textfile == "" {
		return
	}
	if err := os.Remove(m.to.Textfile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("cannot remove the metrics' text file, which is out of date now", logging.Err, err)
	}
}

// status takes how a cluster stands; it never blocks.
func (m *monitor) status(s cluster.Status) {
	m.Status(s, time.Now())
	outbox.Wake(m.wake)
}

// write keeps the text file up to date, and reports when it cannot.
func (m *monitor) write() {
	outbox.RunPaced(m.stop, m.wake, minFileGap, func() { m.missing("metrics.textfile", unwritable(m.WriteText(m.to.Textfile))) })
}

// unwritable adds the hint to an error of the text file.
func unwritable(err error) error {
	if err == nil {
		return nil
	}
	return fault.WithHint(err, "its folder must be there, with room, and the agent's user must be able to write to it")
}

// notified takes how an attempt to notify a target ended.
func (m *monitor) notified(target string, err error) {
	result := "sent"
	if err != nil {
		result = "failed"
	}
	m.Notification(target, result)
}
