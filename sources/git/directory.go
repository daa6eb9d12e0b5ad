package git

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// Directory reads a directory of this host in place of a repository. It has
// the methods of Store.
type Directory struct {
	dir string
	cfg Config

	mu   sync.Mutex
	last *manifest // of the last Head
}

// OpenDir checks that c.Dir is a directory. Only Dir, Limits and Log of c are
// used; the Branch does not matter, what lies there is read.
func OpenDir(c Config) (*Directory, error) {
	c = c.withDefaults()
	if c.Dir == "" {
		return nil, &FieldError{Field: "directory", text: "is missing"}
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &FieldError{Field: "directory", text: dir + " does not exist"}
	case err != nil:
		return nil, fmt.Errorf("directory: %w", err)
	case !info.IsDir():
		return nil, &FieldError{Field: "directory", text: dir + " is not a directory"}
	}
	return &Directory{dir: dir, cfg: c}, nil
}

// Close does nothing; a Directory holds nothing open.
func (d *Directory) Close() error { return nil }

// Head reads every file of the directory within the limits and names what it
// found. In a git work tree the files are those git would add: ignored ones
// are left out, and the commit is that of HEAD.
func (d *Directory) Head(ctx context.Context) (Commit, error) {
	c, err := d.head(ctx)
	if err != nil {
		return Commit{}, fmt.Errorf("read directory %s: %w", d.dir, err)
	}
	return c, nil
}

