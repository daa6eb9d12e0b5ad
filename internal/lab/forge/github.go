package forge

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
)

const gitHubDocs = "https://docs.github.com/rest/commits/statuses#create-a-commit-status"

// The limits GitHub sets on a status, and on how many a commit may have in one
// context.
const (
	gitHubDescription = 140
	gitHubStatuses    = 1000
)

func refuseGitHub(rw http.ResponseWriter, status int, text string) {
	retryLater(rw, status)
	httpservice.WriteJSON(rw, status, map[string]string{
		"message": text, "documentation_url": gitHubDocs, "status": strconv.Itoa(status),
	})
}

// refuseField is GitHub's 422 about one field.
func refuseField(rw http.ResponseWriter, field, message string) {
	httpservice.WriteJSON(rw, http.StatusUnprocessableEntity, map[string]any{
		"message":           "Validation Failed",
		"errors":            []map[string]string{{"resource": "Status", "code": "custom", "field": field, "message": message}},
		"documentation_url": gitHubDocs,
		"status":            "422",
	})
}

func (f *Forge) postGitHub(rw http.ResponseWriter, r *http.Request) {
	repository, commit := r.PathValue("owner")+"/"+r.PathValue("repo"), r.PathValue("commit")
	if status, text := f.admitGitHub(r, repository); status != 0 {
		refuseGitHub(rw, status, text)
		return
	}
	b, err := readStatus(rw, r)
	switch {
	case err != nil:
		refuseGitHub(rw, http.StatusBadRequest, "Problems parsing JSON")
		return
	case !f.hasCommit(commit):
		refuseGitHub(rw, http.StatusUnprocessableEntity, "No commit found for SHA: "+commit)
		return
	case !slices.Contains([]string{"error", "failure", "pending", "success"}, b.State):
		refuseField(rw, "state", "state is not included in the list")
		return
	case utf8.RuneCountInString(b.Description) > gitHubDescription:
		refuseField(rw, "description", fmt.Sprintf("description is too long (maximum is %d characters)", gitHubDescription))
		return
	}
	b.Context = cmp.Or(b.Context, "default")
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
	s := f.addStatus(Status{
		Repository: repository, Commit: commit,
		State: b.State, Context: b.Context, Description: b.Description, TargetURL: b.TargetURL,
	})
	httpservice.WriteJSON(rw, http.StatusCreated, renderStatus(s, len(f.statuses)))
}

// showGitHub answers what the repository is, to whoever may read it.
func (f *Forge) showGitHub(rw http.ResponseWriter, r *http.Request) {
	repository := r.PathValue("owner") + "/" + r.PathValue("repo")
	if status, text := f.admitGitHub(r, repository); status != 0 && status != http.StatusForbidden {
		refuseGitHub(rw, status, text)
		return
	}
	httpservice.WriteJSON(rw, http.StatusOK, map[string]any{"id": 1, "full_name": repository, "private": true})
}

// admitGitHub judges token and repository; status 0 lets the request in. The
// repositories are private, and GitHub does not show unknown clients that they are.
func (f *Forge) admitGitHub(r *http.Request, repository string) (status int, text string) {
	switch may := f.checkAccess(readAuthorization(r, "Bearer", "token")); {
	case may == accessInvalid:
		return http.StatusUnauthorized, "Bad credentials"
	case may == accessNone || !f.hasRepository(repository):
		return http.StatusNotFound, "Not Found"
	case may == accessRead:
		return http.StatusForbidden, "Resource not accessible by personal access token"
	}
	return 0, ""
}
