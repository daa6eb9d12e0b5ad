package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/talos/answers"
	"github.com/talos-agent/talos-agent/reconcile/talos/redaction"
)

const (
	// dryRunWithin bounds the question of what a config would do.
	dryRunWithin = 5 * time.Second
	// dryRunPause is the wait before a machine is asked again that did not answer.
	dryRunPause = 10 * time.Second
	// bootsFor is how long a boot takes at most that ends by itself. A machine that boots
	// longer may do so for ever, because of what its config names, and is asked, too. Before,
	// it is not given a config: its images could not be pulled first.
	bootsFor = 10 * time.Minute
)

// question is what a machine is asked: what a config would do, in place of another and
// in one boot. The answer to the same question stays the same.
type question struct{ boot, running, wanted string }

// dryRun is the last question to a machine.
type dryRun struct {
	of    question
	again time.Time       // when it may be asked again, unless there is an answer
	found *cluster.Change // nil: no answer
}

// questionOf is what to ask about a node whose machine runs another config than the
// wanted one. booted is for how long its boot has been seen. ok is false when there is nothing
// to ask.
func questionOf(d *cluster.Desired, node string, m *cluster.Machine, booted time.Duration) (q question, ok bool) {
	want := d.Configs[node]
	asked := m.Stage == runtime.MachineStageRunning.String() || m.Stage == runtime.MachineStageBooting.String() && booted >= bootsFor
	if m.Reach != cluster.Configured || !asked || m.ConfigDigest == "" ||
		want.Digest == "" || want.Digest == m.ConfigDigest || want.Bytes.IsZero() {
		return question{}, false
	}
	return question{m.BootID, m.ConfigDigest, want.Digest}, true
}

// askChanges asks the machines that run another config than the wanted one what that
// would do, side by side, each once.
func (f *Fleet) askChanges(ctx context.Context, d cluster.Desired) {
	now := time.Now()
	var asking sync.WaitGroup
	f.mu.Lock()
	for i := range d.Spec.Nodes {
		name := d.Spec.Nodes[i].Name
		w := f.watchers[name]
		if w == nil || w.link == nil || f.closed {
			continue
		}
		q, ok := questionOf(&d, name, &w.machine, now.Sub(w.bootedAt))
		if !ok || w.dryRun.of == q && (w.dryRun.found != nil || now.Before(w.dryRun.again)) {
			continue
		}
		w.dryRun = dryRun{of: q, again: now.Add(dryRunPause)}
		l, want, minor := w.link, d.Configs[name].Bytes, parseMinor(w.machine.Talos)
		asking.Go(func() {
			found, err := f.askChange(ctx, l, want, minor)
			if err != nil {
				f.log.Debug("cannot ask a machine what its config would do", logging.Node, name, logging.Err, formatError(err))
				return
			}
			found.For = q.wanted
			f.mu.Lock()
			defer f.mu.Unlock()
			if w.dryRun.of == q {
				w.dryRun.found = &found
			}
		})
	}
	f.mu.Unlock()
	asking.Wait()
}

// changeOf is the answer to the question that a machine poses now, if there is one.
// The fleet's lock is held.
func (w *watcher) changeOf(d *cluster.Desired) *cluster.Change {
	q, ok := questionOf(d, w.node.Name, &w.machine, time.Since(w.bootedAt))
	switch {
	case ok && w.unreachable == q.wanted:
		return &cluster.Change{For: q.wanted, Refused: fmt.Sprintf("on trial with it, it did not answer at %s within %v, and went back to the config that it had; `talos-agent reconcile` has it tried once more", w.node.IP, provenWithin)}
	case !ok || w.dryRun.of != q || w.dryRun.found == nil:
		return nil
	}
	change := *w.dryRun.found
	if change.Refused == "" {
		change.Lacks = w.lackedImages(d.Configs[w.node.Name].Summary, time.Time{})
	}
	return &change
}

// lackedImages names the images of a config that a machine was not seen to have after some time, for
// people. The fleet's lock is held.
func (w *watcher) lackedImages(want cluster.ConfigSummary, after time.Time) string {
	var refs []string
	for _, i := range newImages(w.machine.Summary, want) {
		if !w.pulled[i].After(after) {
			refs = append(refs, sanitize(i.ref))
		}
	}
	return strings.Join(refs, ", ")
}

// manualSince is the minor of Talos 1 that never reboots for a config: it applies what
// it can, and does not report the rest.
const manualSince = 14

// askChange asks a machine what a config would do to it: the link was proven to lead to
// the node's machine when it was made. Of one that takes a reboot, it asks as well for what is about
// the network: that can be on trial unless it takes a reboot by itself.
func (f *Fleet) askChange(ctx context.Context, l *link, wanted cluster.Secret, minor int) (cluster.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, dryRunWithin)
	defer cancel()
	change, err := l.tryDry(ctx, wanted.Reveal(), minor)
	if err != nil || !change.Reboots || f.takeNetwork == nil {
		return change, err
	}
	active, err := l.readConfig(ctx, config.ActiveID)
	if err != nil {
		return cluster.Change{}, err
	}
	part, err := f.takeNetwork(active.text, wanted.Reveal())
	if err != nil || part == nil {
		return change, err
	}
	of, err := l.tryDry(ctx, part, minor)
	switch {
	case err != nil:
		return cluster.Change{}, err
	case of.Refused != "":
		return cluster.Change{Refused: "it takes a reboot, and what of it is about the network, which is on trial before that, is not taken by itself: " + of.Refused}, nil
	case of.Reboots:
		return change, nil
	}
	change.Network, err = f.digest(part)
	return change, err
}

// tryDry asks a machine what a config would do to it. The answer's details hold a diff, that is,
// secrets: they are not read. A staged config does not count (recorded: 1.13.9).
func (l *link) tryDry(ctx context.Context, data []byte, minor int) (cluster.Change, error) {
	resp, err := l.machine.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{
		Data: data, Mode: machineapi.ApplyConfigurationRequest_AUTO, DryRun: true,
	})
	if err != nil {
		switch reading := answers.Find("ApplyConfiguration", err); reading.Meaning {
		case answers.Invalid, answers.Never:
			// What the machine quotes can be of the config that it has, too.
			active, unread := l.readConfig(ctx, config.ActiveID)
			if unread != nil {
				return cluster.Change{}, unread
			}
			return cluster.Change{Refused: cmp.Or(redaction.Message(status.Convert(err).Message(), data, active.text), "it gives no reason")}, nil
		}
		return cluster.Change{}, errors.New(redaction.Message(status.Convert(err).Message(), data))
	}
	if len(resp.GetMessages()) == 0 {
		return cluster.Change{}, errors.New("the answer is empty")
	}
	//lint:ignore SA1019 it is what versions up to v1.13 answer
	if resp.GetMessages()[0].GetMode() == machineapi.ApplyConfigurationRequest_REBOOT {
		return cluster.Change{Reboots: true}, nil
	}
	if minor < manualSince {
		return cluster.Change{}, nil
	}
	active, err := l.readConfig(ctx, config.ActiveID)
	if err != nil {
		return cluster.Change{}, err
	}
	return cluster.Change{Reboots: needsReboot(active.text, data)}, nil
}
