package forge

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
)

// gitLabDescription is the longest description GitLab takes.
const gitLabDescription = 255

func refuseGitLab(rw http.ResponseWriter, status int, text string) {
	retryLater(rw, status)
	httpservice.WriteJSON(rw, status, map[string]string{"message": text})
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
	if status, text := f.admitGitLab(r, project); status != 0 {
		refuseGitLab(rw, status, text)
		return
	}
	b, err := readGitLabStatus(rw, r)
	move, valid := gitLabMoves[b.State]
	switch {
	case err != nil:
		httpservice.WriteJSON(rw, http.StatusBadRequest, map[string]string{"error": "The request body is invalid"})
		return
	case b.State == "":
		httpservice.WriteJSON(rw, http.StatusBadRequest, map[string]string{"error": "state is missing"})
		return
	case !valid:
		httpservice.WriteJSON(rw, http.StatusBadRequest, map[string]string{"error": "state does not have a valid value"})
		return
	case !f.hasCommit(commit):
		refuseGitLab(rw, http.StatusNotFound, "404 Commit Not Found")
		return
	case utf8.RuneCountInString(b.Description) > gitLabDescription:
		httpservice.WriteJSON(rw, http.StatusBadRequest, map[string]any{"message": map[string]any{
			"description": []string{fmt.Sprintf("is too long (maximum is %d characters)", gitLabDescription)},
		}})
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	had, _ := f.findLatest(commit, b.Name)
	open := had.State == "pending" || had.State == "running"
	if open && !slices.Contains(move.from, had.State) {
		refuseGitLab(rw, http.StatusBadRequest, fmt.Sprintf(
			"Cannot transition status via :%s from :%s (Reason(s): Status cannot transition via %q)", move.event, had.State, move.event))
		return
	}
	s := f.addStatus(Status{
		Repository: project, Commit: commit,
		State: b.State, Context: b.Name, Description: b.Description, TargetURL: b.TargetURL,
	})
	httpservice.WriteJSON(rw, http.StatusCreated, map[string]any{
		"id": len(f.statuses), "sha": s.Commit, "status": s.State, "name": s.Context,
		"description": s.Description, "target_url": s.TargetURL, "created_at": s.At.UTC().Format(time.RFC3339),
	})
}

// showGitLab answers what the project is, to whoever may read it.
func (f *Forge) showGitLab(rw http.ResponseWriter, r *http.Request) {
	project := r.PathValue("project")
	if status, text := f.admitGitLab(r, project); status != 0 && status != http.StatusForbidden {
		refuseGitLab(rw, status, text)
		return
	}
	httpservice.WriteJSON(rw, http.StatusOK, map[string]any{"id": cmp.Or(f.config.ProjectID, 1), "path_with_namespace": project})
}

// admitGitLab judges token and project; status 0 lets the request in.
func (f *Forge) admitGitLab(r *http.Request, project string) (status int, text string) {
	token := cmp.Or(r.Header.Get("Private-Token"), readAuthorization(r, "Bearer"))
	switch may := f.checkAccess(token); {
	case may == accessNone || may == accessInvalid:
		return http.StatusUnauthorized, "401 Unauthorized"
	case !f.hasRepository(project) && project != strconv.Itoa(cmp.Or(f.config.ProjectID, 1)):
		return http.StatusNotFound, "404 Project Not Found"
	case may == accessRead:
		return http.StatusForbidden, "403 Forbidden"
	}
	return 0, ""
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
	b.Name = cmp.Or(b.Name, b.Context, "default")
	return b, nil
}
