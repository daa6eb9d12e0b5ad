package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// ForgeKind says which forge's API is played.
type ForgeKind string

// The forges. Forgejo speaks Gitea's API.
const (
	GitHub ForgeKind = "github"
	GitLab ForgeKind = "gitlab"
	Gitea  ForgeKind = "gitea"
)

// ForgeConfig sizes a forge.
type ForgeConfig struct {
	Config
	Kind ForgeKind // required
	// Repository is the one there is, "org/infra"; empty: every one is.
	Repository string
	// ProjectID is its number, by which GitLab's API may call it too; 0: 1.
	ProjectID int
	// Token may write statuses; empty: anybody may.
	Token string
	// ReadToken is known, but may only read.
	ReadToken string
	// Knows tells which commits exist; nil: all do.
	Knows func(commit string) bool
}

// Forge takes commit statuses over the API of GitHub, GitLab or Gitea, and
// refuses what they refuse in their words.
type Forge struct {
	*face
	config ForgeConfig
	world  *world.World

	mu       sync.Mutex
	statuses []Status
}

// Status is a commit status a forge took, in the forge's own words: GitLab
// says running and failed where the others say pending and failure.
type Status struct {
	At          time.Time
	Repository  string // as the request called it
	Commit      string
	State       string
	Context     string
	Description string
	TargetURL   string
}

// NewForge opens a forge.
func NewForge(c ForgeConfig) (*Forge, error) {
	f := &Forge{config: c, world: c.World}
	t := &routes{world: c.World, system: "forge"}
	commit := pathValue("commit")
	switch c.Kind {
	case GitHub:
		t.refuse = refuseGitHub
		t.handle("POST /repos/{owner}/{repo}/statuses/{commit}", true, commit, f.postGitHub)
		t.nothingElse("Not Found")
	case GitLab:
		t.refuse = refuseGitLab
		t.handle("POST /api/v4/projects/{project}/statuses/{commit}", true, commit, f.postGitLab)
		t.nothingElse("404 Not Found")
	case Gitea:
		t.refuse = f.refuseGitea
		t.handle("POST /api/v1/repos/{owner}/{repo}/statuses/{commit}", true, commit, f.postGitea)
		t.nothingElse("The target couldn't be found.")
	default:
		return nil, fmt.Errorf("open forge: kind %q is none of github, gitlab, gitea", c.Kind)
	}
	var err error
	if f.face, err = serve(c.Config, &t.mux); err != nil {
		return nil, fmt.Errorf("open forge: %w", err)
	}
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
	return f.latest(commit, context)
}

// latest is Latest with f.mu held.
func (f *Forge) latest(commit, context string) (Status, bool) {
	for _, s := range slices.Backward(f.statuses) {
		if s.Commit == commit && s.Context == context {
			return s, true
		}
	}
	return Status{}, false
}

// take keeps a status. f.mu is held.
func (f *Forge) take(s Status) Status {
	s.At = time.Now()
	f.statuses = append(f.statuses, s)
	f.world.Tell("forge", "%.12s %s: %s: %s", s.Commit, s.Context, s.State, s.Description)
	return s
}

// access is what a request's token may do.
type access int

const (
	accessNone access = iota // no token came
	accessWrong
	accessRead
	accessWrite
)

// access judges the token a request brought.
func (f *Forge) access(token string) access {
	switch {
	case f.config.Token == "" || token == f.config.Token:
		return accessWrite
	case token == "":
		return accessNone
	case token == f.config.ReadToken:
		return accessRead
	}
	return accessWrong
}

// authorization returns what follows one of the schemes in the Authorization
// header.
func authorization(r *http.Request, schemes ...string) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for _, s := range schemes {
		if strings.EqualFold(s, scheme) {
			return strings.TrimSpace(token)
		}
	}
	return ""
}

// knows reports whether a commit exists.
func (f *Forge) knows(commit string) bool {
	return commitName.MatchString(commit) && (f.config.Knows == nil || f.config.Knows(commit))
}

var commitName = regexp.MustCompile(`^[0-9a-f]{40}$`)

// is reports whether the forge has a repository.
func (f *Forge) is(repository string) bool {
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

// retryLater adds what a forge under load says with 429 and 503.
func retryLater(rw http.ResponseWriter, status int) {
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		rw.Header().Set("Retry-After", "60")
	}
}

// --- GitHub

const gitHubDocs = "https://docs.github.com/rest/commits/statuses#create-a-commit-status"

// The limits GitHub sets on a status, and on how many a commit may have in one
// context.
const (
	gitHubDescription = 140
	gitHubStatuses    = 1000
)

