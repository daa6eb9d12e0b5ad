package git

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/util"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/talos-agent/talos-agent/internal/worker"
)

// maxTree bounds one tree object; 10,000 entries of ordinary names are less
// than half of it.
const maxTree = 4 << 20

// maxCommit bounds one commit object.
const maxCommit = 1 << 20

// objects reads one object database. go-git's storage is not safe for
// concurrent use, so each read takes the lock; no read waits for the network.
type objects struct {
	mu  sync.Mutex
	sto objectStorer
	// shallow: a part of the history is missing, so that what is not there may be in it.
	shallow bool
	// omits is the size in bytes above which files may be missing, because the server was
	// asked to leave them out; 0: none may.
	omits int64
}

type objectStorer interface {
	storer.EncodedObjectStorer
	storer.ReferenceStorer
}

// bytes reads one whole object of the given type, refusing it before it is
// unpacked if it is larger than most.
func (o *objects) bytes(t plumbing.ObjectType, h plumbing.Hash, most int64) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj, err := o.object(t, h, most)
	if err != nil {
		return nil, err
	}
	r, err := obj.Reader()
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) != obj.Size() {
		return nil, fmt.Errorf("object %s: %d bytes instead of %d", h, len(b), obj.Size())
	}
	return b, nil
}

// object needs the lock.
func (o *objects) object(t plumbing.ObjectType, h plumbing.Hash, most int64) (plumbing.EncodedObject, error) {
	size, err := o.sto.EncodedObjectSize(h)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", h, err)
	}
	if size > most {
		return nil, newError(ErrLimit, "", nil, "%s %s has %d bytes, the limit is %d", t, h, size, most)
	}
	obj, err := o.sto.EncodedObject(t, h)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", h, err)
	}
	return obj, nil
}

// size gives an object's unpacked size without unpacking it.
func (o *objects) size(h plumbing.Hash) (int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sto.EncodedObjectSize(h)
}

func (o *objects) has(h plumbing.Hash) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.sto.HasEncodedObject(h)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return false, nil
	}
	return err == nil, err
}

// lacks reports whether a file is not here, and may be larger than so many bytes.
func (o *objects) lacks(err error, bytes int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return errors.Is(err, plumbing.ErrObjectNotFound) && o.omits != 0 && o.omits >= bytes
}

func (o *objects) commit(h plumbing.Hash) (*object.Commit, error) { return o.commitUpTo(h, maxCommit) }

// commitUpTo reads a commit of at most so many bytes.
func (o *objects) commitUpTo(h plumbing.Hash, most int64) (*object.Commit, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj, err := o.object(plumbing.CommitObject, h, most)
	if err != nil {
		return nil, err
	}
	return object.DecodeCommit(o.sto, obj)
}

func (o *objects) tree(h plumbing.Hash) ([]object.TreeEntry, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj, err := o.object(plumbing.TreeObject, h, maxTree)
	if err != nil {
		return nil, err
	}
	t, err := object.DecodeTree(o.sto, obj)
	if errors.Is(err, object.ErrMalformedTree) {
		return nil, newError(ErrUnsupported, "commit the directory again with git itself", err, "tree %s", h)
	}
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	return t.Entries, nil
}

// branch gives the commit a branch points to; zero if there is none.
func (o *objects) branch(name string) (plumbing.Hash, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ref, err := storer.ResolveReference(o.sto, plumbing.NewBranchReferenceName(name))
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return plumbing.ZeroHash, nil
	}
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return ref.Hash(), nil
}

// branches lists the branches there are, for an error that helps.
func (o *objects) branches() ([]string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	refs, err := o.sto.IterReferences()
	if err != nil {
		return nil, err
	}
	var names []string
	err = refs.ForEach(func(r *plumbing.Reference) error {
		if r.Name().IsBranch() {
			names = append(names, r.Name().Short())
		}
		return nil
	})
	return names, err
}

