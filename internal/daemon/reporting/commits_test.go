package reporting

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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
	r := NewCommits(posts, func(error) {}, slog.New(slog.DiscardHandler))
	defer r.Close()
	s := cluster.Status{Cluster: "dev", Condition: cluster.Reconciling, Revision: "main@sha1:2222222222222222222222222222222222222222", Message: beingDestroyed}
	r.Report(s)
	if got := <-posts; got.Description != beingDestroyed {
		t.Errorf("told %+v", got)
	}
	s.Message = "being destroyed, in other words"
	r.Report(s)
	s.Condition, s.Message = cluster.Suspended, "suspended, and none of its VMs exists"
	r.Report(s)
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
		{cluster.Unknown, head, head, forge.StateError},
		{cluster.Ready, "dir@sha256:00", "dir@sha256:00", ""},
	} {
		st, ok := commitStatus(cluster.Status{Cluster: "dev", Condition: c.condition, Revision: c.revision, Applied: c.applied})
		if ok != (c.want != "") || ok && (st.State != c.want || st.Commit != c.revision.Commit()) {
			t.Errorf("%s at %s, applied %s: %+v, %v", c.condition, c.revision, c.applied, st, ok)
		}
	}
}

// TestAForgeThatWantsToBeLeftAlone is left alone for as long as it says, and then
// told the newest.
func TestAForgeThatWantsToBeLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &limited{until: time.Now().Add(40 * time.Minute)}
		r := NewCommits(p, func(error) {}, slog.New(slog.DiscardHandler))
		revision := cluster.Revision("main@sha1:1111111111111111111111111111111111111111")
		r.Report(cluster.Status{Cluster: "dev", Condition: cluster.Stalled, Revision: revision, Message: "no room"})
		time.Sleep(time.Minute)
		r.Report(cluster.Status{Cluster: "dev", Condition: cluster.Ready, Revision: revision, Applied: revision})
		time.Sleep(time.Hour)
		r.Close()
		if want := []forge.State{forge.StateFailure, forge.StateSuccess}; !slices.Equal(p.asked, want) {
			t.Errorf("asked %v, want %v", p.asked, want)
		}
	})
}

// limited is a forge that has had too many requests.
type limited struct {
	until time.Time
	asked []forge.State
}

func (l *limited) Post(_ context.Context, s forge.Status) error {
	l.asked = append(l.asked, s.State)
	if rest := time.Until(l.until); rest > 0 {
		return fmt.Errorf("post status: %w", &forge.Error{Kind: forge.ErrRateLimited, RetryAfter: rest})
	}
	return nil
}
