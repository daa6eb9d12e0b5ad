package talos_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// parts are the chunks of a snapshot as they came.
type parts [][]byte

// sumUp sums a snapshot up as the recordings do, without how much there is of it.
func (p parts) sumUp() []any {
	if len(p) == 0 {
		return nil
	}
	sizes, last := map[string]any{}, p[len(p)-1]
	for _, part := range p {
		if len(part) != 1024 {
			sizes[fmt.Sprint(len(part))] = 1.0
		}
	}
	all := slices.Concat(p...)
	sum := sha256.Sum256(all[:len(all)-len(last)])
	return []any{map[string]any{
		"bytes_mod_512": float64(len(all) % 512), "chunks_by_size": sizes, "first_chunk": float64(len(p[0])), "last_chunk": float64(len(last)),
		"trailer_is_sha256_of_the_rest": bytes.Equal(sum[:], last),
	}}
}

// uploaded is the file that a recorded call uploads; false: it uploads none.
func (r *replay) uploaded(x exchange) ([]byte, bool) {
	size, _ := x.Request["stream"].(string)
	if !strings.HasSuffix(x.Method, "/EtcdRecover") {
		return nil, false
	}
	good := r.snapshot
	switch {
	case strings.HasPrefix(size, "<19 "):
		return []byte("this is no snapshot"), true
	case strings.HasPrefix(size, "<22544 "):
		return good[:len(good)/2], true
	case strings.HasPrefix(size, "<45056 "):
		return good[:len(good)-32], true
	case strings.HasPrefix(x.Note, "one byte changed"):
		bad := bytes.Clone(good)
		bad[bytes.Index(bad, []byte("compact_rev_key"))] ^= 1
		return bad, true
	}
	return good, true
}

// upload sends a file in one message.
func (r *replay) upload(ctx context.Context, conn *grpc.ClientConn, x exchange, file []byte, resp proto.Message) error {
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/"+x.Method)
	if err != nil {
		return err
	}
	// A server that refuses ends the call before it has read: what it answers is in RecvMsg.
	if err := s.SendMsg(&common.Data{Bytes: file}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return s.RecvMsg(resp)
}

// saved takes a snapshot of a control plane, which is then made again.
func (r *replay) saved(n node) {
	r.founded(n)
	chunks, err := receiveAll(r.admin(n).MachineClient.EtcdSnapshot(within(time.Second), &machineapi.EtcdSnapshotRequest{}))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range chunks {
		r.snapshot = append(r.snapshot, c.GetBytes()...)
	}
	r.fleet.PowerOff(n.vmid)
}

// renewed is a control plane that is made again once a snapshot of it was taken.
func (r *replay) renewed(n node) {
	r.saved(n)
	r.configured(n)
}

// applyNow gives a machine in maintenance mode its config.
func (r *replay) applyNow(n node) {
	data := r.config(n, "v1.13.9", r.patches...)
	r.mu.Lock()
	r.applied[n.ip] = data
	r.mu.Unlock()
	r.apply(n, data)
}
