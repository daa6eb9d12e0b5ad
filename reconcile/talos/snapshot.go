package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdmember"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdstream"
)

// Sender is the member of etcd that sends a snapshot.
type Sender struct {
	Node cluster.Node
	Etcd string // its version: 3.6.5
}

// StreamSnapshot has a member of etcd send a snapshot of its database, and take read it to
// its end. One that votes and does not lead is asked first, and one without a leader last; where
// one cannot be asked the next is. etcd needs no quorum for it (Talos 1.13.9: seen).
//
// The end of a stream proves nothing: where etcd ends in the middle Talos ends the stream
// as if it were whole. Whoever takes it compares its length and its SHA-256.
func (f *Fleet) StreamSnapshot(ctx context.Context, d cluster.Desired, take func(ctx context.Context, from Sender, stream io.Reader) error) error {
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", err)
	}
	defer leave()
	k, err := askingKeys(d)
	if err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", err)
	}
	senders, err := f.rankSenders(ctx, d, k)
	for _, from := range senders {
		taken := false
		err = f.lookOwn(ctx, from.Node, k, func(l *link) error {
			return etcdstream.Read(ctx, l.machine, func(err error) error { return worded{err} }, func(ctx context.Context, stream io.Reader) error {
				taken = true
				return take(ctx, from, stream)
			})
		})
		if taken || ctx.Err() != nil {
			break // another one is asked by the next attempt
		}
	}
	if err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", err)
	}
	return nil
}

// rankSenders asks every control plane for its own etcd, and returns those that have one, the best
// to send a snapshot first. Without any the error is why.
func (f *Fleet) rankSenders(ctx context.Context, d cluster.Desired, k keys) ([]Sender, error) {
	type ranked struct {
		Sender
		rank int
	}
	var all []ranked
	last := errors.New("there is no control plane")
	for _, n := range d.Spec.ControlPlanes() {
		var st etcdmember.Status
		err := f.lookOwn(ctx, n, k, func(l *link) (err error) {
			st, err = l.etcdStatus(ctx)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			last = fmt.Errorf("%s (%s): %w", n.Name, n.IP, err)
			continue
		}
		all = append(all, ranked{Sender{Node: n, Etcd: st.Server}, st.RankAsSender()})
	}
	if len(all) == 0 {
		return nil, last
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	var out []Sender
	for _, r := range all {
		out = append(out, r.Sender)
	}
	return out, nil
}
