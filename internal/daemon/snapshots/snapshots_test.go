package snapshots

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"
	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/snapshottest"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newKey makes the key of a host.
func newKey(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// archiveIn is snapshots in a folder, and who opens them.
func archiveIn(t *testing.T, dir string) *Archive {
	t.Helper()
	return archiveWith(t, dir, newKey(t))
}

// archiveWith is that with a key that is there.
func archiveWith(t *testing.T, dir string, id *age.X25519Identity) *Archive {
	t.Helper()
	keys, err := secrets.ParseIdentities([]byte(id.String() + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	to, err := secrets.ParseRecipient(id.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Open: func() (Folder, error) { return snapshot.OpenFolder(dir) }, Keys: keys, Recipients: []snapshot.Recipient{to}, Every: 6 * time.Hour, Log: slog.New(slog.DiscardHandler)})
}

// sending is a source that sends some bytes, once it may.
func sending(b []byte, may <-chan struct{}) Source {
	return Source{
		Stream: func(ctx context.Context, _ cluster.Desired, take func(context.Context, Sender, io.Reader) error) error {
			if may != nil {
				<-may
			}
			return take(ctx, Sender{Node: "cp-1", Etcd: "3.6.5"}, bytes.NewReader(b))
		},
		Identify: func(cluster.Desired) (Identity, error) {
			return Identity{ClusterID: "id", EncryptionKeys: "sha256:e"}, nil
		},
	}
}

// desired is a cluster with its secrets, founded so long ago.
func desired(founded time.Duration) (d cluster.Desired, facts cluster.Facts) {
	d.Fingerprint = "sha256:b"
	facts.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, At: time.Now().Add(-founded), Done: true})
	return d, facts
}

func observe(k *Keeper) cluster.EtcdSnapshots {
	d, facts := desired(30 * 24 * time.Hour)
	o := cluster.Observed{Facts: facts}
	k.Observe(context.Background(), d, &o)
	return o.Snapshots
}

// take has a snapshot taken of a cluster with its secrets.
func take(k *Keeper, kind retention.Kind) error {
	d, _ := desired(0)
	return k.Take(context.Background(), d, kind, nothing)
}

func nothing(cluster.Progress) {}