// descends reports whether ancestor is head or lies in its history. A commit
// that is not here at all is not in the history, for the whole history is; a
// parent that should be here and is not is an error.
func (o *objects) descends(ctx context.Context, head, ancestor plumbing.Hash) (bool, error) {
	queue, seen := &byTime{}, map[plumbing.Hash]bool{}
	add := func(h plumbing.Hash) error {
		if seen[h] {
			return nil
		}
		seen[h] = true
		// Whatever was fetched is history: nothing of it may keep what comes after it.
		c, err := o.commitUpTo(h, math.MaxInt64)
		if err != nil && o.shallow {
			return errShallow()
		}
		if err != nil {
			return fmt.Errorf("read history of %s: %w", head, err)
		}
		c.Message = "" // it may be long, and many wait
		heap.Push(queue, c)
		return nil
	}
	if err := add(head); err != nil {
		return false, err
	}
	if there, err := o.has(ancestor); err != nil || !there {
		if err == nil && o.shallow {
			err = errShallow()
		}
		return false, err
	}
	// Youngest first finds a recent ancestor soon; clocks may lie, so the walk
	// ends only with the history.
	for queue.Len() > 0 {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		c := heap.Pop(queue).(*object.Commit)
		if c.Hash == ancestor {
			return true, nil
		}
		for _, p := range c.ParentHashes {
			if err := add(p); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// errShallow is about a repository on this host: a server that has one is refused.
func errShallow() error {
	return newError(ErrUnsupported, "run `git fetch --unshallow` in it", nil, "the repository is a shallow clone: a part of its history is missing")
}

// byTime is a heap of commits, youngest first.
type byTime []*object.Commit

func (q byTime) Len() int           { return len(q) }
func (q byTime) Less(i, j int) bool { return q[i].Committer.When.After(q[j].Committer.When) }
func (q byTime) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byTime) Push(c any)        { *q = append(*q, c.(*object.Commit)) }
func (q *byTime) Pop() any {
	old := *q
	c := old[len(old)-1]
	*q = old[:len(old)-1]
	return c
}

// bare is an object database of our own, which packs can be added to.
type bare struct {
	objects
	fs  billy.Filesystem
	sto *filesystem.Storage
}

// newBare opens the bare repository in fs, and makes it one if it is empty.
func newBare(fs billy.Filesystem, branch string) (*bare, error) {
	sto := filesystem.NewStorage(fs, cache.NewObjectLRU(4*cache.MiByte))
	if err := initStorage(sto, branch); err != nil {
		return nil, err
	}
	b := &bare{objects: objects{sto: sto}, fs: fs, sto: sto}
	if text, err := util.ReadFile(fs, omitsFile); err == nil {
		if _, err := fmt.Sscan(string(text), &b.omits); err != nil {
			return nil, fmt.Errorf("read %s: %w", omitsFile, err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return b, nil
}

// omitsFile has, in a bare repository of ours, the size in bytes above which files may be
// missing from it.
const omitsFile = "talos-agent-omits"

// omit notes that files above a size are missing from now on.
func (b *bare) omit(size int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.omits != 0 && b.omits <= size {
		return nil
	}
	if err := util.WriteFile(b.fs, omitsFile, fmt.Appendln(nil, size), 0o600); err != nil {
		return err
	}
	b.omits = size
	return nil
}

// packs counts the packs, which pile up with each fetch.
func (b *bare) packs() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	packs, err := b.sto.ObjectPacks()
	return len(packs), err
}

// add imports a pack and makes its objects visible.
func (b *bare) add(ctx context.Context, on worker.Runner, pack io.Reader, l Limits) error {
	if err := importPack(ctx, on, b.fs, pack, l); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sto.Reindex()
	return nil
}

func (b *bare) setBranch(name string, h plumbing.Hash) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sto.SetReference(plumbing.NewHashReference(plumbing.NewBranchReferenceName(name), h))
}

// haves lists commits for the server to build upon: the tip of the branch and
// its first parents, as far back as a rewound branch is likely to go.
func (b *bare) haves(tip plumbing.Hash) ([]plumbing.Hash, error) {
	const most = 64
	var haves []plumbing.Hash
	for !tip.IsZero() && len(haves) < most {
		c, err := b.commit(tip)
		if err != nil {
			return nil, err
		}
		haves = append(haves, tip)
		tip = plumbing.ZeroHash
		if len(c.ParentHashes) > 0 {
			tip = c.ParentHashes[0]
		}
	}
	return haves, nil
}
