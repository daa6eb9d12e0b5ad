package git

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// maxPacks is how many fetches a store takes before it is made again: go-git
// has no garbage collection, and each fetch leaves a pack.
const maxPacks = 50

// Commit is one state of the repository.
type Commit struct {
	// Revision names the state: "main@sha1:<40 hex>" for the head of a branch,
	// "HEAD@sha1:<40 hex>" for a work tree, with "+dirty" when its files differ
	// from that commit, "dir@sha256:<64 hex>" for any other directory.
	Revision string
	// Hash is the commit's id in 40 hex digits; empty for a directory that is
	// no work tree.
	Hash string
	// Content changes exactly when a file changes: the id of the tree object, or a
	// digest of the directory. Unlike Revision it distinguishes two dirty work
	// trees.
	Content string
	// Time is the committer's time, in UTC; zero where there is no commit.
	Time time.Time
	// Subject is the first line of the message, for people, cut to 200
	// characters. It is text from outside.
	Subject string
}

// Store reads one branch of one repository. Its methods may be used from
// several goroutines; Head is one at a time, the others wait for it only while
// it swaps the store.
type Store struct {
	loc    location
	cfg    Config
	remote remote // nil for a repository on this host
	log    *slog.Logger

	turn    chan struct{} // held by Head
	mu      sync.Mutex
	objects *objects    // read from; of the last Head that succeeded
	store   *bare       // the same, when it is ours; under turn
	suspect atomic.Bool // an object that should be there could not be read
	renewed renewal     // under turn
	refused refusal     // under turn
}

// refusal is why a head could not be fetched, by limits that it would meet again: all of
// it would be sent once more each time.
type refusal struct {
	tip      plumbing.Hash
	at       time.Time
	filtered bool // the server was asked to leave out large files
	err      error
}

func (r refusal) holds(tip plumbing.Hash, filtered bool) bool {
	return r.tip == tip && r.filtered == filtered && time.Since(r.at) <= time.Hour
}

// renewal is when and for which head a store was last made again. A commit may
// be broken at its origin, and fetching all of it again each time would not fix
// it.
type renewal struct {
	tip    plumbing.Hash
	at     time.Time
	reason string
}

func (r renewal) mayHelp(tip plumbing.Hash) bool { return r.tip != tip || time.Since(r.at) > time.Hour }

// Open checks c and opens the store, without asking the server yet. Errors are
// FieldErrors, joined, or those of the file system. Close releases it.
func Open(c Config) (*Store, error) {
	c = c.withDefaults()
	loc, cred, err := c.parse()
	if err != nil {
		return nil, err
	}
	s := &Store{loc: loc, cfg: c, log: c.Log, turn: make(chan struct{}, 1)}
	switch loc.scheme {
	case "file":
		return s, nil
	case "ssh":
		s.remote, err = newSSHRemote(loc, c, cred)
	default:
		s.remote, err = newHTTPRemote(loc, c, cred)
	}
	if err != nil {
		return nil, err
	}
	if err := s.openStore(); err != nil {
		return nil, fmt.Errorf("open git store %s: %w", c.Dir, onDisk(c.Dir, err))
	}
	return s, nil
}

// Format implements fmt.Formatter, so that no verb prints a key or token.
func (s *Store) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "{%s of %s}", s.cfg.Branch, s.loc)
}

// Close drops idle connections. What was read before stays readable.
func (s *Store) Close() error {
	if s.remote != nil {
		s.remote.close()
	}
	return nil
}

// Head asks for the head of the branch and fetches what is missing of its history.
// When the branch has not moved that is one list of references and no fetch. A store
// that does not work is made again from the server once.
//
// The error is an *Error of kind ErrUnreachable, ErrAuth, ErrHostKey, ErrNotFound,
// ErrNoBranch, ErrUnsupported, ErrDisk or ErrLimit, or the context's, or names what
// the server sent that made no sense. With ErrLimit the commit has Revision and Hash,
// unless it is not even known.
func (s *Store) Head(ctx context.Context) (Commit, error) {
	c, err := s.head(ctx)
	if err != nil {
		return c, fmt.Errorf("read %s of %s: %w", s.cfg.Branch, s.loc, err)
	}
	return c, nil
}

