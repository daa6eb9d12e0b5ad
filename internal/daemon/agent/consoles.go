package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// How the agent listens to a machine that does not come up. Its serial port has
// one reader, and a person may want to be it: so it is read rarely, and not for
// long.
const (
	listenFor       = 15 * time.Second
	firstPause      = 5 * time.Minute // doubling
	listenAtMost    = time.Hour       // and no more
	largestListened = 64 << 10
)

// consoles reads what the VMs print whose machines should answer and do not, and what
// those print that reboot for another Talos, and keeps the end of it. Nothing depends on
// it, and it never fails: where a console cannot be read, a note says why.
type consoles struct {
	read func(ctx context.Context, host string, vmid int, each func([]byte) error) error
	log  *slog.Logger
	done func() // is called when there is something new
	ctx  context.Context
	wg   *sync.WaitGroup

	mu      sync.Mutex
	nodes   map[consoleKey]*listened
	wanted  map[consoleKey]int // people who read it now
	cancel  map[consoleKey]context.CancelFunc
	refused map[string]refusal // by host
}

type consoleKey struct{ cluster, node string }

type listened struct {
	tail      *cluster.ConsoleTail
	next      time.Time
	pause     time.Duration
	recording *recording // of its reboot for another Talos; nil: there was none lately
}

// refusal is why a host let nobody at a console, and when.
type refusal struct {
	at  time.Time
	err error
}

// watch takes a status: the consoles of machines that are overdue, and of those that
// reboot for another Talos, are read, the others forgotten. It does not block.
func (c *consoles) watch(s cluster.Status, now time.Time) {
	overdue := map[string]bool{}
	for _, w := range s.Waiting {
		if w.Overdue {
			overdue[w.Subject] = true
		}
	}
	shown := map[string]*cluster.ConsoleTail{}
	c.mu.Lock()
	for _, n := range s.Nodes {
		key := consoleKey{s.Cluster, n.Name}
		reboot, reboots := rebootOf(s, n)
		l := c.nodes[key]
		switch {
		case reboots:
			c.record(key, n, reboot, now)
		case l != nil && l.recording != nil:
			shown[n.Name] = c.judge(key, n, l, now)
		case (overdue[n.Name] || stopsUpgrade(n) == cluster.UpgradeStuck) && (n.Phase == cluster.PhaseBooting || n.Phase == cluster.PhaseUnreachable):
			c.listenAgain(key, n, now)
		default:
			delete(c.nodes, key)
		}
	}
	c.mu.Unlock()
	for _, n := range s.Nodes {
		if tail := shown[n.Name]; tail != nil {
			c.logTail(consoleKey{s.Cluster, n.Name}, n, tail, "it does not run the Talos that it was rebooted into; ")
		}
	}
}

// listenAgain has a console read for a while, if that is due. c.mu is held.
func (c *consoles) listenAgain(key consoleKey, n cluster.NodeStatus, now time.Time) {
	l := c.nodes[key]
	if l == nil {
		l = &listened{pause: firstPause}
		c.nodes[key] = l
	}
	// One at a time: each costs Proxmox VE a process and a task.
	if now.Before(l.next) || c.wanted[key] > 0 || len(c.cancel) > 0 || c.ctx.Err() != nil {
		return
	}
	l.next = now.Add(l.pause)
	l.pause = min(2*l.pause, listenAtMost)
	ctx, cancel := context.WithTimeout(c.ctx, listenFor)
	c.cancel[key] = cancel
	c.wg.Go(func() { c.listen(ctx, key, n) })
}

// forget drops what was read of a cluster that is not managed any more.
func (c *consoles) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, l := range c.nodes {
		if key.cluster == name {
			l.stop()
			delete(c.nodes, key)
		}
	}
}

// stop ends the recording, if there is one.
func (l *listened) stop() {
	if l.recording != nil {
		l.recording.cancel()
	}
}

// listen reads one console for a while.
func (c *consoles) listen(ctx context.Context, key consoleKey, n cluster.NodeStatus) {
	var all strings.Builder
	err := c.stream(ctx, n, func(printed string) error {
		if all.WriteString(printed); all.Len() > largestListened {
			return errEnough
		}
		return nil
	})
	tail := &cluster.ConsoleTail{At: time.Now().UTC(), Lines: text.LastLines(all.String())}
	switch {
	case err != nil && !errors.Is(err, errEnough):
		tail.Note = describeFault(err)
	case len(tail.Lines) == 0:
		tail.Note = fmt.Sprintf("it printed nothing in %v", listenFor)
	}
	c.mu.Lock()
	l := c.nodes[key]
	stopped := c.ctx.Err() != nil || c.wanted[key] > 0
	c.cancel[key]()
	delete(c.cancel, key)
	if l == nil || l.recording != nil || stopped {
		c.mu.Unlock()
		return
	}
	before := l.tail
	l.tail = tail
	c.mu.Unlock()
	if before == nil || !slices.Equal(before.Lines, tail.Lines) || before.Note != tail.Note {
		c.logTail(key, n, tail, "")
	}
	c.done()
}

var errEnough = errors.New("enough was read")

// show adds what was read to a status.
func (c *consoles) show(s cluster.Status) cluster.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	shared := true
	for i, n := range s.Nodes {
		l := c.nodes[consoleKey{s.Cluster, n.Name}]
		if l == nil || l.tail == nil {
			continue
		}
		if shared {
			s.Nodes, shared = slices.Clone(s.Nodes), false
		}
		s.Nodes[i].Console = l.tail
	}
	return s
}

// person lets somebody read a console: the agent stops, and does not begin
// again before release.
func (c *consoles) person(key consoleKey) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted[key]++
	if cancel := c.cancel[key]; cancel != nil {
		cancel()
	}
	if l := c.nodes[key]; l != nil {
		l.stop()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.wanted[key]--; c.wanted[key] == 0 {
			delete(c.wanted, key)
		}
	}
}
