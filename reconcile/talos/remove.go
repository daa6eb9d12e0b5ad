package talos

import (
	"context"
	"errors"
	"fmt"
	"slices"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdmember"
)

// RemoveMember removes a member of etcd, dead or alive, by asking a control plane that
// stays, and returns when that one no longer lists it. A member that is not listed is
// success. It can be called again.
//
// etcd refuses a removal that would lose the quorum at once and no other (Talos 1.13.9:
// seen), so that whoever calls it has looked at the quorum. A machine whose member was
// removed has its etcd restarted for ever, until its data is deleted (seen): it is to be
// switched off next. EtcdLeaveCluster is not used: on a member that cannot leave it hangs
// for minutes.
func (f *Fleet) RemoveMember(ctx context.Context, d cluster.Desired, n cluster.Node, member cluster.Member) error {
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return fmt.Errorf("remove member %s of %s from etcd: %w", member.HexID(), n.Name, err)
	}
	defer leave()
	if err := f.removeMember(ctx, d, n, member); err != nil {
		return fmt.Errorf("remove member %s of %s from etcd: %w", member.HexID(), n.Name, err)
	}
	f.Forget(d.Spec.ID)
	return nil
}

func (f *Fleet) removeMember(ctx context.Context, d cluster.Desired, n cluster.Node, member cluster.Member) error {
	k, err := askingKeys(d)
	switch {
	case err != nil:
		return err
	case member.ID == 0:
		return errors.New("its id is not known")
	}
	last := errors.New("there is no other control plane to ask")
	for _, other := range d.Spec.ControlPlanes() {
		if other.Name == n.Name || ctx.Err() != nil {
			continue
		}
		err := f.lookOwn(ctx, other, k, func(l *link) error { return l.removeMember(ctx, other, n, member) })
		var refused *refusal
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused):
			return err
		}
		last = fmt.Errorf("ask %s (%s): %w", other.Name, other.IP, err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return last
}

// refusal is an answer that others would give as well.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// removeMember asks this machine, which must be a member itself, and looks at what it
// lists before and afterwards: a lost answer leaves open whether it was done.
func (l *link) removeMember(ctx context.Context, self, n cluster.Node, member cluster.Member) error {
	before, err := etcdmember.List(ctx, l.machine)
	switch {
	case err != nil:
		return worded{err}
	case !etcdmember.Has(before, self):
		return errors.New("it is not one of the members that it lists")
	}
	i := slices.IndexFunc(before, func(m cluster.Member) bool { return m.ID == member.ID })
	switch {
	case i < 0:
		return nil
	case before[i].Name != member.Name || before[i].Address != member.Address:
		return &refusal{fmt.Errorf("it is of %s at %s now, and not of %s", before[i].Name, before[i].Address, n.Name)}
	}
	calling, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	_, err = l.machine.EtcdRemoveMemberByID(calling, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: member.ID})
	if err != nil && !isLost(err) && status.Code(err) != codes.NotFound {
		return &refusal{fmt.Errorf("the machine refuses: %w", worded{err})}
	}
	after, again := etcdmember.List(ctx, l.machine)
	switch {
	case again != nil:
		return fmt.Errorf("whether it was removed is not known: %w", worded{again})
	case slices.ContainsFunc(after, func(m cluster.Member) bool { return m.ID == member.ID }) && err != nil:
		return fmt.Errorf("it is listed still: %w", worded{err})
	case slices.ContainsFunc(after, func(m cluster.Member) bool { return m.ID == member.ID }):
		return errors.New("it is listed still")
	}
	return nil
}
