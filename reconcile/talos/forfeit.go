package talos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/talos/answers"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdmember"
)

const (
	// forfeitWithin is the call itself. Talos passes the leadership to the first other
	// member without looking: to one that is dead it hangs (recorded: 1.13.9).
	forfeitWithin = 5 * time.Second
	// ledWithin is how long the others may take until they follow another leader.
	ledWithin = 15 * time.Second
)

// Forfeit makes another member lead etcd when the one of this control plane does, and
// returns when another control plane follows another leader. A member that does not lead
// is left as it is. It returns an error when etcd has no leader, when there is no other
// member, when Talos chooses one that cannot lead, and when the leader stays; it can be
// called again.
func (f *Fleet) Forfeit(ctx context.Context, d cluster.Desired, n cluster.Node) error {
	return f.act(ctx, "forfeit leadership of etcd on", n, func(ctx context.Context) error { return f.forfeit(ctx, d, n) })
}

func (f *Fleet) forfeit(ctx context.Context, d cluster.Desired, n cluster.Node) error {
	if n.Role != cluster.ControlPlane {
		return errors.New("it is a worker, which has no etcd")
	}
	k, err := askingKeys(d)
	if err != nil {
		return err
	}
	l, err := f.connectOwn(ctx, n, k)
	if err != nil {
		return err
	}
	defer l.close()
	own, err := l.etcdStatus(ctx)
	switch {
	case err != nil:
		return err
	case own.Leader == 0:
		return errors.New("etcd has no leader")
	case own.Leader != own.ID:
		return nil
	}
	calling, cancel := context.WithTimeout(ctx, forfeitWithin)
	defer cancel()
	_, err = l.machine.EtcdForfeitLeadership(calling, &machineapi.EtcdForfeitLeadershipRequest{})
	l.close()
	switch {
	case err == nil || isLost(err):
	case answers.Find("EtcdForfeitLeadership", err).Meaning == answers.Early:
		return fault.WithHint(fmt.Errorf("it is too early: %w", worded{err}), "a member of etcd has no vote yet: wait until all have")
	default:
		return fmt.Errorf("the machine refuses: %w", worded{err})
	}
	return f.awaitLeader(ctx, d, n, k, own.ID, err)
}

// isLost reports whether an error leaves open whether a call was carried out.
func isLost(err error) bool {
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		return true
	}
	return false
}

// etcdStatus asks for the machine's own member of etcd.
func (l *link) etcdStatus(ctx context.Context) (etcdmember.Status, error) {
	st, err := etcdmember.ReadStatus(ctx, l.machine)
	if err != nil {
		return st, fmt.Errorf("read the status of its etcd: %w", worded{err})
	}
	return st, nil
}

// awaitLeader asks the other control planes until one follows another leader than this.
func (f *Fleet) awaitLeader(ctx context.Context, d cluster.Desired, n cluster.Node, k keys, old uint64, lost error) error {
	others := slices.DeleteFunc(d.Spec.ControlPlanes(), func(o cluster.Node) bool { return o.Name == n.Name })
	last := errors.New("there is no other control plane to ask")
	for start := time.Now(); ; {
		for _, o := range others {
			leader := uint64(0)
			err := f.lookOwn(ctx, o, k, func(l *link) error {
				st, err := l.etcdStatus(ctx)
				leader = st.Leader
				return err
			})
			switch {
			case err != nil:
				last = fmt.Errorf("%s: %w", o.Name, err)
			case leader == old:
				last = fmt.Errorf("%s still follows it", o.Name)
			case leader == 0:
				last = fmt.Errorf("%s has no leader", o.Name)
			default:
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("whether another member leads is not known: %w", context.Cause(ctx))
		case time.Since(start) >= ledWithin && lost != nil:
			return fmt.Errorf("no other member leads after %v (%w), and the answer was lost: %w", ledWithin, last, worded{lost})
		case time.Since(start) >= ledWithin:
			return fmt.Errorf("no other member leads after %v: %w", ledWithin, last)
		}
		// A context that ends is reported above.
		_ = retry.Sleep(ctx, shortPause)
	}
}
