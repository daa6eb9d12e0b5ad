package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/platform"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/database"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// Every is the time between two scheduled snapshots.
const Every = 6 * time.Hour

// Report is what is in a file that was verified, and the data of its JSON output.
type Report struct {
	File      string            `json:"file"`
	Encrypted bool              `json:"encrypted"` // or as a member of etcd sent it
	Database  database.Contents `json:"database"`
	Header    *snapshot.Header  `json:"header,omitempty"` // of an encrypted one
}

// Verify reads a snapshot to its end: one of this program with an age key of one of the
// files, or one as `talosctl etcd snapshot` writes it, which needs none.
func Verify(ctx context.Context, path string, ageKeys []string) (Report, error) {
	return withFile(path, func(f *os.File, size int64) (Report, error) {
		r := Report{File: path}
		var err error
		if r.Encrypted, err = snapshot.IsEncrypted(f); err != nil {
			return r, err
		}
		if !r.Encrypted {
			r.Database, err = snapshot.VerifyPlain(ctx, f, size)
			return r, hintOfDamage(err, takeAgain)
		}
		o, err := openEncrypted(f, size, ageKeys)
		if err != nil {
			return r, hintOfDamage(err, takeOther)
		}
		r.Header, r.Database = &o.Header, o.Header.Database
		return r, hintOfDamage(o.Verify(ctx), takeOther)
	})
}

// Open verifies an encrypted snapshot and writes it as etcd sent it to a new file: what
// `talosctl bootstrap --recover-from` takes.
func Open(ctx context.Context, path, out string, ageKeys []string) (Report, error) {
	keys, err := readKeys(ageKeys)
	if err != nil {
		return Report{}, err
	}
	return extract(ctx, path, out, keys)
}

// extract is Open with keys that are read.
func extract(ctx context.Context, path, out string, keys snapshot.Keys) (_ Report, err error) {
	dir, name := filepath.Split(out)
	folder, err := snapshot.FindFolder(filepath.Clean(dir))
	if err != nil {
		return Report{}, fmt.Errorf("write %s: %w", out, explainPath(err))
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	for _, taken := range []string{out, out + snapshot.PartSuffix} { // the second one may be of another process
		if _, err := os.Lstat(taken); err == nil {
			return Report{}, fault.Errorf("remove it where it is not needed any longer, or name another file with --out", "write %s: %w", taken, fs.ErrExist)
		}
	}
	return withFile(path, func(f *os.File, size int64) (r Report, err error) {
		o, err := snapshot.Open(f, size, keys)
		if err != nil {
			return r, hintOfDamage(err, takeOther)
		}
		if err := o.Extract(ctx, folder, name); err != nil {
			return r, hintOfDamage(fmt.Errorf("write %s: %w", out, explainPath(err)), takeOther)
		}
		return Report{File: path, Encrypted: true, Database: o.Header.Database, Header: &o.Header}, nil
	})
}

func openEncrypted(f *os.File, size int64, ageKeys []string) (*snapshot.Opened, error) {
	keys, err := readKeys(ageKeys)
	if err != nil {
		return nil, err
	}
	return snapshot.Open(f, size, keys)
}

// withFile opens a regular file that a command line names, and names it in errors.
func withFile[R any](path string, do func(*os.File, int64) (R, error)) (_ R, err error) {
	var none R
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, explainPath(err))
		}
	}()
	f, err := os.OpenFile(path, os.O_RDONLY|platform.NoWait, 0)
	if err != nil {
		return none, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return none, err
	case !info.Mode().IsRegular():
		return none, errors.New("it is not a regular file")
	}
	return do(f, info.Size())
}

// explainPath is an error without the path that stands before it anyway.
func explainPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok && fault.HintOf(err) == "" {
		return path.Err
	}
	return err
}

// Listing is what is in a folder, and the data of its JSON output.
type Listing struct {
	Clusters  []Cluster       `json:"clusters"`
	Snapshots []snapshot.Kept `json:"snapshots"` // by cluster, the newest first
}

