package web

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// forgeCase is how one forge is spoken to.
type forgeCase struct {
	kind  ForgeKind
	path  func(repo, commit string) string
	token string // header, with %s for the token
	name  string // field of the context
}

var forges = []forgeCase{
	{GitHub, func(repo, commit string) string { return "/repos/" + repo + "/statuses/" + commit }, "Authorization: Bearer %s", "context"},
	{GitLab, func(repo, commit string) string {
		return "/api/v4/projects/" + url.PathEscape(repo) + "/statuses/" + commit
	}, "Private-Token: %s", "name"},
	{Gitea, func(repo, commit string) string { return "/api/v1/repos/" + repo + "/statuses/" + commit }, "Authorization: token %s", "context"},
}

func (b *bench) forge(c forgeCase) *Forge {
	b.Helper()
	return open[*Forge](b)(NewForge(ForgeConfig{
		Config: b.config("forge"), Kind: c.kind, Repository: "org/infra", ProjectID: 17, Token: "write", ReadToken: "read",
		Knows: func(commit string) bool { return commit == commitA },
	}))
}

// status posts a status and returns the answer.
func (b *bench) status(f *Forge, c forgeCase, token, repo, commit string, fields map[string]string) reply {
	b.Helper()
	body, err := json.Marshal(fields)
	if err != nil {
		b.Fatal(err)
	}
	header := []string{"Content-Type: application/json"}
	if token != "" {
		header = append(header, fmt.Sprintf(c.token, token))
	}
	return b.must("POST", f.URL()+c.path(repo, commit), string(body), header...)
}

func TestForgeTakesStatuses(t *testing.T) {
	for _, c := range forges {
		t.Run(string(c.kind), func(t *testing.T) {
			everywhere(t, func(b *bench) {
				f := b.forge(c)
				for _, state := range []string{"pending", "success"} {
					r := b.status(f, c, "write", "org/infra", commitA, map[string]string{
						"state": state, c.name: "talos-agent/dev", "description": "3 nodes " + state, "target_url": "https://lab.example/" + state,
					})
					b.want(r, 201, `"status":"`+state+`"`)
				}
				b.want(b.status(f, c, "write", "org/infra", commitA, map[string]string{"state": "pending"}), 201, "default")
				got := f.Statuses()
				if len(got) != 3 || got[0].State != "pending" || got[2].Context != "default" || got[1].At.Before(got[0].At) {
					b.Errorf("statuses are %+v", got)
				}
				last, ok := f.Latest(commitA, "talos-agent/dev")
				last.At = got[1].At
				want := Status{
					At: got[1].At, Repository: "org/infra", Commit: commitA, State: "success", Context: "talos-agent/dev",
					Description: "3 nodes success", TargetURL: "https://lab.example/success",
				}
				if !ok || last != want {
					b.Errorf("latest is %+v (%v), want %+v", last, ok, want)
				}
				if s, ok := f.Latest(commitB, "talos-agent/dev"); ok {
					b.Errorf("the other commit has %+v", s)
				}
				for _, call := range b.world.Calls() {
					if call.System != "forge" || !call.Mutating || call.Subject != commitA || !strings.HasPrefix(call.Op, "POST /") {
						b.Errorf("call %+v", call)
					}
				}
			})
		})
	}
}

