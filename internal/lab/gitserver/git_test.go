package gitserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/client"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// useGoGit makes go-git's clients, which are one map for the whole process, go
// through the bench's network. Tests with it do not run side by side.
func useGoGit(b *servicetest.Bench) {
	had := maps.Clone(client.Protocols)
	b.Cleanup(func() { client.Protocols = had })
	for _, scheme := range []string{"http", "https"} {
		client.InstallProtocol(scheme, githttp.NewClient(b.Client))
	}
}

func must[T any](b *servicetest.Bench) func(T, error) T {
	return func(v T, err error) T {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
}

func content(pairs ...string) map[string][]byte {
	files := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = []byte(pairs[i+1])
	}
	return files
}

// filesAt lists a commit's files as "path=content".
func filesAt(b *servicetest.Bench, s storage.Storer, hash string) []string {
	b.Helper()
	c := must[*object.Commit](b)(object.GetCommit(s, plumbing.NewHash(hash)))
	var all []string
	err := must[*object.FileIter](b)(c.Files()).ForEach(func(f *object.File) error {
		text, err := f.Contents()
		all = append(all, f.Name+"="+text)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// newGit opens a git server in memory with one repository.
func newGit(b *servicetest.Bench, token string) (*Server, *Repo) {
	b.Helper()
	g := servicetest.Opened[*Server](b)(New(Config{Service: b.Config("git"), Token: token}))
	return g, must[*Repo](b)(g.Repository("org/infra"))
}

func TestRepoCommits(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		_, r := newGit(b, "")
		at := func(hash string) (all []string) {
			b.Helper()
			if err := r.Edit(func(s storage.Storer) error { all = filesAt(b, s, hash); return nil }); err != nil {
				b.Fatal(err)
			}
			return all
		}
		check := func(hash string, want ...string) {
			b.Helper()
			if got := at(hash); !slices.Equal(got, want) {
				b.Errorf("%s holds %q, want %q", hash, got, want)
			}
			if head := must[string](b)(r.Head("main")); head != hash {
				b.Errorf("main is at %s, not %s", head, hash)
			}
		}
		if _, err := r.Head("main"); err == nil {
			b.Error("an empty repository has a head")
		}
		one := must[string](b)(r.Commit("main", content("a", "1", "dir/b", "2", "dir.txt", "3"), "one"))
		check(one, "a=1", "dir.txt=3", "dir/b=2")
		two := must[string](b)(r.Commit("main", map[string][]byte{"a": nil, "dir/c": []byte("4"), "empty": {}}, "two"))
		check(two, "dir.txt=3", "dir/b=2", "dir/c=4", "empty=")
		three := must[string](b)(r.Replace("main", content("only", "5"), "three"))
		check(three, "only=5")
		if err := r.Reset("main", one); err != nil {
			b.Fatal(err)
		}
		check(one, "a=1", "dir.txt=3", "dir/b=2")
		fresh := must[string](b)(r.Rewrite("main", content("new", "6"), "rewritten"))
		check(fresh, "new=6")
		for _, known := range []string{one, two, three, fresh} {
			if !r.Has(known) {
				b.Errorf("%s is gone", known)
			}
		}
		for _, unknown := range []string{"", "main", strings.Repeat("0", 40)} {
			if r.Has(unknown) {
				b.Errorf("%q is there", unknown)
			}
		}
		for name, bad := range map[string]error{
			"reset to nothing": r.Reset("main", strings.Repeat("1", 40)),
			"bad branch":       second(r.Commit("a..b", content("a", "1"), "x")),
			"bad path":         second(r.Commit("main", content("../a", "1"), "x")),
			"git folder":       second(r.Commit("main", content("x/.git/config", "1"), "x")),
			"file and folder":  second(r.Commit("main", content("a", "1", "a/b", "1"), "x")),
		} {
			if bad == nil {
				b.Errorf("%s went through", name)
			}
		}
		check(fresh, "new=6")
	})
}

func second[T any](_ T, err error) error { return err }

func TestRepositoryNames(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		g, r := newGit(b, "")
		if again := must[*Repo](b)(g.Repository("org/infra")); again != r {
			b.Error("the same name is another repository")
		}
		for _, name := range []string{"", ".", "../x", "/x", "a//b"} {
			if _, err := g.Repository(name); err == nil {
				b.Errorf("%q was taken for a name", name)
			}
		}
	})
}

