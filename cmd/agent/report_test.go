package main

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

// TestAForgeThatWantsToBeLeftAlone is left alone for as long as it says, and then
// told the newest.
func TestAForgeThatWantsToBeLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &limited{until: time.Now().Add(40 * time.Minute)}
		r := newReporter(p, func(error) {}, slog.New(slog.DiscardHandler))
		revision := cluster.Revision("main@sha1:1111111111111111111111111111111111111111")
		r.report(cluster.Status{Cluster: "dev", Condition: cluster.Stalled, Revision: revision, Message: "no room"})
		time.Sleep(time.Minute)
		r.report(cluster.Status{Cluster: "dev", Condition: cluster.Ready, Revision: revision, Applied: revision})
		time.Sleep(time.Hour)
		r.close()
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

// TestALapseIsNoNews: a Ready cluster that only waits again is told of when it
// has waited for a while; of anything else it is told at once.
func TestALapseIsNoNews(t *testing.T) {
	const one, two cluster.Revision = "main@sha1:1111111111111111111111111111111111111111", "main@sha1:2222222222222222222222222222222222222222"
	begin := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	at := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second) }
	ready := func(rev cluster.Revision) cluster.Status {
		return cluster.Status{Condition: cluster.Ready, Revision: rev}
	}
	waits := func(rev cluster.Revision, since int) cluster.Status {
		return cluster.Status{Condition: cluster.Reconciling, Revision: rev, Since: at(since), Passes: []cluster.PassStatus{{Waiting: 1}, {Started: []string{"create vm"}}}}
	}
	began, runs, going, stalled, blind := waits(one, 1), waits(one, 1), waits(one, 1), waits(one, 1), waits(one, 1)
	began.Passes = []cluster.PassStatus{{Started: []string{"start vm"}}}
	runs.Running = []cluster.RunningStatus{{Action: "start vm"}}
	going.Suspended = true // as while it is destroyed
	stalled.Condition, blind.Condition = cluster.Stalled, cluster.Blind
	for name, c := range map[string]struct {
		before cluster.Status
		after  int
		s      cluster.Status
		want   bool
	}{
		"it waits":                          {ready(one), 2, waits(one, 1), false},
		"it waits, nearly for too long":     {ready(one), 30, waits(one, 1), false},
		"it waits for too long":             {ready(one), 31, waits(one, 1), true},
		"it cannot be seen for a moment":    {ready(one), 2, blind, false},
		"it acts":                           {ready(one), 2, began, true},
		"something is under way":            {ready(one), 2, runs, true},
		"it is destroyed":                   {ready(one), 2, going, true},
		"it is Stalled":                     {ready(one), 2, stalled, true},
		"another revision":                  {ready(one), 2, waits(two, 1), true},
		"the first waits of all":            {cluster.Status{}, 2, waits(one, 1), true},
		"it was told already that it waits": {began, 2, waits(one, 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			var v sight
			v.worthTelling(c.before, at(0))
			if got := v.worthTelling(c.s, at(c.after)); got != c.want {
				t.Errorf("worth telling: %v, want %v", got, c.want)
			}
		})
	}
	var v sight
	v.worthTelling(ready(one), at(0))
	v.worthTelling(blind, at(1))
	if v.worthTelling(waits(one, 2), at(3)) {
		t.Error("a lapse after a blind moment is told")
	}
}
