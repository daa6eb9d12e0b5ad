package talos

import (
	"context"
	"errors"
	"fmt"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/retry"
)

// How long a trial of a config takes. Talos 1.13: a machine goes back after a minute by
// itself (constants.ConfigTryTimeout), unless it is given a config before; an address is
// there within 0.1 s.
const (
	// trialSettles is how long what a config changes has to take effect. An answer before
	// that proves nothing.
	trialSettles = 5 * time.Second
	// provenWithin leaves enough of the minute to give the config for good.
	provenWithin = 30 * time.Second
	// trialEnds is when a machine that is there again is back at its old config, and not just been out
	// of reach.
	trialEnds = 50 * time.Second
	// backWithin is when a machine must answer again, with its old config.
	backWithin = 90 * time.Second
)

// tryConfig gives a machine a config that may make it unreachable on trial, and returns a new
// connection to it once it answers with that. What it takes over: the connection that is
// open stays open behind most mistakes (a firewall lets through what is established).
//
// A trial that this program does not see to its end ends by itself. None is begun on top
// of another: the machine would go back to the first of them and stay there (recorded:
// 1.13.9); readConfigs shows it, because what is on trial is not saved.
func (f *Fleet) tryConfig(ctx context.Context, l *link, n cluster.Node, k keys, cfg cluster.Config, active []byte) (*link, error) {
	sent := f.send(ctx, l, cfg.Bytes, machineapi.ApplyConfigurationRequest_TRY, active)
	l.close()
	if sent.refused != nil {
		return nil, sent.refused
	}
	f.log.Info("config is on trial: it is kept when the machine answers with it", logging.Node, n.Name)
	start := time.Now()
	pause := trialSettles
	for {
		if err := retry.Sleep(ctx, pause); err != nil {
			return nil, fmt.Errorf("the config was on trial, and the machine goes back to the one before: %w", context.Cause(ctx))
		}
		pause = shortPause
		proven, running, err := f.connectRunning(ctx, n, k)
		waited := time.Since(start)
		switch {
		case err == nil && running == cfg.Digest && waited <= provenWithin:
			return proven, nil
		case err == nil:
			proven.close()
		}
		switch {
		case err == nil && running == cfg.Digest: // too late to be kept: it goes back
		case err == nil && waited >= trialEnds:
			return nil, cluster.ErrUnreachable
		case err == nil && !sent.accepted:
			return nil, fmt.Errorf("it was not taken: %w", sent.unclear)
		case err == nil:
			return nil, fault.WithHint(errors.New("the machine took the config on trial, and runs another one"), "somebody else applies configs to it: `talosctl get machineconfig` shows both; it is tried again")
		case waited >= backWithin:
			return nil, fault.WithHint(fmt.Errorf("the machine took the config on trial, does not answer since, and should be back to the one before by now: %w", err),
				"look at its console: `talos-agent console` shows it; a restart of its vm has it boot with the config from before")
		}
	}
}

// connectRunning makes a new connection to a node's machine, and reads the digest of the
// config that runs there.
func (f *Fleet) connectRunning(ctx context.Context, n cluster.Node, k keys) (*link, string, error) {
	l, err := f.connectOwn(ctx, n, k)
	if err != nil {
		return nil, "", err
	}
	has, err := f.readConfigs(ctx, l)
	if err != nil {
		l.close()
		return nil, "", err
	}
	return l, has.running, nil
}

// Retry implements reconcile.Retrier: configs with which a machine did not answer are
// tried once more.
func (f *Fleet) Retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watchers {
		w.unreachable = ""
	}
}

// noteUnreachable keeps that a node's machine does not answer with a config, so that it is not
// given that again. A program that has just started tries once more.
func (f *Fleet) noteUnreachable(node, digest string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.watchers[node]; w != nil {
		w.unreachable = digest
	}
}
