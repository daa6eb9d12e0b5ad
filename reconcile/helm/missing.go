package helm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"helm.sh/helm/v3/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Workloads are watched, so that one that is deleted is seen at once. All other objects
// of a release are looked for once in a while.
const (
	searchEvery  = 10 * time.Minute
	searchWithin = time.Minute
)

// search is what the last search for the objects of a revision found.
type search struct {
	at      time.Time // when it began, or when the revision was seen first
	running bool
	missing []string
}

// searches are the searches for the objects of releases, by the secrets of their
// revisions.
type searches struct {
	mu    sync.Mutex
	found map[types.UID]search
}

// lookUp returns what the last search for a revision found, and whether the next one is
// to begin now.
func (s *searches) lookUp(uid types.UID) (missing []string, begin bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.found[uid]
	begin = ok && !last.running && time.Since(last.at) >= searchEvery
	if !ok || begin {
		last.at, last.running = time.Now(), begin
		s.found[uid] = last
	}
	return last.missing, begin
}

// end takes in what a search found, and reports whether that is news.
func (s *searches) end(uid types.UID, missing []string) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.found[uid]
	if !ok {
		return false
	}
	news = !slices.Equal(last.missing, missing)
	last.missing, last.running = missing, false
	s.found[uid] = last
	return news
}

// forget forgets all but some.
func (s *searches) forget(keep map[types.UID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.found, func(uid types.UID, _ search) bool { return !keep[uid] })
}

// missingIn lists the objects of a manifest that are not there. Jobs and pods are
// not missed: they end, and are deleted by whoever cleans up.
func missingIn(client kube.Interface, manifest string) ([]string, error) {
	list, err := client.Build(strings.NewReader(manifest), false)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, info := range list {
		kind := info.Mapping.GroupVersionKind
		if kind.Kind == "Job" && kind.Group == "batch" || kind.Kind == "Pod" && kind.Group == "" {
			continue
		}
		switch err := info.Get(); {
		case apierrors.IsNotFound(err):
			out = append(out, object{strings.ToLower(kind.Kind), info.Namespace, info.Name}.String())
		case err != nil:
			return nil, err
		}
	}
	return out, nil
}

// listMissing shortens a list of objects that are missing.
func listMissing(objects []string) string {
	switch n := len(objects); n {
	case 0:
		return ""
	case 1:
		return objects[0]
	default:
		return fmt.Sprintf("%s (and %d more)", objects[0], n-1)
	}
}