func (s *Store) head(parent context.Context) (Commit, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-parent.Done():
		return Commit{}, parent.Err()
	}
	ctx, cancel := context.WithTimeout(parent, s.cfg.Limits.Timeout)
	defer cancel()
	var tip plumbing.Hash
	var err error
	if s.remote == nil {
		tip, err = s.localTip()
	} else {
		tip, err = s.remoteTip(ctx)
	}
	if err != nil {
		if parent.Err() == nil && ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
			return Commit{}, newError(ErrUnreachable, "", nil, "not done within %s", s.cfg.Limits.Timeout)
		}
		return s.nameRefused(tip, err), err
	}
	c, err := s.describe(tip)
	if err != nil {
		return s.nameRefused(tip, err), err
	}
	return c, nil
}

// nameRefused is what is known of a commit that is too large to be read.
func (s *Store) nameRefused(tip plumbing.Hash, err error) Commit {
	if tip.IsZero() || !errors.Is(err, ErrLimit) {
		return Commit{}
	}
	return Commit{Revision: s.cfg.Branch + "@sha1:" + tip.String(), Hash: tip.String()}
}

func (s *Store) describe(tip plumbing.Hash) (Commit, error) {
	c, err := s.current().commit(tip)
	if err != nil {
		return Commit{}, err
	}
	return Commit{
		Revision: s.cfg.Branch + "@sha1:" + tip.String(),
		Hash:     tip.String(),
		Content:  "sha1:" + c.TreeHash.String(),
		Time:     c.Committer.When.UTC(),
		Subject:  cleanRemark(c.Message),
	}, nil
}

func (s *Store) current() *objects {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects
}

// use makes reads go to o from now on.
func (s *Store) use(o *objects) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects = o
	s.suspect.Store(false)
}

// Tree gives the files of a commit that Head returned. Reading is lazy and
// stays possible after later Heads, as long as the branch was not rewritten.
// The file system refuses with an *fs.PathError around an *Error of kind
// ErrLimit or ErrNotRegular; the limits count over all of its reads.
func (s *Store) Tree(ctx context.Context, c Commit) (fs.FS, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o := s.current()
	if o == nil || !plumbing.IsHash(c.Hash) {
		return nil, fmt.Errorf("read tree of commit %q: not a commit that Head returned", c.Hash)
	}
	commit, err := o.commit(plumbing.NewHash(c.Hash))
	if err != nil {
		return nil, fmt.Errorf("read tree of commit %s: %w", c.Hash, err)
	}
	return newTree(s, commit.TreeHash, commit.Committer.When, s.cfg.Limits), nil
}

// Find returns a commit that an earlier Head brought, maybe that of another process
// with the same Config.Dir; "" is the newest of the branch. It is not looked for in the
// history of the branch.
func (s *Store) Find(hash string) (Commit, error) {
	if hash != "" && !plumbing.IsHash(hash) {
		return Commit{}, fmt.Errorf("find commit %q: not a commit", hash)
	}
	if s.current() == nil {
		if s.remote != nil {
			return Commit{}, fmt.Errorf("find commit %s: nothing was fetched yet", hash)
		}
		repo, err := openLocal(s.loc.path, false)
		if err != nil {
			return Commit{}, fmt.Errorf("find commit %s: %w", hash, err)
		}
		s.use(&objects{sto: repo.Storer})
	}
	tip, err := plumbing.NewHash(hash), error(nil)
	if hash == "" {
		tip, err = s.current().branch(s.cfg.Branch)
	}
	if err != nil {
		return Commit{}, fmt.Errorf("find the newest commit: %w", err)
	}
	c, err := s.describe(tip)
	if err != nil {
		return Commit{}, fmt.Errorf("find commit %s: %w", tip, err)
	}
	return c, nil
}

