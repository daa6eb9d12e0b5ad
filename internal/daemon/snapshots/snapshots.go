package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// Config is what an Archive works with.
type Config struct {
	Open func() (Folder, error) // where they are, when it is needed; what fails is tried again
	// Free returns how many bytes can be written there; nil: that is not looked at.
	Free       func() (int64, error)
	Recipients []snapshot.Recipient // whom they are encrypted to
	Keys       snapshot.Keys        // one of which opens them, so that they are verified
	Every      time.Duration        // between two scheduled ones
	Agent      string               // the version of this program
	Log        *slog.Logger
}

// Folder is a directory that can be closed.
type Folder interface {
	snapshot.Directory
	io.Closer
}

// Archive is the snapshots of all clusters of this host.
type Archive struct {
	c     Config
	turn  chan struct{} // one is written at a time
	reads chan struct{} // and those of one cluster are read back
	// begin makes the context of what reads: it ends with the Archive.
	begin func() (context.Context, context.CancelFunc)
	stop  context.CancelFunc
	wg    sync.WaitGroup // of what reads

	mu     sync.Mutex
	folder Folder
	store  *snapshot.Store // nil: the folder could not be opened yet
}

// New makes an Archive. Close it.
func New(c Config) *Archive {
	ctx, stop := context.WithCancel(context.Background())
	return &Archive{c: c, turn: make(chan struct{}, 1), reads: make(chan struct{}, 1), stop: stop, begin: func() (context.Context, context.CancelFunc) {
		return context.WithCancel(ctx)
	}}
}

// Close ends it. No Keeper of it may be used any longer. What its storage keeps is left behind, with a line in the log: nothing
// can end that but the storage.
func (a *Archive) Close() error {
	a.stop()
	if !a.waitForStorage() {
		a.c.Log.Warn("the directory of snapshots does not answer; the agent stops without it", logging.Hint, "see whether its storage hangs, such as a file server that does not answer")
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.folder == nil {
		return nil
	}
	return a.folder.Close()
}

// open returns the store. A folder that cannot be opened is tried again each time.
func (a *Archive) open() (*snapshot.Store, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.store != nil {
		return a.store, nil
	}
	folder, err := a.c.Open()
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("open the folder of snapshots: %w", err), "see `snapshots` in config.yaml, and whether the agent may write there")
	}
	a.folder, a.store = folder, snapshot.New(snapshot.Config{Directory: folder, Recipients: a.c.Recipients, Keys: a.c.Keys})
	return a.store, nil
}

// Sender is what is known of the member that sends a snapshot: its node, and its version.
type Sender struct{ Node, Etcd string }

// Identity is what a snapshot needs of the secrets of its cluster, so that they can be found
// again.
type Identity struct {
	ClusterID      string // of Talos
	EncryptionKeys string // the fingerprint of the keys that Kubernetes encrypts Secrets with
}

// Source is where the snapshots of a cluster come from.
type Source struct {
	// Stream has a member of etcd send one, and take read it.
	Stream   func(ctx context.Context, d cluster.Desired, take func(ctx context.Context, from Sender, stream io.Reader) error) error
	Identify func(d cluster.Desired) (Identity, error)
}

// known is what reading a file has shown, which had that size then, and was written then: one that has another is not what was read.
type known struct {
	state   retention.State
	size    int64
	changed time.Time
}

func (k known) isOf(e snapshot.Entry) bool {
	return k.state != "" && k.size == e.Size && k.changed.Equal(e.Changed)
}

// Keeper is the snapshots of one cluster.
type Keeper struct {
	*Archive
	cluster string
	source  Source
	onRead  func()

	looking   sync.Mutex
	requested time.Time // when somebody has asked for one that is not taken yet
	seen      cluster.EtcdSnapshots
	at        time.Time         // when that was seen; zero: never, or it has changed
	states    map[string]known  // of files of this cluster that this process has read to their end, or tried to
	readings  map[*reading]bool // of what was there before
	listing   chan listed       // of a list that its storage keeps; nil: of none
}

// Keep returns the snapshots of a cluster. onRead is called, by a goroutine of the Archive, when more
// is known of those that were there before; what Observe sees has changed then.
func (a *Archive) Keep(name string, from Source, onRead func()) *Keeper {
	return &Keeper{Archive: a, cluster: name, source: from, onRead: onRead, states: map[string]known{}, readings: map[*reading]bool{}}
}

// seenFor is how long a look at the folder is good: somebody may add, change or remove files, and what rests on a snapshot must not
// begin without one.
const seenFor = 5 * time.Second

// Observe implements reconcile.Observer.
func (k *Keeper) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	k.looking.Lock()
	defer k.looking.Unlock()
	if now := time.Now(); k.at.IsZero() || now.Sub(k.at) >= seenFor || now.Before(k.at) {
		pass := now
		if !o.Now.IsZero() {
			pass = o.Now // which is before now: what is due at once is due for this pass
		}
		k.seen, k.at = k.look(ctx, lineageOf(d, o.Facts), now, pass), now
	}
	o.Snapshots = k.seen
	o.Snapshots.Requested = !k.requested.IsZero()
}

// Request implements reconcile.Snapshots.
func (k *Keeper) Request() {
	k.looking.Lock()
	defer k.looking.Unlock()
	k.requested = time.Now()
}

// Requested implements reconcile.Snapshots.
func (k *Keeper) Requested() bool {
	k.looking.Lock()
	defer k.looking.Unlock()
	return !k.requested.IsZero()
}

