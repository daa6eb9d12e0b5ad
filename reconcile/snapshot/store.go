package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// Config is what a Store works with.
type Config struct {
	Directory  Directory
	Recipients []Recipient // whom snapshots are encrypted to; empty: none can be written
	Keys       Keys        // that open them; nil: they are written, and not verified or pruned later
	Most       int64       // bytes of a snapshot; 0: 16 GiB, twice what etcd recommends
}

// Recipient is a public key, and how it is written.
type Recipient interface {
	age.Recipient
	fmt.Stringer
}

const defaultMost = 16 << 30

// Store is the snapshots in a directory, of any clusters. Its methods may be called at the
// same time; those that change something exclude each other, also among processes.
type Store struct {
	c     Config
	mu    sync.Mutex
	known map[string]Entry // what reading files to their end has shown, verified or damaged: they are never written again
}

// New makes a store.
func New(c Config) *Store {
	c.Most = cmp.Or(c.Most, defaultMost)
	return &Store{c: c, known: map[string]Entry{}}
}

// Entry is a snapshot in the store.
type Entry struct {
	Name
	File    string          `json:"file"`
	Size    int64           `json:"size"` // of the file, in bytes
	State   retention.State `json:"state"`
	Problem string          `json:"problem,omitempty"` // why it is damaged, or could not be read
	// Changed is when the file was written last: it distinguishes one that has other content since.
	Changed time.Time `json:"-"`
	// Header is what the file has in clear. Only that of a verified one is proved to be
	// its own.
	Header *Header `json:"header,omitempty"`
}

// List lists the snapshots by cluster, the newest first. Files of others are left out.
// Only the headers are read.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	files, err := s.c.Directory.List()
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, file := range files {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if name, ours := ParseName(file); ours {
			e := Entry{Name: name, File: file, State: retention.Unverified}
			err := s.read(&e, func(f File) error {
				h, _, err := readHead(f, f.Size())
				if err == nil {
					e.Header, err = &h, e.checkName(h)
				}
				return err
			})
			out = append(out, e.judged(err))
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), b.At.Compare(a.At), cmp.Compare(b.File, a.File))
	})
	return out, nil
}

// Verify reads a snapshot to its end and returns it with what is known now. An error is
// that of the context.
func (s *Store) Verify(ctx context.Context, e Entry) (Entry, error) {
	e.State, e.Problem = retention.Unverified, ""
	err := s.read(&e, func(f File) error {
		o, err := Open(f, f.Size(), s.c.Keys)
		if err == nil {
			e.Header = &o.Header
			err = errors.Join(e.checkName(o.Header), o.Verify(ctx))
		}
		if err == nil {
			e.State = retention.Verified
		}
		return err
	})
	if stopped := context.Cause(ctx); stopped != nil {
		return e, stopped
	}
	e = e.judged(err)
	s.remember(e)
	return e, nil
}

// remember keeps what reading a file has shown.
func (s *Store) remember(e Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[e.File] = e; e.State == retention.Unverified {
		delete(s.known, e.File)
	}
}

// recall returns that; false: it was not read to its end.
func (s *Store) recall(file string) (Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, read := s.known[file]
	return e, read
}

// read opens the file of an entry to look at it.
func (s *Store) read(e *Entry, look func(File) error) error {
	f, err := s.c.Directory.Open(e.File)
	if err != nil {
		return err
	}
	e.Size, e.Changed = f.Size(), f.Changed()
	return errors.Join(look(f), f.Close())
}

// checkName reports a file that was given the name of another one.
func (e Entry) checkName(h Header) error {
	if h.Name.String() != e.File {
		return fmt.Errorf("%w: by its header it is %s", ErrDamaged, text.Sanitize(h.Name.String(), 100))
	}
	return nil
}

// judged is an entry with what an error means for it.
func (e Entry) judged(err error) Entry {
	if err == nil {
		return e
	}
	e.Problem = text.OneLine(err.Error())
	if e.State = retention.Unverified; errors.Is(err, ErrDamaged) {
		e.State = retention.Damaged
	}
	return e
}

// Kept is a snapshot with what becomes of it.
type Kept struct {
	Entry
	Prune bool   `json:"prune,omitempty"` // it may be removed
	Why   string `json:"why,omitempty"`   // it is kept
}

// Judge decides on snapshots of any clusters, in the order of List. Clusters of one name, as two hosts may have that
// share a folder, are distinguished by their headers: those of one take the place of none of the other's.
func Judge(all []Entry, now time.Time) []Kept {
	type cluster struct{ name, id string }
	values := map[cluster][]retention.Snapshot{}
	for _, e := range all {
		of := cluster{name: e.Cluster}
		if e.Header != nil {
			of.id = e.Header.ClusterID
		}
		values[of] = append(values[of], retention.Snapshot{Name: e.File, Kind: e.Kind, At: e.At, State: e.State})
	}
	verdicts := map[string]retention.Verdict{}
	for _, of := range values {
		for _, v := range retention.Judge(of, now) {
			verdicts[v.Name] = v
		}
	}
	var out []Kept
	for _, e := range all {
		v := verdicts[e.File]
		out = append(out, Kept{e, v.Prune, v.Why})
	}
	return out
}

// NextDue is when the next scheduled snapshot of a cluster is due, of which these are all
// there are, with the newest first as List has them. A damaged one does not count.
func NextDue(all []Entry, now time.Time, every time.Duration) time.Time {
	for _, e := range all {
		if e.Kind == retention.Scheduled && e.State != retention.Damaged {
			id := e.Cluster
			if e.Header != nil {
				id = cmp.Or(e.Header.ClusterID, id)
			}
			return retention.NextDue(e.At, now, every, id)
		}
	}
	return retention.NextDue(time.Time{}, now, every, "")
}

// Prune removes the snapshots of a cluster that are no longer needed, and returns what
// there was, with Prune for what is removed. Whatever is kept by the rules is read to its
// end before, once in the life of a Store: what turns out to be damaged counts for
// nothing, and the next older one takes its place.
func (s *Store) Prune(ctx context.Context, cluster string) (_ []Kept, err error) {
	release, err := s.c.Directory.Lock()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if s.c.Keys == nil {
		return nil, fault.Errorf("give a key that opens them", "without a key no snapshot can be verified, and none is removed before a newer one is")
	}
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(e Entry) bool { return e.Cluster != cluster })
	tried := map[string]bool{}
	for i := range all {
		if read, known := s.recall(all[i].File); known && read.Size == all[i].Size && read.Changed.Equal(all[i].Changed) && all[i].State == retention.Unverified {
			all[i].State, all[i].Problem = read.State, read.Problem
		}
	}
	for {
		kept := Judge(all, time.Now())
		next := slices.IndexFunc(kept, func(k Kept) bool {
			return !k.Prune && k.Kind != retention.Manual && k.State == retention.Unverified && !tried[k.File]
		})
		if next < 0 {
			return kept, s.removeAll(kept)
		}
		tried[kept[next].File] = true
		e, err := s.Verify(ctx, kept[next].Entry)
		if err != nil {
			return nil, err
		}
		all[slices.IndexFunc(all, func(old Entry) bool { return old.File == e.File })] = e
	}
}

// removeAll removes what may be removed, the oldest first.
func (s *Store) removeAll(kept []Kept) error {
	for _, k := range slices.Backward(kept) {
		if !k.Prune {
			continue
		}
		if err := s.c.Directory.Remove(k.File); err != nil {
			return fmt.Errorf("remove %s: %w", k.File, err)
		}
	}
	return s.c.Directory.Sync()
}
