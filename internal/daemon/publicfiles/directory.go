// Package publicfiles keeps files that other services of the host read, in a directory of
// theirs: those of one cluster at a time, among those of others.
//
// It must not know what is in a file. Nothing in it is secret.
package publicfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// File is one file of a cluster.
type File struct {
	Name string // the last part of its name: a DNS label
	What string // what it is, for errors: "the reservation of cp-1"
	// Data is what it is to hold; nil: what there is stays.
	Data []byte
	// IsRight reports whether a file is right as it is. It is handed what the file holds,
	// up to MaxFile bytes of it, or one more than Data has where that is more.
	IsRight func(have []byte) bool
}

// Directory is where the files are. Several agents may share it: each has its own owner, and touches
// the files of no other one. For one cluster one call at a time is made.
type Directory struct{ path, owner string }

// New returns the directory at a path, which is opened when it is needed: it may come later.
func New(path, owner string) *Directory { return &Directory{path: path, owner: owner} }

// Mode lets everybody read a file: the services have users of their own.
const Mode = 0o644

// MaxFile bounds what is read of a file that is there, in bytes, where it is to be no larger.
const MaxFile = 64 << 10

// Set makes the files of a cluster these; whole has the others removed that it has. Files
// that are right already are not touched. An error names the path that could not be
// changed, and what was changed before stays.
func (d *Directory) Set(cluster string, all []File, whole bool) (err error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return d.explain(err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	have, err := d.list(root, cluster)
	if err != nil {
		return d.explain(err)
	}
	changed := false
	for _, f := range all {
		name := d.prefix(cluster) + f.Name
		delete(have, name)
		if f.Data == nil {
			continue
		}
		if have := readPublic(root, name, max(MaxFile, len(f.Data)+1)); !f.IsRight(have) {
			if err := d.write(root, name, f.Data); err != nil {
				return d.explain(fmt.Errorf("write %s in %s: %w", f.What, d.path, err))
			}
			changed = true
		}
	}
	for name := range have {
		if !whole && !strings.HasPrefix(name, partial) {
			continue
		}
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return d.explain(fmt.Errorf("remove %s in %s: %w", name, d.path, err))
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return platform.SyncDir(root)
}

// prefix begins the names of a cluster's files. None of the three parts of a name has a dot.
func (d *Directory) prefix(cluster string) string { return d.owner + "." + cluster + "." }

// partial begins the name of a file that is being written: services skip what begins with a dot.
const partial = "."

// list lists the files of a cluster, with those that a write has left that was interrupted.
func (d *Directory) list(root *os.Root, cluster string) (map[string]bool, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, name := range names {
		last, ours := strings.CutPrefix(strings.TrimPrefix(name, partial), d.prefix(cluster))
		if ours && last != "" && !strings.Contains(last, ".") {
			out[name] = true
		}
	}
	return out, nil
}

// readPublic reads a file that everybody may read, up to so many bytes; nil where it is none.
func readPublic(root *os.Root, name string, most int) []byte {
	f, err := root.OpenFile(name, os.O_RDONLY|platform.NoFollow|platform.NoWait, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != Mode {
		return nil
	}
	have, err := io.ReadAll(io.LimitReader(f, int64(most)))
	if err != nil {
		return nil
	}
	return have
}

// write puts a whole file in the place of the one before. The agent's umask keeps
// other users from reading what it makes.
func (d *Directory) write(root *os.Root, name string, data []byte) error {
	temporary := partial + name
	if err := root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL|platform.NoFollow, Mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = cmp.Or(err, f.Chmod(Mode), f.Sync())
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(temporary))
	}
	return nil
}

// explain adds what to do about a directory that is not there or that the agent may not change.
func (d *Directory) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.WithHint(err, "make the directory, for the agent's user: install -d -m 0755 -o talos-agent -g talos-agent "+d.path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fault.WithHint(err, "give it to the agent's user, with chown; and where the unit does not name it, add ReadWritePaths= in a drop-in")
	}
	return err
}
