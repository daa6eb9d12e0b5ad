package talos

import (
	"context"
	"errors"
	"fmt"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/talos/answers"
	"github.com/talos-agent/talos-agent/reconcile/talos/installer"
)

const (
	// rebootWithin is how long a machine may take until it runs again. Talos 1.14.0 with
	// isolated workloads restarts its CRI for one to three minutes of every boot.
	rebootWithin = 10 * time.Minute
	// silentWithin is how long it may not answer meanwhile: then it is not waited for here any longer.
	silentWithin = 5 * time.Minute
	// stopsWithin is how long a machine may go on running after it was asked to reboot:
	// Talos answers a request that it drops in the same way as one that it carries out.
	stopsWithin = time.Minute
	rebootPause = time.Second
)

// Reboot restarts a node's machine, if it still is in the boot with this id, and returns
// when it runs in another one. Services stop in good order, but nothing is drained and
// no member leaves etcd (Talos 1.13: read in its source).
//
// The request is sent once, and its answer proves nothing: only another boot id does.
// It returns an error when the machine went on running for a minute, has not answered for five, or does not run
// after ten; it can be called again with the same id. Where the machine's events show why,
// it is one of these as well, and progress has it at once:
//
//   - cluster.ErrSequenceRefused: Talos did nothing, because another sequence ran. That one may
//     restart the machine as well, and is waited for, unless it is one that does not: once it has
//     taken the machine down, there is nothing more to wait for here;
//   - cluster.ErrSequenceFailed: Talos began, and a phase failed, or another sequence took over.
func (f *Fleet) Reboot(ctx context.Context, d cluster.Desired, n cluster.Node, bootID string, progress func(cluster.Progress)) error {
	return f.act(ctx, "reboot", n, func(ctx context.Context) error {
		return f.reboot(ctx, d, n, bootID, askReboot, progress)
	})
}

// RollBackTalos has a node's machine boot the other slot of its disk, if it still is in the boot with this id, and returns when it
// runs in another boot, of whatever version. Before it was asked errors are cluster.ErrNotBegun, where it refuses cluster.ErrNoWayBack, too.
func (f *Fleet) RollBackTalos(ctx context.Context, d cluster.Desired, n cluster.Node, bootID string, progress func(cluster.Progress)) error {
	return f.act(ctx, "roll back", n, func(ctx context.Context) error {
		begun := false
		err := f.reboot(ctx, d, n, bootID, func(ctx context.Context, l *link) ([]string, error, error) { begun = true; return askRollback(ctx, l) }, progress)
		if err == nil && !begun {
			err = errors.New("it is in another boot")
		}
		return explainBegun(begun && !errors.Is(err, cluster.ErrNoWayBack), err)
	})
}

// seenBooted waits until a machine is seen to run in another boot.
func (f *Fleet) seenBooted(ctx context.Context, n cluster.Node, bootID string) {
	f.seen(ctx, n.Name, func(m cluster.Machine) bool {
		return m.Reach == cluster.Configured && m.BootID != bootID && m.Stage == runtime.MachineStageRunning.String()
	})
}

// reboot asks a machine, in one way or another, to boot again, if it still is in the boot with this id, and waits for that.
func (f *Fleet) reboot(ctx context.Context, d cluster.Desired, n cluster.Node, bootID string, ask askFunc, progress func(cluster.Progress)) error {
	k, err := askingKeys(d)
	switch {
	case err != nil:
		return err
	case bootID == "":
		return errors.New("its boot id is not known, so that it could not be seen whether it has rebooted")
	}
	var events *eventLog
	var lost error
	err = f.lookOwn(ctx, n, k, func(l *link) (err error) {
		events = f.openEventLog(ctx, n, k, rebootSequence)
		lost, err = l.askIn(ctx, bootID, events, ask)
		return err
	})
	if events != nil {
		defer events.close()
	}
	if err != nil {
		return err
	}
	if err := f.awaitBoot(ctx, n, k, bootID, lost, events, progress); err != nil {
		return err
	}
	f.seenBooted(ctx, n, bootID)
	return nil
}

