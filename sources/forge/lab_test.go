package forge

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	labforge "github.com/talos-agent/talos-agent/internal/lab/forge"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestAgainstTheLab posts a series of statuses to each of the lab's forges, in
// virtual time.
func TestAgainstTheLab(t *testing.T) {
	for kind, words := range map[Kind][]string{
		GitHub: {"pending", "success", "failure", "error"},
		GitLab: {"running", "success", "failed", "failed"},
		Gitea:  {"pending", "success", "failure", "error"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := world.New(world.Config{})
				check(t, err)
				defer w.Close()
				f, err := labforge.New(labforge.Config{
					Service: httpservice.Config{World: w, Addr: "10.0.0.8:443"}, Kind: labforge.Kind(kind),
					Repository: "org/infra", Token: token, ReadToken: "read-only",
					Knows: func(id string) bool { return id == commit },
				})
				check(t, err)
				defer func() { check(t, f.Close()) }()
				config := Config{Kind: kind, URL: f.URL(), Repository: "org/infra", Token: token, CA: w.PKI.PEM, Dial: w.Net.DialContext}
				c, err := New(config)
				check(t, err)
				for i, state := range []State{StatePending, StateSuccess, StateFailure, StateError} {
					s := good
					s.State = state
					check(t, c.Post(t.Context(), s))
					check(t, c.Post(t.Context(), s)) // once more is no error
					got, ok := f.Latest(commit, s.Context)
					if !ok || got.State != words[i] || got.Description != s.Description {
						t.Errorf("%s arrived as %+v", state, got)
					}
				}

				refused := func(what string, change func(*Config, *Status), kind error) {
					t.Helper()
					cc, s := config, good
					change(&cc, &s)
					client, err := New(cc)
					check(t, err)
					if err := client.Post(t.Context(), s); kind == nil {
						check(t, err)
					} else {
						wantKind(t, err, kind)
					}
				}
				refused("a token that may only read", func(c *Config, _ *Status) { c.Token = "read-only" }, ErrAuth)
				refused("a wrong token", func(c *Config, _ *Status) { c.Token = "wrong" }, ErrAuth)
				refused("another repository", func(c *Config, _ *Status) { c.Repository = "org/other" }, ErrNotFound)
				unknown := ErrNotFound
				if kind == Gitea {
					unknown = ErrUnavailable // it answers 500
				}
				refused("another commit", func(_ *Config, s *Status) { s.Commit = "ff" + s.Commit[2:] }, unknown)

				taken := len(f.Statuses())
				check(t, c.Look(t.Context()))
				for what, change := range map[string]func(*Config){
					"a token that may only read": func(c *Config) { c.Token = "read-only" },
					"a wrong token":              func(c *Config) { c.Token = "wrong" },
					"another repository":         func(c *Config) { c.Repository = "org/other" },
				} {
					cc := config
					change(&cc)
					client, err := New(cc)
					check(t, err)
					if err = client.Look(t.Context()); err == nil || !strings.Contains(fault.HintOf(err), "token") {
						t.Errorf("look with %s: %v (%s)", what, err, fault.HintOf(err))
					}
				}
				if n := len(f.Statuses()); n != taken {
					t.Errorf("looking set %d statuses", n-taken)
				}

				w.Inject(world.Fault{System: "forge", Kind: world.Answer, Status: http.StatusTooManyRequests, Times: 1})
				err = c.Post(t.Context(), good)
				wantKind(t, err, ErrRateLimited)
				w.Heal()
				w.Inject(world.Fault{System: "forge", Kind: world.LoseReply, Times: 1})
				wantKind(t, c.Post(t.Context(), good), ErrUnavailable)
				w.Heal()
				w.Inject(world.Fault{System: "forge", Kind: world.Slow, Delay: time.Hour, Times: 1})
				wantKind(t, c.Post(t.Context(), good), ErrUnavailable)
			})
		})
	}
}