func TestForgeRefusals(t *testing.T) {
	long := func(n int) map[string]string {
		return map[string]string{"state": "success", "description": strings.Repeat("é", n)}
	}
	ok := map[string]string{"state": "success"}
	type refusal struct {
		what, token, repo, commit string
		fields                    map[string]string
		status                    int
		words                     string
	}
	for _, c := range forges {
		cases := map[ForgeKind][]refusal{
			GitHub: {
				{"no token", "", "org/infra", commitA, ok, 404, `"message":"Not Found"`},
				{"wrong token", "x", "org/infra", commitA, ok, 401, `"message":"Bad credentials"`},
				{"token that may only read", "read", "org/infra", commitA, ok, 403, "Resource not accessible"},
				{"other repository", "write", "org/other", commitA, ok, 404, `"message":"Not Found"`},
				{"other commit", "write", "org/infra", commitB, ok, 422, "No commit found for SHA: " + commitB},
				{"no commit", "write", "org/infra", "main", ok, 422, "No commit found for SHA: main"},
				{"unknown state", "write", "org/infra", commitA, map[string]string{"state": "running"}, 422, `"field":"state"`},
				{"too long", "write", "org/infra", commitA, long(141), 422, "description is too long (maximum is 140 characters)"},
			},
			GitLab: {
				{"no token", "", "org/infra", commitA, ok, 401, `"message":"401 Unauthorized"`},
				{"wrong token", "x", "org/infra", commitA, ok, 401, `"message":"401 Unauthorized"`},
				{"token that may only read", "read", "org/infra", commitA, ok, 403, `"message":"403 Forbidden"`},
				{"other repository", "write", "org/other", commitA, ok, 404, `"message":"404 Project Not Found"`},
				{"other commit", "write", "org/infra", commitB, ok, 404, `"message":"404 Commit Not Found"`},
				{"no state", "write", "org/infra", commitA, nil, 400, `"error":"state is missing"`},
				{"unknown state", "write", "org/infra", commitA, map[string]string{"state": "error"}, 400, `"error":"state does not have a valid value"`},
				{"too long", "write", "org/infra", commitA, long(256), 400, "is too long (maximum is 255 characters)"},
			},
			Gitea: {
				{"no token", "", "org/infra", commitA, ok, 401, `"message":"token is required"`},
				{"wrong token", "x", "org/infra", commitA, ok, 401, `"message":"invalid username, password or token"`},
				{"token that may only read", "read", "org/infra", commitA, ok, 403, "required scope(s): [write:repository]"},
				{"other repository", "write", "org/other", commitA, ok, 404, `"message":"The target couldn't be found."`},
				{"other commit", "write", "org/infra", commitB, ok, 500, `"message":""`},
				{"unknown state", "write", "org/infra", commitA, map[string]string{"state": "running"}, 422, "running"},
			},
		}[c.kind]
		t.Run(string(c.kind), func(t *testing.T) {
			inMemory(t, func(b *bench) {
				f := b.forge(c)
				for _, r := range cases {
					b.Log(r.what)
					b.want(b.status(f, c, r.token, r.repo, r.commit, r.fields), r.status, r.words)
				}
				malformed := b.must("POST", f.URL()+c.path("org/infra", commitA), "{", fmt.Sprintf(c.token, "write"), "Content-Type: application/json")
				if malformed.status != 400 && malformed.status != 422 {
					b.Errorf("broken JSON: %d %s", malformed.status, malformed.body)
				}
				if nowhere := b.must("GET", f.URL()+"/nowhere", ""); nowhere.status != 404 {
					b.Errorf("another path: %d", nowhere.status)
				}
				b.world.Inject(world.Fault{System: "forge", Kind: world.Answer, Status: 429, Text: "slow down"})
				limited := b.status(f, c, "write", "org/infra", commitA, ok)
				b.want(limited, 429, `"message":"slow down"`)
				if limited.header.Get("Retry-After") == "" {
					b.Error("a rate limit says nothing of when to come back")
				}
				if got := f.Statuses(); len(got) != 0 {
					b.Errorf("what was refused was kept: %+v", got)
				}
			})
		})
	}
}

// GitLab's statuses are a state machine: the same open state cannot be entered
// twice, an ended one is followed by a new one.
func TestGitLabMovesStatuses(t *testing.T) {
	inMemory(t, func(b *bench) {
		c := forges[1]
		f := b.forge(c)
		for _, step := range []struct {
			state  string
			status int
			words  string
		}{
			{"success", 201, ""}, {"success", 201, ""}, {"pending", 201, ""},
			{"pending", 400, `Cannot transition status via :enqueue from :pending (Reason(s): Status cannot transition via \"enqueue\")`},
			{"running", 201, ""},
			{"running", 400, "Cannot transition status via :run from :running"},
			{"pending", 400, "Cannot transition status via :enqueue from :running"},
			{"failed", 201, ""}, {"running", 201, ""}, {"canceled", 201, ""}, {"pending", 201, ""}, {"skipped", 201, ""},
		} {
			b.Log(step.state)
			b.want(b.status(f, c, "write", "17", commitA, map[string]string{"state": step.state, "name": "x"}), step.status, step.words)
		}
		// Another context stands by itself; the context has two names; forms and queries work as well.
		b.want(b.status(f, c, "write", "org/infra", commitA, map[string]string{"state": "running", "context": "y"}), 201, `"name":"y"`)
		at := f.URL() + c.path("org/infra", commitA)
		b.want(b.must("POST", at, "state=running&name=z", "Authorization: Bearer write", "Content-Type: application/x-www-form-urlencoded"), 201, `"name":"z"`)
		b.want(b.must("POST", at+"?state=failed&name=z", "", "Private-Token: write"), 201, `"status":"failed"`)
	})
}

func TestGitHubLimitsStatusesOfACommit(t *testing.T) {
	inMemory(t, func(b *bench) {
		f := b.forge(forges[0])
		post := func() reply {
			return b.status(f, forges[0], "write", "org/infra", commitA, map[string]string{"state": "pending", "context": "x"})
		}
		for range gitHubStatuses {
			b.want(post(), 201, "")
		}
		b.want(post(), 422, "reached the maximum number of statuses")
	})
}

func TestForgeWithoutConditions(t *testing.T) {
	inMemory(t, func(b *bench) {
		f := open[*Forge](b)(NewForge(ForgeConfig{Config: b.config("forge"), Kind: Gitea}))
		b.want(b.status(f, forges[2], "", "any/body", commitB, map[string]string{"state": "success"}), 201, "success")
	})
	if _, err := NewForge(ForgeConfig{Kind: "sourcehut"}); err == nil {
		t.Error("a forge of an unknown kind opened")
	}
}

// The same endpoints, where the reply gets lost: the status was taken.
func TestForgeLosesTheReply(t *testing.T) {
	inMemory(t, func(b *bench) {
		f := b.forge(forges[0])
		b.world.Inject(world.Fault{System: "forge", Kind: world.LoseReply})
		if _, err := b.do("POST", f.URL()+forges[0].path("org/infra", commitA), `{"state":"success"}`, "Authorization: Bearer write"); err == nil {
			b.Error("the reply arrived")
		}
		if got := f.Statuses(); len(got) != 1 {
			b.Errorf("statuses are %+v", got)
		}
	})
}
