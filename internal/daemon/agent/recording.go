package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/text"
)

// How much of a reboot is recorded.
const (
	recordFor     = 30 * time.Minute
	mostRecorded  = 100 // lines of a boot
	widestPartial = 4 << 10
)

// recording is what a machine prints while it is rebooted to run another Talos. Why
// it went back to the one from before is not to be seen anywhere else, nor later.
type recording struct {
	since  time.Time // since when the action runs that reboots it
	cancel context.CancelFunc
	boots  boots
	err    error
	judged bool // it is the tail of the console
}

// rebootOf is the action that has a node boot another Talos, if one runs.
func rebootOf(s cluster.Status, n cluster.NodeStatus) (cluster.RunningStatus, bool) {
	i := slices.IndexFunc(n.Running, func(r cluster.RunningStatus) bool {
		return r.Action == cluster.RollBackTalos || s.Upgrade != nil && (r.Action == cluster.RebootNode || r.Action == cluster.UpgradeTalos)
	})
	if i < 0 {
		return cluster.RunningStatus{}, false
	}
	return n.Running[i], true
}

// stopsUpgrade reports whether a node has not come back from a reboot with the Talos that it was to run.
func stopsUpgrade(n cluster.NodeStatus) (reason cluster.Reason) {
	for _, b := range n.Blocked {
		switch b.Reason {
		case cluster.UpgradeFellBack, cluster.RollbackNotTaken, cluster.UpgradeStuck:
			return b.Reason
		}
	}
	return ""
}

// record begins to record what a machine prints, once in each of its reboots. c.mu is held.
func (c *consoles) record(key consoleKey, n cluster.NodeStatus, reboot cluster.RunningStatus, now time.Time) {
	l := c.nodes[key]
	if l == nil {
		l = &listened{pause: firstPause}
		c.nodes[key] = l
	}
	switch {
	case l.recording != nil && l.recording.since.Equal(reboot.Since), c.wanted[key] > 0, c.ctx.Err() != nil:
		return
	case l.recording != nil:
		l.recording.cancel()
	}
	if cancel := c.cancel[key]; cancel != nil {
		cancel() // the port has one reader
	}
	ctx, cancel := context.WithTimeout(c.ctx, recordFor)
	r := &recording{since: reboot.Since, cancel: cancel}
	l.recording, l.tail = r, nil
	// A host that refused it lately does so again, and may count that as attempts to break in.
	if refused := c.refused[n.Host]; refused.err != nil && now.Sub(refused.at) < listenAtMost {
		r.err = refused.err
		cancel()
		return
	}
	c.wg.Go(func() {
		defer cancel()
		began := false
		err := c.stream(ctx, n, func(printed string) error {
			began = true
			c.mu.Lock()
			defer c.mu.Unlock()
			r.boots.add(printed)
			return nil
		})
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.err = err; err != nil && !began {
			c.refused[n.Host] = refusal{now, err}
		}
	})
}

// judge has what was recorded of a reboot shown where the machine did not come back from it as it was to, and
// dropped once it has. It returns what is to be shown from now on. c.mu is held.
func (c *consoles) judge(key consoleKey, n cluster.NodeStatus, l *listened, now time.Time) (tail *cluster.ConsoleTail) {
	r, reason := l.recording, stopsUpgrade(n)
	switch {
	case reason == "" && (n.Phase == cluster.PhaseReady || r.judged || now.Sub(r.since) > recordFor):
		r.cancel()
		delete(c.nodes, key)
		return nil
	case reason == "" || r.judged:
		return nil
	}
	r.cancel()
	r.judged = true
	tail = &cluster.ConsoleTail{At: now.UTC(), Lines: r.boots.last()}
	if before := r.boots.previous(); reason != cluster.UpgradeStuck && len(before) > 0 {
		tail.Lines, tail.Note = before, "that is what it printed before the boot that it runs in now"
	}
	switch {
	case len(tail.Lines) > 0:
	case r.err != nil:
		tail.Note = describeFault(r.err)
	default:
		tail.Note = "it printed nothing while it was rebooted"
	}
	l.tail = tail
	return tail
}

// stream reads a console until ctx ends, and calls each with what is printed, cleaned and
// without the greeting of the terminal itself.
func (c *consoles) stream(ctx context.Context, n cluster.NodeStatus, each func(printed string) error) error {
	var clean text.Console
	return c.read(ctx, n.Host, n.VMID, func(piece []byte) error {
		printed := clean.Clean(piece)
		if before, after, ok := strings.Cut(printed, terminalGreeting); ok {
			_, after, _ = strings.Cut(after, "\n")
			printed = before + after
		}
		return each(printed)
	})
}

// terminalGreeting is how a terminal greets.
const terminalGreeting = "starting serial terminal on interface"

// describeFault is an error with what to do about it, on one line.
func describeFault(err error) string {
	why := text.OneLine(err.Error())
	if hint := fault.HintOf(err); hint != "" {
		why += "; " + hint
	}
	return why
}

// logTail writes what the console of a node ends with into the log, and why that matters where it is not that nothing answers.
func (c *consoles) logTail(key consoleKey, n cluster.NodeStatus, tail *cluster.ConsoleTail, why string) {
	detail := why + "the console of " + key.node
	if len(tail.Lines) == 0 {
		c.log.Info("a machine does not come up", logging.Detail, detail+": "+tail.Note, logging.Cluster, key.cluster, logging.Node, key.node, logging.VMID, n.VMID)
		return
	}
	c.log.Info("a machine does not come up", logging.Detail, detail+" ends with: "+tail.Lines[len(tail.Lines)-1],
		logging.Cluster, key.cluster, logging.Node, key.node, logging.VMID, n.VMID, logging.Console, strings.Join(tail.Lines, "\n"))
}

// boots are the lines that a machine prints, boot by boot: the end of this one and of
// the one before. The zero value is ready.
type boots struct {
	before, now []string
	partial     string // a line that has not ended
}

// kernelStart is the first line of a kernel.
var kernelStart = pattern.New(`\[ +0\.0+\] Linux version `)

func (b *boots) add(printed string) {
	b.partial += printed
	for {
		line, rest, ended := strings.Cut(b.partial, "\n")
		if !ended && len(line) < widestPartial {
			return
		}
		b.partial = rest
		if kernelStart.MatchString(line) {
			b.before, b.now = b.now, nil
		}
		b.now = append(b.now, line)
		b.now = slices.Delete(b.now, 0, max(0, len(b.now)-mostRecorded))
	}
}

// previous is the end of what was printed before the last start of a kernel; none: none was seen.
func (b *boots) previous() []string { return lastLines(b.before) }

// last is the end of everything.
func (b *boots) last() []string {
	return lastLines(slices.Concat(b.before, b.now, []string{b.partial}))
}

func lastLines(lines []string) []string { return text.LastLines(strings.Join(lines, "\n")) }