// Descends reports whether the commit ancestor is head or one of its
// ancestors. Head must be a commit that Head returned; an ancestor that is
// nowhere in the history of the branch gives false. An incomplete history
// gives an error, never false.
func (s *Store) Descends(ctx context.Context, head, ancestor string) (bool, error) {
	o := s.current()
	if o == nil || !plumbing.IsHash(head) || !plumbing.IsHash(ancestor) {
		return false, fmt.Errorf("compare commits %q and %q: not commits that Head returned", head, ancestor)
	}
	ok, err := o.descends(ctx, plumbing.NewHash(head), plumbing.NewHash(ancestor))
	if err != nil {
		return false, fmt.Errorf("compare commits %s and %s: %w", head, ancestor, err)
	}
	return ok, nil
}

// localTip opens the repository where it lies. It is opened each time: other
// programs write to it, and go-git remembers which packs there were.
func (s *Store) localTip() (plumbing.Hash, error) {
	repo, err := openLocal(s.loc.path, false)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	o := &objects{sto: repo.Storer}
	tip, err := o.branch(s.cfg.Branch)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if tip.IsZero() {
		names, err := o.branches()
		if err != nil {
			return plumbing.ZeroHash, err
		}
		return plumbing.ZeroHash, s.noBranch(names)
	}
	if cut, err := repo.Storer.Shallow(); err == nil {
		o.shallow = len(cut) > 0
	}
	s.use(o)
	return tip, nil
}

// openLocal opens the repository at or, with up, above a path.
func openLocal(path string, up bool) (*gogit.Repository, error) {
	repo, err := gogit.PlainOpenWithOptions(path, &gogit.PlainOpenOptions{DetectDotGit: up, EnableDotGitCommonDir: true})
	switch {
	case err == nil:
		return repo, nil
	case errors.Is(err, gogit.ErrRepositoryNotExists):
		return nil, newError(ErrNotFound, "", nil, "there is no git repository at %s", path)
	case errors.Is(err, gogit.ErrUnknownExtension), errors.Is(err, gogit.ErrUnsupportedRepositoryFormatVersion), errors.Is(err, gogit.ErrUnsupportedExtensionRepositoryFormatVersion):
		return nil, newError(ErrUnsupported, "use a repository made with the default object format, SHA-1, and the files backend for references", err, "repository format")
	case errors.Is(err, fs.ErrPermission):
		return nil, newError(ErrAuth, "let the agent's user read it", err, "open repository")
	}
	return nil, err
}

func (s *Store) noBranch(names []string) error {
	if len(names) == 0 {
		return newError(ErrEmpty, "push a first commit to "+s.cfg.Branch, nil, "the repository is empty")
	}
	const most = 5
	slices.Sort(names)
	hint := "set branch to one of: " + strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		hint += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return newError(ErrNoBranch, hint, nil, "there is no branch %s", s.cfg.Branch)
}

// remoteTip asks the server, and fetches if the branch has moved. With ErrLimit it returns
// the tip that cannot be fetched.
func (s *Store) remoteTip(ctx context.Context) (plumbing.Hash, error) {
	a, err := s.ask(ctx)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	defer func() { a.sess.close() }()
	if s.refused.holds(a.tip, a.filters()) {
		return a.tip, s.refused.err
	}
	err = s.fetchTip(ctx, &a)
	if errors.Is(err, ErrLimit) {
		if !a.filters() {
			err = fault.WithHint(err, "have the server leave large files out: in the repository there, `git config uploadpack.allowFilter true`; or "+tooBig)
		}
		s.refused = refusal{a.tip, time.Now(), a.filters(), err}
	}
	return a.tip, err
}

// fetchTip fetches the tip that the server has if it is not here. Where it asks the server
// again, the new answer takes the place of the one before.
func (s *Store) fetchTip(ctx context.Context, a *answer) error {
	have, packs, err := s.state()
	var reason string
	switch {
	case err != nil:
		reason = err.Error()
	case s.suspect.Load() && s.renewed.mayHelp(a.tip):
		reason = "an object could not be read"
	case have == a.tip:
		return nil
	case packs >= maxPacks:
		reason = fmt.Sprintf("it holds %d packs", packs)
	default:
		err := s.fetch(ctx, *a, have, s.store)
		if err == nil || isKnown(err) || packs == 0 {
			return err
		}
		reason = err.Error()
		next, err := s.ask(ctx)
		if err != nil {
			return err
		}
		a.sess.close()
		*a = next
	}
	before := s.renewed
	if err := s.renew(ctx, *a, reason); err != nil {
		return err
	}
	if before.reason != reason || before.mayHelp(a.tip) {
		s.log.Info("the copy of the repository in the cache was re-created", logging.Detail, reason)
	}
	return nil
}