// One client follows a branch through everything that happens to branches.
func TestGoGitFollowsABranch(t *testing.T) {
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		useGoGit(b)
		_, r := newGit(b, "")
		store := memory.NewStorage()
		local := must[*git.Repository](b)(git.Init(store, nil))
		remote := must[*git.Remote](b)(local.CreateRemoteAnonymous(&config.RemoteConfig{Name: "anonymous", URLs: []string{r.URL()}}))

		if _, err := remote.ListContext(b.Context(), &git.ListOptions{}); !errors.Is(err, transport.ErrEmptyRemoteRepository) {
			b.Errorf("an empty repository lists as %v", err)
		}
		follow := func(want string, files ...string) {
			b.Helper()
			refs := must[[]*plumbing.Reference](b)(remote.ListContext(b.Context(), &git.ListOptions{}))
			if !slices.ContainsFunc(refs, func(ref *plumbing.Reference) bool {
				return ref.Name() == plumbing.Main && ref.Hash().String() == want
			}) || !slices.ContainsFunc(refs, func(ref *plumbing.Reference) bool {
				return ref.Name() == plumbing.HEAD && ref.Target() == plumbing.Main
			}) {
				b.Errorf("references are %v, want main and HEAD at %s", refs, want)
			}
			err := remote.FetchContext(b.Context(), &git.FetchOptions{
				RefSpecs: []config.RefSpec{"+refs/heads/main:refs/remotes/origin/main"}, Tags: git.NoTags, Force: true,
			})
			if err != nil {
				b.Fatalf("fetch of %s: %v", want, err)
			}
			if ref := must[*plumbing.Reference](b)(store.Reference("refs/remotes/origin/main")); ref.Hash().String() != want {
				b.Errorf("fetched %s, want %s", ref.Hash(), want)
			}
			if got := filesAt(b, store, want); !slices.Equal(got, files) {
				b.Errorf("%s holds %q, want %q", want, got, files)
			}
		}
		one := must[string](b)(r.Commit("main", content("inventory/dev/cluster.yaml", "one"), "one"))
		follow(one, "inventory/dev/cluster.yaml=one")
		err := remote.FetchContext(b.Context(), &git.FetchOptions{RefSpecs: []config.RefSpec{"+refs/heads/main:refs/remotes/origin/main"}})
		if !errors.Is(err, git.NoErrAlreadyUpToDate) {
			b.Errorf("nothing new: %v", err)
		}
		var last string
		for i := range 40 {
			last = must[string](b)(r.Commit("main", content("n", fmt.Sprint(i)), "more"))
		}
		follow(last, "inventory/dev/cluster.yaml=one", "n=39")
		objects := len(store.Objects)
		next := must[string](b)(r.Commit("main", content("n", "40"), "one more"))
		follow(next, "inventory/dev/cluster.yaml=one", "n=40")
		if grown := len(store.Objects) - objects; grown != 3 {
			b.Errorf("a commit of one file brought %d objects", grown)
		}
		if err := r.Reset("main", one); err != nil {
			b.Fatal(err)
		}
		follow(one, "inventory/dev/cluster.yaml=one")
		fresh := must[string](b)(r.Rewrite("main", content("other", "history"), "rewritten"))
		follow(fresh, "other=history")

		// A commit that no branch holds any more can still be asked for.
		again := memory.NewStorage()
		elsewhere := must[*git.Repository](b)(git.Init(again, nil))
		by := must[*git.Remote](b)(elsewhere.CreateRemoteAnonymous(&config.RemoteConfig{Name: "anonymous", URLs: []string{r.URL()}}))
		err = by.FetchContext(b.Context(), &git.FetchOptions{RefSpecs: []config.RefSpec{config.RefSpec(last + ":refs/heads/old")}, Tags: git.NoTags})
		if err != nil {
			b.Fatalf("fetch by hash: %v", err)
		}
		if got := filesAt(b, again, last); len(got) != 2 {
			b.Errorf("%s holds %q", last, got)
		}
	})
}

