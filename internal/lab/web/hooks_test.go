package web

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage/memory"
)

// TestHooks: a forge tells of a push over the network and of one by hand, in its
// own way, and of what became of it.
func TestHooks(t *testing.T) {
	for kind, header := range map[ForgeKind]string{GitHub: "X-Hub-Signature-256", GitLab: "X-Gitlab-Token", Gitea: "X-Gitea-Signature"} {
		t.Run(string(kind), func(t *testing.T) {
			inMemory(t, func(b *bench) {
				b.useGoGit()
				_, r := newGit(b, "")
				f := open[*Forge](b)(NewForge(ForgeConfig{Config: b.config("forge"), Kind: kind}))
				r.OnPush(func(ref, before, after string) { f.Pushed("org/infra", r.URL(), ref, before, after) })
				c := b.config("receiver")
				c.Plain = true
				var heard []string
				receiver := must[*face](b)(listen(c))
				receiver.serve(b.world, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					var body struct{ Ref, Before, After string }
					raw, err := io.ReadAll(q.Body)
					if err != nil || json.Unmarshal(raw, &body) != nil || q.Header.Get(header) == "" {
						b.Errorf("%v %s", q.Header, raw)
					}
					heard = append(heard, body.Ref+" "+body.Before[:4]+" "+body.After[:4])
					_, _ = io.WriteString(w, "thanks")
				}))
				defer func() { _ = receiver.Close() }()
				f.AddHook(Hook{URL: receiver.URL() + "/hook", Secret: "secret"})

				base := must[string](b)(r.Commit("main", content("a", "1"), "base"))
				synctest.Wait()
				store := memory.NewStorage()
				local := must[*git.Repository](b)(git.CloneContext(b.Context(), store, nil, &git.CloneOptions{URL: r.URL()}))
				child := commitOn(b, store, base, content("a", "2"))
				if err := store.SetReference(plumbing.NewHashReference(plumbing.Main, plumbing.NewHash(child))); err != nil {
					b.Fatal(err)
				}
				if err := local.PushContext(b.Context(), &git.PushOptions{RefSpecs: []config.RefSpec{"refs/heads/main:refs/heads/main"}}); err != nil {
					b.Fatal(err)
				}
				f.sending.Wait()
				want := "refs/heads/main 0000 " + base[:4] + ", refs/heads/main " + base[:4] + " " + child[:4]
				if got := strings.Join(heard, ", "); got != want {
					b.Errorf("heard %s, want %s", got, want)
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
