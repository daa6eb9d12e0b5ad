package gitserver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Repo is one repository of a Git server. Its methods are what somebody with
// a checkout would do, without one; commits are made and moved under a lock, so
// that a client never sees half of one.
type Repo struct {
	name  string
	url   string
	dir   string // bare repository on disk; empty: in memory
	world *world.World

	mu     sync.Mutex
	mem    storage.Storer                  // nil on disk
	pushed func(ref, before, after string) // nil: nobody is notified
	filter bool
}

// AllowFilter has the server leave large files out of packs for who asks for that, as
// forges do and git's own server does with uploadpack.allowFilter.
func (r *Repo) AllowFilter(allowed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.filter = allowed
}

// allowsFilter reports whether it does.
func (r *Repo) allowsFilter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.filter
}

// OnPush has f called whenever a branch was moved, by a push or by the methods
// here. It must not block, nor use the repository.
func (r *Repo) OnPush(f func(ref, before, after string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pushed = f
}

// notifyMoved reports a reference that was moved. r.mu is held.
func (r *Repo) notifyMoved(name plumbing.ReferenceName, before, after plumbing.Hash) {
	r.world.Report("git", "%s: %s is now %.12s", r.name, name.Short(), after.String())
	if r.pushed != nil {
		r.pushed(name.String(), before.String(), after.String())
	}
}

// openRepo opens a repository, or makes it.
func openRepo(w *world.World, name, url, dir string) (*Repo, error) {
	r := &Repo{name: name, url: url, dir: dir, world: w}
	if dir == "" {
		r.mem = memory.NewStorage()
	}
	s := r.openStorage()
	if _, err := git.Open(s, nil); err == nil {
		return r, nil
	}
	if _, err := git.Init(s, nil); err != nil {
		return nil, fmt.Errorf("make repository %s: %w", name, err)
	}
	head := plumbing.NewSymbolicReference(plumbing.HEAD, plumbing.Main)
	if err := s.SetReference(head); err != nil {
		return nil, fmt.Errorf("make repository %s: %w", name, err)
	}
	if dir != "" {
		// Real git takes a folder for a repository when these are there.
		for _, need := range []string{"objects", "refs"} {
			if err := os.MkdirAll(filepath.Join(dir, need), 0o755); err != nil {
				return nil, fmt.Errorf("make repository %s: %w", name, err)
			}
		}
	}
	return r, nil
}

// openStorage opens the repository's objects. On disk it is opened each time:
// real git may have written there meanwhile.
func (r *Repo) openStorage() storage.Storer {
	if r.mem != nil {
		return r.mem
	}
	return filesystem.NewStorage(osfs.New(r.dir), cache.NewObjectLRUDefault())
}

// URL is where clients clone from.
func (r *Repo) URL() string { return r.url }

// Dir is the bare repository's folder; empty for one in memory.
func (r *Repo) Dir() string { return r.dir }

// Edit runs f on the repository's storage while nobody else uses it: for what
// the other methods do not offer (tags, symlinks, submodules).
func (r *Repo) Edit(f func(storage.Storer) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f(r.openStorage())
}

// Commit puts a commit on a branch: files are laid over what the branch holds,
// and a nil content removes a file. It returns the commit's hash.
func (r *Repo) Commit(branch string, files map[string][]byte, message string) (string, error) {
	return r.makeCommit(branch, files, message, false)
}

// Rewrite forces a branch to a history of a single commit that descends from
// nothing the branch had, as somebody does who amends and force-pushes.
func (r *Repo) Rewrite(branch string, files map[string][]byte, message string) (string, error) {
	return r.makeCommit(branch, files, message, true)
}

// Reset forces a branch to a commit that is there already: a rewind, or back.
func (r *Repo) Reset(branch, hash string) error {
	return r.Edit(func(s storage.Storer) error {
		if _, err := object.GetCommit(s, plumbing.NewHash(hash)); err != nil {
			return fmt.Errorf("reset %s of %s to %s: %w", branch, r.name, hash, err)
		}
		return r.moveBranch(s, branch, plumbing.NewHash(hash))
	})
}

// Head returns the commit a branch points to.
func (r *Repo) Head(branch string) (string, error) {
	var hash string
	err := r.Edit(func(s storage.Storer) error {
		ref, err := s.Reference(plumbing.NewBranchReferenceName(branch))
		if err != nil {
			return fmt.Errorf("read branch %s of %s: %w", branch, r.name, err)
		}
		hash = ref.Hash().String()
		return nil
	})
	return hash, err
}

// Has reports whether the repository holds a commit, on a branch or not.
func (r *Repo) Has(hash string) bool {
	return plumbing.IsHash(hash) && r.Edit(func(s storage.Storer) error {
		_, err := object.GetCommit(s, plumbing.NewHash(hash))
		return err
	}) == nil
}

// moveBranch moves a branch and reports it. r.mu is held.
func (r *Repo) moveBranch(s storage.Storer, branch string, hash plumbing.Hash) error {
	name := plumbing.NewBranchReferenceName(branch)
	if err := name.Validate(); err != nil {
		return fmt.Errorf("branch %q of %s: %w", branch, r.name, err)
	}
	before := plumbing.ZeroHash
	if old, err := s.Reference(name); err == nil {
		before = old.Hash()
	}
	if err := s.SetReference(plumbing.NewHashReference(name, hash)); err != nil {
		return fmt.Errorf("move branch %s of %s: %w", branch, r.name, err)
	}
	r.notifyMoved(name, before, hash)
	return nil
}

// file is one entry of a whole tree.
type file struct {
	mode filemode.FileMode
	hash plumbing.Hash
}

// makeCommit makes a commit: of files over those of the branch's head, which is its
// parent, or of files alone, without a parent.
func (r *Repo) makeCommit(branch string, files map[string][]byte, message string, alone bool) (hash string, err error) {
	err = r.Edit(func(s storage.Storer) error {
		whole := map[string]file{}
		var parents []plumbing.Hash
		head, err := s.Reference(plumbing.NewBranchReferenceName(branch))
		switch {
		case err == nil && !alone:
			parents = []plumbing.Hash{head.Hash()}
			if whole, err = wholeTree(s, head.Hash()); err != nil {
				return fmt.Errorf("read %s: %w", branch, err)
			}
		case err != nil && !errors.Is(err, plumbing.ErrReferenceNotFound):
			return fmt.Errorf("read branch %s: %w", branch, err)
		}
		if err := layFiles(s, whole, files); err != nil {
			return err
		}
		tree, err := storeTree(s, whole)
		if err != nil {
			return err
		}
		// The time is the world's: in a bubble it repeats from run to run.
		who := object.Signature{Name: "Lab User", Email: "user@lab.example", When: time.Now().UTC()}
		h, err := storeObject(s, &object.Commit{Author: who, Committer: who, Message: message, TreeHash: tree, ParentHashes: parents})
		if err != nil {
			return err
		}
		hash = h.String()
		return r.moveBranch(s, branch, h)
	})
	if err != nil {
		return "", fmt.Errorf("commit to %s: %w", r.name, err)
	}
	return hash, nil
}

// layFiles stores files and enters them into a whole tree.
func layFiles(s storage.Storer, whole map[string]file, files map[string][]byte) error {
	for name, content := range files {
		if !fs.ValidPath(name) || name == "." || slices.Contains(strings.Split(name, "/"), ".git") {
			return fmt.Errorf("file %q: not a path git would take", name)
		}
		if content == nil {
			delete(whole, name)
			continue
		}
		h, err := storeObject(s, blob(content))
		if err != nil {
			return fmt.Errorf("file %s: %w", name, err)
		}
		mode := filemode.Regular
		if had, ok := whole[name]; ok && had.mode == filemode.Executable {
			mode = had.mode
		}
		whole[name] = file{mode: mode, hash: h}
	}
	return nil
}

// wholeTree lists everything a commit holds, by path.
func wholeTree(s storer.EncodedObjectStorer, commit plumbing.Hash) (map[string]file, error) {
	c, err := object.GetCommit(s, commit)
	if err != nil {
		return nil, err
	}
	tree, err := c.Tree()
	if err != nil {
		return nil, err
	}
	whole := map[string]file{}
	walk := object.NewTreeWalker(tree, true, nil)
	defer walk.Close()
	for {
		name, entry, err := walk.Next()
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return nil, err
		}
		if entry.Mode != filemode.Dir {
			whole[name] = file{mode: entry.Mode, hash: entry.Hash}
		}
	}
}

