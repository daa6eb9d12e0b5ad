package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile"
	"github.com/talos-agent/talos-agent/sources"
)

// hub asks the repository once for all clusters.
type hub struct {
	repo *sources.Repository
	did  func(error) // called with how every fetch ended
	lock chan struct{}

	last  sources.Tree
	err   error
	asked time.Time // when last and err were asked for
	ended time.Time // and when they came
	wake  atomic.Pointer[chan struct{}]
}

// answerWithin bounds how long a cluster waits for the repository, its turn
// included.
const answerWithin = 5 * time.Minute

// StuckAfter is how far behind its own schedule a loop may be before it counts
// as stuck: a pass may wait for the repository, for answerWithin at most, and
// then for everybody else's answers.
const StuckAfter = 6 * time.Minute

// tree returns the newest tree, as it was at a time or later. Clusters that ask
// at the same time are answered together; who asks now, because something was
// pushed, is never given an answer from before. A failure is everybody's who
// waited for it: one after the other they would wait as long again.
func (h *hub) tree(parent context.Context, asOf time.Time) (sources.Tree, error) {
	ctx, cancel := context.WithTimeoutCause(parent, answerWithin, fmt.Errorf("the repository does not answer within %v", answerWithin))
	defer cancel()
	select {
	case h.lock <- struct{}{}:
	case <-ctx.Done():
		return sources.Tree{}, context.Cause(ctx)
	}
	defer func() { <-h.lock }()
	if !h.asked.IsZero() && (!h.asked.Before(asOf) || h.err != nil && !h.ended.Before(asOf)) {
		return h.last, h.err
	}
	began := time.Now()
	t, err := h.repo.Fetch(ctx)
	if parent.Err() != nil {
		return sources.Tree{}, parent.Err()
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	h.did(err)
	h.err, h.asked, h.ended = err, began, time.Now()
	if err != nil {
		return sources.Tree{}, err
	}
	fresh := t.Revision != h.last.Revision
	h.last = t
	if fresh {
		if c := h.wake.Swap(nil); c != nil {
			close(*c)
		}
	}
	return t, nil
}

// clusters lists the clusters of the newest tree, as it was at a time or later.
// What panics over the repository's files is an error.
func (h *hub) clusters(ctx context.Context, asOf time.Time) (names []string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("internal error: %v", v)
		}
	}()
	t, err := h.tree(ctx, asOf)
	if err != nil {
		return nil, err
	}
	names, problems, err := h.repo.Clusters(ctx, t)
	if err != nil || len(names) > 0 {
		return names, err
	}
	for _, p := range problems {
		if p.Severity == cluster.Error { // why there is none at all
			err = errors.Join(err, fault.WithHint(fmt.Errorf("%s: %s", p.File, p.Message), p.Hint))
		}
	}
	return nil, err
}

// kicked is closed when a new revision is seen.
func (h *hub) kicked() <-chan struct{} {
	c := make(chan struct{})
	if h.wake.CompareAndSwap(nil, &c) {
		return c
	}
	if old := h.wake.Load(); old != nil {
		return *old
	}
	close(c)
	return c
}

// source is one cluster's view of the repository.
type source struct {
	hub     *hub
	name    string
	prepare func(cluster.Snapshot) (cluster.Snapshot, error)
}

// Fetch implements reconcile.Source.
func (s *source) Fetch(ctx context.Context) (reconcile.Fetched, error) {
	t, err := s.hub.tree(ctx, time.Now())
	if err != nil {
		return reconcile.Fetched{}, err
	}
	snap, problems, err := s.hub.repo.Snapshot(ctx, t, s.name)
	if err == nil && s.prepare != nil && !problems.HasErrors() {
		snap, err = s.prepare(snap)
	}
	if err != nil {
		return reconcile.Fetched{}, err
	}
	return reconcile.Fetched{Snapshot: snap, Revision: t.Revision, Subject: t.Subject, Problems: problems}, nil
}

// Descends implements reconcile.Source.
func (s *source) Descends(ctx context.Context, head, ancestor cluster.Revision) (bool, error) {
	return s.hub.repo.Descends(ctx, head, ancestor)
}

// sentDirectory is the revision of files that were sent to be planned.
const sentDirectory cluster.Revision = "dir@sent"

// of reads the cluster from files that are not the repository's: a directory
// that somebody wants planned.
func (s *source) of(ctx context.Context, files fs.FS) (cluster.Snapshot, cluster.Problems, error) {
	snap, problems, err := s.hub.repo.Snapshot(ctx, sources.Tree{Revision: sentDirectory, FS: files}, s.name)
	if err == nil && s.prepare != nil && !problems.HasErrors() {
		snap, err = s.prepare(snap)
	}
	return snap, problems, err
}
