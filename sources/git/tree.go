package git

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// tree reads the files of one tree object out of a Store. It implements
// contents.
type tree struct {
	store *Store
	root  plumbing.Hash
	time  time.Time
	budget
}

func newTree(s *Store, root plumbing.Hash, t time.Time, l Limits) fs.FS {
	return &files{contents: &tree{store: s, root: root, time: t, budget: budget{limits: l}}, dirs: map[string][]node{}}
}

func (t *tree) modTime() time.Time { return t.time }

func (t *tree) list(path string, dir node) ([]node, error) {
	h := t.root
	if path != "." {
		h = dir.hash
	}
	entries, err := t.store.current().tree(h)
	if err != nil {
		return nil, t.suspect(err)
	}
	if err := t.spendEntries(path, len(entries)); err != nil {
		return nil, err
	}
	nodes := make([]node, len(entries))
	for i, e := range entries {
		if err := checkName(e.Name); err != nil {
			return nil, err
		}
		nodes[i] = node{name: e.Name, mode: modeOf(e), hash: e.Hash}
	}
	slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.name, b.name) })
	for i := 1; i < len(nodes); i++ {
		if nodes[i].name == nodes[i-1].name {
			return nil, newError(ErrUnsupported, "", nil, "the tree lists %q twice", nodes[i].name)
		}
	}
	return nodes, nil
}

func (t *tree) size(_ string, n node) (int64, error) {
	o := t.store.current()
	size, err := o.size(n.hash)
	if o.lacks(err, t.limits.Blob) {
		return t.limits.Blob + 1, nil // at least
	}
	return size, t.suspect(err)
}

func (t *tree) read(path string, n node) ([]byte, error) {
	size, err := t.size(path, n)
	if err != nil {
		return nil, err
	}
	if o := t.store.current(); size > t.limits.Blob {
		if _, err := o.size(n.hash); o.lacks(err, t.limits.Blob) {
			return nil, newError(ErrLimit, "", nil, "larger than %d bytes, the limit for one file", t.limits.Blob)
		}
	}
	if err := t.spendBytes(path, size); err != nil {
		return nil, err
	}
	b, err := t.store.current().bytes(plumbing.BlobObject, n.hash, t.limits.Blob)
	if err != nil {
		return nil, t.suspect(err)
	}
	if bytes.HasPrefix(b, []byte("version https://git-lfs.github.com/spec/")) {
		return nil, newError(ErrNotRegular, "run git lfs untrack for it and commit the file itself", nil, "is kept in Git LFS, which is not read")
	}
	return b, nil
}

// suspect notes that the store lacks an object or holds a broken one, so that
// the next Head makes it again.
func (t *tree) suspect(err error) error {
	if err != nil && !isKnown(err) {
		t.store.suspect.Store(true)
	}
	return err
}

func modeOf(e object.TreeEntry) fs.FileMode {
	switch e.Mode {
	case filemode.Dir:
		return fs.ModeDir | 0o555
	case filemode.Regular, filemode.Deprecated:
		return 0o444
	case filemode.Executable:
		return 0o555
	case filemode.Symlink:
		return fs.ModeSymlink | 0o777
	}
	return fs.ModeIrregular // a submodule, or nothing git knows
}

// checkName refuses names that are no path element, or that would not print.
func checkName(name string) error {
	switch {
	case !fs.ValidPath(name), name == ".", strings.Contains(name, "/"), strings.EqualFold(name, ".git"):
	case !utf8.ValidString(name), strings.ContainsFunc(name, unicode.IsControl):
	default:
		return nil
	}
	return newError(ErrUnsupported, "rename it", nil, "holds the odd name %q", name)
}

// budget adds up what has been read of one commit. Reading the same path again
// costs nothing.
type budget struct {
	limits  Limits
	mu      sync.Mutex
	paid    map[string]bool
	total   int64
	entries int
}

func (b *budget) pay(path string) (first bool) {
	if b.paid[path] {
		return false
	}
	if b.paid == nil {
		b.paid = map[string]bool{}
	}
	b.paid[path] = true
	return true
}

func (b *budget) spendEntries(dir string, n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pay(dir) {
		b.entries += n
	}
	if b.entries > b.limits.Entries {
		return newError(ErrLimit, tooBig, nil, "more than %d directory entries", b.limits.Entries)
	}
	return nil
}

func (b *budget) spendBytes(path string, n int64) error {
	if n > b.limits.Blob {
		return newError(ErrLimit, "", nil, "%d bytes, the limit for one file is %d", n, b.limits.Blob)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.pay(path) {
		return nil
	}
	if b.total += n; b.total > b.limits.Total {
		delete(b.paid, path)
		b.total -= n
		return newError(ErrLimit, tooBig, nil, "all files read so far are larger than %d bytes", b.limits.Total)
	}
	return nil
}

func (b *budget) checkDepth(path string) error {
	if n := strings.Count(path, "/") + 1; n > b.limits.Depth {
		return newError(ErrLimit, "", nil, "%d directories deep, the limit is %d", n, b.limits.Depth)
	}
	return nil
}

// errNotRegular names what a node is instead.
func errNotRegular(m fs.FileMode) error {
	switch {
	case m&fs.ModeSymlink != 0:
		return newError(ErrNotRegular, "commit the file itself in its place", nil, "is a symbolic link, which is not followed")
	case m&fs.ModeIrregular != 0:
		return newError(ErrNotRegular, "commit the files themselves in its place", nil, "is a submodule, which is not read")
	}
	return newError(ErrNotRegular, "", nil, "is a device, socket or pipe, which is not read")
}

var errIsDir = errors.New("is a directory")

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// node is one entry of a directory.
type node struct {
	name string
	mode fs.FileMode
	hash plumbing.Hash // in a tree object
}

func (n node) String() string { return fmt.Sprintf("%s %s", n.mode, n.name) }
