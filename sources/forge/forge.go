package forge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/certpool"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Kind is a forge's API.
type Kind string

// The kinds. Forgejo is of kind Gitea.
const (
	GitHub Kind = "github"
	GitLab Kind = "gitlab"
	Gitea  Kind = "gitea"
)

// State is a commit status in one word, the same for every forge.
type State string

// The states.
const (
	StatePending State = "pending"
	StateSuccess State = "success"
	StateFailure State = "failure"
	StateError   State = "error"
)

// Status is what to post about a commit.
type Status struct {
	// Commit is the commit's id in hex, 40 digits (or 64).
	Commit string
	State  State
	// Context distinguishes the statuses of one commit, as in "talos-agent/dev".
	Context string
	// Description is one line for people. It is cut at a word to what the forge
	// takes: 140 characters for GitHub, 255 for the others.
	Description string
	// TargetURL is where to read more; may be empty.
	TargetURL string
}

// Config names the forge and the identity. Kind, Repository and Token are
// required.
type Config struct {
	Kind Kind
	// URL is the address of the forge: GitHub's API (https://api.github.com when
	// empty, https://host/api/v3 for GitHub Enterprise), or the front page of
	// GitLab (https://gitlab.com when empty) or Gitea.
	URL string
	// Repository is owner/name; for GitLab the path of the project with its
	// groups, or its number.
	Repository string
	Token      string
	// CA holds PEM certificates to trust besides the system's.
	CA []byte
	// Dial opens connections; nil means the network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Wrap puts something between the client and its connections; nil: nothing.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Timeout bounds one Post; 30s when zero.
	Timeout time.Duration
}

// Format implements fmt.Formatter, so that no verb prints the token.
func (c Config) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "{Kind:%s Repository:%s}", c.Kind, c.Repository)
}

// LogValue implements slog.LogValuer.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// api is the API of one kind of forge.
type api struct {
	url    string // default
	root   string // of the API below url
	path   string // below root; %s are the repository and the commit
	auth   string // header
	scheme string // before the token
	name   string // of the context in the body
	most   int    // characters of a description
	states map[State]string
	scope  string // what the token needs
}

var same = map[State]string{StatePending: "pending", StateSuccess: "success", StateFailure: "failure", StateError: "error"}

// apis follow the reference of each forge: REST "Create a commit status"
// (GitHub, version 2022-11-28), "Set commit pipeline status" (GitLab, v4) and
// repoCreateStatus (Gitea 1.22).
var apis = map[Kind]api{
	GitHub: {
		url: "https://api.github.com", path: "/repos/%s/statuses/%s", auth: "Authorization", scheme: "Bearer ", name: "context", most: 140, states: same,
		scope: "the token needs the permission Commit statuses: write (or the classic scope repo:status) on the repository",
	},
	GitLab: {
		url: "https://gitlab.com", root: "/api/v4", path: "/projects/%s/statuses/%s", auth: "PRIVATE-TOKEN", name: "name", most: 255,
		states: map[State]string{StatePending: "running", StateSuccess: "success", StateFailure: "failed", StateError: "failed"},
		scope:  "the token needs the scope api and at least the role Developer in the project",
	},
	Gitea: {
		root: "/api/v1", path: "/repos/%s/statuses/%s", auth: "Authorization", scheme: "token ", name: "context", most: 255, states: same,
		scope: "the token needs the scope write:repository, and its user write access to the repository",
	},
}

// Client posts to one repository. It may be used from several goroutines.
type Client struct {
	kind    Kind
	forge   api
	base    string // address of the API
	host    string // of it, for errors
	repo    string // escaped for a path
	token   string
	timeout time.Duration
	http    *http.Client
}

// Format implements fmt.Formatter, so that no verb prints the token.
func (c *Client) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "{%s %s}", c.kind, c.repo)
}

