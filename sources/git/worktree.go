package git

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// maxIgnore bounds one list of ignored files.
const maxIgnore = 64 << 10

// worktree is what git knows about a directory: the commit of HEAD, its files
// below the directory, and which others to leave out. A nil worktree knows
// nothing and ignores nothing.
//
// go-git's own status is not used: it reads the configuration of the user and
// the system, and hashes every file of the repository.
type worktree struct {
	commit   *object.Commit
	prefix   []string                 // path of the directory in the work tree
	tracked  map[string]plumbing.Hash // files of the commit, by path below the directory
	within   map[string]bool          // directories that hold tracked files
	patterns []gitignore.Pattern      // in the order of their precedence, lowest first
}

// openWorktree looks for a repository at or above dir. It gives nil when there
// is none, or none that has dir in its HEAD commit: then dir is a directory
// like any other.
func openWorktree(dir string, l Limits) (*worktree, error) {
	repo, err := openLocal(dir, true)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	wt, err := repo.Worktree()
	if errors.Is(err, gogit.ErrIsBareRepository) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ref, err := repo.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return nil, nil // no commit yet
	}
	if err != nil {
		return nil, err
	}
	top, err := filepath.EvalSymlinks(wt.Filesystem.Root())
	if err != nil {
		return nil, err
	}
	here, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(top, here)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, err
	}
	w := &worktree{tracked: map[string]plumbing.Hash{}, within: map[string]bool{}}
	if rel != "." {
		w.prefix = strings.Split(filepath.ToSlash(rel), "/")
	}
	o := &objects{sto: repo.Storer}
	if w.commit, err = o.commit(ref.Hash()); err != nil {
		return nil, err
	}
	b := &budget{limits: l}
	root, ok, err := findTree(o, w.commit.TreeHash, w.prefix)
	if err != nil || !ok {
		return nil, err
	}
	if err := w.track(o, root, ".", b); err != nil {
		return nil, err
	}
	return w, w.readIgnored(repo, top)
}

// findTree finds the tree object at a path below root.
func findTree(o *objects, root plumbing.Hash, path []string) (plumbing.Hash, bool, error) {
	for _, name := range path {
		entries, err := o.tree(root)
		if err != nil {
			return plumbing.ZeroHash, false, err
		}
		i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name && e.Mode == filemode.Dir })
		if i < 0 {
			return plumbing.ZeroHash, false, nil
		}
		root = entries[i].Hash
	}
	return root, true, nil
}

// track lists the files of the commit below dir.
func (w *worktree) track(o *objects, tree plumbing.Hash, dir string, b *budget) error {
	if err := b.checkDepth(dir); err != nil {
		return err
	}
	entries, err := o.tree(tree)
	if err != nil {
		return err
	}
	if err := b.spendEntries(dir, len(entries)); err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		switch e.Mode {
		case filemode.Dir:
			w.within[name] = true
			if err := w.track(o, e.Hash, name, b); err != nil {
				return err
			}
		case filemode.Submodule: // a repository of its own
		default:
			w.tracked[name] = e.Hash
		}
	}
	return nil
}

// readIgnored reads the lists that lie above the directory.
func (w *worktree) readIgnored(repo *gogit.Repository, top string) error {
	if sto, ok := repo.Storer.(*filesystem.Storage); ok {
		f, err := sto.Filesystem().Open("info/exclude")
		if err == nil {
			err = errors.Join(w.addPatterns(f, nil), f.Close())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for i := range w.prefix {
		f, err := os.Open(filepath.Join(top, filepath.Join(w.prefix[:i]...), ".gitignore"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(w.addPatterns(f, w.prefix[:i]), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (w *worktree) addPatterns(r io.Reader, domain []string) error {
	s := bufio.NewScanner(io.LimitReader(r, maxIgnore))
	for s.Scan() {
		if line := s.Text(); strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			w.patterns = append(w.patterns, gitignore.ParsePattern(line, slices.Clone(domain)))
		}
	}
	return s.Err()
}

// enter gives the worktree as it is seen in dir, with dir's own .gitignore.
func (w *worktree) enter(root *os.Root, dir string, nodes []node) (*worktree, error) {
	if w == nil || !slices.ContainsFunc(nodes, func(n node) bool { return n.name == ".gitignore" && n.mode.IsRegular() }) {
		return w, nil
	}
	b, _, err := readRegular(root, path.Join(dir, ".gitignore"), maxIgnore)
	if err != nil {
		return nil, err
	}
	in := *w
	in.patterns = slices.Clip(in.patterns)
	return &in, in.addPatterns(bytes.NewReader(b), w.elements(dir))
}

// elements gives a path below the directory as seen from the top of the work
// tree.
func (w *worktree) elements(name string) []string {
	if name == "." {
		return slices.Clone(w.prefix)
	}
	return append(slices.Clone(w.prefix), strings.Split(name, "/")...)
}

// ignores reports whether git would pass over name: it matches a pattern and
// is not tracked all the same.
func (w *worktree) ignores(name string, isDir bool) bool {
	if w == nil || len(w.patterns) == 0 {
		return false
	}
	if _, tracked := w.tracked[name]; tracked || w.within[name] {
		return false
	}
	return gitignore.NewMatcher(w.patterns).Match(w.elements(name), isDir)
}
