package sources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// Store gives the files of a repository at its newest state. *git.Store and
// *git.Directory are stores.
type Store interface {
	// Head asks for the newest state. It costs next to nothing when nothing is
	// new.
	Head(ctx context.Context) (git.Commit, error)
	// Tree gives the files of a state that Head returned.
	Tree(ctx context.Context, c git.Commit) (fs.FS, error)
	// Descends reports whether head has ancestor in its history.
	Descends(ctx context.Context, head, ancestor string) (bool, error)
	// Find returns a commit from what is kept of the repository on this host, "" the
	// newest; the server is not asked. An error means that it is not there.
	Find(hash string) (git.Commit, error)
}

// Config holds where the inventory is and what the host adds to it.
type Config struct {
	// Store is asked by Fetch and Descends. A Repository that only reads trees
	// it is given needs none.
	Store Store
	// Path is the folder that holds the clusters' folders; "" means
	// "inventory".
	Path string
	// Clusters are the folders of the clusters this host owns; empty means all.
	Clusters []string
	// Decrypt returns the plain text of an encrypted file: secrets.Decrypt with
	// the host's identities. Its errors show no part of it, and carry a Hint for
	// people; secrets.ErrUnavailable is not about the file, which is tried again. Nil means that there is no key: snapshots come without secrets and
	// have a note.
	Decrypt func(ctx context.Context, name string, file []byte) ([]byte, error)
	// Inventory holds the host's own part of every snapshot; Secrets and
	// Revision in it are ignored.
	Inventory inventory.Options
	// Inspect reads the clusters in some folders where it does no harm if that takes too
	// much, and returns by folder what is wrong with those that are not to be read here, and
	// nothing for those that are valid there, as far as that can be known without secrets. It
	// is asked before a cluster of a tree is read. An error is not about what is in the
	// folders. Nil: there is no such place.
	Inspect func(ctx context.Context, files fs.FS, folders []string) (map[string]cluster.Problems, error)
}

// Tree is a repository at one state.
type Tree struct {
	Revision cluster.Revision
	// Content identifies the files: trees of equal content are read once. Empty
	// means unknown, and the tree is read again each time.
	Content string
	// Subject is the first line of the commit's message, "" where there is none.
	Subject string
	FS      fs.FS
}

// Repository reads the clusters of a repository. Its methods may be used by
// several goroutines.
type Repository struct {
	c Config
	// lock guards state. It is a channel so that waiting for it ends with the
	// context.
	lock  chan struct{}
	state state
}

// state is what is known of the tree that was read last.
type state struct {
	content string
	folders []string
	found   cluster.Problems
	loaded  map[string]*loaded          // by folder
	clashes map[string]cluster.Problems // of valid clusters with each other, by folder; nil: not looked for yet
	budget  *inventory.Budget
	// used is what each cluster asked of the host when it was last valid.
	used map[string]cluster.Usage

	reopens time.Time // when secrets are tried again that could not be opened

	inspected map[string]cluster.Problems // by folder in the repository, what Inspect found; nil: not asked

	unread   error     // why the tree could not be inspected
	inspects time.Time // when it is inspected again
}

// loaded is one cluster of a tree. Its snapshot has no revision, because trees
// of several revisions can have the same content.
type loaded struct {
	snap     cluster.Snapshot
	problems cluster.Problems
	// unopened is why its secrets could not be opened, for a reason outside of the tree. The
	// rest is known without them, for those that share something with it.
	unopened error
}

// New checks the config and makes a Repository.
func New(c Config) (*Repository, error) {
	if c.Path == "" {
		c.Path = "inventory"
	}
	c.Path = path.Clean(c.Path)
	if !fs.ValidPath(c.Path) {
		return nil, fmt.Errorf("path %q: is not a folder of the repository", c.Path)
	}
	for _, name := range c.Clusters {
		if !fs.ValidPath(name) || strings.Contains(name, "/") || name == "." {
			return nil, fmt.Errorf("clusters: %q is not the name of a folder", name)
		}
	}
	return &Repository{c: c, lock: make(chan struct{}, 1), state: state{used: map[string]cluster.Usage{}}}, nil
}

