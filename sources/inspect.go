package sources

import (
	"context"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// inspect has clusters of a tree read where that does no harm. Those that are not to be read
// here count as read, with what is wrong with them.
func (r *Repository) inspect(ctx context.Context, t Tree, s *state, names ...string) error {
	if r.c.Inspect == nil || len(s.loaded) > 0 {
		return nil
	}
	var folders []string
	for _, name := range names {
		folders = append(folders, r.Folder(name))
	}
	// Every cluster asks, and all wait for each other: what took minutes is not tried again
	// by the next one at once.
	began := time.Now()
	if began.Before(s.inspects) {
		return s.unread
	}
	files := &watched{FS: t.FS}
	found, err := r.c.Inspect(ctx, files, folders)
	if err == nil {
		err = files.failed // it is not about what is in the folders
	}
	if err != nil {
		err = fault.WithHint(fmt.Errorf("read the clusters of %s: %w", t.Revision.Short(), err), "it is tried again; if that does not help, see how busy the host is, and whether its memory is full")
		if ctx.Err() == nil {
			s.unread, s.inspects = err, time.Now().Add(5*time.Since(began))
		}
		return err
	}
	s.inspected = found
	for _, name := range names {
		if problems := found[r.Folder(name)]; len(problems) > 0 {
			s.loaded[name] = &loaded{problems: problems}
		}
	}
	return nil
}

// checkInspected is the problem of a folder whose cluster is valid here, and was not where it
// was inspected: nobody has seen what it takes.
func (s *state) checkInspected(dir string) cluster.Problems {
	if _, valid := s.inspected[dir]; valid || s.inspected == nil {
		return nil
	}
	return cluster.Problems{{Severity: cluster.Error, File: dir, Message: "is too near to the bounds of what is read: with placeholders for its secrets, which may be longer, it is over them",
		Hint: "use fewer placeholders for secrets in its patches, or fewer and shorter patches; `git revert` brings back what was read before"}}
}
