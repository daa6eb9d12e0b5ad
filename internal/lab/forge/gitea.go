package forge

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
)

func (f *Forge) refuseGitea(rw http.ResponseWriter, status int, text string) {
	retryLater(rw, status)
	body := map[string]any{"message": text, "url": f.URL() + "/api/swagger"}
	if status == http.StatusNotFound {
		body["errors"] = []string{}
	}
	httpservice.WriteJSON(rw, status, body)
}

func (f *Forge) postGitea(rw http.ResponseWriter, r *http.Request) {
	repository, commit := r.PathValue("owner")+"/"+r.PathValue("repo"), r.PathValue("commit")
	if status, text := f.admitGitea(r, repository); status != 0 {
		f.refuseGitea(rw, status, text)
		return
	}
	b, err := readStatus(rw, r)
	switch {
	case err != nil:
		f.refuseGitea(rw, http.StatusUnprocessableEntity, "[]: "+err.Error())
		return
	case !f.hasCommit(commit):
		// Gitea looks the commit up without a thought for its absence, and
		// keeps the reason to itself.
		f.refuseGitea(rw, http.StatusInternalServerError, "")
		return
	case !slices.Contains([]string{"pending", "success", "error", "failure", "warning"}, b.State):
		f.refuseGitea(rw, http.StatusUnprocessableEntity, "[State]: unknown state "+strconv.Quote(b.State))
		return
	}
	b.Context = cmp.Or(b.Context, "default")
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.addStatus(Status{
		Repository: repository, Commit: commit,
		State: b.State, Context: b.Context, Description: b.Description, TargetURL: b.TargetURL,
	})
	httpservice.WriteJSON(rw, http.StatusCreated, renderStatus(s, len(f.statuses)))
}

// showGitea answers what the repository is, to whoever may read it.
func (f *Forge) showGitea(rw http.ResponseWriter, r *http.Request) {
	repository := r.PathValue("owner") + "/" + r.PathValue("repo")
	if status, text := f.admitGitea(r, repository); status != 0 && status != http.StatusForbidden {
		f.refuseGitea(rw, status, text)
		return
	}
	httpservice.WriteJSON(rw, http.StatusOK, map[string]any{"id": 1, "full_name": repository, "private": true})
}

// admitGitea judges token and repository; status 0 lets the request in.
func (f *Forge) admitGitea(r *http.Request, repository string) (status int, text string) {
	switch may := f.checkAccess(readAuthorization(r, "token", "Bearer")); {
	case may == accessInvalid:
		return http.StatusUnauthorized, "invalid username, password or token"
	case !f.hasRepository(repository):
		return http.StatusNotFound, "The target couldn't be found."
	case may == accessNone:
		return http.StatusUnauthorized, "token is required"
	case may == accessRead:
		return http.StatusForbidden, "token does not have at least one of required scope(s): [write:repository]"
	}
	return 0, ""
}
