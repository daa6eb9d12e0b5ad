package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

const (
	// streamStalls is how long a member may send nothing before its stream is ended. Talos
	// opens the stream to its etcd before the first byte, and etcd writes its database to
	// a pipe: a pause is one of its disk.
	streamStalls = time.Minute
	// streamWithin bounds a whole stream: 8 GiB, the most that etcd recommends, at 5 MiB/s.
	streamWithin = 30 * time.Minute
)

// errStalled is why a stream of a snapshot was ended.
var errStalled = fmt.Errorf("it sent nothing for %v", streamStalls)

// Sender is the member of etcd that sends a snapshot.
type Sender struct {
	Node cluster.Node
	Etcd string // its version: 3.6.5
}

// StreamSnapshot has a member of etcd send a snapshot of its database, and take read it to
// its end. One that votes and does not lead is asked first, then the leader, a learner
// last; where one cannot be asked the next is. etcd needs no quorum for it (Talos 1.13.9:
// seen).
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
			return l.streamSnapshot(ctx, func(ctx context.Context, stream io.Reader) error {
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
		var st *machineapi.EtcdMemberStatus
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
		r := ranked{Sender: Sender{Node: n, Etcd: sanitize(st.GetProtocolVersion())}}
		switch {
		case st.GetIsLearner():
			r.rank = 2
		case st.GetLeader() == st.GetMemberId():
			r.rank = 1
		}
		all = append(all, r)
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

// streamSnapshot has take read what this machine's etcd sends, when the first bytes of it are
// there. It ends when take does.
func (l *link) streamSnapshot(ctx context.Context, take func(context.Context, io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, release := context.WithTimeoutCause(ctx, streamWithin, fmt.Errorf("it took longer than %v", streamWithin))
	defer release()
	watchdog := time.AfterFunc(streamStalls, func() { cancel(errStalled) })
	defer watchdog.Stop()
	stream, err := l.machine.EtcdSnapshot(ctx, &machineapi.EtcdSnapshotRequest{})
	if err != nil {
		return worded{err}
	}
	r := &snapshotReader{ctx: ctx, stream: stream, progress: func() { watchdog.Reset(streamStalls) }}
	if r.rest, err = r.receive(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return take(ctx, r)
}

// snapshotReader reads the messages of a stream.
type snapshotReader struct {
	ctx      context.Context
	stream   grpc.ServerStreamingClient[common.Data]
	progress func() // something was received
	rest     []byte // of the last message
}

// Read implements io.Reader.
func (r *snapshotReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		var err error
		if r.rest, err = r.receive(); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// receive waits for one message. The error says why a stream was ended that we have ended.
func (r *snapshotReader) receive() ([]byte, error) {
	part, err := r.stream.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil && r.ctx.Err() != nil:
		return nil, context.Cause(r.ctx)
	case err != nil:
		return nil, worded{err}
	}
	r.progress()
	return part.GetBytes(), nil
}
