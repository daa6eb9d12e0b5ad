package talos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/talos/answers"
	"github.com/talos-agent/talos-agent/reconcile/talos/redaction"
)

// How long things may take around an apply. Talos 1.13.9 answered within 10 ms
// and came back with its new certificates 0.2 to 1.4 s later; a machine that
// has to install first (up to v1.12 from other images than a disk image) pulls
// the installer and reboots in between.
const (
	applyWithin   = 20 * time.Second // the call itself
	takenWithin   = time.Minute      // from the answer until the cluster's certificates are shown
	installWithin = 5 * time.Minute  // the same up to v1.12, and from a medium
	untakenAfter  = 10 * time.Second // still in maintenance mode so long after an unclear answer: it was not taken
	noticeWithin  = 3 * time.Second  // until the watcher has seen what was done
)

// Apply gives a machine in maintenance mode its first config and returns when
// it answers with the cluster's certificates. Identity, stage and certificate
// are checked on the connection that then carries the config; a machine that
// is configured already is only looked at.
//
// No error quotes the config, whatever the machine quotes of it.
func (f *Fleet) Apply(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error {
	return f.act(ctx, "apply config to", n, func(ctx context.Context) error {
		if err := f.apply(ctx, d, n, cfg); err != nil {
			return err
		}
		f.seen(ctx, n.Name, func(m cluster.Machine) bool { return m.Reach == cluster.Configured })
		return nil
	})
}

func (f *Fleet) apply(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error {
	k, err := parseKeys(d.Access.Talos)
	switch {
	case err != nil:
		return err
	case k.none():
		return errors.New("there are no keys to see it with afterwards")
	case cfg.Bytes.IsZero():
		return errors.New("there is no config")
	}
	l, err := f.connect(ctx, n.IP, k)
	if err != nil {
		return err
	}
	defer l.close()
	if l.standing == proven {
		return l.confirm(ctx, n) // an earlier apply, whose end was not seen
	}
	if err := l.prove(ctx, n); err != nil {
		return err
	}
	sent := f.send(ctx, l, cfg.Bytes, machineapi.ApplyConfigurationRequest_AUTO, nil)
	l.close()
	if sent.refused != nil {
		return sent.refused
	}
	patience := takenWithin
	if sent.installs = d.Image.ISO; parseMinor(d.Spec.Versions.Talos) < 13 || sent.installs {
		patience = installWithin
	}
	return f.taken(ctx, n, k, sent, patience)
}

// confirm reads the UUID of a machine that answered with the cluster's
// certificates.
func (l *link) confirm(ctx context.Context, n cluster.Node) error {
	id, err := l.readUUID(ctx)
	if err != nil {
		return worded{err}
	}
	if why := id.otherUUID(n); why != "" {
		return errors.New("another machine of this cluster answers: " + why)
	}
	return nil
}

// prove checks that a machine which shows the certificate of the maintenance
// mode is in it, and is the one that was made for this node.
func (l *link) prove(ctx context.Context, n cluster.Node) error {
	id, err := l.identify(ctx)
	if err != nil {
		return worded{err}
	}
	if why := id.other(n); why != "" {
		return errors.New("who answers is not the machine that was made for it, so nothing was sent: " + why)
	}
	st, err := l.status(ctx)
	if err != nil {
		return worded{err}
	}
	if st.Stage != runtime.MachineStageMaintenance {
		return fmt.Errorf("it says that it is %s, so nothing was sent", st.Stage)
	}
	return nil
}

// sending is what is known of a config after it was sent.
type sending struct {
	accepted bool  // the machine accepted
	installs bool  // and may have to install itself first
	unclear  error // no answer, or an unclear one; redacted
	refused  error // the machine refused; redacted
}

// send sends the config on the link that was proven. In maintenance mode the automatic
// mode is the only one that every version takes. The answer is not read: its details
// may hold a diff, that is, secrets. Refusals may quote the config, or active, the one
// that the machine has; both are kept out of them.
func (f *Fleet) send(ctx context.Context, l *link, config cluster.Secret, mode machineapi.ApplyConfigurationRequest_Mode, active []byte) sending {
	ctx, cancel := context.WithTimeout(ctx, applyWithin)
	defer cancel()
	data := config.Reveal()
	_, err := l.machine.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: data, Mode: mode})
	if err == nil {
		return sending{accepted: true}
	}
	reading := answers.Find("ApplyConfiguration", err)
	reason := errors.New(redaction.Message(status.Convert(err).Message(), data, active))
	if status.Code(err) == codes.DeadlineExceeded {
		reason = errors.New(late)
	}
	switch {
	case reading.Meaning == answers.Reboots && (mode == machineapi.ApplyConfigurationRequest_NO_REBOOT || mode == machineapi.ApplyConfigurationRequest_TRY):
		return sending{refused: fmt.Errorf("the machine refuses: %w", cluster.ErrNeedsReboot)}
	case reading.Meaning == answers.Invalid || reading.Meaning == answers.Reboots:
		return sending{refused: fault.WithHint(fmt.Errorf("the machine refuses the config: %w", reason),
			"correct the setting in the inventory or in a patch; this version of Talos does not take it")}
	case reading.Meaning == answers.Never:
		return sending{refused: fmt.Errorf("the machine refuses: %w", reason)}
	default:
		return sending{unclear: reason}
	}
}