func TestGoGitPushes(t *testing.T) {
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		useGoGit(b)
		_, r := newGit(b, "")
		base := must[string](b)(r.Commit("main", content("a", "1"), "base"))
		store := memory.NewStorage()
		local := must[*git.Repository](b)(git.CloneContext(b.Context(), store, nil, &git.CloneOptions{URL: r.URL()}))

		child := commitOn(b, store, base, content("a", "2", "b/c", "3"))
		if err := store.SetReference(plumbing.NewHashReference(plumbing.Main, plumbing.NewHash(child))); err != nil {
			b.Fatal(err)
		}
		push := func(refs ...config.RefSpec) error {
			return local.PushContext(b.Context(), &git.PushOptions{RefSpecs: refs})
		}
		if err := push("refs/heads/main:refs/heads/main", "refs/heads/main:refs/heads/copy"); err != nil {
			b.Fatal(err)
		}
		for _, branch := range []string{"main", "copy"} {
			if head := must[string](b)(r.Head(branch)); head != child {
				b.Errorf("%s is at %s, want %s", branch, head, child)
			}
		}
		if err := push(":refs/heads/copy"); err != nil {
			b.Fatal(err)
		}
		if _, err := r.Head("copy"); err == nil {
			b.Error("a deleted branch is there")
		}
		// Somebody else was faster.
		must[string](b)(r.Commit("main", content("a", "other"), "in between"))
		sibling := commitOn(b, store, child, content("a", "mine"))
		if err := store.SetReference(plumbing.NewHashReference(plumbing.Main, plumbing.NewHash(sibling))); err != nil {
			b.Fatal(err)
		}
		if err := push("refs/heads/main:refs/heads/main"); err == nil {
			b.Error("a push that loses a commit went through")
		}
		if err := push("+refs/heads/main:refs/heads/main"); err != nil {
			b.Errorf("forced push: %v", err)
		}
		if head := must[string](b)(r.Head("main")); head != sibling {
			b.Errorf("after the forced push main is at %s, want %s", head, sibling)
		}
	})
}

// commitOn makes a commit in a client's storage.
func commitOn(b *servicetest.Bench, s storage.Storer, parent string, files map[string][]byte) string {
	b.Helper()
	whole := map[string]file{}
	if err := lay(s, whole, files); err != nil {
		b.Fatal(err)
	}
	tree := must[plumbing.Hash](b)(storeTree(s, whole))
	who := object.Signature{Name: "Client", Email: "client@lab.example"}
	h := must[plumbing.Hash](b)(store(s, &object.Commit{
		Author: who, Committer: who, Message: "by the client", TreeHash: tree, ParentHashes: []plumbing.Hash{plumbing.NewHash(parent)},
	}))
	return h.String()
}