func refuseGitHub(rw http.ResponseWriter, status int, text string) {
	retryLater(rw, status)
	writeJSON(rw, status, map[string]string{
		"message": text, "documentation_url": gitHubDocs, "status": strconv.Itoa(status),
	})
}

// refuseField is GitHub's 422 about one field.
func refuseField(rw http.ResponseWriter, field, message string) {
	writeJSON(rw, http.StatusUnprocessableEntity, map[string]any{
		"message":           "Validation Failed",
		"errors":            []map[string]string{{"resource": "Status", "code": "custom", "field": field, "message": message}},
		"documentation_url": gitHubDocs,
		"status":            "422",
	})
}

func (f *Forge) postGitHub(rw http.ResponseWriter, r *http.Request) {
	repository, commit := r.PathValue("owner")+"/"+r.PathValue("repo"), r.PathValue("commit")
	switch f.access(authorization(r, "Bearer", "token")) {
	case accessNone:
		// GitHub does not tell strangers which repositories there are.
		refuseGitHub(rw, http.StatusNotFound, "Not Found")
		return
	case accessWrong:
		refuseGitHub(rw, http.StatusUnauthorized, "Bad credentials")
		return
	case accessRead:
		refuseGitHub(rw, http.StatusForbidden, "Resource not accessible by personal access token")
		return
	}
	if !f.is(repository) {
		refuseGitHub(rw, http.StatusNotFound, "Not Found")
		return
	}
	b, err := readStatus(rw, r)
	switch {
	case err != nil:
		refuseGitHub(rw, http.StatusBadRequest, "Problems parsing JSON")
		return
	case !f.knows(commit):
		refuseGitHub(rw, http.StatusUnprocessableEntity, "No commit found for SHA: "+commit)
		return
	case !slices.Contains([]string{"error", "failure", "pending", "success"}, b.State):
		refuseField(rw, "state", "state is not included in the list")
		return
	case utf8.RuneCountInString(b.Description) > gitHubDescription:
		refuseField(rw, "description", fmt.Sprintf("description is too long (maximum is %d characters)", gitHubDescription))
		return
	}
	if b.Context == "" {
		b.Context = "default"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	have := 0
	for _, s := range f.statuses {
		if s.Commit == commit && s.Context == b.Context {
			have++
		}
	}
	if have >= gitHubStatuses {
		refuseField(rw, "base", "This SHA and context has reached the maximum number of statuses.")
		return
	}
	s := f.take(Status{
		Repository: repository, Commit: commit,
		State: b.State, Context: b.Context, Description: b.Description, TargetURL: b.TargetURL,
	})
	writeJSON(rw, http.StatusCreated, answer(s, len(f.statuses)))
}

// answer is how GitHub and Gitea show a status.
func answer(s Status, id int) map[string]any {
	at := s.At.UTC().Format(time.RFC3339)
	return map[string]any{
		"id": id, "state": s.State, "status": s.State, "context": s.Context, "description": s.Description,
		"target_url": s.TargetURL, "created_at": at, "updated_at": at,
	}
}

// --- GitLab

// gitLabDescription is the longest description GitLab takes.
const gitLabDescription = 255

func refuseGitLab(rw http.ResponseWriter, status int, text string) {
	retryLater(rw, status)
	writeJSON(rw, status, map[string]string{"message": text})
}

// gitLabMoves names the event of each state and the states it may happen in,
// besides a status that is new: one that ended (success, failed, canceled,
// skipped) never changes, posting after it makes a new one.
var gitLabMoves = map[string]struct {
	event string
	from  []string
}{
	"pending":  {"enqueue", nil},
	"running":  {"run", []string{"pending"}},
	"success":  {"success", []string{"pending", "running"}},
	"failed":   {"drop", []string{"pending", "running"}},
	"canceled": {"cancel", []string{"pending", "running"}},
	"skipped":  {"skip", []string{"pending"}},
}

func (f *Forge) postGitLab(rw http.ResponseWriter, r *http.Request) {
	project, commit := r.PathValue("project"), r.PathValue("commit")
	token := r.Header.Get("Private-Token")
	if token == "" {
		token = authorization(r, "Bearer")
	}
	may := f.access(token)
	number := max(f.config.ProjectID, 1)
	switch {
	case may == accessNone || may == accessWrong:
		refuseGitLab(rw, http.StatusUnauthorized, "401 Unauthorized")
		return
	case !f.is(project) && project != strconv.Itoa(number):
		refuseGitLab(rw, http.StatusNotFound, "404 Project Not Found")
		return
	case may == accessRead:
		refuseGitLab(rw, http.StatusForbidden, "403 Forbidden")
		return
	}
	b, err := readGitLabStatus(rw, r)
	move, valid := gitLabMoves[b.State]
	switch {
	case err != nil:
		writeJSON(rw, http.StatusBadRequest, map[string]string{"error": "The request body is invalid"})
		return
	case b.State == "":
		writeJSON(rw, http.StatusBadRequest, map[string]string{"error": "state is missing"})
		return
	case !valid:
		writeJSON(rw, http.StatusBadRequest, map[string]string{"error": "state does not have a valid value"})
		return
	case !f.knows(commit):
		refuseGitLab(rw, http.StatusNotFound, "404 Commit Not Found")
		return
	case utf8.RuneCountInString(b.Description) > gitLabDescription:
		writeJSON(rw, http.StatusBadRequest, map[string]any{"message": map[string]any{
			"description": []string{fmt.Sprintf("is too long (maximum is %d characters)", gitLabDescription)},
		}})
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	had, _ := f.latest(commit, b.Name)
	open := had.State == "pending" || had.State == "running"
	if open && !slices.Contains(move.from, had.State) {
		refuseGitLab(rw, http.StatusBadRequest, fmt.Sprintf(
			"Cannot transition status via :%s from :%s (Reason(s): Status cannot transition via %q)", move.event, had.State, move.event))
		return
	}
	s := f.take(Status{
		Repository: project, Commit: commit,
		State: b.State, Context: b.Name, Description: b.Description, TargetURL: b.TargetURL,
	})
	writeJSON(rw, http.StatusCreated, map[string]any{
		"id": len(f.statuses), "sha": s.Commit, "status": s.State, "name": s.Context,
		"description": s.Description, "target_url": s.TargetURL, "created_at": s.At.UTC().Format(time.RFC3339),
	})
}

// readGitLabStatus takes JSON, a form or a query, and both names of the
// context.
func readGitLabStatus(rw http.ResponseWriter, r *http.Request) (b statusBody, err error) {
	r.Body = http.MaxBytesReader(rw, r.Body, 1<<20)
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && media == "application/json" {
		if b, err = readStatus(rw, r); err != nil && !errors.Is(err, io.EOF) {
			return b, err
		}
	}
	if err := r.ParseForm(); err != nil {
		return b, err
	}
	for key, value := range map[string]*string{
		"state": &b.State, "name": &b.Name, "context": &b.Context, "description": &b.Description, "target_url": &b.TargetURL,
	} {
		if r.Form.Has(key) {
			*value = r.Form.Get(key)
		}
	}
	if b.Name == "" {
		b.Name = b.Context
	}
	if b.Name == "" {
		b.Name = "default"
	}
	return b, nil
}

// --- Gitea

func (f *Forge) refuseGitea(rw http.ResponseWriter, status int, text string) {
	retryLater(rw, status)
	body := map[string]any{"message": text, "url": f.URL() + "/api/swagger"}
	if status == http.StatusNotFound {
		body["errors"] = []string{}
	}
	writeJSON(rw, status, body)
}

func (f *Forge) postGitea(rw http.ResponseWriter, r *http.Request) {
	repository, commit := r.PathValue("owner")+"/"+r.PathValue("repo"), r.PathValue("commit")
	switch may := f.access(authorization(r, "token", "Bearer")); {
	case may == accessWrong:
		f.refuseGitea(rw, http.StatusUnauthorized, "invalid username, password or token")
		return
	case !f.is(repository):
		f.refuseGitea(rw, http.StatusNotFound, "The target couldn't be found.")
		return
	case may == accessNone:
		f.refuseGitea(rw, http.StatusUnauthorized, "token is required")
		return
	case may == accessRead:
		f.refuseGitea(rw, http.StatusForbidden, "token does not have at least one of required scope(s): [write:repository]")
		return
	}
	b, err := readStatus(rw, r)
	switch {
	case err != nil:
		f.refuseGitea(rw, http.StatusUnprocessableEntity, "[]: "+err.Error())
		return
	case !f.knows(commit):
		// Gitea looks the commit up without a thought for its absence, and
		// keeps the reason to itself.
		f.refuseGitea(rw, http.StatusInternalServerError, "")
		return
	case !slices.Contains([]string{"pending", "success", "error", "failure", "warning"}, b.State):
		f.refuseGitea(rw, http.StatusUnprocessableEntity, "[State]: unknown state "+strconv.Quote(b.State))
		return
	}
	if b.Context == "" {
		b.Context = "default"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.take(Status{
		Repository: repository, Commit: commit,
		State: b.State, Context: b.Context, Description: b.Description, TargetURL: b.TargetURL,
	})
	writeJSON(rw, http.StatusCreated, answer(s, len(f.statuses)))
}