// InstallTalos has a node's machine run an installer that it has pulled, for its next boot, if it still is in the
// boot with this id. What its errors mean is as installer.Install has it.
func (f *Fleet) InstallTalos(ctx context.Context, d cluster.Desired, n cluster.Node, image, bootID string, progress func(cluster.Progress)) error {
	return f.act(ctx, "install Talos on", n, func(ctx context.Context) error {
		begun := false
		err := f.askOwn(ctx, d, n, func(l *link, _ keys) error {
			if err := l.checkBoot(ctx, bootID); err != nil {
				return err
			}
			begun = true
			return installer.Install(ctx, l.grpc, image, report(progress))
		})
		return explainBegun(begun, err)
	})
}

// checkBoot fails unless a machine is in the boot with this id: what was noted of that one does not hold for
// another.
func (l *link) checkBoot(ctx context.Context, bootID string) error {
	switch now, err := l.bootID(ctx); {
	case err != nil:
		return err
	case now == "" || now != bootID:
		return fmt.Errorf("it is in another boot than %q", bootID)
	}
	return nil
}

// explainBegun is an error of an installation, and whether it may have begun.
func explainBegun(begun bool, err error) error {
	switch {
	case err == nil:
		return nil
	case !begun:
		return fmt.Errorf("%w: %w", cluster.ErrNotBegun, worded{err})
	}
	return worded{err}
}

// UpgradeTalos has a node's machine run an installer on its way down, if it still is in the boot with this
// id, and returns when it runs in another one, whatever version that is. Before it goes down the errors are
// those of installer.Upgrade, and afterwards those of Reboot.
func (f *Fleet) UpgradeTalos(ctx context.Context, d cluster.Desired, n cluster.Node, image, bootID string, progress func(cluster.Progress)) error {
	return f.act(ctx, "upgrade Talos on", n, func(ctx context.Context) error {
		begun := false
		err := f.askOwn(ctx, d, n, func(l *link, k keys) error {
			if err := l.checkBoot(ctx, bootID); err != nil {
				return err
			}
			events := f.openEventLog(ctx, n, k, upgradeSequence)
			defer events.close()
			begun = true
			reply, err := installer.Upgrade(ctx, l.grpc, image)
			if errors.Is(err, cluster.ErrNotBegun) || errors.As(err, new(*cluster.InstallError)) {
				return err
			}
			for _, m := range reply.GetMessages() {
				events.setActor(m.GetActorId())
			}
			return f.awaitBoot(ctx, n, k, bootID, err, events, progress)
		})
		if err == nil {
			f.seenBooted(ctx, n, bootID)
		}
		return explainBegun(begun, err)
	})
}

// askFunc asks a machine to boot again. It returns the actors of its events, why there was no clear answer, and that it refuses.
type askFunc func(ctx context.Context, l *link) (actors []string, lost, err error)

