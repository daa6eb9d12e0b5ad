package agent

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/follower"
	"github.com/talos-agent/talos-agent/reconcile"
	"github.com/talos-agent/talos-agent/sources"
)

// source is one cluster's view of the repository.
type source struct {
	repo    *sources.Repository
	newest  func(context.Context) (*follower.Result, error)
	name    string
	prepare func(cluster.Snapshot) (cluster.Snapshot, error)

	// patience is how long the first look at the repository is waited for.
	patience time.Duration
	// What was read from which result; of the cluster's loop alone.
	from *follower.Result
	read reconcile.Fetched
}

// firstWithin is how long a cluster waits for the first look at the repository, before
// the revision that was applied last is taken for what should be.
const firstWithin = 15 * time.Second

var errUnanswered = cluster.WithReason(cluster.RepositoryUnavailable, errors.New("it has not answered since the agent started"))

// Fetch implements reconcile.Source: it reads the cluster once from every result.
func (s *source) Fetch(ctx context.Context) (reconcile.Fetched, error) {
	wait, cancel := context.WithTimeoutCause(ctx, s.patience, errUnanswered)
	defer cancel()
	r, err := s.newest(wait)
	if err != nil {
		s.patience = 0 // a pass heals what is in force, whoever is silent
		return reconcile.Fetched{}, err
	}
	if r == s.from {
		return s.read, nil
	}
	if r.Err != nil {
		return reconcile.Fetched{}, r.Err
	}
	snap, problems, err := s.snapshot(ctx, r.Tree)
	if err != nil {
		return reconcile.Fetched{}, err
	}
	removed := problems.HasErrors() && s.repo.IsRemoved(r.Tree, s.name)
	s.from = r
	s.read = reconcile.Fetched{Snapshot: snap, Revision: r.Tree.Revision, Subject: r.Tree.Subject, Problems: problems, Removed: removed, At: r.At}
	return s.read, nil
}

// Recall implements reconcile.Source.
func (s *source) Recall(ctx context.Context, revision cluster.Revision) (reconcile.Fetched, error) {
	newest, err := s.repo.Recall(ctx, "")
	if err != nil {
		return reconcile.Fetched{}, err
	}
	t, err := s.repo.Recall(ctx, revision)
	if err != nil {
		return reconcile.Fetched{}, err
	}
	snap, problems, err := s.snapshot(ctx, t)
	return reconcile.Fetched{Snapshot: snap, Revision: revision, Subject: t.Subject, Problems: problems, Removed: s.repo.IsRemoved(newest, s.name)}, err
}

// Descends implements reconcile.Source.
func (s *source) Descends(ctx context.Context, head, ancestor cluster.Revision) (bool, error) {
	return s.repo.Descends(ctx, head, ancestor)
}

// At implements reconcile.Source.
func (s *source) At(ctx context.Context, revision cluster.Revision) (reconcile.Fetched, error) {
	snap, problems, err := s.repo.Before(ctx, revision, s.name)
	if err == nil && s.prepare != nil && !problems.HasErrors() {
		snap, err = s.prepare(snap)
	}
	return reconcile.Fetched{Snapshot: snap, Revision: revision, Problems: problems}, err
}

// sentDirectory is the revision of files that were sent to be planned.
const sentDirectory cluster.Revision = "dir@sent"

// of reads the cluster from files that are not the repository's: a directory
// that somebody wants planned.
func (s *source) of(ctx context.Context, files fs.FS) (cluster.Snapshot, cluster.Problems, error) {
	t := sources.Tree{Revision: sentDirectory, FS: files}
	snap, problems, err := s.snapshot(ctx, t)
	if err == nil && problems.HasErrors() && s.repo.IsRemoved(t, s.name) {
		problems = slices.Clone(problems)
		for i := range problems { // the config of the host is not what is wrong
			problems[i].Hint = sources.HintTop + " that has the folder " + s.repo.Folder(s.name)
		}
	}
	return snap, problems, err
}

func (s *source) snapshot(ctx context.Context, t sources.Tree) (cluster.Snapshot, cluster.Problems, error) {
	snap, problems, err := s.repo.Snapshot(ctx, t, s.name)
	if err == nil && s.prepare != nil && !problems.HasErrors() {
		snap, err = s.prepare(snap)
	}
	return snap, problems, err
}