// AllVerified reports whether each of them was read to its end, and is whole.
func (l Listing) AllVerified() bool {
	return !slices.ContainsFunc(l.Snapshots, func(k snapshot.Kept) bool { return k.State != retention.Verified })
}

// IsUnread reports whether no snapshot of a cluster was read to its end, for want of a key: of each that was read, or that no
// key opens, it is known what it is.
func (l Listing) IsUnread(cluster string) bool {
	return !slices.ContainsFunc(l.Snapshots, func(k snapshot.Kept) bool { return k.Cluster == cluster && isJudged(k) })
}

// isJudged reports whether it is known of a snapshot what it is, or why not.
func isJudged(k snapshot.Kept) bool { return k.State != retention.Unverified || k.Problem != "" }

// Cluster sums up the snapshots of a cluster.
type Cluster struct {
	Cluster   string     `json:"cluster"`
	Snapshots int        `json:"snapshots"`
	Verified  *time.Time `json:"verified,omitempty"` // when the newest one was taken that is verified
	Damaged   int        `json:"damaged,omitempty"`
	Due       time.Time  `json:"due"` // when the next scheduled one is due, with one every Every
}

// What to do about a snapshot that is damaged.
const (
	takeAgain = "have it written once more: `talosctl etcd snapshot`"
	takeOther = "take another one: `talos-agent snapshot list` shows which are whole, and `talos-agent snapshot now` has one taken"
)

// hintOfDamage is err, with what to do where it is that a snapshot is damaged and has no hint.
func hintOfDamage(err error, hint string) error {
	if errors.Is(err, snapshot.ErrDamaged) && fault.HintOf(err) == "" {
		return fault.WithHint(err, hint)
	}
	return err
}

// List lists the snapshots of one cluster in a place, or of all with "", and what becomes
// of them. With an age key each is read to its end; without one none is known to be whole,
// and what may be removed is not known. One that the daemon removes meanwhile is left out.
func List(ctx context.Context, in Place, cluster string, now time.Time) (Listing, error) {
	return withStore(in, func(s *snapshot.Store) (Listing, error) {
		all, err := s.List(ctx)
		if err != nil {
			return Listing{}, err
		}
		all = slices.DeleteFunc(all, func(e snapshot.Entry) bool { return cluster != "" && e.Cluster != cluster })
		for i := range all {
			if in.Keys == nil || all[i].State == retention.Damaged {
				continue
			}
			if all[i], err = s.Verify(ctx, all[i]); err != nil {
				return Listing{}, err
			}
		}
		there, err := s.List(ctx)
		all = slices.DeleteFunc(all, func(e snapshot.Entry) bool {
			return e.State != retention.Verified && !slices.ContainsFunc(there, func(t snapshot.Entry) bool { return t.File == e.File })
		})
		return sumUp(all, now), err
	})
}

// sumUp judges snapshots and sums them up.
func sumUp(all []snapshot.Entry, now time.Time) Listing {
	out := Listing{Clusters: []Cluster{}, Snapshots: snapshot.Judge(all, now)}
	for len(all) > 0 {
		c := Cluster{Cluster: all[0].Cluster}
		end := slices.IndexFunc(all, func(e snapshot.Entry) bool { return e.Cluster != c.Cluster })
		if end < 0 {
			end = len(all)
		}
		for _, e := range all[:end] {
			c.Snapshots++
			if e.State == retention.Damaged {
				c.Damaged++
			}
			if e.State == retention.Verified && c.Verified == nil {
				c.Verified = &e.At
			}
		}
		c.Due = snapshot.NextDue(all[:end], now, Every)
		out.Clusters, all = append(out.Clusters, c), all[end:]
	}
	if out.Snapshots == nil {
		out.Snapshots = []snapshot.Kept{}
	}
	return out
}