// Fetch asks the store for the newest tree. An error means that it could not be
// asked; the files themselves are read by Snapshot. A revision that is too large to be
// fetched is a tree that cannot be read: it is wrong as an invalid one is, and reported like it.
func (r *Repository) Fetch(ctx context.Context) (Tree, error) {
	head, err := r.c.Store.Head(ctx)
	if errors.Is(err, git.ErrLimit) && head.Revision != "" {
		return Tree{Revision: cluster.Revision(head.Revision), FS: unreadable{err}}, nil
	}
	if err != nil {
		return Tree{}, fmt.Errorf("look for a new revision: %w", err)
	}
	files, err := r.c.Store.Tree(ctx, head)
	if err != nil {
		return Tree{}, fmt.Errorf("read revision %s: %w", head.Revision, err)
	}
	return Tree{Revision: cluster.Revision(head.Revision), Content: head.Content, Subject: head.Subject, FS: files}, nil
}

// unreadable is a file system of which nothing can be read.
type unreadable struct{ why error }

// Open implements fs.FS.
func (u unreadable) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: u.why}
}

// Descends reports whether head has ancestor in its history. An ancestor that
// was never a commit is in no branch's history.
func (r *Repository) Descends(ctx context.Context, head, ancestor cluster.Revision) (bool, error) {
	ok, err := r.c.Store.Descends(ctx, head.Commit(), ancestor.Commit())
	if err != nil && ancestor.Commit() == "" {
		return false, nil
	}
	return ok, err
}

// Recall returns the tree of a revision that was fetched before, maybe by an agent
// that ended since; "" is the newest. The store's server is not asked.
func (r *Repository) Recall(ctx context.Context, revision cluster.Revision) (Tree, error) {
	if revision != "" && revision.Commit() == "" {
		return Tree{}, fmt.Errorf("recall revision %s: it is not a commit", revision.Short())
	}
	c, err := r.c.Store.Find(revision.Commit())
	if err != nil {
		return Tree{}, fmt.Errorf("recall revision %s: %w", revision.Short(), err)
	}
	files, err := r.c.Store.Tree(ctx, c)
	if err != nil {
		return Tree{}, fmt.Errorf("recall revision %s: %w", revision.Short(), err)
	}
	return Tree{Revision: cluster.Revision(cmp.Or(string(revision), c.Revision)), Content: c.Content, Subject: c.Subject, FS: files}, nil
}

// Clusters lists the folders of the clusters that this host owns in a tree.
// A problem with severity error among the problems means that the list is not
// whole.
func (r *Repository) Clusters(ctx context.Context, t Tree) ([]string, cluster.Problems, error) {
	if err := r.acquire(ctx); err != nil {
		return nil, nil, err
	}
	defer r.release()
	s, err := r.at(t)
	if err != nil {
		return nil, nil, err
	}
	return slices.Clone(s.folders), slices.Clone(s.found), nil
}

// Folder is where the files of a cluster lie.
func (r *Repository) Folder(name string) string { return path.Join(r.c.Path, name) }

