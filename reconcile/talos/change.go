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
	how := atOnce
	if stage {
		how = staged
	}
	return f.changeAs(ctx, d, n, cfg, how)
}

// ChangeNetwork gives a configured machine what of another config is about the network, as Change
// does at once, and always on trial. The rest of what it runs stays.
func (f *Fleet) ChangeNetwork(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error {
	return f.changeAs(ctx, d, n, cfg, networkOnly)
}

// changeAs gives a machine a config, and waits until that is seen.
func (f *Fleet) changeAs(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config, how giving) error {
	return f.act(ctx, "change config of", n, func(ctx context.Context) error {
		given, err := f.change(ctx, d, n, cfg, how)
		if err != nil {
			if errors.Is(err, cluster.ErrUnreachable) {
				f.noteUnreachable(n.Name, cfg.Digest)
				f.seen(ctx, n.Name, func(m cluster.Machine) bool { return m.Reach == cluster.Configured })
			}
			return err
		}
		if how != staged {
			f.seen(ctx, n.Name, func(m cluster.Machine) bool { return m.ConfigDigest == given })
		}
		return nil
	})
}

// DropStaged has a machine that runs a config keep it, and drops another one that waits for
// its next boot, as Change does. It returns an error when the machine runs another config by
// now; nothing was sent then.
func (f *Fleet) DropStaged(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error {
	return f.act(ctx, "drop the staged config of", n, func(ctx context.Context) error {
		if _, err := f.change(ctx, d, n, cfg, kept); err != nil {
			return err
		}
		f.seen(ctx, n.Name, func(m cluster.Machine) bool { return m.Staged == "" })
		return nil
	})
}

// giving is how a machine is given a config.
type giving int

const (
	atOnce      giving = iota // and without a reboot
	staged                    // for its next boot
	kept                      // which it runs, so that none waits for its next boot
	networkOnly               // only what of it is about the network, on trial
)

// change gives a machine a config, and returns the digest of what it was given.
func (f *Fleet) change(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config, how giving) (given string, err error) {
	k, err := askingKeys(d)
	switch {
	case err != nil:
		return "", err
	case cfg.Bytes.IsZero() || cfg.Digest == "":
		return "", errors.New("there is no config")
	case f.digest == nil:
		return "", errors.New("configs cannot be compared")
	}
	l, err := f.connectOwn(ctx, n, k)
	if err != nil {
		return "", err
	}
	defer l.close()
	had, err := f.readConfigs(ctx, l)
	if err == nil {
		err = f.findBooted(ctx, l, n.Name, &had)
	}
	if err == nil && how == networkOnly {
		cfg, err = f.withNetwork(had, cfg)
	}
	switch {
	case err != nil:
		return "", err
	case cfg.Digest == "": // it has that by now
		return had.running, nil
	case had.holds(cfg.Digest, how == staged):
		return cfg.Digest, nil
	case how == kept && had.running != cfg.Digest:
		return "", fault.WithHint(errors.New("nothing was sent: it runs another config by now"), "the next look compares that with the inventory's")
	}
	return cfg.Digest, f.give(ctx, l, n, k, had, cfg, how)
}

// withNetwork is what a machine runs with what of another config is about the network, the zero
// Config when both have the same of that.
func (f *Fleet) withNetwork(had configs, cfg cluster.Config) (cluster.Config, error) {
	if f.takeNetwork == nil {
		return cluster.Config{}, errors.New("what of a config is about the network cannot be separated")
	}
	text, err := f.takeNetwork(had.active, cfg.Bytes.Reveal())
	if err != nil || text == nil {
		return cluster.Config{}, err
	}
	digest, err := f.digest(text)
	return cluster.Config{Bytes: cluster.NewSecret(text), Digest: digest}, err
}

// give sends a machine a config that it does not have, and returns when the machine shows it.
func (f *Fleet) give(ctx context.Context, l *link, n cluster.Node, k keys, had configs, cfg cluster.Config, how giving) error {
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
	showsSaved, mode := true, machineapi.ApplyConfigurationRequest_NO_REBOOT
	switch {
	case how == staged:
		mode = machineapi.ApplyConfigurationRequest_STAGED
		running, err := l.version(ctx)
		if err != nil {
			return worded{err}
		}
		showsSaved = parseMinor(running) >= persistentSince
	case how == networkOnly || f.mayDisconnect != nil && f.mayDisconnect(had.active, cfg.Bytes.Reveal()):
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
	return f.awaitConfig(ctx, n, k, cfg.Digest, how == staged, sent)
}

// How long after a change of what runs it is taken to be on trial, by the clocks of the machine and
// of this program, where the saved config is not shown: when it is not what the machine booted with, and
// when that is not known. A trial takes a minute, unless whoever began it asked for more.
const (
	longTrial  = time.Hour
	shortTrial = 5 * time.Minute
)

// findBooted finds the saved config of a machine that shows none in this boot: what it booted with.
// It is "" where that is not known and another one runs that was given lately.
func (f *Fleet) findBooted(ctx context.Context, l *link, node string, c *configs) error {
	if c.unsaved == nil || c.unsaved.Version().Value() == 1 {
		return nil
	}
	switch running, err := l.version(ctx); {
	case err != nil:
		return worded{err}
	case parseMinor(running) < persistentSince:
		return nil // it never shows one
	}
	boot, err := l.bootID(ctx)
	if err != nil {
		return worded{err}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	age := time.Since(c.unsaved.Updated()).Abs()
	switch w := f.watchers[node]; {
	case w != nil && boot != "" && w.bootedWith.boot == boot:
		if age < longTrial {
			c.saved = w.bootedWith.digest
		}
	case age < shortTrial:
		c.saved = ""
	}
	return nil
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

// act carries out what is done to the machine of a node, and names both in its errors.
func (f *Fleet) act(ctx context.Context, what string, n cluster.Node, do func(context.Context) error) error {
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, n.Name, err)
	}
	defer leave()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s %s (%s): %w", what, n.Name, n.IP, err)
	}
	return nil
}

// askingKeys are the keys to ask machines with.
func askingKeys(d cluster.Desired) (keys, error) {
	k, err := parseKeys(d.Access.Talos)
	if err == nil && k.none() {
		err = errors.New("there are no keys to ask it with")
	}
	return k, err
}

// askOwn connects to the machine of a node, once it is proven to be that, and asks it for something.
func (f *Fleet) askOwn(ctx context.Context, d cluster.Desired, n cluster.Node, ask func(*link, keys) error) error {
	k, err := askingKeys(d)
	if err != nil {
		return err
	}
	return f.lookOwn(ctx, n, k, func(l *link) error { return ask(l, k) })
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