// Prune removes what is no longer needed of one cluster, or of all with "", and returns
// what there was. Where nothing had to be read for that, as of manual ones alone, the newest
// is, so that it is known whether a key opens them.
func Prune(ctx context.Context, in Place, cluster string) ([]snapshot.Kept, error) {
	return withStore(in, func(s *snapshot.Store) ([]snapshot.Kept, error) {
		clusters := []string{cluster}
		if cluster == "" {
			all, err := s.List(ctx)
			if err != nil {
				return nil, err
			}
			clusters = nil
			for _, e := range all {
				clusters = append(clusters, e.Cluster)
			}
			clusters = slices.Compact(clusters)
		}
		out := []snapshot.Kept{}
		for _, cluster := range clusters {
			kept, err := s.Prune(ctx, cluster)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", cluster, err)
			}
			if isUnread := !slices.ContainsFunc(kept, isJudged); isUnread && len(kept) > 0 {
				if kept[0].Entry, err = s.Verify(ctx, kept[0].Entry); err != nil {
					return nil, fmt.Errorf("%s: %w", cluster, err)
				}
			}
			out = append(out, kept...)
		}
		return out, nil
	})
}

// IsUnverified reports whether none of the snapshots that there are is known to be whole, for want of a key that opens one
// or because all are damaged: of such none is removed.
func IsUnverified(kept []snapshot.Kept) bool {
	return len(kept) > 0 && !slices.ContainsFunc(kept, func(k snapshot.Kept) bool { return k.State == retention.Verified })
}

// withStore opens the snapshots in a folder that is there.
func withStore[R any](in Place, do func(*snapshot.Store) (R, error)) (_ R, err error) {
	var none R
	folder, err := snapshot.FindFolder(in.Dir)
	if err != nil {
		return none, fmt.Errorf("%s: %w", in.Dir, explainPath(err))
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	return do(snapshot.New(snapshot.Config{Directory: folder, Keys: in.Keys}))
}

// Addition is a snapshot that is to be added to a folder.
type Addition struct {
	File       string   // as `talosctl etcd snapshot` wrote it
	Cluster    string   // by the name of its folder in the repository
	Recipients []string // public keys, of whom each can open it
	AgeKeys    []string // files with keys that must be able to open it; none: that is not tried
}

// Add verifies a snapshot that a member of etcd has sent, encrypts it and stores it in a
// folder, which is made if there is none. It was taken when its file was written last.
func Add(ctx context.Context, dir string, a Addition, agent string) (snapshot.Entry, error) {
	c := snapshot.Config{}
	for _, public := range a.Recipients {
		r, err := secrets.ParseRecipient(public)
		if err != nil {
			return snapshot.Entry{}, err
		}
		c.Recipients = append(c.Recipients, r)
	}
	var err error
	if c.Keys, err = readKeys(a.AgeKeys); err != nil {
		return snapshot.Entry{}, err
	}
	return withFile(a.File, func(f *os.File, _ int64) (_ snapshot.Entry, err error) {
		info, err := f.Stat()
		if err != nil {
			return snapshot.Entry{}, err
		}
		folder, err := snapshot.OpenFolder(dir)
		if err != nil {
			return snapshot.Entry{}, err
		}
		defer func() { err = errors.Join(err, folder.Close()) }()
		c.Directory = folder
		name := snapshot.Name{Cluster: a.Cluster, Kind: retention.Manual, At: info.ModTime()}
		e, err := snapshot.New(c).Write(ctx, snapshot.Source{Name: name, Agent: agent}, f)
		if errors.Is(err, fs.ErrExist) {
			err = fault.Errorf("it was added before; a file of another snapshot that is as old to the second: `touch` it", "%s is in %s already", name, dir)
		}
		return e, hintOfDamage(err, takeAgain)
	})
}

// readKeys reads files of age keys; nil without any.
func readKeys(files []string) (snapshot.Keys, error) {
	ids, err := config.ReadAgeKeys(files)
	if err != nil || ids == nil {
		return nil, err // and no pointer that is nil
	}
	return ids, nil
}