func TestGitRefusals(t *testing.T) {
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		useGoGit(b)
		g, r := newGit(b, "sesame")
		must[string](b)(r.Commit("main", content("a", "1"), "base"))
		list := func(url string, auth transport.AuthMethod) error {
			remote := git.NewRemote(memory.NewStorage(), &config.RemoteConfig{Name: "anonymous", URLs: []string{url}})
			return second(remote.ListContext(b.Context(), &git.ListOptions{Auth: auth}))
		}
		good := &githttp.BasicAuth{Username: "x-access-token", Password: "sesame"}
		if err := list(r.URL(), good); err != nil {
			b.Error(err)
		}
		if err := list(strings.TrimSuffix(r.URL(), ".git"), good); err != nil {
			b.Errorf("without .git: %v", err)
		}
		if err := list(r.URL(), nil); !errors.Is(err, transport.ErrAuthenticationRequired) {
			b.Errorf("without a token: %v", err)
		}
		if err := list(r.URL(), &githttp.BasicAuth{Username: "x", Password: "wrong"}); !errors.Is(err, transport.ErrAuthenticationRequired) {
			b.Errorf("with a wrong token: %v", err)
		}
		if err := list(g.URL()+"/org/other.git", good); !errors.Is(err, transport.ErrRepositoryNotFound) {
			b.Errorf("another repository: %v", err)
		}
		const auth = "Authorization: Basic eDpzZXNhbWU=" // x:sesame
		b.Want(b.Must("GET", r.URL()+"/info/refs", "", auth), 403, "smart HTTP")
		b.Want(b.Must("GET", r.URL()+"/info/refs?service=git-evil", "", auth), 403, "smart HTTP")
		b.Want(b.Must("GET", r.URL()+"/git-upload-pack", "", auth), 405, "")
		b.Want(b.Must("POST", r.URL()+"/git-upload-pack", "nonsense", auth), 400, "not a git request")
		b.Want(b.Must("POST", r.URL()+"/git-receive-pack", "nonsense", auth), 400, "not a git request")
		b.Want(b.Must("POST", r.URL()+"/git-receive-pack", "x", auth, "Content-Encoding: gzip"), 400, "gzip")
		b.Want(b.Must("POST", r.URL()+"/git-receive-pack", "0000", auth), 200, "")
		b.Want(b.Must("GET", r.URL(), "", auth), 404, "not found")

		// Wants nobody has, and what the wire says to them.
		want := fmt.Sprintf("0032want %040d\n0000", 1)
		b.Want(b.Must("POST", r.URL()+"/git-upload-pack", want, auth), 200, "ERR upload-pack: not our ref")

		b.World.Inject(world.Fault{System: "git", Op: "GET info/refs git-upload-pack", Kind: world.Answer, Status: 503, Text: "down for repairs"})
		if err := list(r.URL(), good); err == nil || !strings.Contains(err.Error(), "503") {
			b.Errorf("while down: %v", err)
		}
		for _, c := range b.World.Calls() {
			if c.System != "git" || c.Mutating != (c.Op == "POST git-receive-pack") {
				b.Errorf("call %+v", c)
			}
		}
	})
}

// A push whose servicetest.Reply is lost has happened.
func TestGitLosesTheReplyToAPush(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		useGoGit(b)
		_, r := newGit(b, "")
		base := must[string](b)(r.Commit("main", content("a", "1"), "base"))
		store := memory.NewStorage()
		local := must[*git.Repository](b)(git.CloneContext(b.Context(), store, nil, &git.CloneOptions{URL: r.URL()}))
		child := commitOn(b, store, base, content("a", "2"))
		if err := store.SetReference(plumbing.NewHashReference(plumbing.Main, plumbing.NewHash(child))); err != nil {
			b.Fatal(err)
		}
		b.World.Inject(world.Fault{System: "git", Op: "POST git-receive-pack", Kind: world.LoseReply})
		if err := local.PushContext(b.Context(), &git.PushOptions{}); err == nil {
			b.Error("the push knows of its success")
		}
		if head := must[string](b)(r.Head("main")); head != child {
			b.Errorf("main is at %s, want %s", head, child)
		}
	})
}

// A pack that lacks what its commit needs moves nothing.
func TestReceivePackWantsWholeHistories(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		_, r := newGit(b, "")
		base := must[string](b)(r.Commit("main", content("a", "1"), "base"))
		elsewhere := &Repo{name: "elsewhere", world: b.World, mem: memory.NewStorage()}
		hidden := must[string](b)(elsewhere.Commit("main", content("b", "2"), "hidden"))
		child := commitOn(b, elsewhere.mem, hidden, content("b", "3"))

		pack := must[[]byte](b)(elsewhere.pack([]plumbing.Hash{plumbing.NewHash(child)}, []plumbing.Hash{plumbing.NewHash(hidden)}))
		line := fmt.Sprintf("%s %s refs/heads/main\x00report-status", base, child)
		in := fmt.Sprintf("%04x%s0000%s", len(line)+4, line, pack)
		var out bytes.Buffer
		if err := r.receivePack(strings.NewReader(in), &out); err != nil {
			b.Fatal(err)
		}
		if !strings.Contains(out.String(), "unpack ok") || !strings.Contains(out.String(), "ng refs/heads/main missing necessary objects") {
			b.Errorf("report is %q", out.String())
		}
		if head := must[string](b)(r.Head("main")); head != base {
			b.Errorf("main moved to %s", head)
		}
	})
}