var (
	ownerName = pattern.New(`^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$`)
	project   = pattern.New(`^([0-9]+|[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+)$`)
	commitID  = pattern.New(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
)

// New checks c; it sends nothing. Errors are FieldErrors, joined.
func New(c Config) (*Client, error) {
	f, ok := apis[c.Kind]
	if !ok {
		return nil, &FieldError{Field: "kind", text: fmt.Sprintf("%q is none of github, gitlab and gitea", c.Kind), hint: "for Forgejo write gitea"}
	}
	base, pool, err := c.parse(f)
	if err != nil {
		return nil, err
	}
	repo := c.Repository
	if c.Kind == GitLab {
		repo = url.PathEscape(repo) // its API wants the slashes escaped
	}
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	var h1 http.Protocols
	h1.SetHTTP1(true)
	var through http.RoundTripper = &http.Transport{
		DialContext:       dial,
		TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true, // statuses are far apart
		Protocols:         &h1,
	}
	if c.Wrap != nil {
		through = c.Wrap(through)
	}
	return &Client{
		kind: c.Kind, forge: f, host: base.Host, repo: repo, token: c.Token, timeout: cmp.Or(c.Timeout, 30*time.Second),
		// People paste the address with and without the API's own path.
		base: strings.TrimSuffix(strings.TrimSuffix(base.String(), "/"), f.root) + f.root,
		http: &http.Client{
			Transport: through,
			// A redirect would take the token along, or turn the POST into a GET.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// parse checks the fields, all at once.
func (c Config) parse(f api) (*url.URL, *x509.CertPool, error) {
	var errs []error
	refuse := func(field, text, hint string) { errs = append(errs, &FieldError{field, text, hint}) }

	base, err := url.Parse(cmp.Or(c.URL, f.url))
	switch {
	case c.URL == "" && f.url == "":
		refuse("url", "is missing", "write the address of the forge, such as https://git.example.org")
	case err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http":
		refuse("url", "is not an http or https address", "")
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		refuse("url", "holds more than an address", "put the token into token_file")
	case base.Scheme == "http" && !isLoopback(base.Hostname()):
		refuse("url", "is plain http, over which the token would be readable", "use https")
	case c.Kind == GitHub && base.Hostname() == "github.com":
		refuse("url", "is GitHub's web site, not its API", "write https://api.github.com, or leave it out")
	}
	valid, form := ownerName, "write owner/name"
	if c.Kind == GitLab {
		valid, form = project, "write the path of the project with its groups, such as group/infra, or its number"
	}
	if path := "/" + c.Repository + "/"; !valid.MatchString(c.Repository) || strings.Contains(path, "/../") || strings.Contains(path, "/./") {
		refuse("repository", "is not the name of a repository", form)
	}
	if c.Token == "" {
		refuse("token_file", "is missing", f.scope)
	} else if strings.ContainsFunc(c.Token, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		refuse("token_file", "holds a space, a line break or a control character", "the file holds the token and nothing else")
	}
	pool, ok := certpool.Authorities(c.CA)
	if !ok {
		refuse("ca_file", "holds no PEM certificate", "")
	}
	return base, pool, errors.Join(errs...)
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// noCommit is an id that no commit has: git's own for "none".
const noCommit = "0000000000000000000000000000000000000000"

// Look looks whether statuses could be posted: the forge knows the token and the
// repository, and takes from the token a status, of a commit that is not there,
// so that nothing is set. Errors are as those of Post.
func (c *Client) Look(ctx context.Context) error {
	repository, _, _ := strings.Cut(fmt.Sprintf(c.forge.path, c.repo, ""), "/statuses/")
	if err := c.ask(ctx, http.MethodGet, repository, nil, Status{}); err != nil {
		return fmt.Errorf("look for the repository: %w", err)
	}
	err := c.post(ctx, Status{Commit: noCommit, State: StatePending, Context: "talos-agent"})
	var e *Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrAuth):
		return fmt.Errorf("set a commit status: %w", err)
	// GitHub answers a token that lacks the scope that there is no such thing; a
	// missing commit alone is a 422.
	case c.kind == GitHub && errors.As(err, &e) && e.Status == http.StatusNotFound:
		return fmt.Errorf("set a commit status: %w", &Error{Kind: ErrAuth, Status: e.Status, fault: fault.Error{Op: "the token may not", Hint: c.forge.scope}})
	}
	return nil // refused for the commit's sake, each forge in its own way
}

// Post sets one status. Posting what is set already is no error. Errors are
// *Error, or name the field of s that is wrong, or are the context's.
func (c *Client) Post(ctx context.Context, s Status) error {
	if err := c.post(ctx, s); err != nil {
		return fmt.Errorf("post status %s of %.12s: %w", s.Context, s.Commit, err)
	}
	return nil
}

func (c *Client) post(parent context.Context, s Status) error {
	state, ok := c.forge.states[s.State]
	switch {
	case !ok:
		return fmt.Errorf("state %q is unknown", s.State)
	case !commitID.MatchString(s.Commit):
		return fmt.Errorf("commit %q is not a commit id", s.Commit)
	case s.Context == "":
		return errors.New("context is empty")
	}
	fields := map[string]string{
		"state": state, c.forge.name: s.Context,
		"description": cutText(text.OneLine(s.Description), c.forge.most),
	}
	if s.TargetURL != "" {
		fields["target_url"] = s.TargetURL
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return c.ask(parent, http.MethodPost, fmt.Sprintf(c.forge.path, c.repo, s.Commit), body, s)
}

// ask sends a request about a status, and judges the answer.
func (c *Client) ask(parent context.Context, method, path string, body []byte, s Status) error {
	ctx, cancel := context.WithTimeout(parent, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set(c.forge.auth, c.forge.scheme+c.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "talos-agent")
	if c.kind == GitHub {
		req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.unanswered(parent, err)
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	err = errors.Join(err, res.Body.Close())
	switch {
	case err != nil:
		return c.unanswered(parent, err)
	case res.StatusCode == want[method] && isObject(answer):
		return nil
	}
	return c.judge(res, answer, s)
}

// want is the status of a success. Each forge has the same.
var want = map[string]int{http.MethodGet: http.StatusOK, http.MethodPost: http.StatusCreated}

// isObject reports whether an answer is an object of a forge, a commit status or a
// repository: each has a number. A page to sign in at is not, whatever its status.
func isObject(answer []byte) bool {
	var object struct{ ID int64 }
	return json.Unmarshal(answer, &object) == nil && object.ID != 0
}

// unanswered sorts what went wrong before there was an answer.
func (c *Client) unanswered(parent context.Context, err error) error {
	if parent.Err() != nil {
		return parent.Err()
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // without the URL, which adds only the host
	}
	e := &Error{Kind: ErrUnavailable, fault: fault.Error{Op: "ask " + c.host, Err: text.Plain(err)}}
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded): // whichever clock strikes first
		e.fault.Op, e.fault.Err = fmt.Sprintf("no answer from %s within %s", c.host, c.timeout), nil
	case errors.As(err, &cert):
		e.fault.Hint = "if the forge's certificate comes from an authority of your own, give its certificate as ca_file"
	}
	return e
}

// cutText shortens s to at most n characters, at a word if there is one in the
// second half, and marks the cut.
func cutText(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	head := string([]rune(s)[:n-1])
	if i := strings.LastIndexByte(head, ' '); i > len(head)/2 {
		head = head[:i]
	}
	return strings.TrimRight(head, " ,;:.") + "…"
}
