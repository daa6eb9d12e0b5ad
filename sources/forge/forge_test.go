package forge

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	commit = "0123456789abcdef0123456789abcdef01234567"
	token  = "canary-token-71aa"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// client makes a client of a server that answers with f.
func client(t testing.TB, c Config, f http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	c.URL = srv.URL + c.URL
	if c.Repository == "" {
		c.Repository = "org/infra"
	}
	c.Token = token
	cl, err := New(c)
	check(t, err)
	return cl
}

var good = Status{Commit: commit, State: StatePending, Context: "talos-agent/dev", Description: "reconciling", TargetURL: "https://example.org/x"}

func TestRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		c      Config
		state  State
		path   string // escaped
		header [2]string
		body   map[string]string
	}{
		"github": {Config{Kind: GitHub}, StatePending, "/repos/org/infra/statuses/" + commit, [2]string{"Authorization", "Bearer " + token},
			map[string]string{"state": "pending", "context": "talos-agent/dev", "description": "reconciling", "target_url": "https://example.org/x"}},
		"github enterprise": {Config{Kind: GitHub, URL: "/api/v3/"}, StateError, "/api/v3/repos/org/infra/statuses/" + commit, [2]string{"X-GitHub-Api-Version", "2022-11-28"},
			map[string]string{"state": "error", "context": "talos-agent/dev", "description": "reconciling", "target_url": "https://example.org/x"}},
		"gitlab": {Config{Kind: GitLab, Repository: "group/sub/infra"}, StatePending, "/api/v4/projects/group%2Fsub%2Finfra/statuses/" + commit, [2]string{"PRIVATE-TOKEN", token},
			map[string]string{"state": "running", "name": "talos-agent/dev", "description": "reconciling", "target_url": "https://example.org/x"}},
		"gitlab by number, below a path": {Config{Kind: GitLab, URL: "/gitlab/api/v4", Repository: "42"}, StateFailure, "/gitlab/api/v4/projects/42/statuses/" + commit, [2]string{"PRIVATE-TOKEN", token},
			map[string]string{"state": "failed", "name": "talos-agent/dev", "description": "reconciling", "target_url": "https://example.org/x"}},
		"gitea": {Config{Kind: Gitea}, StateSuccess, "/api/v1/repos/org/infra/statuses/" + commit, [2]string{"Authorization", "token " + token},
			map[string]string{"state": "success", "context": "talos-agent/dev", "description": "reconciling", "target_url": "https://example.org/x"}},
		"gitea with its api": {Config{Kind: Gitea, URL: "/api/v1"}, StateFailure, "/api/v1/repos/org/infra/statuses/" + commit, [2]string{"Content-Type", "application/json"},
			map[string]string{"state": "failure", "context": "talos-agent/dev", "description": "reconciling", "target_url": "https://example.org/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			c := client(t, tc.c, func(w http.ResponseWriter, r *http.Request) {
				calls++
				if r.Method != http.MethodPost || r.URL.EscapedPath() != tc.path {
					t.Errorf("%s %s, want POST %s", r.Method, r.URL.EscapedPath(), tc.path)
				}
				if got := r.Header.Get(tc.header[0]); got != tc.header[1] {
					t.Errorf("header %s is %q, want %q", tc.header[0], got, tc.header[1])
				}
				var got map[string]string
				check(t, json.NewDecoder(r.Body).Decode(&got))
				if fmt.Sprint(got) != fmt.Sprint(tc.body) {
					t.Errorf("body %v, want %v", got, tc.body)
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, `{"id": 1}`)
			})
			s := good
			s.State = tc.state
			check(t, c.Post(t.Context(), s))
			if calls != 1 {
				t.Errorf("%d requests", calls)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	soon := fmt.Sprint(time.Now().Add(10 * time.Minute).Unix())
	for name, tc := range map[string]struct {
		kind    Kind
		status  int
		header  []string
		body    string
		want    error // nil: no error
		words   []string
		atLeast time.Duration
	}{
		"ok":                                    {GitHub, 201, nil, `{"id":1,"state":"pending","x":"` + strings.Repeat("x", 1<<19) + `"}`, nil, nil, 0},
		"a page to sign in at":                  {GitHub, 200, nil, "<!DOCTYPE html><html>Sign in</html>", ErrUnavailable, []string{"the forge answers 200, but not as its API does", "url must be that of the forge's API"}, 0},
		"made, but a page":                      {GitLab, 201, nil, "<html>welcome</html>", ErrUnavailable, []string{"answers 201"}, 0},
		"a portal's own object":                 {Gitea, 200, nil, `{"id":1}`, ErrUnavailable, []string{"answers 200"}, 0},
		"nothing in it":                         {Gitea, 201, nil, "{}", ErrUnavailable, []string{"answers 201"}, 0},
		"no content":                            {GitHub, 204, nil, "", ErrUnavailable, []string{"answers 204"}, 0},
		"github, no token":                      {GitHub, 401, nil, `{"message":"Bad credentials"}`, ErrAuth, []string{"401 Unauthorized: Bad credentials", "expired", "Commit statuses: write"}, 0},
		"github, scope":                         {GitHub, 403, nil, `{"message":"Resource not accessible by personal access token"}`, ErrAuth, []string{"not accessible", "repo:status"}, 0},
		"github, rate":                          {GitHub, 403, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", soon}, `{"message":"API rate limit exceeded"}`, ErrRateLimited, []string{"rate limit exceeded; it is tried again at ", "UTC"}, 9 * time.Minute},
		"github, secondary rate":                {GitHub, 403, []string{"Retry-After", "90"}, `{"message":"You have exceeded a secondary rate limit"}`, ErrRateLimited, nil, 90 * time.Second},
		"github, hidden":                        {GitHub, 404, nil, `{"message":"Not Found"}`, ErrNotFound, []string{"check repository", "gets the same answer"}, 0},
		"github, no such commit":                {GitHub, 422, nil, `{"message":"No commit found for SHA: 0123"}`, ErrNotFound, []string{"No commit found", "the one that the agent reads"}, 0},
		"github, not valid":                     {GitHub, 422, nil, `{"message":"Validation Failed","errors":[{"resource":"Status","code":"custom","message":"description is too long (maximum is 140 characters)"}]}`, ErrRefused, []string{"Validation Failed", "140 characters"}, 0},
		"gitlab, token":                         {GitLab, 401, nil, `{"message":"401 Unauthorized"}`, ErrAuth, []string{"scope api", "Developer"}, 0},
		"gitlab, scope":                         {GitLab, 403, nil, `{"error":"insufficient_scope","error_description":"x"}`, ErrAuth, []string{"insufficient_scope"}, 0},
		"gitlab, so already":                    {GitLab, 400, nil, `{"message":"Cannot transition status via :run from :running (Reason(s): Status cannot transition via \"run\")"}`, nil, nil, 0},
		"gitlab, another way":                   {GitLab, 400, nil, `{"message":"Cannot transition status via :run from :canceled (Reason(s): x)"}`, ErrRefused, []string{"from :canceled"}, 0},
		"gitlab, a map for message":             {GitLab, 400, nil, `{"message":{"name":["is too long"]}}`, ErrRefused, []string{`{"name":["is too long"]}`}, 0},
		"gitlab, rate":                          {GitLab, 429, []string{"RateLimit-Reset", soon}, "Retry later\n", ErrRateLimited, []string{"429"}, 9 * time.Minute},
		"gitea, token":                          {Gitea, 401, nil, `{"message":"user does not exist [uid: 0, name: ]","url":"x"}`, ErrAuth, []string{"write:repository"}, 0},
		"gitea, not gitlab's words":             {Gitea, 400, nil, `{"message":"Cannot transition status via :run from :pending"}`, ErrRefused, nil, 0},
		"too many, no word":                     {Gitea, 429, nil, "", ErrRateLimited, nil, time.Minute},
		"too many, date":                        {Gitea, 429, []string{"Retry-After", time.Now().Add(5 * time.Minute).UTC().Format(http.TimeFormat)}, "", ErrRateLimited, nil, 4 * time.Minute},
		"too many, nonsense":                    {Gitea, 429, []string{"Retry-After", "-5"}, "", ErrRateLimited, nil, time.Second},
		"too many, for ever":                    {Gitea, 429, []string{"Retry-After", "99999999"}, "", ErrRateLimited, nil, time.Hour},
		"gitlab, so already, of another status": {GitLab, 422, nil, `{"message":"Cannot transition status via :run from :running"}`, ErrRefused, []string{"from :running"}, 0},
		"gitlab, other words":                   {GitLab, 400, nil, `{"message":"cannot be made from :running"}`, ErrRefused, []string{"from :running"}, 0},
		"not found, and few requests left":      {GitHub, 404, []string{"X-RateLimit-Remaining", "0"}, `{"message":"Not Found"}`, ErrNotFound, nil, 0},
		"not github's words for a commit":       {Gitea, 422, nil, `{"message":"No commit found for SHA: 0123"}`, ErrRefused, nil, 0},
		"github's words of another status":      {GitHub, 409, nil, `{"message":"No commit found for SHA: 0123"}`, ErrRefused, nil, 0},
		"a null for a reason":                   {Gitea, 400, nil, `{"message":null,"error":"words"}`, ErrRefused, []string{"400 Bad Request: words"}, 0},
		"a page with a reason in it":            {Gitea, 400, nil, `{"message":"words"} <html>`, ErrRefused, []string{"400 Bad Request"}, 0},
		"an object, and a page behind it":       {Gitea, 201, nil, `{"id":1} <html>`, ErrUnavailable, []string{"answers 201"}, 0},
		"an object with another kind of number": {Gitea, 201, nil, `{"id":1,"ID":"x"}`, ErrUnavailable, []string{"answers 201"}, 0},
		"proxy":                                 {Gitea, 502, nil, "<html>bad</html>", ErrUnavailable, []string{"502 Bad Gateway"}, 0},
		"token in the answer":                   {Gitea, 400, nil, `{"message":"no ` + token + `\n\u001b[31m here"}`, ErrRefused, []string{"no [redacted] [31m here"}, 0},
		"long answer":                           {Gitea, 400, nil, `{"message":"` + strings.Repeat("word ", 1000) + `"}`, ErrRefused, []string{"word…"}, 0},
		"endless answer":                        {Gitea, 400, nil, `{"message":"` + strings.Repeat("x", 1<<20), ErrRefused, []string{"400"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, Config{Kind: tc.kind}, func(w http.ResponseWriter, r *http.Request) {
				for i := 0; i < len(tc.header); i += 2 {
					w.Header().Set(tc.header[i], tc.header[i+1])
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			err := c.Post(t.Context(), good)
			if tc.want == nil {
				check(t, err)
				return
			}
			wantKind(t, err, tc.want, tc.words...)
			var e *Error
			if !errors.As(err, &e) || e.Status != tc.status {
				t.Errorf("error %v without the status %d", err, tc.status)
			}
			if e.RetryAfter < tc.atLeast || e.RetryAfter > tc.atLeast+time.Minute+time.Second {
				t.Errorf("wait %v, want about %v", e.RetryAfter, tc.atLeast)
			}
			if len(err.Error()) > 500 || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("error is not one short line: %q", err)
			}
		})
	}
}

func wantKind(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want kind %v", err, kind)
	}
	text := fmt.Sprintf("%v %+v", err, err)
	if hint := fault.HintOf(err); hint != "" {
		text += " | " + hint
	}
	if strings.Contains(text, token) {
		t.Errorf("the token is in the error %s", text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("error %q does not contain %q", text, w)
		}
	}
}

func TestRedirectsTakeNothingAlong(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s reached the other host with %v", r.Method, r.URL, r.Header)
	}))
	defer elsewhere.Close()
	for _, kind := range []Kind{GitHub, GitLab, Gitea} {
		for _, status := range []int{301, 302, 307, 308} {
			c := client(t, Config{Kind: kind}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", elsewhere.URL+"/x")
				w.WriteHeader(status)
			})
			wantKind(t, c.Post(t.Context(), good), ErrRefused, "moved to "+elsewhere.URL)
		}
	}
}

