// Package etcdstream reads the snapshot of etcd that a Talos machine sends, on a connection
// that somebody else has made. What it is worth it does not know.
package etcdstream

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"

	"github.com/talos-agent/talos-agent/internal/retry"
)

const (
	// StallsAfter is how long a machine may send nothing before its stream is ended. It
	// opens the stream to its etcd before the first byte, and etcd writes its database to
	// a pipe: a pause is one of its disk.
	StallsAfter = time.Minute
	// within bounds a whole stream: 8 GiB, the most that etcd recommends, at 5 MiB/s.
	within = 30 * time.Minute
)

// Read has take read what the etcd of a machine sends, once the first bytes of it are there. The
// stream ends when take does. Errors of the machine go through explain.
func Read(ctx context.Context, machine machineapi.MachineServiceClient, explain func(error) error, take func(context.Context, io.Reader) error) error {
	ctx, alive, stop := retry.Watch(ctx, within, StallsAfter)
	defer stop()
	stream, err := machine.EtcdSnapshot(ctx, &machineapi.EtcdSnapshotRequest{})
	if err != nil {
		return explain(err)
	}
	r := &reader{ended: func() error { return context.Cause(ctx) }, stream: stream, explain: explain, progress: alive}
	if r.rest, err = r.receive(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return take(ctx, r)
}

// reader reads the messages of a stream.
type reader struct {
	ended    func() error // why the stream was ended here; nil: it was not
	stream   grpc.ServerStreamingClient[common.Data]
	explain  func(error) error
	progress func() // something was received
	rest     []byte // of the last message
}

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
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

// receive waits for one message. Of a stream that was ended here the error is why.
func (r *reader) receive() ([]byte, error) {
	part, err := r.stream.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil && r.ended() != nil:
		return nil, r.ended()
	case err != nil:
		return nil, r.explain(err)
	}
	r.progress()
	return part.GetBytes(), nil
}
