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

// changedWithin is how long a machine may take until it shows the config that it was
// given. Talos 1.13.9 shows it with its answer.
const changedWithin = 10 * time.Second

// Change gives a configured machine another config: at once and without a reboot, or
// with stage, to take effect at its next boot. It returns when the machine shows it; a
// config that is there already is not sent.
//
// A change that may make the machine unreachable is on trial first, and kept only when the machine
// answers with it on a new connection; it goes back by itself otherwise.
//
// Before anything is sent it is proven on the same connection that the machine is the
// node's and that its config has the cluster's authorities. Errors, besides that the
// machine cannot be asked or refuses; none quotes a config:
//
//   - cluster.ErrOtherAuthority: nothing was sent;
//   - cluster.ErrOnTrial: somebody else has a config on trial; nothing was sent. One that
//     waits for the next boot is replaced, with a record in the log;
//   - cluster.ErrNeedsReboot: without stage, the machine would have to reboot;
//   - cluster.ErrUnreachable: it did not answer with the config, and has the one from before.
func (f *Fleet) Change(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config, stage bool) error {
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return fmt.Errorf("change config of %s: %w", n.Name, err)
	}
	defer leave()
	if err := f.change(ctx, d, n, cfg, stage, false); err != nil {
		if errors.Is(err, cluster.ErrUnreachable) {
			f.noteUnreachable(n.Name, cfg.Digest)
			f.seen(ctx, n.Name, func(m cluster.Machine) bool { return m.Reach == cluster.Configured })
		}
		return fmt.Errorf("change config of %s (%s): %w", n.Name, n.IP, err)
	}
	if !stage {
		f.seen(ctx, n.Name, func(m cluster.Machine) bool { return m.ConfigDigest == cfg.Digest })
	}
	return nil
}

// DropStaged has a machine that runs a config keep it, and drops another one that waits for
// its next boot, as Change does. It returns an error when the machine runs another config by
// now; nothing was sent then.
func (f *Fleet) DropStaged(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error {
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return fmt.Errorf("drop the staged config of %s: %w", n.Name, err)
	}
	defer leave()
	if err := f.change(ctx, d, n, cfg, false, true); err != nil {
		return fmt.Errorf("drop the staged config of %s (%s): %w", n.Name, n.IP, err)
	}
	f.seen(ctx, n.Name, func(m cluster.Machine) bool { return m.Staged == "" })
	return nil
}

// change gives a machine a config; with keep, only one that it runs.
func (f *Fleet) change(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config, stage, keep bool) error {
	k, err := parseKeys(d.Access.Talos)
	switch {
	case err != nil:
		return err
	case k.none():
		return errors.New("there are no keys to ask it with")
	case cfg.Bytes.IsZero() || cfg.Digest == "":
		return errors.New("there is no config")
	case f.digest == nil:
		return errors.New("configs cannot be compared")
	}
	l, err := f.connectOwn(ctx, n, k)
	if err != nil {
		return err
	}
	defer func() { l.close() }()
	had, err := f.readConfigs(ctx, l)
	switch {
	case err != nil:
		return err
	case had.holds(cfg.Digest, stage):
		return nil
	case keep && had.running != cfg.Digest:
		return fault.WithHint(errors.New("nothing was sent: it runs another config by now"), "the next look compares that with the inventory's")
	}
	for _, theirs := range [][]byte{had.active, had.waiting} {
		if err := checkAuthorities(theirs, cfg.Bytes.Reveal()); err != nil {
			return fmt.Errorf("nothing was sent: %w", err)
		}
	}
	switch {
	case had.isTried(cfg.Digest):
		return fault.WithHint(fmt.Errorf("nothing was sent: %w", cluster.ErrOnTrial),
			"wait for its end, a minute unless whoever began it asked for more; or restart the node, which ends it at once")
	case had.waiting != nil && had.saved != cfg.Digest:
		f.log.Warn("replace a config that waits for the next boot", logging.Node, n.Name)
	}
	showsSaved := true
	if stage {
		running, err := l.version(ctx)
		if err != nil {
			return worded{err}
		}
		showsSaved = parseMinor(running) >= persistentSince
	}
	mode := machineapi.ApplyConfigurationRequest_NO_REBOOT
	switch {
	case stage:
		mode = machineapi.ApplyConfigurationRequest_STAGED
	case f.mayDisconnect != nil && f.mayDisconnect(had.active, cfg.Bytes.Reveal()):
		proven, err := f.tryConfig(ctx, l, n, k, cfg, had.active)
		if err != nil {
			return err
		}
		l = proven
	}
	sent := f.send(ctx, l, cfg.Bytes, mode, had.active)
	l.close()
	switch {
	case sent.refused != nil:
		return sent.refused
	case !showsSaved && sent.accepted:
		return nil
	}
	return f.awaitConfig(ctx, n, k, cfg.Digest, stage, sent)
}

// persistentSince is the minor of Talos 1 that began to show the saved config.
const persistentSince = 10

// connectOwn makes a connection to a node's machine, which shows that it is one of the
// cluster's and that it is the node's.
func (f *Fleet) connectOwn(ctx context.Context, n cluster.Node, k keys) (*link, error) {
	l, err := f.connect(ctx, n.IP, k)
	if err != nil {
		return nil, err
	}
	if l.standing != proven {
		err = errUnclaimed
	} else {
		err = l.confirm(ctx, n)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// lookOwn makes one connection as connectOwn does, has somebody look through it, and
// ends it.
func (f *Fleet) lookOwn(ctx context.Context, n cluster.Node, k keys, through func(*link) error) error {
	l, err := f.connectOwn(ctx, n, k)
	if err != nil {
		return err
	}
	defer l.close()
	return through(l)
}

// awaitConfig looks until the machine shows the config that it was given.
func (f *Fleet) awaitConfig(ctx context.Context, n cluster.Node, k keys, digest string, stage bool, sent sending) error {
	for start := time.Now(); ; {
		var has configs
		err := f.lookOwn(ctx, n, k, func(l *link) (err error) {
			has, err = f.readConfigs(ctx, l)
			return err
		})
		waited := time.Since(start)
		switch {
		case err == nil && has.holds(digest, stage):
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the config was sent; whether it was taken is not known: %w", context.Cause(ctx))
		case err == nil && waited >= changedWithin && sent.accepted:
			return errors.New("the machine accepted the config, and shows another one")
		case err == nil && waited >= changedWithin:
			return fmt.Errorf("it was not taken: %w", sent.unclear)
		case err != nil && waited >= takenWithin && sent.accepted:
			return fmt.Errorf("the machine accepted the config, and cannot be asked since: %w", err)
		case err != nil && waited >= takenWithin:
			return fmt.Errorf("the answer was lost (%w), and the machine cannot be asked since: %w", sent.unclear, err)
		}
		// A context that ends is reported above.
		_ = retry.Sleep(ctx, shortPause)
	}
}