// IsRemoved reports whether a tree shows that nothing of a cluster is in it. What cannot
// be read, a folder behind a symbolic link among it, is not known to be removed.
func (r *Repository) IsRemoved(t Tree, name string) bool {
	for _, file := range []string{inventory.ClusterFile, inventory.NodesFile} {
		if _, err := fs.Stat(t.FS, path.Join(r.Folder(name), file)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// Snapshot reads the cluster in the folder of that name from a tree. With an
// error among the problems the snapshot is empty except for its revision. An
// error means that the tree could not be read, which is not about the
// inventory. Snapshots of one content share memory: they are not to be changed.
//
// A cluster is checked against the others of this host, too: what it shares
// with one of them is a problem of both.
func (r *Repository) Snapshot(ctx context.Context, t Tree, name string) (cluster.Snapshot, cluster.Problems, error) {
	if err := r.acquire(ctx); err != nil {
		return cluster.Snapshot{}, nil, err
	}
	defer r.release()
	s, err := r.at(t)
	if err != nil {
		return cluster.Snapshot{}, nil, err
	}
	if !slices.Contains(s.folders, name) {
		return cluster.Snapshot{Revision: t.Revision}, r.noCluster(name, s), nil
	}
	if err := r.loadAll(ctx, t, s); err != nil {
		return cluster.Snapshot{}, nil, err
	}
	mine := s.loaded[name]
	if mine.unopened != nil {
		return cluster.Snapshot{}, nil, mine.unopened
	}
	snap, problems := mine.snap, slices.Clone(mine.problems)
	snap.Revision = t.Revision
	if problems.HasErrors() {
		return snap, problems, nil
	}
	problems = append(problems, s.clashes[name]...)
	for _, other := range s.folders {
		if other == name {
			continue
		}
		usage, known := s.used[other]
		if s.loaded[other].problems.HasErrors() && !known {
			problems = append(problems, snap.At(cluster.Warning, "",
				fmt.Sprintf("the cluster %s is invalid: what it uses of the host does not count against the limits", other), "correct it too"))
		}
		if known {
			snap.Siblings = append(snap.Siblings, usage)
		}
	}
	problems.Sort()
	if problems.HasErrors() {
		return cluster.Snapshot{Revision: t.Revision}, problems, nil
	}
	snap.Warnings = problems
	return snap, problems, nil
}

// Before reads the cluster in the folder of that name at a revision that Fetch returned
// once, by itself: the host's other clusters are not looked at, and what is known of
// the newest tree stays.
func (r *Repository) Before(ctx context.Context, revision cluster.Revision, name string) (cluster.Snapshot, cluster.Problems, error) {
	if revision.Commit() == "" {
		return cluster.Snapshot{}, nil, fmt.Errorf("read revision %s: only commits can be read again", revision.Short())
	}
	files, err := r.c.Store.Tree(ctx, git.Commit{Revision: string(revision), Hash: revision.Commit()})
	if err != nil {
		return cluster.Snapshot{}, nil, fmt.Errorf("read revision %s: %w", revision.Short(), err)
	}
	s := &state{loaded: map[string]*loaded{}, used: map[string]cluster.Usage{}, budget: inventory.NewBudget()}
	t := Tree{Revision: revision, FS: files}
	if err := r.inspect(ctx, t, s, name); err != nil {
		return cluster.Snapshot{}, nil, err
	}
	l, err := r.load(ctx, t, s, name)
	if err != nil {
		return cluster.Snapshot{}, nil, err
	}
	if l.unopened != nil {
		return cluster.Snapshot{}, nil, l.unopened
	}
	snap := l.snap
	snap.Revision = revision
	return snap, l.problems, nil
}

func (r *Repository) acquire(ctx context.Context) error {
	select {
	case r.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *Repository) release() { <-r.lock }

// at returns the state for a tree: the remembered one when its files are the
// same, else a new one.
func (r *Repository) at(t Tree) (*state, error) {
	if t.Content != "" && t.Content == r.state.content {
		return &r.state, nil
	}
	fresh := state{content: t.Content, loaded: map[string]*loaded{}, used: maps.Clone(r.state.used), budget: inventory.NewBudget()}
	files := &watched{FS: t.FS}
	fresh.folders, fresh.found = inventory.Clusters(files, r.c.Path)
	if files.failed != nil {
		return nil, fmt.Errorf("list the clusters of %s: %w", t.Revision.Short(), files.failed)
	}
	r.choose(&fresh)
	if len(fresh.folders) > 0 {
		maps.DeleteFunc(fresh.used, func(name string, _ cluster.Usage) bool { return !slices.Contains(fresh.folders, name) })
	}
	if t.Content == "" {
		return &fresh, nil
	}
	r.state = fresh
	return &r.state, nil
}

// maxClusters bounds the clusters of one host. Each is compared with all others
// and managed by itself: a push of a thousand small folders would keep the host
// busy with nothing else.
const maxClusters = 250

// choose keeps the clusters that this host owns.
func (r *Repository) choose(s *state) {
	r.own(s)
	if n := len(s.folders); n > maxClusters {
		s.folders = nil
		s.found = append(s.found, cluster.Problem{Severity: cluster.Error, File: r.c.Path,
			Message: fmt.Sprintf("holds %d clusters for this host, and it looks after %d at most", n, maxClusters),
			Hint:    "name those of this host under `clusters` in its config"})
	}
}

func (r *Repository) own(s *state) {
	if len(r.c.Clusters) == 0 || len(s.folders) == 0 {
		return
	}
	for _, name := range r.c.Clusters {
		if !slices.Contains(s.folders, name) {
			s.found = append(s.found, r.noCluster(name, s)...)
		}
	}
	s.folders = slices.DeleteFunc(s.folders, func(name string) bool { return !slices.Contains(r.c.Clusters, name) })
}

// maxNamed is how many clusters a hint names: every cluster that left the repository has one.
const maxNamed = 10

// noCluster is the problem of a cluster that is not there.
func (r *Repository) noCluster(name string, s *state) cluster.Problems {
	folder := r.Folder(name)
	if i := slices.IndexFunc(s.found, func(p cluster.Problem) bool { return p.File == folder }); i >= 0 {
		inItsPlace := s.found[i]
		inItsPlace.Severity = cluster.Error
		return cluster.Problems{inItsPlace}
	}
	if wrong := inventory.CheckFolder(r.c.Path, name); slices.ContainsFunc(wrong, func(p cluster.Problem) bool { return slices.Contains(s.found, p) }) {
		return wrong // it is there
	}
	if len(s.folders) == 0 && s.found.HasErrors() {
		return s.found // which has why there is none at all
	}
	hint := "known are: " + strings.Join(s.folders[:min(len(s.folders), maxNamed)], ", ")
	if more := len(s.folders) - maxNamed; more > 0 {
		hint += fmt.Sprintf(" and %d more", more)
	}
	if slices.Contains(r.c.Clusters, name) {
		hint = fmt.Sprintf("the host's config lists %s under `clusters`: add that folder, or change the list; %s", name, hint)
	}
	return cluster.Problems{{Severity: cluster.Error, File: folder, Message: "there is no such cluster", Hint: hint}}
}

// loadAll reads the clusters of a tree in the order of their names, in which they take of
// what the host has for all, and looks for what several of them have.
//
// A cluster whose secrets cannot be opened now keeps no other one from being read. When they
// can, all are read again: what each takes of the host is counted in their order.
func (r *Repository) loadAll(ctx context.Context, t Tree, s *state) error {
	if s.clashes != nil {
		if !r.reopen(ctx, t, s) {
			return ctx.Err()
		}
		s.loaded, s.budget, s.clashes = map[string]*loaded{}, inventory.NewBudget(), nil
	}
	if err := r.inspect(ctx, t, s, s.folders...); err != nil {
		return err
	}
	var names []string
	var snaps []cluster.Snapshot
	began := time.Now()
	for _, name := range s.folders {
		l, err := r.load(ctx, t, s, name)
		if err != nil {
			return err
		}
		if !l.problems.HasErrors() {
			names, snaps = append(names, name), append(snaps, l.snap)
		}
	}
	s.leave(began)
	s.clashes = map[string]cluster.Problems{}
	for i, problems := range inventory.CheckTogether(snaps) {
		s.clashes[names[i]] = problems
	}
	return nil
}

// load reads one cluster of a tree, once per content.
func (r *Repository) load(ctx context.Context, t Tree, s *state, name string) (*loaded, error) {
	if l := s.loaded[name]; l != nil {
		return l, nil
	}
	dir := r.Folder(name)
	files := &watched{FS: t.FS}
	opts := r.c.Inventory
	opts.Revision, opts.Budget = "", s.budget
	var problems cluster.Problems
	var err, unopened error
	if opts.Secrets, problems, err = r.secrets(ctx, files, dir, name, s.budget); errors.Is(err, secrets.ErrUnavailable) {
		unopened = err
	} else if err != nil {
		return nil, err
	}
	snap, found := inventory.Load(files, dir, opts)
	if files.failed != nil {
		return nil, fmt.Errorf("read cluster %s of %s: %w", name, t.Revision.Short(), files.failed)
	}
	problems = append(problems, found...)
	if !problems.HasErrors() && snap.Spec.Name != name {
		problems = append(problems, snap.At(cluster.Error, "cluster_name", fmt.Sprintf("the cluster %s lies in a folder named %s", snap.Spec.Name, name),
			fmt.Sprintf("write `cluster_name: %s` again, where the cluster is there already; or rename the folder to %s: another cluster_name is another cluster", name, snap.Spec.Name)))
	}
	if !problems.HasErrors() {
		problems = append(problems, s.checkInspected(dir)...)
	}
	problems.Sort()
	l := &loaded{snap: snap, problems: problems, unopened: unopened}
	if problems.HasErrors() {
		l.snap = cluster.Snapshot{}
	} else {
		s.used[name] = snap.Spec.Usage()
	}
	s.loaded[name] = l
	return l, nil
}
