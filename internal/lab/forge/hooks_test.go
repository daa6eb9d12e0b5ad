package forge

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport/client"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/talos-agent/talos-agent/internal/lab/gitserver"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
)

// pushChange pushes a commit over the network, as somebody with a clone does, and
// returns its hash. go-git's clients are one map for the whole process: tests with
// it do not run side by side.
func pushChange(b *servicetest.Bench, url string) string {
	b.Helper()
	had := maps.Clone(client.Protocols)
	b.Cleanup(func() { client.Protocols = had })
	client.InstallProtocol("https", githttp.NewClient(b.Client))
	work := memfs.New()
	local, err := git.CloneContext(b.Context(), memory.NewStorage(), work, &git.CloneOptions{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	file, err := work.Create("a")
	if err != nil {
		b.Fatal(err)
	}
	if _, err := file.Write([]byte("2")); err != nil {
		b.Fatal(err)
	}
	if err := file.Close(); err != nil {
		b.Fatal(err)
	}
	tree, err := local.Worktree()
	if err != nil {
		b.Fatal(err)
	}
	who := &object.Signature{Name: "Client", Email: "client@lab.example", When: time.Now()}
	hash, err := tree.Commit("by the client", &git.CommitOptions{All: true, Author: who})
	if err != nil {
		b.Fatal(err)
	}
	if err := local.PushContext(b.Context(), &git.PushOptions{RefSpecs: []config.RefSpec{"refs/heads/main:refs/heads/main"}}); err != nil {
		b.Fatal(err)
	}
	return hash.String()
}

// TestHooks: a forge reports a push over the network and one by hand, in its own
// way, and keeps what the receiver answered.
func TestHooks(t *testing.T) {
	for kind, header := range map[Kind]string{GitHub: "X-Hub-Signature-256", GitLab: "X-Gitlab-Token", Gitea: "X-Gitea-Signature"} {
		t.Run(string(kind), func(t *testing.T) {
			servicetest.InMemory(t, func(b *servicetest.Bench) {
				g := servicetest.Opened[*gitserver.Server](b)(gitserver.New(gitserver.Config{Service: b.Config("git")}))
				r, err := g.Repository("org/infra")
				if err != nil {
					b.Fatal(err)
				}
				f := servicetest.Opened[*Forge](b)(New(Config{Service: b.Config("forge"), Kind: kind}))
				r.OnPush(func(ref, before, after string) { f.Pushed("org/infra", r.URL(), ref, before, after) })
				c := b.Config("receiver")
				c.Plain = true
				var got []string
				receiver := servicetest.Opened[*httpservice.Server](b)(httpservice.Open(c))
				receiver.Serve(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					var body struct{ Ref, Before, After string }
					raw, err := io.ReadAll(q.Body)
					if err != nil || json.Unmarshal(raw, &body) != nil || q.Header.Get(header) == "" {
						b.Errorf("%v %s", q.Header, raw)
					}
					got = append(got, body.Ref+" "+body.Before[:4]+" "+body.After[:4])
					_, _ = io.WriteString(w, "thanks")
				}))
				f.AddHook(Hook{URL: receiver.URL() + "/hook", Secret: "secret"})

				base, err := r.Commit("main", map[string][]byte{"a": []byte("1")}, "base")
				if err != nil {
					b.Fatal(err)
				}
				synctest.Wait()
				child := pushChange(b, r.URL())
				f.sending.Wait()
				want := "refs/heads/main 0000 " + base[:4] + ", refs/heads/main " + base[:4] + " " + child[:4]
				if got := strings.Join(got, ", "); got != want {
					b.Errorf("the receiver got %s, want %s", got, want)
				}
				for _, d := range f.Deliveries() {
					if d.Status != http.StatusOK || d.Answer != "thanks" {
						b.Errorf("%+v", d)
					}
				}
			})
		})
	}
}
