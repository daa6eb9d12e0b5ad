package agent

import (
	"context"
	"io/fs"

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

	// What was read from which result; of the cluster's loop alone.
	from *follower.Result
	read reconcile.Fetched
}

// Fetch implements reconcile.Source: it reads the cluster once from every result.
func (s *source) Fetch(ctx context.Context) (reconcile.Fetched, error) {
	r, err := s.newest(ctx)
	if err != nil {
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
	s.from = r
	s.read = reconcile.Fetched{Snapshot: snap, Revision: r.Tree.Revision, Subject: r.Tree.Subject, Problems: problems, At: r.At}
	return s.read, nil
}

// Descends implements reconcile.Source.
func (s *source) Descends(ctx context.Context, head, ancestor cluster.Revision) (bool, error) {
	return s.repo.Descends(ctx, head, ancestor)
}

// sentDirectory is the revision of files that were sent to be planned.
const sentDirectory cluster.Revision = "dir@sent"

// of reads the cluster from files that are not the repository's: a directory
// that somebody wants planned.
func (s *source) of(ctx context.Context, files fs.FS) (cluster.Snapshot, cluster.Problems, error) {
	return s.snapshot(ctx, sources.Tree{Revision: sentDirectory, FS: files})
}

func (s *source) snapshot(ctx context.Context, t sources.Tree) (cluster.Snapshot, cluster.Problems, error) {
	snap, problems, err := s.repo.Snapshot(ctx, t, s.name)
	if err == nil && s.prepare != nil && !problems.HasErrors() {
		snap, err = s.prepare(snap)
	}
	return snap, problems, err
}
