package gitserver

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
)

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
	secret := make([]byte, 300_000)                                  // does not compress: a pack of several packets
	_, _ = rand.NewChaCha8([32]byte{}).Read(secret)
	user.write("secrets.sops.yaml", string(secret))
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