func TestNoAnswer(t *testing.T) {
	c, err := New(Config{Kind: Gitea, URL: "http://127.0.0.1:1", Repository: "o/r", Token: token})
	check(t, err)
	wantKind(t, c.Post(t.Context(), good), ErrUnavailable, "ask 127.0.0.1:1", "connection refused")

	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		_, _ = io.WriteString(w, `{"id": 1}`)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	c, err = New(Config{Kind: Gitea, URL: srv.URL, Repository: "o/r", Token: token})
	check(t, err)
	wantKind(t, c.Post(t.Context(), good), ErrUnavailable, "ca_file")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	c, err = New(Config{Kind: Gitea, URL: srv.URL, Repository: "o/r", Token: token, CA: ca})
	check(t, err)
	check(t, c.Post(t.Context(), good))

	// The network's clock strikes a moment before the request's.
	c, err = New(Config{Kind: GitHub, Repository: "o/r", Token: token, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}})
	check(t, err)
	wantKind(t, c.Post(t.Context(), good), ErrUnavailable, "no answer from api.github.com within 30s")
}

func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := world.NewMemory()
		l, err := n.Listen("127.0.0.5:3000")
		check(t, err)
		delay := time.Second
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // or the server would not see the client go
			_ = retry.Sleep(r.Context(), delay)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"id": 1}`)
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(l) }()
		defer func() { _ = srv.Close(); <-done }()
		c, err := New(Config{Kind: GitHub, URL: "http://127.0.0.5:3000", Repository: "o/r", Token: token, Dial: n.DialContext})
		check(t, err)
		start := time.Now()
		check(t, c.Post(t.Context(), good))
		if d := time.Since(start); d != delay {
			t.Errorf("took %v of virtual time, want %v", d, delay)
		}

		delay = time.Hour
		start = time.Now()
		wantKind(t, c.Post(t.Context(), good), ErrUnavailable, "no answer from 127.0.0.5:3000 within 30s")
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("gave up after %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Post(ctx, good); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) {
			t.Errorf("error %v, want the context's", err)
		}
	})
}

func TestConfigErrorsNameTheField(t *testing.T) {
	ok := Config{Kind: GitHub, Repository: "org/infra", Token: token}
	with := func(f func(*Config)) Config { c := ok; f(&c); return c }
	for name, tc := range map[string]struct {
		c      Config
		fields []string
	}{
		"github":                         {ok, nil},
		"gitlab":                         {with(func(c *Config) { c.Kind, c.Repository = GitLab, "g/s/p" }), nil},
		"gitea on loopback":              {with(func(c *Config) { c.Kind, c.URL = Gitea, "http://127.84.1.7:3000" }), nil},
		"gitea on localhost":             {with(func(c *Config) { c.Kind, c.URL = Gitea, "http://localhost:3000" }), nil},
		"gitea on ipv6":                  {with(func(c *Config) { c.Kind, c.URL = Gitea, "http://[::1]:3000" }), nil},
		"no kind":                        {Config{}, []string{"kind"}},
		"forgejo":                        {with(func(c *Config) { c.Kind = "forgejo" }), []string{"kind"}},
		"gitea without address":          {with(func(c *Config) { c.Kind = Gitea }), []string{"url"}},
		"plain http":                     {with(func(c *Config) { c.URL = "http://forge.example.org" }), []string{"url"}},
		"plain http, disguised":          {with(func(c *Config) { c.URL = "http://127.0.0.1.example.org" }), []string{"url"}},
		"web site":                       {with(func(c *Config) { c.URL = "https://github.com" }), []string{"url"}},
		"token in the address":           {with(func(c *Config) { c.URL = "https://x:" + token + "@api.github.com" }), []string{"url"}},
		"query":                          {with(func(c *Config) { c.URL = "https://api.github.com?private_token=" + token }), []string{"url"}},
		"not an address":                 {with(func(c *Config) { c.URL = "api.github.com" }), []string{"url"}},
		"gitlab without address":         {with(func(c *Config) { c.Kind, c.Repository = GitLab, "g/p" }), nil},
		"an address that does not parse": {with(func(c *Config) { c.URL = "https://exa mple.org" }), []string{"url"}},
		"an address without a host":      {with(func(c *Config) { c.URL = "https:///api" }), []string{"url"}},
		"another protocol":               {with(func(c *Config) { c.URL = "ftp://127.0.0.1" }), []string{"url"}},
		"a fragment":                     {with(func(c *Config) { c.URL = "https://api.github.com#x" }), []string{"url"}},
		"a gitea on GitHub's name":       {with(func(c *Config) { c.Kind, c.URL = Gitea, "https://github.com" }), nil},
		"plain http to another address":  {with(func(c *Config) { c.URL = "http://192.0.2.1" }), []string{"url"}},
		"repository, one dot":            {with(func(c *Config) { c.Repository = "org/." }), []string{"repository"}},
		"token with a space":             {with(func(c *Config) { c.Token = "a b" }), []string{"token_file"}},
		"token with a control character": {with(func(c *Config) { c.Token = "a\x01b" }), []string{"token_file"}},
		"repository, url":                {with(func(c *Config) { c.Repository = "https://github.com/org/infra" }), []string{"repository"}},
		"repository, short":              {with(func(c *Config) { c.Repository = "infra" }), []string{"repository"}},
		"repository, dots":               {with(func(c *Config) { c.Repository = "org/.." }), []string{"repository"}},
		"repository, query":              {with(func(c *Config) { c.Repository = "org/infra?x" }), []string{"repository"}},
		"token with newline":             {with(func(c *Config) { c.Token = token + "\n" }), []string{"token_file"}},
		"several":                        {Config{Kind: Gitea, CA: []byte("x")}, []string{"url", "repository", "token_file", "ca_file"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.c)
			var got []string
			errs := []error{err}
			if j, ok := err.(interface{ Unwrap() []error }); ok {
				errs = j.Unwrap()
			}
			for _, e := range errs {
				var fe *FieldError
				if errors.As(e, &fe) {
					got = append(got, fe.Field)
				}
			}
			if !slices.Equal(got, tc.fields) {
				t.Errorf("fields %v, want %v (%v)", got, tc.fields, err)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("the token is in the error %v", err)
			}
		})
	}
}

// TestForgeWithoutADefault: who leaves the address out is asked for it, where there is no
// usual one.
func TestForgeWithoutADefault(t *testing.T) {
	_, err := New(Config{Kind: Gitea, Repository: "org/infra", Token: token})
	if err == nil || !strings.Contains(err.Error(), "url: is missing") || !strings.Contains(fault.HintOf(err), "write the address of the forge") {
		t.Errorf("%v [%s]", err, fault.HintOf(err))
	}
}

func TestNothingPrintsTheToken(t *testing.T) {
	c := Config{Kind: GitHub, URL: "https://u:" + token + "@x", Repository: "org/infra", Token: token}
	valid := c
	valid.URL = ""
	cl, err := New(valid)
	check(t, err)
	var out strings.Builder
	for _, v := range []any{c, &c, struct{ C Config }{c}, cl, struct{ C *Client }{cl}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
	}
	if strings.Contains(out.String(), token) || strings.Contains(out.String(), fmt.Sprintf("%x", token)) {
		t.Errorf("the token is printed:\n%s", out.String())
	}
}

func TestStatusesThatMakeNoSense(t *testing.T) {
	c := client(t, Config{Kind: GitHub}, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	for name, f := range map[string]func(*Status){
		"state":          func(s *Status) { s.State = "running" },
		"commit":         func(s *Status) { s.Commit = "main" },
		"commit, path":   func(s *Status) { s.Commit = "../" + s.Commit[3:] },
		"commit, +dirty": func(s *Status) { s.Commit += "+dirty" },
		"context":        func(s *Status) { s.Context = "" },
	} {
		s := good
		f(&s)
		if err := c.Post(t.Context(), s); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCut(t *testing.T) {
	for _, tc := range []struct {
		in   string
		n    int
		want string
	}{
		{"short", 10, "short"},
		{"exactly 10", 10, "exactly 10"},
		{"one two three", 10, "one two…"},
		{"one two, three", 10, "one two…"},
		{"onelongwordwithoutspace", 10, "onelongwo…"},
		{"a verylongwordafterone", 10, "a verylon…"},
		{"größe größe größe", 12, "größe größe…"},
	} {
		if got := cutText(tc.in, tc.n); got != tc.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tc.in, tc.n, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		n := rapid.IntRange(2, 40).Draw(t, "n")
		got := cutText(s, n)
		if utf8.RuneCountInString(got) > n {
			t.Fatalf("%q has more than %d characters", got, n)
		}
		if utf8.RuneCountInString(s) <= n && got != s {
			t.Fatalf("%q was cut to %q without need", s, got)
		}
	})
}

// TestLookIsAnswered: a token is good only where the forge has answered what it may.
func TestLookIsAnswered(t *testing.T) {
	for what, c := range map[string]struct {
		kind   Kind
		status int // of the answer to a status of a commit that is not there
		want   error
	}{
		"github, no commit":         {GitHub, 422, nil},
		"github, the scope lacks":   {GitHub, 404, ErrAuth},
		"github, it is taken":       {GitHub, 201, nil},
		"gitea, no commit":          {Gitea, 404, nil},
		"gitlab, no commit":         {GitLab, 404, nil},
		"the token may not do that": {Gitea, 403, ErrAuth},
	} {
		cl := client(t, Config{Kind: c.kind, Repository: "org/infra"}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				w.WriteHeader(c.status)
			}
			_, _ = io.WriteString(w, `{"id": 1}`)
		})
		if err := cl.Look(t.Context()); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cl := client(t, Config{Kind: Gitea}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body) // or the server would not see the client go
			cancel()
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, `{"id": 1}`)
	})
	if err := cl.Look(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a look that was given up: %v", err)
	}
}

// TestBrokenAnswer: an answer that breaks off is none, whatever its status.
func TestBrokenAnswer(t *testing.T) {
	c := client(t, Config{Kind: Gitea}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id": 1}`)
	})
	wantKind(t, c.Post(t.Context(), good), ErrUnavailable, "unexpected EOF")
}

func FuzzAnswer(f *testing.F) {
	f.Add(400, []byte(`{"message":"Cannot transition status via :run from :running"}`), "60")
	f.Add(429, []byte(`{"message":{"a":["b"]},"errors":[1]}`), "Wed, 21 Oct 2015 07:28:00 GMT")
	f.Add(302, []byte("<html>"), "")
	clients := map[Kind]*Client{}
	for kind := range apis {
		c, err := New(Config{Kind: kind, URL: "https://forge.example.org", Repository: "o/r", Token: token})
		check(f, err)
		clients[kind] = c
	}
	f.Fuzz(func(t *testing.T, status int, body []byte, retry string) {
		for kind, c := range clients {
			res := &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {retry}, "Location": {retry}}}
			err := c.judge(res, body, good)
			if err == nil && (kind != GitLab || status != http.StatusBadRequest) {
				t.Errorf("%s: status %d is no error", kind, status)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("%s: the token is in %v", kind, err)
			}
		}
	})
}