// taken looks until the machine answers with the cluster's certificates.
func (f *Fleet) taken(ctx context.Context, n cluster.Node, k keys, sent sending, patience time.Duration) error {
	start, pause := time.Now(), shortPause/2
	last := errors.New("it has not been reached since")
	for {
		err := f.look(ctx, n, k, func(l *link) error {
			if l.standing == proven {
				return l.confirm(ctx, n)
			}
			return errUnclaimed
		})
		if err == nil {
			return nil
		}
		var u *unreached
		waited := time.Since(start)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("the config was sent; whether it was taken is not known: %w", context.Cause(ctx))
		case errors.As(err, &u) && u.reach == cluster.Unexpected:
			return fmt.Errorf("the config was sent, and now somebody else answers: %w", err)
		case errors.Is(err, errUnclaimed) && !sent.accepted && waited >= untakenAfter:
			return fmt.Errorf("it was not taken: %w", sent.unclear)
		case waited >= patience && sent.accepted:
			err = fmt.Errorf("it was accepted, but the machine does not answer with the cluster's certificates after %v: %w", patience, err)
			if sent.installs {
				err = fault.WithHint(err, fmt.Sprintf("it installs itself first: `talos-agent console %s` shows whether it can pull its installer", n.Name))
			} else if n.Role == cluster.Worker {
				err = fault.WithHint(err, "a worker answers only once a control plane has signed its certificate: look at those first")
			}
			return err
		case waited >= patience:
			return fmt.Errorf("the answer was lost (%w), and the machine cannot be asked since: %w", sent.unclear, last)
		}
		last = err
		if err := retry.Sleep(ctx, pause); err == nil {
			pause = min(pause*3/2, time.Second)
		}
	}
}

var errUnclaimed = errors.New("it is still in maintenance mode")

// look makes one connection, has somebody look through it, and ends it.
func (f *Fleet) look(ctx context.Context, n cluster.Node, k keys, through func(*link) error) error {
	l, err := f.connect(ctx, n.IP, k)
	if err != nil {
		return err
	}
	defer l.close()
	return through(l)
}

// parseMinor returns the second number of a version of Talos 1, 0 when it is
// none.
func parseMinor(version string) int {
	parts := strings.Split(strings.TrimPrefix(version, "v1."), ".")
	n, err := strconv.Atoi(parts[0])
	if err != nil || !strings.HasPrefix(version, "v1.") {
		return 0
	}
	return n
}
