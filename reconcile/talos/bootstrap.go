package talos

import (
	"context"
	"errors"
	"fmt"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/talos/answers"
)

const (
	// bootstrapWithin is the call itself: Talos waits up to 5 s for the time to
	// be in sync before it answers.
	bootstrapWithin = 10 * time.Second
	// foundWithin is how long an etcd whose founding was asked for, without an
	// answer, may go on waiting to be founded before it was not.
	foundWithin = 3 * time.Second
)

// Bootstrap founds etcd on a control plane, with one call. A machine that has
// an etcd already is success. Nothing but this cluster's own certificates, the
// machine's UUID, a fitting stage and an etcd that waits for it lead to the
// call; and no call is made while the fleet sees etcd run anywhere else: Talos
// itself looks at nothing but the one machine's disk, and would found a second
// cluster (recorded).
func (f *Fleet) Bootstrap(ctx context.Context, d cluster.Desired, n cluster.Node) error {
	return f.act(ctx, "bootstrap", n, func(ctx context.Context) error {
		if err := f.bootstrap(ctx, d, n); err != nil {
			return err
		}
		f.seen(ctx, n.Name, func(m cluster.Machine) bool { return m.Services["etcd"].State == "Running" })
		return nil
	})
}

func (f *Fleet) bootstrap(ctx context.Context, d cluster.Desired, n cluster.Node) error {
	if n.Role != cluster.ControlPlane {
		return errWorker
	}
	k, err := askingKeys(d)
	if err != nil {
		return err
	}
	if other := f.etcdElsewhere(n.Name); other != "" {
		return fmt.Errorf("etcd runs on %s already; a second one would split the cluster", other)
	}
	l, err := f.connect(ctx, n.IP, k)
	if err != nil {
		return err
	}
	defer l.close()
	if l.standing != proven {
		return errUnclaimed
	}
	founded, err := l.waitsForBootstrap(ctx, n)
	if err != nil || founded {
		return err
	}
	calling, cancel := context.WithTimeout(ctx, bootstrapWithin)
	defer cancel()
	_, err = l.machine.Bootstrap(calling, &machineapi.BootstrapRequest{})
	if err == nil {
		return nil
	}
	reason := worded{err}
	switch answers.Find("Bootstrap", err).Meaning {
	case answers.Already:
		return nil
	case answers.Early:
		return fmt.Errorf("it is too early: %w", reason)
	case answers.Clockless:
		return fault.WithHint(fmt.Errorf("it is too early: %w", reason),
			"the machine reaches no time server: check network.time_servers, and that the nodes get out to UDP port 123")
	case answers.Invalid:
		return fault.WithHint(fmt.Errorf("the machine refuses: %w", reason), "its machine config has no etcd: look at the patches of the control planes")
	case answers.Never:
		return fmt.Errorf("the machine refuses: %w", reason)
	default:
		l.close()
		return f.founded(ctx, n, k, reason)
	}
}

// etcdElsewhere names another control plane whose etcd was last seen running.
func (f *Fleet) etcdElsewhere(node string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, w := range f.watchers {
		if name != node && w.machine.Reach == cluster.Configured && w.machine.Services["etcd"].State == "Running" {
			return name
		}
	}
	return ""
}

// waitsForBootstrap reports an error unless the machine's etcd waits to be
// founded, or runs already.
func (l *link) waitsForBootstrap(ctx context.Context, n cluster.Node) (founded bool, err error) {
	if err := l.confirm(ctx, n); err != nil {
		return false, err
	}
	services, err := l.services(ctx)
	if err != nil {
		return false, worded{err}
	}
	switch etcd, ok := services["etcd"]; {
	case !ok:
		return false, errors.New("it has no etcd")
	case etcd.State == "Running":
		return true, nil
	case etcd.State != "Preparing":
		return false, fmt.Errorf("its etcd is not ready to be founded yet: it is %s (%s)", sanitize(etcd.State), etcd.Message)
	}
	st, err := l.status(ctx)
	if err != nil {
		return false, worded{err}
	}
	if st.Stage != runtime.MachineStageBooting && st.Stage != runtime.MachineStageRunning {
		return false, fmt.Errorf("it says that it is %s", st.Stage)
	}
	return false, nil
}

// founded looks what became of a Bootstrap whose answer was lost.
func (f *Fleet) founded(ctx context.Context, n cluster.Node, k keys, lost error) error {
	start := time.Now()
	for {
		waits := false
		err := f.look(ctx, n, k, func(l *link) error {
			if l.standing != proven {
				return errUnclaimed
			}
			founded, err := l.waitsForBootstrap(ctx, n)
			waits = err == nil && !founded
			return err
		})
		switch {
		case err == nil && !waits:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("it was asked for; what became of it is not known: %w", context.Cause(ctx))
		case waits && time.Since(start) >= foundWithin:
			return fmt.Errorf("it was not carried out: %w", lost)
		case err != nil && time.Since(start) >= bootstrapWithin:
			return fmt.Errorf("the answer was lost (%w), and the machine cannot be asked since: %w", lost, err)
		}
		// A context that ends is reported above.
		_ = retry.Sleep(ctx, shortPause)
	}
}

var errWorker = errors.New("it is a worker, and only a control plane can found etcd")
