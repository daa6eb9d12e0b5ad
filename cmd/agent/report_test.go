package main

import (
	"context"
	"log/slog"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/forge"
)

// recorder is a forge that remembers.
type recorder chan forge.Status

func (r recorder) Post(_ context.Context, s forge.Status) error { r <- s; return nil }

// TestDestroyedIsTold: what a commit says last of a cluster that was destroyed is
// not that it is being destroyed.
func TestDestroyedIsTold(t *testing.T) {
	posts := make(recorder, 10)
	r := newReporter(posts, func(error) {}, slog.New(slog.DiscardHandler))
	defer r.close()
	s := cluster.Status{Cluster: "dev", Condition: cluster.Reconciling, Revision: "main@sha1:2222222222222222222222222222222222222222", Message: beingDestroyed}
	r.report(s)
	if got := <-posts; got.Description != beingDestroyed {
		t.Errorf("told %+v", got)
	}
	s.Message = "being destroyed, in other words"
	r.report(s)
	s.Condition, s.Message = cluster.Suspended, "suspended, and none of its VMs exists"
	r.report(s)
	if got := <-posts; got.State != forge.StatePending || got.Description != s.Message {
		t.Errorf("told %+v", got)
	}
}

const beingDestroyed = "being destroyed"

// A commit is told to be a success only when the cluster is Ready and that very
// commit was applied.
func TestCommitStatusIsTrue(t *testing.T) {
	const head, before cluster.Revision = "main@sha1:2222222222222222222222222222222222222222", "main@sha1:1111111111111111111111111111111111111111"
	for _, c := range []struct {
		condition cluster.Condition
		revision  cluster.Revision
		applied   cluster.Revision
		want      forge.State // "": nothing is told
	}{
		{cluster.Ready, head, head, forge.StateSuccess},
		{cluster.Ready, head, before, ""},
		{cluster.Ready, head, "", ""},
		{cluster.Reconciling, head, head, forge.StatePending},
		{cluster.Suspended, head, head, forge.StatePending},
		{cluster.Stalled, head, before, forge.StateFailure},
		{cluster.Blind, head, head, forge.StateError},
		{cluster.Ready, "dir@sha256:00", "dir@sha256:00", ""},
	} {
		st, ok := commitStatus(cluster.Status{Cluster: "dev", Condition: c.condition, Revision: c.revision, Applied: c.applied})
		if ok != (c.want != "") || ok && (st.State != c.want || st.Commit != c.revision.Commit()) {
			t.Errorf("%s at %s, applied %s: %+v, %v", c.condition, c.revision, c.applied, st, ok)
		}
	}
}
