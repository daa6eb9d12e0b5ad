package webhook

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "a secret of sixteen"

var (
	noon       = time.Unix(1_772_366_400, 0)
	signingKey = []byte("0123456789abcdef0123456789abcdef")
)

func hexOf(b []byte) string { return hex.EncodeToString(b) }

// github, gitlab and gitea are pushes as the forges send them.
func push(ref, name string) string {
	return fmt.Sprintf(`{"ref": %q, "before": "1", "after": "2", "repository": {"id": 1, "full_name": %q}, "commits": [{"id": "2"}]}`, ref, name)
}

func gitlabPush(ref, name string) string {
	return fmt.Sprintf(`{"object_kind": "push", "event_name": "push", "ref": %q, "project": {"path_with_namespace": %q}, "repository": {"name": "x"}}`, ref, name)
}

func standardHeaders(key []byte, body string, at time.Time) []string {
	stamp := fmt.Sprint(at.Unix())
	sum := base64.StdEncoding.EncodeToString(signParts(key, []byte("msg_1."+stamp+"."), []byte(body)))
	return []string{"X-Gitlab-Event", "Push Hook", "Webhook-Id", "msg_1", "Webhook-Timestamp", stamp, "Webhook-Signature", "v2,AAAA v1," + sum}
}

func TestJudge(t *testing.T) {
	main, mainLab := push("refs/heads/main", "org/infra"), gitlabPush("refs/heads/main", "org/infra")
	github := func(body, event, key string) []string {
		return []string{"X-GitHub-Event", event, "X-Hub-Signature-256", "sha256=" + hexOf(signParts([]byte(key), []byte(body)))}
	}
	form := "payload=" + url.QueryEscape(main)
	signing := signingPrefix + base64.StdEncoding.EncodeToString(signingKey)
	for name, c := range map[string]struct {
		secret  string // "": the usual
		headers []string
		body    string
		want    Result
		why     string
	}{
		"github":                     {"", github(main, "push", secret), main, Accepted, "fetched"},
		"github, a form":             {"", append(github(form, "push", secret), "Content-Type", "application/x-www-form-urlencoded"), form, Accepted, ""},
		"github, ping":               {"", github(`{"zen": "x"}`, "ping", secret), `{"zen": "x"}`, Ignored, "not a push"},
		"github, another event":      {"", github(main, "pull_request", secret), main, Ignored, "not a push"},
		"github, another secret":     {"", github(main, "push", secret+"x"), main, Refused, "another secret"},
		"github, another body":       {"", github(main, "push", secret), main + " ", Refused, "another secret"},
		"github, sha1 only":          {"", []string{"X-GitHub-Event", "push", "X-Hub-Signature", "sha1=" + strings.Repeat("00", 20)}, main, Refused, "no signature"},
		"github, not hex":            {"", []string{"X-GitHub-Event", "push", "X-Hub-Signature-256", "sha256=zz"}, main, Refused, "another secret"},
		"github, cut":                {"", []string{"X-GitHub-Event", "push", "X-Hub-Signature-256", "sha256=" + hexOf(signParts([]byte(secret), []byte(main)))[:62]}, main, Refused, ""},
		"nothing":                    {"", []string{"X-GitHub-Event", "push"}, main, Refused, "no signature"},
		"no event":                   {"", github(main, "", secret), main, Invalid, "event"},
		"not json":                   {"", github("hello", "push", secret), "hello", Invalid, "JSON"},
		"an empty form":              {"", append(github("x=1", "push", secret), "Content-Type", "application/x-www-form-urlencoded"), "x=1", Invalid, "JSON"},
		"gitea":                      {"", []string{"X-Gitea-Event", "push", "X-Gitea-Signature", hexOf(signParts([]byte(secret), []byte(main)))}, main, Accepted, ""},
		"forgejo":                    {"", []string{"X-Forgejo-Event", "push", "X-Forgejo-Signature", hexOf(signParts([]byte(secret), []byte(main)))}, main, Accepted, ""},
		"gitea, another secret":      {"", []string{"X-Gitea-Event", "push", "X-Gitea-Signature", hexOf(signParts([]byte("x"), []byte(main)))}, main, Refused, ""},
		"gitlab":                     {"", []string{"X-Gitlab-Event", "Push Hook", "X-Gitlab-Token", secret}, mainLab, Accepted, ""},
		"gitlab, system hook":        {"", []string{"X-Gitlab-Event", "System Hook", "X-Gitlab-Token", secret}, mainLab, Accepted, ""},
		"gitlab, tag":                {"", []string{"X-Gitlab-Event", "Tag Push Hook", "X-Gitlab-Token", secret}, mainLab, Ignored, ""},
		"gitlab, another secret":     {"", []string{"X-Gitlab-Event", "Push Hook", "X-Gitlab-Token", secret[1:]}, mainLab, Refused, "another secret"},
		"gitlab, signed":             {signing, standardHeaders(signingKey, mainLab, noon), mainLab, Accepted, ""},
		"gitlab, signed, token too":  {signing, append(standardHeaders(signingKey, mainLab, noon), "X-Gitlab-Token", "another"), mainLab, Accepted, ""},
		"gitlab, signed otherwise":   {signing, append(standardHeaders([]byte("x"), mainLab, noon), "X-Gitlab-Token", signing), mainLab, Refused, "another secret"},
		"gitlab, signed long ago":    {signing, standardHeaders(signingKey, mainLab, noon.Add(-6*time.Minute)), mainLab, Refused, "clocks"},
		"gitlab, signed tomorrow":    {signing, standardHeaders(signingKey, mainLab, noon.Add(time.Hour)), mainLab, Refused, "clocks"},
		"gitlab, signed, old secret": {"", standardHeaders(signingKey, mainLab, noon), mainLab, Refused, "whsec_"},
		"gitlab, an empty key":       {signingPrefix, standardHeaders(nil, mainLab, noon), mainLab, Refused, "whsec_"},
		"gitlab, another time said":  {signing, append(standardHeaders(signingKey, mainLab, noon.Add(-time.Hour)), "Webhook-Timestamp", fmt.Sprint(noon.Unix())), mainLab, Refused, "another secret"},
		"another branch":             {"", github(push("refs/heads/next", "org/infra"), "push", secret), push("refs/heads/next", "org/infra"), Ignored, "branch"},
		"a branch named alike":       {"", github(push("refs/tags/main", "org/infra"), "push", secret), push("refs/tags/main", "org/infra"), Ignored, "branch"},
		"another repository":         {"", github(push("refs/heads/main", "org/other"), "push", secret), push("refs/heads/main", "org/other"), Ignored, "repository"},
		"the end of another's name":  {"", github(push("refs/heads/main", "rg/infra"), "push", secret), push("refs/heads/main", "rg/infra"), Ignored, "repository"},
		"no repository":              {"", github(`{"ref": "refs/heads/main"}`, "push", secret), `{"ref": "refs/heads/main"}`, Ignored, "repository"},
		"another spelling":           {"", github(push("refs/heads/main", "Org/Infra"), "push", secret), push("refs/heads/main", "Org/Infra"), Accepted, ""},
	} {
		h := http.Header{}
		for i := 0; i < len(c.headers); i += 2 {
			h.Set(c.headers[i], c.headers[i+1])
		}
		key := c.secret
		if key == "" {
			key = secret
		}
		l := New(Config{Secret: key, Branch: "main", Repository: "git@git.example.org:org/infra.git", Hint: func() {}})
		got, why := l.Judge(h, []byte(c.body), noon)
		if got != c.want || !strings.Contains(why, c.why) || strings.Contains(why, secret) {
			t.Errorf("%s: %s, %s; want %s, %s", name, got, why, c.want, c.why)
		}
	}
	// No one can know a secret that is not there.
	l := New(Config{Hint: func() {}})
	if got, _ := l.Judge(http.Header{"X-Gitlab-Token": {""}, "X-Gitlab-Event": {"Push Hook"}}, []byte(mainLab), noon); got != Refused {
		t.Errorf("without a secret: %s", got)
	}
}