func (d *Directory) head(ctx context.Context) (Commit, error) {
	w, err := openWorktree(d.dir, d.cfg.Limits)
	if err != nil {
		// The commit is only a name; the files are there all the same.
		d.cfg.Log.Debug("the directory's git work tree cannot be read", logging.Err, err)
		w = nil
	}
	m, err := d.scan(ctx, w)
	if err != nil {
		return Commit{}, err
	}
	c := Commit{Revision: "dir@" + m.digest(), Content: m.digest()}
	if w != nil {
		m.time = w.commit.Committer.When.UTC()
		c.Hash = w.commit.Hash.String()
		c.Revision = "HEAD@sha1:" + c.Hash
		c.Time, c.Subject = m.time, cleanRemark(w.commit.Message)
		if m.differs(w.tracked) {
			c.Revision += "+dirty"
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = m
	return c, nil
}

// Tree gives the files of the state that the last Head returned. A file that
// has changed since is refused with ErrChanged.
func (d *Directory) Tree(ctx context.Context, c Commit) (fs.FS, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil || d.last.digest() != c.Content {
		return nil, fmt.Errorf("read directory %s as of %s: %w", d.dir, c.Revision, ErrChanged)
	}
	return &files{contents: d.last, dirs: map[string][]node{}}, nil
}

// Descends is always true: what lies in a directory of this host was put there
// by somebody who may.
func (d *Directory) Descends(context.Context, string, string) (bool, error) { return true, nil }

// Find finds nothing: a directory keeps no earlier state.
func (d *Directory) Find(string) (Commit, error) {
	return Commit{}, fmt.Errorf("directory %s keeps no earlier state", d.dir)
}

// manifest is what one Head saw. It implements contents.
type manifest struct {
	dir    string
	time   time.Time
	budget // for scanning; reading again costs nothing
	dirs   map[string][]node
	sums   map[string]fileSum
	hasher hash.Hash
}

// fileSum identifies the contents of one regular file.
type fileSum struct {
	size   int64
	sha256 [sha256.Size]byte
	blob   plumbing.Hash // as git would store it
	large  bool          // not read, and will not be
}

func (m *manifest) digest() string { return "sha256:" + hex.EncodeToString(m.hasher.Sum(nil)) }

func (d *Directory) scan(ctx context.Context, w *worktree) (_ *manifest, err error) {
	root, err := os.OpenRoot(d.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	m := &manifest{
		dir: d.dir, budget: budget{limits: d.cfg.Limits},
		dirs: map[string][]node{}, sums: map[string]fileSum{}, hasher: sha256.New(),
	}
	return m, m.walk(ctx, root, ".", w)
}

func (m *manifest) walk(ctx context.Context, root *os.Root, dir string, w *worktree) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := m.checkDepth(dir); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	nodes, err := m.readDir(root, dir)
	if err != nil {
		return err
	}
	if w, err = w.enter(root, dir, nodes); err != nil {
		return err
	}
	nodes = slices.DeleteFunc(nodes, func(n node) bool {
		return strings.EqualFold(n.name, ".git") || w.ignores(path.Join(dir, n.name), n.mode.IsDir())
	})
	m.dirs[dir] = nodes
	for _, n := range nodes {
		name := path.Join(dir, n.name)
		if err := checkName(n.name); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if n.mode.IsDir() {
			err = m.walk(ctx, root, name, w)
		} else {
			err = m.note(root, name, n.mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readDir lists a directory, sorted by name, and stops where the limit is.
func (m *manifest) readDir(root *os.Root, dir string) (_ []node, err error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, asChanged(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	entries, err := f.ReadDir(m.limits.Entries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := m.spendEntries(dir, len(entries)); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	nodes := make([]node, len(entries))
	for i, e := range entries {
		nodes[i] = node{name: e.Name(), mode: e.Type()}
		switch e.Type() {
		case fs.ModeDir:
			nodes[i].mode |= 0o555
		case 0:
			nodes[i].mode |= 0o444
		}
	}
	slices.SortFunc(nodes, func(a, b node) int { return strings.Compare(a.name, b.name) })
	return nodes, nil
}

// note adds one file that is no directory to the digest.
func (m *manifest) note(root *os.Root, name string, mode fs.FileMode) error {
	switch {
	case mode&fs.ModeSymlink != 0:
		to, err := root.Readlink(name)
		if err != nil {
			return asChanged(err)
		}
		m.sums[name] = fileSum{blob: plumbing.ComputeHash(plumbing.BlobObject, []byte(to))}
		fmt.Fprintf(m.hasher, "link %q %q\n", name, to)
		return nil
	case !mode.IsRegular():
		fmt.Fprintf(m.hasher, "other %q\n", name)
		return nil
	}
	b, size, err := readRegular(root, name, m.limits.Blob)
	if err != nil {
		return err
	}
	if b == nil {
		m.sums[name] = fileSum{size: size, large: true}
		fmt.Fprintf(m.hasher, "large %q\n", name)
		return nil
	}
	if err := m.spendBytes(name, size); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	sum := fileSum{size: size, sha256: sha256.Sum256(b), blob: plumbing.ComputeHash(plumbing.BlobObject, b)}
	m.sums[name] = sum
	fmt.Fprintf(m.hasher, "file %q %x\n", name, sum.sha256)
	return nil
}

// readRegular reads a regular file below root, following no link: not even a
// file that turns into one meanwhile. A file larger than most gives nil and
// its size.
func readRegular(root *os.Root, name string, most int64) (_ []byte, size int64, err error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, 0, asChanged(err)
	}
	// Not blocking, should it turn into a pipe.
	f, err := root.OpenFile(name, os.O_RDONLY|platform.NoWait, 0)
	if err != nil {
		return nil, 0, asChanged(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !before.Mode().IsRegular() || !os.SameFile(before, info) {
		return nil, 0, fmt.Errorf("%s: %w", name, ErrChanged)
	}
	if info.Size() > most {
		return nil, info.Size(), nil
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, 0, err
	}
	if int64(len(b)) > most {
		return nil, 0, fmt.Errorf("%s: %w", name, ErrChanged)
	}
	return b, int64(len(b)), nil
}

// asChanged makes ErrChanged of a file that was there a moment ago.
func asChanged(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

// differs reports whether the files are others than a commit's.
func (m *manifest) differs(tracked map[string]plumbing.Hash) bool {
	if len(tracked) != len(m.sums) {
		return true
	}
	for name, sum := range m.sums {
		// A large file is not read, so whether it changed does not matter.
		if h, ok := tracked[name]; !ok || h != sum.blob && !sum.large {
			return true
		}
	}
	return false
}

func (m *manifest) modTime() time.Time { return m.time }

func (m *manifest) list(dir string, _ node) ([]node, error) { return m.dirs[dir], nil }

func (m *manifest) size(name string, _ node) (int64, error) { return m.sums[name].size, nil }

func (m *manifest) read(name string, _ node) (_ []byte, err error) {
	want := m.sums[name]
	if want.large {
		return nil, newError(ErrLimit, "", nil, "%d bytes, the limit for one file is %d", want.size, m.limits.Blob)
	}
	root, err := os.OpenRoot(m.dir)
	if err != nil {
		return nil, asChanged(err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	b, _, err := readRegular(root, name, m.limits.Blob)
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(b) != want.sha256 {
		return nil, ErrChanged
	}
	return b, nil
}
