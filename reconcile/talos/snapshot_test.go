package talos

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdstream"
)

const snapshotCall = "machine.MachineService/EtcdSnapshot"

// isWhole reports whether a snapshot has its SHA-256 at its end.
func isWhole(b []byte) bool {
	if len(b) < sha256.Size {
		return false
	}
	body := b[:len(b)-sha256.Size]
	sum := sha256.Sum256(body)
	return string(sum[:]) == string(b[len(body):])
}

// takeSnapshot has the fleet take one, and returns what came, and of whom.
func (b *bench) takeSnapshot() (got []byte, from Sender, err error) {
	err = b.fleet.StreamSnapshot(within(time.Hour), b.desired, func(_ context.Context, s Sender, stream io.Reader) (err error) {
		from = s
		got, err = io.ReadAll(stream)
		return err
	})
	return got, from, err
}

// TestStreamSnapshot: a member that follows sends it; the leader does when no other can, and
// none is asked twice.
func TestStreamSnapshot(t *testing.T) {
	inBubble(t, newest, planes, func(b *bench) {
		b.bringUp(planes...)
		leads, _ := b.leader()
		got, from, err := b.takeSnapshot()
		if err != nil || !isWhole(got) || from.Node.Name == leads.Name || from.Etcd != "3.6.12" {
			t.Errorf("%d bytes of %s, which has %q; %s leads: %v", len(got), from.Node.Name, from.Etcd, leads.Name, err)
		}
		for _, n := range planes {
			if n.Name != leads.Name {
				b.world.Inject(world.Fault{System: "talos", Op: snapshotCall, Subject: n.Name, Kind: world.Answer, Status: int(codes.Unknown), Text: "failed reading etcd snapshot"})
			}
		}
		b.calls()
		if got, from, err = b.takeSnapshot(); err != nil || !isWhole(got) || from.Node.Name != leads.Name {
			t.Errorf("%d bytes of %s: %v", len(got), from.Node.Name, err)
		}
		if calls := b.calls(); calls["EtcdSnapshot"] != 3 {
			t.Errorf("calls %v", calls)
		}
	})
}

// TestStreamSnapshotFaults: a stream that breaks or hangs is an error, and so is one that its reader
// refuses; one that ends too early looks like a whole one, and is not.
func TestStreamSnapshotFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault world.Fault
		want  string // of the error; "": there is none, and what came is not whole
	}{
		{"breaks at once", world.Fault{Kind: world.BreakStream}, "take a snapshot of etcd: "},
		{"breaks in the middle", world.Fault{Kind: world.BreakStream, Bytes: 10_000}, "take a snapshot of etcd: "},
		{"ends in the middle", world.Fault{Kind: world.EndStream, Bytes: 10_000}, ""},
		{"ends at once", world.Fault{Kind: world.EndStream}, ""},
		{"flips a bit", world.Fault{Kind: world.FlipBit, Bytes: 10_000}, ""},
		{"hangs", world.Fault{Kind: world.Slow, Delay: 2 * time.Hour}, "it sent nothing for 1m0s"},
		{"is refused", world.Fault{Kind: world.Answer, Status: int(codes.PermissionDenied), Text: "not authorized"}, "not authorized"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				tc.fault.System, tc.fault.Op = "talos", snapshotCall
				b.world.Inject(tc.fault)
				began := time.Now()
				got, _, err := b.takeSnapshot()
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				if isWhole(got) || time.Since(began) > 2*etcdstream.StallsAfter {
					t.Errorf("%d bytes after %v", len(got), time.Since(began))
				}
			})
		})
	}
	t.Run("the reader refuses", func(t *testing.T) {
		inBubble(t, newest, planes, func(b *bench) {
			b.bringUp(planes...)
			b.calls()
			full := errors.New("no space left")
			err := b.fleet.StreamSnapshot(within(time.Hour), b.desired, func(context.Context, Sender, io.Reader) error { return full })
			if calls := b.calls(); !errors.Is(err, full) || calls["EtcdSnapshot"] != 1 {
				t.Errorf("%v, calls %v", err, calls)
			}
		})
	})
	t.Run("nothing answers", func(t *testing.T) {
		inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
			if _, _, err := b.takeSnapshot(); err == nil || !strings.Contains(err.Error(), "cp-1 (") {
				t.Error(err)
			}
		})
	})
}