// storeTree stores the tree objects of a whole tree and returns the top one.
func storeTree(s storer.EncodedObjectStorer, files map[string]file) (plumbing.Hash, error) {
	tree := &object.Tree{}
	dirs := map[string]map[string]file{}
	for name, f := range files {
		dir, rest, deeper := strings.Cut(name, "/")
		if !deeper {
			tree.Entries = append(tree.Entries, object.TreeEntry{Name: name, Mode: f.mode, Hash: f.hash})
			continue
		}
		if dirs[dir] == nil {
			dirs[dir] = map[string]file{}
		}
		dirs[dir][rest] = f
	}
	for dir, inside := range dirs {
		if _, both := files[dir]; both {
			return plumbing.ZeroHash, fmt.Errorf("%s is a file and a folder", dir)
		}
		h, err := storeTree(s, inside)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		tree.Entries = append(tree.Entries, object.TreeEntry{Name: dir, Mode: filemode.Dir, Hash: h})
	}
	sort.Sort(object.TreeEntrySorter(tree.Entries))
	return storeObject(s, tree)
}

// blob is a file's content as an object.
type blob []byte

// Encode writes the content into an object.
func (b blob) Encode(o plumbing.EncodedObject) (err error) {
	o.SetType(plumbing.BlobObject)
	w, err := o.Writer()
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return errors.Join(err, w.Close())
}

// storeObject stores one object.
func storeObject(s storer.EncodedObjectStorer, e interface {
	Encode(plumbing.EncodedObject) error
}) (plumbing.Hash, error) {
	o := s.NewEncodedObject()
	if err := e.Encode(o); err != nil {
		return plumbing.ZeroHash, err
	}
	return s.SetEncodedObject(o)
}

// ReadFiles reads the regular files below a directory, by their slash-separated
// paths in it, as Commit takes them. A folder named .git is left out; anything
// that is neither file nor folder is an error.
func ReadFiles(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is not a regular file", name)
		}
		files[name], err = fs.ReadFile(root, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read files of %s: %w", dir, err)
	}
	return files, nil
}
