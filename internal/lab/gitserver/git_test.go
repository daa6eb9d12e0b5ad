package gitserver

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
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

// A pack is larger than what one packet of the sideband holds as soon as a
// repository has some encrypted files, which do not compress.
func TestGoGitFetchesLargePacks(t *testing.T) {
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		useGoGit(b)
		_, r := newGit(b, "")
		const packet = 65515 // the most data of one packet
		for _, size := range []int{packet - 400, packet - 1, packet, packet + 1, 2 * packet, 1 << 20} {
			secret := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(secret)
			head := must[string](b)(r.Rewrite("main", map[string][]byte{"secrets.sops.yaml": secret}, "secrets"))
			store := memory.NewStorage()
			if _, err := git.CloneContext(b.Context(), store, nil, &git.CloneOptions{URL: r.URL()}); err != nil {
				b.Errorf("clone of %d bytes: %v", size, err)
				continue
			}
			if got := filesAt(b, store, head); !slices.Equal(got, []string{"secrets.sops.yaml=" + string(secret)}) {
				b.Errorf("%d bytes arrived otherwise", size)
			}
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
	if err := layFiles(s, whole, files); err != nil {
		b.Fatal(err)
	}
	tree := must[plumbing.Hash](b)(storeTree(s, whole))
	who := object.Signature{Name: "Client", Email: "client@lab.example"}
	h := must[plumbing.Hash](b)(storeObject(s, &object.Commit{
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

		// Wants nobody has, and how the protocol refuses them.
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

		pack := must[[]byte](b)(elsewhere.packObjects([]plumbing.Hash{plumbing.NewHash(child)}, []plumbing.Hash{plumbing.NewHash(hidden)}, noFilter))
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
