package forge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Kind names which forge's API is simulated.
type Kind string

// The forges. Forgejo speaks Gitea's API.
const (
	GitHub Kind = "github"
	GitLab Kind = "gitlab"
	Gitea  Kind = "gitea"
)

// Config sizes a forge.
type Config struct {
	Service httpservice.Config
	Kind    Kind // required
	// Repository is the one there is, "org/infra"; empty: every one is.
	Repository string
	// ProjectID is its number, by which GitLab's API may call it too; 0: 1.
	ProjectID int
	// Token may write statuses; empty: anybody may.
	Token string
	// ReadToken is known, but may only read.
	ReadToken string
	// Knows reports whether a commit exists; nil: all do.
	Knows func(commit string) bool
}

// Forge takes commit statuses over the API of GitHub, GitLab or Gitea, and
// refuses what they refuse, with their text.
type Forge struct {
	*httpservice.Server
	config Config
	world  *world.World

	ctx     context.Context // of what the forge sends
	cancel  context.CancelFunc
	sending sync.WaitGroup

	mu         sync.Mutex
	statuses   []Status
	hooks      []Hook
	deliveries []Delivery
}

// Close closes the forge, and gives up the webhooks under way.
func (f *Forge) Close() error {
	f.cancel()
	f.sending.Wait()
	return f.Server.Close()
}

// Status is a commit status a forge took, with the forge's own states: GitLab
// uses running and failed where the others use pending and failure.
type Status struct {
	At          time.Time
	Repository  string // as the request called it
	Commit      string
	State       string
	Context     string
	Description string
	TargetURL   string
}

// New opens a forge.
func New(c Config) (*Forge, error) {
	if !slices.Contains([]Kind{GitHub, GitLab, Gitea}, c.Kind) {
		return nil, fmt.Errorf("open forge: kind %q is none of github, gitlab, gitea", c.Kind)
	}
	server, err := httpservice.Open(c.Service)
	if err != nil {
		return nil, fmt.Errorf("open forge: %w", err)
	}
	f := &Forge{Server: server, config: c, world: c.Service.World}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	t := &httpservice.Routes{World: c.Service.World, System: "forge"}
	commit := httpservice.PathValue("commit")
	switch c.Kind {
	case GitHub:
		t.Refuse = refuseGitHub
		t.Handle("POST /repos/{owner}/{repo}/statuses/{commit}", true, commit, f.postGitHub)
		t.Handle("GET /repos/{owner}/{repo}", false, httpservice.NoSubject, f.showGitHub)
		t.HandleRest("Not Found")
	case GitLab:
		t.Refuse = refuseGitLab
		t.Handle("POST /api/v4/projects/{project}/statuses/{commit}", true, commit, f.postGitLab)
		t.Handle("GET /api/v4/projects/{project}", false, httpservice.NoSubject, f.showGitLab)
		t.HandleRest("404 Not Found")
	case Gitea:
		t.Refuse = f.refuseGitea
		t.Handle("POST /api/v1/repos/{owner}/{repo}/statuses/{commit}", true, commit, f.postGitea)
		t.Handle("GET /api/v1/repos/{owner}/{repo}", false, httpservice.NoSubject, f.showGitea)
		t.HandleRest("The target couldn't be found.")
	}
	f.Serve(t)
	return f, nil
}

// Statuses returns every status taken so far, in order.
func (f *Forge) Statuses() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.statuses)
}

// Latest returns the status that stands for a commit in a context.
func (f *Forge) Latest(commit, context string) (Status, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.findLatest(commit, context)
}

// findLatest is Latest with f.mu held.
func (f *Forge) findLatest(commit, context string) (Status, bool) {
	for _, s := range slices.Backward(f.statuses) {
		if s.Commit == commit && s.Context == context {
			return s, true
		}
	}
	return Status{}, false
}

// addStatus keeps a status. f.mu is held.
func (f *Forge) addStatus(s Status) Status {
	s.At = time.Now()
	f.statuses = append(f.statuses, s)
	f.world.Report("forge", "%.12s %s: %s: %s", s.Commit, s.Context, s.State, s.Description)
	return s
}

// access is what a request's token may do.
type access int

const (
	accessNone access = iota // no token came
	accessInvalid
	accessRead
	accessWrite
)

// checkAccess judges the token a request brought.
func (f *Forge) checkAccess(token string) access {
	switch {
	case f.config.Token == "" || token == f.config.Token:
		return accessWrite
	case token == "":
		return accessNone
	case token == f.config.ReadToken:
		return accessRead
	}
	return accessInvalid
}

// readAuthorization returns what follows one of the schemes in the Authorization
// header.
func readAuthorization(r *http.Request, schemes ...string) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for _, s := range schemes {
		if strings.EqualFold(s, scheme) {
			return strings.TrimSpace(token)
		}
	}
	return ""
}

// hasCommit reports whether a commit exists.
func (f *Forge) hasCommit(commit string) bool {
	return commitName.MatchString(commit) && strings.Trim(commit, "0") != "" && (f.config.Knows == nil || f.config.Knows(commit))
}

var commitName = pattern.New(`^[0-9a-f]{40}$`)

// hasRepository reports whether the forge has a repository.
func (f *Forge) hasRepository(repository string) bool {
	return f.config.Repository == "" || strings.EqualFold(f.config.Repository, repository)
}

// statusBody is what GitHub and Gitea take, and with another name for the
// context, GitLab.
type statusBody struct {
	State       string `json:"state"`
	Context     string `json:"context"`
	Name        string `json:"name"`
	Description string `json:"description"`
	TargetURL   string `json:"target_url"`
}

func readStatus(rw http.ResponseWriter, r *http.Request) (b statusBody, err error) {
	err = json.NewDecoder(http.MaxBytesReader(rw, r.Body, 1<<20)).Decode(&b)
	return b, err
}

// retryLater adds what a forge under load sends with 429 and 503.
func retryLater(rw http.ResponseWriter, status int) {
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		rw.Header().Set("Retry-After", "60")
	}
}

// renderStatus is how GitHub and Gitea show a status.
func renderStatus(s Status, id int) map[string]any {
	at := s.At.UTC().Format(time.RFC3339)
	return map[string]any{
		"id": id, "state": s.State, "status": s.State, "context": s.Context, "description": s.Description,
		"target_url": s.TargetURL, "created_at": at, "updated_at": at,
	}
}