// realGit runs the installed git as somebody with an empty home.
type realGit struct {
	*servicetest.Bench
	dir string
	env []string
}

func newRealGit(b *servicetest.Bench) *realGit {
	b.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		b.Skip("no git here")
	}
	home := b.TempDir()
	ca := filepath.Join(home, "ca.pem")
	if err := os.WriteFile(ca, b.World.PKI.PEM, 0o600); err != nil {
		b.Fatal(err)
	}
	return &realGit{Bench: b, dir: home, env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_SSL_CAINFO=" + ca,
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@lab.example", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@lab.example",
	}}
}

func (g *realGit) try(args ...string) (string, error) {
	cmd := exec.CommandContext(g.Context(), "git", args...)
	cmd.Dir, cmd.Env = g.dir, g.env
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (g *realGit) run(args ...string) string {
	g.Helper()
	out, err := g.try(args...)
	if err != nil {
		g.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// write writes a file of the work tree and commits it.
func (g *realGit) write(name, text string) string {
	g.Helper()
	file := filepath.Join(g.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		g.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		g.Fatal(err)
	}
	g.run("add", "-A")
	g.run("commit", "-qm", "change "+name)
	return g.run("rev-parse", "HEAD")
}

// looseObjects counts the objects a fetch unpacked.
func (g *realGit) looseObjects() (n int) {
	g.Helper()
	if _, err := fmt.Sscanf(g.run("count-objects"), "%d objects", &n); err != nil {
		g.Fatal(err)
	}
	return n
}

// Real git pushes, clones, fetches, forces and deletes, over https and http,
// to repositories in memory and on disk.
func TestRealGit(t *testing.T) {
	for _, c := range []struct {
		name        string
		disk, plain bool
	}{{"memory over https", false, false}, {"disk over https", true, false}, {"disk over http", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			servicetest.OnLoopback(t, func(b *servicetest.Bench) {
				conf := Config{Service: b.Config("git"), Token: "sesame"}
				conf.Service.Plain = c.plain
				if c.disk {
					conf.Dir = b.TempDir()
				}
				g := servicetest.Opened[*Server](b)(New(conf))
				r := must[*Repo](b)(g.Repository("org/infra"))
				pushAndFetch(b, r)
			})
		})
	}
}

func pushAndFetch(b *servicetest.Bench, r *Repo) {
	b.Helper()
	user := newRealGit(b)
	url := strings.Replace(r.URL(), "://", "://token:sesame@", 1)
	user.dir = filepath.Join(user.dir, "work")
	if err := os.Mkdir(user.dir, 0o755); err != nil {
		b.Fatal(err)
	}
	user.run("init", "-q", "-b", "main")
	user.run("remote", "add", "origin", url)
	if out, err := user.try("ls-remote", r.URL()); err == nil {
		b.Errorf("without a token git lists %s", out)
	}
	if out := user.run("ls-remote", "origin"); out != "" {
		b.Errorf("an empty repository lists %q", out)
	}

	user.write("inventory/dev/cluster.yaml", "one")
	user.write("big.bin", strings.Repeat("0123456789abcdef", 1<<17)) // more than one post buffer
	first := user.write("run.sh", "#!/bin/sh")
	if out := user.run("-c", "http.postBuffer=65536", "push", "-u", "origin", "main"); !strings.Contains(out, "new branch") {
		b.Errorf("push says %s", out)
	}
	if head := must[string](b)(r.Head("main")); head != first {
		b.Errorf("main is at %s, want %s", head, first)
	}

	// Somebody else clones, the lab commits, both go on.
	other := &realGit{Bench: b, dir: filepath.Dir(user.dir), env: user.env}
	other.run("clone", "-q", url, "other")
	other.dir = filepath.Join(other.dir, "other")
	if head := other.run("rev-parse", "HEAD"); head != first {
		b.Errorf("the clone is at %s, want %s", head, first)
	}
	var lab string
	for i := range 60 {
		lab = must[string](b)(r.Commit("main", content("n", fmt.Sprint(i)), "by the lab"))
	}
	// More commits of its own than fit into one round of negotiation.
	for i := range 20 {
		other.run("commit", "-q", "--allow-empty", "-m", fmt.Sprint(i))
	}
	if out, err := other.try("push", "origin", "main"); err == nil || !strings.Contains(out, "fetch first") {
		b.Errorf("a push behind says %s (%v)", out, err)
	}
	other.run("pull", "-q", "--rebase", "origin", "main")
	if base := other.run("merge-base", "HEAD", lab); base != lab {
		b.Errorf("the rebase is on %s, want %s", base, lab)
	}
	other.run("fsck", "--strict")
	other.run("push", "origin", "main")
	merged := other.run("rev-parse", "HEAD")

	user.run("fetch", "-q", "origin")
	if got := user.run("rev-parse", "origin/main"); got != merged {
		b.Errorf("fetched %s, want %s", got, merged)
	}
	user.run("fsck", "--strict")

	// Only what is new comes: a commit, a tree and a blob.
	loose := other.looseObjects()
	must[string](b)(r.Commit("main", content("n", "last"), "by the lab"))
	other.run("fetch", "-q", "origin")
	if came := other.looseObjects() - loose; came != 3 {
		b.Errorf("a commit of one file brought %d objects", came)
	}

	// Tags, forced pushes, deletions.
	user.run("tag", "-a", "v1", "-m", "one")
	user.run("push", "origin", "v1", "+main:main", "main:refs/heads/topic")
	if head := must[string](b)(r.Head("main")); head != first {
		b.Errorf("after the forced push main is at %s, want %s", head, first)
	}
	if out := other.run("ls-remote", "origin", "v1^{}"); !strings.HasPrefix(out, first) {
		b.Errorf("the tag peels to %s, want %s", out, first)
	}
	user.run("push", "origin", ":topic")
	if _, err := r.Head("topic"); err == nil {
		b.Error("a deleted branch is there")
	}
	other.run("fetch", "-q", "--tags", "--force", "origin")
	if got := other.run("rev-parse", "origin/main"); got != first {
		b.Errorf("after the forced push the other fetched %s, want %s", got, first)
	}
	other.run("fetch", "-q", "origin", merged) // no branch holds it any more
	if r.Dir() != "" {
		other.dir = r.Dir()
		other.run("fsck", "--strict")
		if mode := other.run("ls-tree", "main", "run.sh"); !strings.HasPrefix(mode, "100644") {
			b.Errorf("tree entry %s", mode)
		}
	}
}

// A repository on disk is found again, and real git may write there directly.
func TestRepositoryOnDisk(t *testing.T) {
	servicetest.OnLoopback(t, func(b *servicetest.Bench) {
		conf := Config{Service: b.Config("git"), Dir: b.TempDir()}
		g := servicetest.Opened[*Server](b)(New(conf))
		r := must[*Repo](b)(g.Repository("org/infra"))
		one := must[string](b)(r.Commit("main", content("a", "1"), "one"))
		if err := g.Close(); err != nil {
			b.Fatal(err)
		}
		g = servicetest.Opened[*Server](b)(New(conf))
		r = must[*Repo](b)(g.Repository("org/infra"))
		if head := must[string](b)(r.Head("main")); head != one {
			b.Errorf("main is at %s, want %s", head, one)
		}
		direct := newRealGit(b)
		direct.run("clone", "-q", r.Dir(), "work")
		direct.dir = filepath.Join(direct.dir, "work")
		two := direct.write("a", "2")
		direct.run("push", "-q", "origin", "main")
		direct.dir = r.Dir()
		direct.run("gc", "-q")
		three := must[string](b)(r.Commit("main", content("b", "3"), "three"))
		direct.run("fsck", "--strict")
		if base := direct.run("merge-base", two, three); base != two {
			b.Errorf("the lab's commit does not stand on what git pushed")
		}
	})
}

// An executable file stays one, and links are carried as they are.
func TestCommitKeepsModes(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		_, r := newGit(b, "")
		err := r.Edit(func(s storage.Storer) error {
			h := must[plumbing.Hash](b)(store(s, blob("x")))
			tree := must[plumbing.Hash](b)(storeTree(s, map[string]file{
				"run": {filemode.Executable, h}, "link": {filemode.Symlink, h}, "module": {filemode.Submodule, h},
			}))
			c := must[plumbing.Hash](b)(store(s, &object.Commit{TreeHash: tree}))
			return r.point(s, "main", c)
		})
		if err != nil {
			b.Fatal(err)
		}
		head := must[string](b)(r.Commit("main", content("run", "y", "new", "z"), "change"))
		err = r.Edit(func(s storage.Storer) error {
			whole, err := wholeTree(s, plumbing.NewHash(head))
			for name, mode := range map[string]filemode.FileMode{
				"run": filemode.Executable, "link": filemode.Symlink, "module": filemode.Submodule, "new": filemode.Regular,
			} {
				if whole[name].mode != mode {
					b.Errorf("%s has mode %v, want %v", name, whole[name].mode, mode)
				}
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	})
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a": "1", "d/e/f": "2", ".sops.yaml": "3", ".git/config": "no"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadFiles(dir)
	if err != nil || !maps.EqualFunc(got, content("a", "1", "d/e/f", "2", ".sops.yaml", "3"), bytes.Equal) {
		t.Errorf("files are %q (%v)", got, err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFiles(dir); err == nil {
		t.Errorf("a link was read: %q", got)
	}
}

// A client that does not read its pack keeps nobody from the repository.
func TestRepoDoesNotWaitForASlowClient(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		_, r := newGit(b, "")
		head := must[string](b)(r.Commit("main", content("a", "1"), "base"))
		pr, pw := io.Pipe()
		slow := make(chan error)
		go func() {
			slow <- r.uploadPack(strings.NewReader(fmt.Sprintf("0032want %s\n00000009done\n", head)), pw, true)
		}()
		if _, err := io.ReadFull(pr, make([]byte, len("0008NAK\n"))); err != nil {
			b.Fatal(err)
		}
		synctest.Wait() // it hangs with the pack in its hands
		must[string](b)(r.Commit("main", content("a", "2"), "meanwhile"))
		_ = pr.Close()
		if err := <-slow; err == nil {
			b.Error("a pack went nowhere without an error")
		}
	})
}

func FuzzUploadPack(f *testing.F) {
	w, err := world.New(world.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(w.Close)
	r, err := openRepo(w, "fuzz", "", "")
	if err != nil {
		f.Fatal(err)
	}
	head, err := r.Commit("main", content("a", "1"), "base")
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("0032want "+head+"\n00000009done\n"), true)
	f.Add([]byte("003ewant "+head+" ofs-delta\n00000032have "+head+"\n00000009done\n"), false)
	f.Add([]byte("0000"), true)
	f.Fuzz(func(t *testing.T, in []byte, stateless bool) {
		var bad *badRequestError
		err := r.uploadPack(bytes.NewReader(in), io.Discard, stateless)
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("%q: %v", in, err)
		}
	})
}

func FuzzReceivePack(f *testing.F) {
	w, err := world.New(world.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(w.Close)
	zero := strings.Repeat("0", 40)
	line := zero + " " + strings.Repeat("1", 40) + " refs/heads/main\x00report-status side-band-64k"
	f.Add(fmt.Appendf(nil, "%04x%s0000", len(line)+4, line))
	f.Add([]byte("0000"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := openRepo(w, "fuzz", "", "")
		if err != nil {
			t.Fatal(err)
		}
		var bad *badRequestError
		err = r.receivePack(bytes.NewReader(in), io.Discard)
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("%q: %v", in, err)
		}
		if head, err := r.Head("main"); err == nil {
			t.Errorf("%q moved main to %s", in, head)
		}
	})
}