// askIn asks the machine to boot again, if it is still in this boot. lost is why there
// was no clear answer: a machine that goes down closes its connections (recorded).
func (l *link) askIn(ctx context.Context, bootID string, events *eventLog, ask askFunc) (lost, err error) {
	now, err := l.bootID(ctx)
	switch {
	case err != nil:
		return nil, worded{err}
	case now == "":
		return nil, errors.New("it does not show its boot id")
	case now != bootID:
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	actors, lost, err := ask(ctx, l)
	for _, actor := range actors {
		events.setActor(actor)
	}
	return lost, err
}

// askReboot has it boot what it runs.
func askReboot(ctx context.Context, l *link) (actors []string, lost, err error) {
	reply, err := l.machine.Reboot(ctx, &machineapi.RebootRequest{Mode: machineapi.RebootRequest_DEFAULT})
	switch {
	case err == nil:
		for _, m := range reply.GetMessages() {
			actors = append(actors, m.GetActorId())
		}
		return actors, nil, nil
	case answers.Find("Reboot", err).Meaning == answers.Never:
		return nil, nil, fmt.Errorf("the machine refuses: %w", worded{err})
	}
	return nil, worded{err}, nil
}

// askRollback has it boot the other slot. Talos names no actor, and its own errors come before it has changed anything
// (Talos v1.13.9: MachineService.Rollback): they have no code, or one by which it never does that.
func askRollback(ctx context.Context, l *link) (actors []string, lost, err error) {
	switch _, err = l.machine.Rollback(ctx, &machineapi.RollbackRequest{}); {
	case err == nil:
		return nil, nil, nil
	case status.Code(err) == codes.Unknown, answers.Find("Reboot", err).Meaning == answers.Never:
		return nil, nil, fmt.Errorf("%w: %w", cluster.ErrNoWayBack, worded{err})
	}
	return nil, worded{err}, nil
}

// awaitBoot looks until the machine runs in another boot than this one.
func (f *Fleet) awaitBoot(ctx context.Context, n cluster.Node, k keys, bootID string, lost error, events *eventLog, progress func(cluster.Progress)) error {
	start := time.Now()
	answered := start
	for {
		var now string
		var stage runtime.MachineStage
		err := f.lookOwn(ctx, n, k, func(l *link) error {
			var err error
			if now, err = l.bootID(ctx); err != nil {
				return worded{err}
			}
			st, err := l.status(ctx)
			if err != nil {
				return worded{err}
			}
			stage = st.Stage
			return nil
		})
		if !isSilent(err) {
			answered = time.Now()
		}
		waited, course := time.Since(start), events.judge()
		why := course.err()
		stays := err == nil && now == bootID && stage == runtime.MachineStageRunning && waited >= stopsWithin
		switch {
		case err == nil && now != "" && now != bootID && stage == runtime.MachineStageRunning:
			if why != nil {
				f.log.Warn("the machine has rebooted, and not as it was asked to", logging.Node, n.Name, logging.Err, why)
			}
			return nil
		case ctx.Err() != nil:
			return explainCourse(n, why, "whether it runs again is not known: %w", context.Cause(ctx))
		case course.endsElsewhere() && isDown(err):
			return explainCourse(n, why, "it went down, and not to boot again")
		case stays && lost != nil:
			return explainCourse(n, why, "it still runs in the boot of before %v after it was asked to reboot, without a clear answer: %w", stopsWithin, lost)
		case stays:
			return explainCourse(n, why, "it still runs in the boot of before %v after it was asked to reboot", stopsWithin)
		case time.Since(answered) >= silentWithin:
			return explainCourse(n, why, "it has not answered for %v on its way into another boot: %w", silentWithin, err)
		case waited >= rebootWithin && err != nil:
			return explainCourse(n, why, "it does not run %v after it was asked to reboot: %w", rebootWithin, err)
		case waited >= rebootWithin:
			return explainCourse(n, why, "it does not run %v after it was asked to reboot: it is %s", rebootWithin, stage)
		}
		report(progress)(describeBoot(now == bootID, stage, err, course))
		// A context that ends is reported above.
		_ = retry.Sleep(ctx, rebootPause)
	}
}

// explainCourse is an error with why it came to that, where that is known; nil: it is not.
func explainCourse(n cluster.Node, why error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if why == nil {
		return err
	}
	return fault.WithHint(fmt.Errorf("%w: %w", err, why), fmt.Sprintf("`talosctl -n %s events --tail=-1` shows which sequences ran, and how far each came", n.IP))
}

// describeBoot puts into words how far a reboot is.
func describeBoot(before bool, stage runtime.MachineStage, err error, c course) string {
	words := "boots: it is " + stage.String()
	switch {
	case err != nil:
		words = "boots: " + err.Error()
	case before:
		words = "stops: it is " + stage.String()
	}
	switch why := c.err(); {
	case why != nil:
		words += ": " + why.Error()
	case err == nil && before && c.runs.phase != "":
		words += ", in phase " + c.runs.phase
	}
	return words
}
