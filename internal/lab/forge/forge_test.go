package forge

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// forgeCase is how one forge is spoken to.
type forgeCase struct {
	kind  Kind
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

func openForge(b *servicetest.Bench, c forgeCase) *Forge {
	b.Helper()
	return servicetest.Opened[*Forge](b)(New(Config{
		Service: b.Config("forge"), Kind: c.kind, Repository: "org/infra", ProjectID: 17, Token: "write", ReadToken: "read",
		Knows: func(commit string) bool { return commit == commitA },
	}))
}

// postStatus posts a status and returns the answer.
func postStatus(b *servicetest.Bench, f *Forge, c forgeCase, token, repo, commit string, fields map[string]string) servicetest.Reply {
	b.Helper()
	body, err := json.Marshal(fields)
	if err != nil {
		b.Fatal(err)
	}
	header := []string{"Content-Type: application/json"}
	if token != "" {
		header = append(header, fmt.Sprintf(c.token, token))
	}
	return b.Must("POST", f.URL()+c.path(repo, commit), string(body), header...)
}

func TestForgeTakesStatuses(t *testing.T) {
	for _, c := range forges {
		t.Run(string(c.kind), func(t *testing.T) {
			servicetest.Everywhere(t, func(b *servicetest.Bench) {
				f := openForge(b, c)
				for _, state := range []string{"pending", "success"} {
					r := postStatus(b, f, c, "write", "org/infra", commitA, map[string]string{
						"state": state, c.name: "talos-agent/dev", "description": "3 nodes " + state, "target_url": "https://lab.example/" + state,
					})
					b.Want(r, 201, `"status":"`+state+`"`)
				}
				b.Want(postStatus(b, f, c, "write", "org/infra", commitA, map[string]string{"state": "pending"}), 201, "default")
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
				for _, call := range b.World.Calls() {
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
		cases := map[Kind][]refusal{
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
			servicetest.InMemory(t, func(b *servicetest.Bench) {
				f := openForge(b, c)
				for _, r := range cases {
					b.Log(r.what)
					b.Want(postStatus(b, f, c, r.token, r.repo, r.commit, r.fields), r.status, r.words)
				}
				malformed := b.Must("POST", f.URL()+c.path("org/infra", commitA), "{", fmt.Sprintf(c.token, "write"), "Content-Type: application/json")
				if malformed.Status != 400 && malformed.Status != 422 {
					b.Errorf("broken JSON: %d %s", malformed.Status, malformed.Body)
				}
				if nowhere := b.Must("GET", f.URL()+"/nowhere", ""); nowhere.Status != 404 {
					b.Errorf("another path: %d", nowhere.Status)
				}
				b.World.Inject(world.Fault{System: "forge", Kind: world.Answer, Status: 429, Text: "slow down"})
				limited := postStatus(b, f, c, "write", "org/infra", commitA, ok)
				b.Want(limited, 429, `"message":"slow down"`)
				if limited.Header.Get("Retry-After") == "" {
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
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		c := forges[1]
		f := openForge(b, c)
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
			b.Want(postStatus(b, f, c, "write", "17", commitA, map[string]string{"state": step.state, "name": "x"}), step.status, step.words)
		}
		// Another context stands by itself; the context has two names; forms and queries work as well.
		b.Want(postStatus(b, f, c, "write", "org/infra", commitA, map[string]string{"state": "running", "context": "y"}), 201, `"name":"y"`)
		at := f.URL() + c.path("org/infra", commitA)
		b.Want(b.Must("POST", at, "state=running&name=z", "Authorization: Bearer write", "Content-Type: application/x-www-form-urlencoded"), 201, `"name":"z"`)
		b.Want(b.Must("POST", at+"?state=failed&name=z", "", "Private-Token: write"), 201, `"status":"failed"`)
	})
}

func TestGitHubLimitsStatusesOfACommit(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		f := openForge(b, forges[0])
		post := func() servicetest.Reply {
			return postStatus(b, f, forges[0], "write", "org/infra", commitA, map[string]string{"state": "pending", "context": "x"})
		}
		for range gitHubStatuses {
			b.Want(post(), 201, "")
		}
		b.Want(post(), 422, "reached the maximum number of statuses")
	})
}

func TestForgeWithoutConditions(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		f := servicetest.Opened[*Forge](b)(New(Config{Service: b.Config("forge"), Kind: Gitea}))
		b.Want(postStatus(b, f, forges[2], "", "any/body", commitB, map[string]string{"state": "success"}), 201, "success")
	})
	if _, err := New(Config{Kind: "sourcehut"}); err == nil {
		t.Error("a forge of an unknown kind opened")
	}
}

// The same endpoints, where the servicetest.Reply gets lost: the status was taken.
func TestForgeLosesTheReply(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		f := openForge(b, forges[0])
		b.World.Inject(world.Fault{System: "forge", Kind: world.LoseReply})
		if _, err := b.Do("POST", f.URL()+forges[0].path("org/infra", commitA), `{"state":"success"}`, "Authorization: Bearer write"); err == nil {
			b.Error("the servicetest.Reply arrived")
		}
		if got := f.Statuses(); len(got) != 1 {
			b.Errorf("statuses are %+v", got)
		}
	})
}