// look lists the snapshots of the cluster. A file counts as verified when this process has read it
// to its end, and is read for that when it is not known yet whether any is. When the next one is due is as of the pass.
func (k *Keeper) look(ctx context.Context, of lineage, now, pass time.Time) cluster.EtcdSnapshots {
	out := cluster.EtcdSnapshots{Enabled: true}
	s, all, err := k.list(ctx)
	if err != nil {
		out.Verified = cluster.Unseen[time.Time](err.Error())
		return out
	}
	all = slices.DeleteFunc(all, func(e snapshot.Entry) bool { return e.Cluster != k.cluster })
	var verified time.Time
	for i := range all { // the newest first
		e := &all[i]
		if read := k.states[e.File]; read.isOf(*e) && e.State == retention.Unverified {
			e.State = read.state
		}
		if e.State == retention.Damaged {
			out.Damaged++
			continue
		}
		if out.Newest.IsZero() {
			out.Newest, out.Bytes = e.At, e.Size
		}
		// One from before the clock was set back is older than it seems.
		if verified.IsZero() && e.State == retention.Verified && !e.At.After(now) {
			verified = e.At
		}
	}
	out.Kept, out.Verified, out.Due = len(all), cluster.Saw(verified), snapshot.NextDue(all, pass, k.c.Every)
	k.readBack(s, all, of)
	if verified.IsZero() && len(k.readings) > 0 {
		out.Verified = cluster.Seen[time.Time]{}
	}
	return out
}

// Take has a member of etcd send a snapshot and stores it. It returns an error unless it was
// verified and read back. Then those are removed that are no longer needed; what is wrong with
// that is logged, for the snapshot is there.
func (k *Keeper) Take(ctx context.Context, d cluster.Desired, kind retention.Kind, progress func(cluster.Progress)) error {
	_, err := await(ctx, k, storageWithin, func() (struct{}, error) { return struct{}{}, k.take(ctx, d, kind, progress) })
	return err
}

// take is Take, of a storage that answers. It has its turn until it ends.
func (k *Keeper) take(ctx context.Context, d cluster.Desired, kind retention.Kind, progress func(cluster.Progress)) error {
	select {
	case k.turn <- struct{}{}:
	default:
		progress(cluster.Progress{Waits: "a snapshot of another cluster is taken"})
		select {
		case k.turn <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() { <-k.turn }()
	s, err := k.open()
	if err != nil {
		return err
	}
	id, err := k.source.Identify(d)
	if err != nil {
		return fmt.Errorf("identify the secrets of the cluster: %w", err)
	}
	var e snapshot.Entry
	err = k.source.Stream(ctx, d, func(ctx context.Context, from Sender, stream io.Reader) (err error) {
		e, err = s.Write(ctx, snapshot.Source{Name: snapshot.Name{Cluster: k.cluster, Kind: kind, At: time.Now()}, Node: from.Node, ClusterID: id.ClusterID,
			Bundle: d.Fingerprint, EncryptionKeys: id.EncryptionKeys, Talos: d.Spec.Versions.Talos, Kubernetes: d.Spec.Versions.Kubernetes, Etcd: from.Etcd,
			Commit: string(d.Revision), Agent: k.c.Agent}, &counted{Reader: stream, progress: progress, free: k.c.Free})
		return err
	})
	if err == nil && e.State != retention.Verified {
		err = errors.New("no key of this host opens it, so that it cannot be verified")
	}
	if err != nil {
		k.note(nil, nil)
		return err
	}
	k.stopReadingBack() // this one is newer, and what is read now may be removed
	kept, unpruned := s.Prune(ctx, k.cluster)
	k.note(&e, kept)
	if unpruned != nil {
		k.c.Log.Warn("cannot remove snapshots of etcd that are no longer needed", logging.Cluster, k.cluster, logging.Err, unpruned, logging.Hint, fault.HintOf(unpruned))
	}
	for _, old := range kept {
		if old.Problem != "" {
			k.warn(old.Entry)
		}
	}
	return nil
}

// note has the folder looked at again, and takes in what is known of files: of one that was
// stored, and of all since.
func (k *Keeper) note(stored *snapshot.Entry, kept []snapshot.Kept) {
	k.looking.Lock()
	defer k.looking.Unlock()
	k.at = time.Time{}
	if stored != nil {
		k.states[stored.File] = known{retention.Verified, stored.Size, stored.Changed}
		if stored.Kind == retention.Manual && !k.requested.Truncate(time.Second).After(stored.At) { // what was asked for since is another
			k.requested = time.Time{}
		}
	}
	for _, old := range kept {
		switch {
		case old.Prune:
			delete(k.states, old.File)
		case old.State == retention.Damaged:
			k.states[old.File] = known{retention.Damaged, old.Size, old.Changed}
		}
	}
}

// What is left free on a disk, which is looked at whenever so much has come. By default it is that
// of the agent's state, without which nothing is changed any more.
const (
	roomEvery = 8 << 20
	roomLeft  = 512 << 20
)

// counted reports how much of a stream was read, and ends it when there is no room for more.
type counted struct {
	io.Reader
	done, looked int64
	progress     func(cluster.Progress)
	free         func() (int64, error)
}

// Read implements io.Reader.
func (c *counted) Read(b []byte) (int, error) {
	if c.free != nil && (c.done == 0 || c.done-c.looked >= roomEvery) {
		free, err := c.free()
		switch {
		case err != nil:
			return 0, fmt.Errorf("see how much room there is: %w", err)
		case free < roomLeft+c.done: // what came is written once more
			return 0, fault.Errorf("make room in the directory of snapshots, for twice the size of etcd's database and 512 MiB, or name another one", "no space left but %d MiB", free>>20)
		}
		c.looked = c.done
	}
	n, err := c.Reader.Read(b)
	c.done += int64(n)
	c.progress(cluster.Progress{Done: c.done, Unit: "bytes"})
	return n, err
}