func TestPathOf(t *testing.T) {
	for address, want := range map[string]string{
		"https://github.com/org/infra.git": "org/infra", "https://git.example.org/gitea/org/infra": "gitea/org/infra",
		"ssh://git@example.org:2222/org/infra.git": "org/infra", "git@example.org:group/sub/infra.git": "group/sub/infra",
		"example.org:/org/infra.git": "org/infra", "/srv/git/infra.git": "", "": "",
	} {
		if got := pathOf(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	below := New(Config{Repository: "https://git.example.org/gitea/org/infra"})
	if !below.isOurs("org/infra") || below.isOurs("infra/x") || below.isOurs("") {
		t.Error("a forge below a path")
	}
}

// TestServe: what is answered, counted and passed on.
func TestServe(t *testing.T) {
	hints, counts := 0, map[Result]int{}
	var log bytes.Buffer
	l := New(Config{Secret: secret, Branch: "main", Repository: "https://example.org/org/infra", Hint: func() { hints++ },
		Count: func(r Result) { counts[r]++ }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	send := func(method, body string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "/any/path", strings.NewReader(body))
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		l.ServeHTTP(w, r)
		return w
	}
	good := push("refs/heads/main", "org/infra")
	signature := hexOf(signParts([]byte(secret), []byte(good)))
	for i, c := range []struct {
		w    *httptest.ResponseRecorder
		code int
		text string
	}{
		{send(http.MethodPost, good, "X-Gitea-Event", "push", "X-Gitea-Signature", signature), 202, "accepted: "},
		{send(http.MethodPost, good, "X-Gitea-Event", "issues", "X-Gitea-Signature", signature), 202, "ignored: "},
		{send(http.MethodPost, good, "X-Gitea-Event", "push"), 401, "refused: "},
		{send(http.MethodPost, good+" ", "X-Gitea-Event", "push", "X-Gitea-Signature", signature), 401, "refused: "},
		{send(http.MethodPost, good, "X-Gitea-Signature", signature), 400, "invalid: "},
		{send(http.MethodPost, strings.Repeat("x", maxBody+1), "X-Gitea-Signature", signature), 413, "invalid: "},
		{send(http.MethodGet, "", "X-Gitlab-Token", secret), 405, "POST"},
	} {
		if c.w.Code != c.code || !strings.Contains(c.w.Body.String(), c.text) {
			t.Errorf("%d: %d %s, want %d %s", i, c.w.Code, c.w.Body, c.code, c.text)
		}
	}
	if hints != 1 || counts[Accepted] != 1 || counts[Ignored] != 1 || counts[Refused] != 2 || counts[Invalid] != 2 {
		t.Errorf("%d hints, %v", hints, counts)
	}
	if n := strings.Count(log.String(), "refused"); n != 1 || strings.Contains(log.String(), secret) {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
	// A body that breaks off has no valid signature.
	r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(good), brokenReader{}))
	l.ServeHTTP(httptest.NewRecorder(), r)
	if hints != 1 {
		t.Error("half a body was a hint")
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// FuzzJudge: nothing makes it panic, and nothing without the secret is more than
// refused.
func FuzzJudge(f *testing.F) {
	good := push("refs/heads/main", "org/infra")
	f.Add([]byte(good), "sha256="+hexOf(signParts([]byte(secret), []byte(good))), "push", "application/json", "", "")
	f.Add([]byte("payload=%7B%7D"), "", "push", "application/x-www-form-urlencoded; charset=utf-8", "v1,AAAA v1,", "1772366400")
	f.Add([]byte(gitlabPush("refs/heads/main", "a/b")), "00", "Push Hook", ";", "v1", "-1")
	other := New(Config{Secret: "not the fuzzer's", Branch: "main", Repository: "https://example.org/org/infra", Hint: func() {}})
	signing := New(Config{Secret: signingPrefix + base64.StdEncoding.EncodeToString(signingKey), Branch: "main", Hint: func() {}})
	ours := New(Config{Secret: secret, Branch: "main", Repository: "https://example.org/org/infra", Hint: func() {}})
	f.Fuzz(func(t *testing.T, body []byte, signature, event, kind, standard, stamp string) {
		h := http.Header{}
		for name, value := range map[string]string{"X-Hub-Signature-256": signature, "X-Gitea-Signature": signature, "X-Gitlab-Token": signature,
			"X-Gitlab-Event": event, "Content-Type": kind, "Webhook-Signature": standard, "Webhook-Timestamp": stamp, "Webhook-Id": event} {
			if value != "" {
				h.Set(name, value)
			}
		}
		for _, l := range []*Listener{other, signing} {
			if got, why := l.Judge(h, body, noon); got != Refused {
				t.Errorf("%s: %s", got, why)
			}
		}
		// With the secret its content counts.
		h.Del("Webhook-Signature")
		h.Set("X-Hub-Signature-256", "sha256="+hexOf(signParts([]byte(secret), body)))
		if got, why := ours.Judge(h, body, noon); got == Refused {
			t.Errorf("a signed body is refused: %s", why)
		}
	})
}
