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

// TestStatusesThatAreTheSame: another commit, another state and another failure are news;
// another step towards being Ready is not.
func TestStatusesThatAreTheSame(t *testing.T) {
	report := func(state forge.State, change func(*commitReport)) commitReport {
		r := commitReport{forge.Status{Commit: "2222", Context: "talos-agent/dev", State: state}, cluster.Stalled, cluster.Key{Subject: "cp-1"}}
		if change != nil {
			change(&r)
		}
		return r
	}
	cause := func(r *commitReport) { r.cause.Subject = "cp-2" }
	for name, c := range map[string]struct {
		state  forge.State
		change func(*commitReport)
		want   bool
	}{
		"the same":        {forge.StateFailure, nil, true},
		"other words":     {forge.StateFailure, func(r *commitReport) { r.Description = "other" }, true},
		"another commit":  {forge.StateFailure, func(r *commitReport) { r.Commit = "1111" }, false},
		"another cluster": {forge.StateFailure, func(r *commitReport) { r.Context = "talos-agent/prod" }, false},
		"another state":   {forge.StatePending, func(r *commitReport) { r.State = forge.StateError }, false},
		"a suspension":    {forge.StatePending, func(r *commitReport) { r.condition = cluster.Suspended }, false},
		"another failure": {forge.StateFailure, cause, false},
		"another error":   {forge.StateError, cause, false},
		"another step":    {forge.StatePending, cause, true},
		"another success": {forge.StateSuccess, cause, true},
	} {
		if got := isSameReport(report(c.state, nil), report(c.state, c.change)); got != c.want {
			t.Errorf("%s: the same: %v", name, got)
		}
	}
}