// TestKeeper: what is taken is seen at once, of its own cluster, and as verified by the process that has
// read it.
func TestKeeper(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	a := archiveIn(t, dir)
	dev, prod := a.Keep("dev", sending(snapshottest.Sent(t), nil), func() {}), a.Keep("prod", sending(snapshottest.Sent(t), nil), func() {})
	if s := observe(dev); !s.Enabled || !s.Verified.Known || !s.Verified.Value.IsZero() || s.Due.After(time.Now()) || s.Kept != 0 {
		t.Errorf("before: %+v", s)
	}
	if err := dev.Take(t.Context(), cluster.Desired{}, retention.Scheduled, nothing); err != nil {
		t.Fatal(err)
	}
	s := observe(dev)
	if s.Kept != 1 || s.Bytes == 0 || !s.Newest.Equal(s.Verified.Value) || time.Since(s.Newest) > time.Minute || !s.Due.After(time.Now()) {
		t.Errorf("after: %+v", s)
	}
	if s := observe(prod); s.Kept != 0 || s.Due.After(time.Now()) {
		t.Errorf("of another cluster: %+v", s)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// TestDueAtOnce: where there is none, as in a folder that somebody has emptied, one is due for the pass that sees that. Else none would
// be taken of a cluster whose passes look each time anew.
func TestDueAtOnce(t *testing.T) {
	a := archiveIn(t, t.TempDir())
	k := a.Keep("dev", sending(snapshottest.Sent(t), nil), func() {})
	d, facts := desired(30 * 24 * time.Hour)
	o := cluster.Observed{Now: time.Now().Add(-time.Second), Facts: facts} // the pass began before it looks
	if k.Observe(t.Context(), d, &o); o.Snapshots.Due.After(o.Now) {
		t.Errorf("due %v after the pass", o.Snapshots.Due.Sub(o.Now))
	}
}

// TestUnreadableFolder: what is there is unknown, not absent, and a folder that comes later is used.
func TestUnreadableFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "snapshots")
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		a := archiveIn(t, dir)
		k := a.Keep("dev", sending(snapshottest.Sent(t), nil), func() {})
		if s := observe(k); s.Verified.Known || !strings.Contains(s.Verified.Why, "open the folder of snapshots: ") || !s.Due.IsZero() {
			t.Errorf("%+v", s)
		}
		if err := k.Take(t.Context(), cluster.Desired{}, retention.Scheduled, nothing); err == nil {
			t.Error("it was stored in a file")
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(seenFor)
		if s := observe(k); !s.Verified.Known {
			t.Errorf("%+v", s)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestOneAtATime: a second cluster waits for the first one, shows that, and stops with its context.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, may := archiveIn(t, t.TempDir()), make(chan struct{})
		dev, prod := a.Keep("dev", sending(snapshottest.Sent(t), may), func() {}), a.Keep("prod", sending(snapshottest.Sent(t), nil), func() {})
		first := make(chan error)
		go func() { first <- dev.Take(t.Context(), cluster.Desired{}, retention.Scheduled, nothing) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		waits := ""
		err := prod.Take(ctx, cluster.Desired{}, retention.Scheduled, func(p cluster.Progress) { waits = p.Waits })
		if !errors.Is(err, context.DeadlineExceeded) || waits == "" {
			t.Errorf("%v, waits for %q", err, waits)
		}
		close(may)
		if err := errors.Join(<-first, prod.Take(t.Context(), cluster.Desired{}, retention.Manual, nothing)); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestDamagedStream: what a member sends that is not whole is not stored, and what there was stays
// verified.
func TestDamagedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, good := archiveIn(t, t.TempDir()), snapshottest.Sent(t)
		k := a.Keep("dev", sending(good, nil), func() {})
		if err := k.Take(t.Context(), cluster.Desired{}, retention.Scheduled, nothing); err != nil {
			t.Fatal(err)
		}
		before := observe(k)
		time.Sleep(time.Hour)
		for _, bad := range [][]byte{nil, good[:len(good)-512], append([]byte{1}, good[1:]...)} {
			k.source = sending(bad, nil)
			if err := k.Take(t.Context(), cluster.Desired{}, retention.Scheduled, nothing); !errors.Is(err, snapshot.ErrDamaged) {
				t.Errorf("of %d bytes: %v", len(bad), err)
			}
			if s := observe(k); s.Kept != 1 || !s.Verified.Value.Equal(before.Verified.Value) {
				t.Errorf("of %d bytes: %+v", len(bad), s)
			}
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRoomIsLeft: a snapshot that would leave too little of the disk is not stored, also when that shows
// while it comes.
func TestRoomIsLeft(t *testing.T) {
	good := snapshottest.Sent(t)
	large := append(make([]byte, 2*roomEvery), good...) // which is damaged, as its end shows
	for _, c := range []struct {
		sent []byte
		free []int64 // as it is seen, the last from then on
		err  error
		want string
	}{
		{sent: good, free: []int64{1 << 30}},
		{sent: large, free: []int64{1 << 30}, want: "it is damaged"},
		{sent: good, free: []int64{roomLeft - 1}, want: "no space left but 511 MiB"},
		{sent: large, free: []int64{1 << 30, roomLeft}, want: "no space left but 512 MiB"},
		{sent: good, free: []int64{0}, err: errors.New("no such disk"), want: "see how much room there is: no such disk"},
	} {
		a, looks := archiveIn(t, t.TempDir()), 0
		a.c.Free = func() (int64, error) {
			looks++
			return c.free[min(looks, len(c.free))-1], c.err
		}
		err := a.Keep("dev", sending(c.sent, nil), func() {}).Take(t.Context(), cluster.Desired{}, retention.Scheduled, nothing)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.free, err, c.want)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}
