package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
)

// How the agent listens to a machine that does not come up. Its serial port has
// one reader, and a person may want to be it: so it is read rarely, and not for
// long.
const (
	listenFor       = 15 * time.Second
	listenAgain     = 5 * time.Minute // doubling
	listenAtMost    = time.Hour       // and no more
	largestListened = 64 << 10
)

// consoles reads what the VMs print whose machines should answer and do not, and
// keeps the end of it. Nothing depends on it, and it never fails: where a console
// cannot be read, a note says why.
type consoles struct {
	read func(ctx context.Context, host string, vmid int, each func([]byte) error) error
	log  *slog.Logger
	done func() // is called when there is something new
	ctx  context.Context
	wg   *sync.WaitGroup

	mu     sync.Mutex
	nodes  map[consoleKey]*listened
	wanted map[consoleKey]int // people who read it now
	cancel map[consoleKey]context.CancelFunc
}

type consoleKey struct{ cluster, node string }

type listened struct {
	tail  *cluster.ConsoleTail
	next  time.Time
	pause time.Duration
}

// watch takes a status: the consoles of machines that are overdue are read, the
// others forgotten. It does not block.
func (c *consoles) watch(s cluster.Status, now time.Time) {
	overdue := map[string]bool{}
	for _, w := range s.Waiting {
		if w.Overdue {
			overdue[w.Subject] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range s.Nodes {
		key := consoleKey{s.Cluster, n.Name}
		if !overdue[n.Name] || n.Phase != cluster.PhaseBooting && n.Phase != cluster.PhaseUnreachable {
			delete(c.nodes, key)
			continue
		}
		l := c.nodes[key]
		if l == nil {
			l = &listened{pause: listenAgain}
			c.nodes[key] = l
		}
		// One at a time: each costs Proxmox VE a process and a task.
		if now.Before(l.next) || c.wanted[key] > 0 || len(c.cancel) > 0 || c.ctx.Err() != nil {
			continue
		}
		l.next = now.Add(l.pause)
		l.pause = min(2*l.pause, listenAtMost)
		ctx, cancel := context.WithTimeout(c.ctx, listenFor)
		c.cancel[key] = cancel
		c.wg.Go(func() { c.listen(ctx, key, n) })
	}
}

// forget drops what was read of a cluster that is not managed any more.
func (c *consoles) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.nodes, func(key consoleKey, _ *listened) bool { return key.cluster == name })
}

// listen reads one console for a while.
func (c *consoles) listen(ctx context.Context, key consoleKey, n cluster.NodeStatus) {
	var clean cluster.Console
	var printed strings.Builder
	err := c.read(ctx, n.Host, n.VMID, func(piece []byte) error {
		printed.WriteString(clean.Clean(piece))
		if printed.Len() > largestListened {
			return errEnough
		}
		return nil
	})
	tail := &cluster.ConsoleTail{At: time.Now().UTC(), Lines: text.LastLines(printed.String())}
	// What the terminal says itself, before the guest.
	tail.Lines = slices.DeleteFunc(tail.Lines, func(line string) bool { return strings.HasPrefix(line, "starting serial terminal on interface") })
	switch {
	case err != nil && !errors.Is(err, errEnough):
		tail.Note = text.OneLine(err.Error())
		if hint := fault.HintOf(err); hint != "" {
			tail.Note += "; " + hint
		}
	case len(tail.Lines) == 0:
		tail.Note = fmt.Sprintf("it printed nothing in %v", listenFor)
	}
	c.mu.Lock()
	l := c.nodes[key]
	stopped := c.ctx.Err() != nil || c.wanted[key] > 0
	c.cancel[key]()
	delete(c.cancel, key)
	if l == nil || stopped {
		c.mu.Unlock()
		return
	}
	before := l.tail
	l.tail = tail
	c.mu.Unlock()
	switch {
	case before != nil && slices.Equal(before.Lines, tail.Lines) && before.Note == tail.Note:
	case len(tail.Lines) > 0:
		c.log.Info("a machine does not come up", logging.Detail, fmt.Sprintf("the console of %s ends with: %s", key.node, tail.Lines[len(tail.Lines)-1]),
			logging.Cluster, key.cluster, logging.Node, key.node, logging.VMID, n.VMID, logging.Console, strings.Join(tail.Lines, "\n"))
	default:
		c.log.Info("a machine does not come up", logging.Detail, fmt.Sprintf("the console of %s: %s", key.node, tail.Note),
			logging.Cluster, key.cluster, logging.Node, key.node, logging.VMID, n.VMID)
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
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.wanted[key]--; c.wanted[key] == 0 {
			delete(c.wanted, key)
		}
	}
}