// answer is what a server has, with the session in which it can be asked for it.
type answer struct {
	sess session
	refs *packp.AdvRefs
	tip  plumbing.Hash // of the branch
}

// filters reports whether the server leaves large files out for who asks for that.
func (a answer) filters() bool { return a.refs.Capabilities.Supports(capability.Filter) }

// ask opens a session and finds the branch in the list of references. The
// session must be closed when there is no error.
func (s *Store) ask(ctx context.Context) (answer, error) {
	sess, err := s.remote.open(ctx)
	if err != nil {
		return answer{}, err
	}
	refs, err := sess.refs(ctx)
	if err != nil {
		sess.close()
		return answer{}, err
	}
	tip, ok := refs.References[plumbing.NewBranchReferenceName(s.cfg.Branch).String()]
	if !ok {
		sess.close()
		var names []string
		for name := range refs.References {
			if short, ok := strings.CutPrefix(name, "refs/heads/"); ok {
				names = append(names, cleanRemark(short))
			}
		}
		return answer{}, s.noBranch(names)
	}
	return answer{sess, refs, tip}, nil
}

// state gives the commit the store has the history of, and counts its packs.
func (s *Store) state() (plumbing.Hash, int, error) {
	if s.cfg.Dir != "" {
		if _, err := os.Lstat(filepath.Join(s.cfg.Dir, storeDir, "HEAD")); err != nil {
			return plumbing.ZeroHash, 0, err // deleted meanwhile: what is in memory of it is not to be built upon
		}
	}
	packs, err := s.store.packs()
	if err != nil {
		return plumbing.ZeroHash, 0, err
	}
	have, err := s.store.branch(s.cfg.Branch)
	if err == nil && !have.IsZero() {
		_, err = s.store.commit(have)
	}
	return have, packs, err
}

// fetch gets what is missing between have and the tip into b.
func (s *Store) fetch(ctx context.Context, a answer, have plumbing.Hash, b *bare) (err error) {
	defer func() { err = onDisk(s.cfg.Dir, err) }()
	haves, err := b.haves(have)
	if err != nil {
		return err
	}
	if !have.IsZero() {
		// A branch that went back to an old commit needs nothing new.
		if there, err := b.has(a.tip); err != nil {
			return err
		} else if there {
			return b.setBranch(s.cfg.Branch, a.tip)
		}
	}
	a.refs.Capabilities.Delete(capability.ThinPack) // go-git resolves a pack by itself
	req := packp.NewUploadPackRequestFromCapabilities(a.refs.Capabilities)
	if a.refs.Capabilities.Supports(capability.NoProgress) {
		if err := req.Capabilities.Set(capability.NoProgress); err != nil {
			return err
		}
	}
	if a.filters() {
		// Large files are not read, and one that was pushed once would stay in every pack.
		if err := errors.Join(b.omit(s.cfg.Limits.Blob), req.Capabilities.Set(capability.Filter)); err != nil {
			return err
		}
		req.Filter = packp.FilterBlobLimit(uint64(s.cfg.Limits.Blob)+1, packp.BlobLimitPrefixNone)
	}
	req.Wants, req.Haves = []plumbing.Hash{a.tip}, haves
	pack, err := a.sess.pack(ctx, req)
	if err != nil {
		return err
	}
	if err := errors.Join(b.add(ctx, s.cfg.Worker, pack, s.cfg.Limits), pack.Close()); err != nil {
		return err
	}
	if _, err := b.commit(a.tip); err != nil {
		return err
	}
	return b.setBranch(s.cfg.Branch, a.tip)
}
