package reconcile

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/clock"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
	"github.com/talos-agent/talos-agent/reconcile/plan"
)

// TestConditionOfACluster: which of all that is known of a cluster its condition is about.
func TestConditionOfACluster(t *testing.T) {
	intends := func(all ...cluster.Intent) cluster.Facts { return cluster.Facts{Intents: all} }
	destroy, suspend := cluster.Intent{Kind: cluster.IntendDestroy}, cluster.Intent{Kind: cluster.IntendSuspend}
	left := suspend
	left.Left = []cluster.Block{{Subject: "wk-1", Reason: cluster.VMNotShown, Message: "is left"}}
	block := cluster.Block{Subject: "cp-1", Reason: cluster.ActionFailed, About: "x", Message: "failed", Hint: "look"}
	wait := cluster.WaitStatus{Wait: cluster.Wait{Subject: "cp-1", Reason: cluster.NodeUnknown, About: "y", Message: "waits", Hint: "look", Within: time.Hour}}
	late, atOnce := wait, wait
	late.Overdue, atOnce.Overdue, atOnce.Within = true, true, time.Second
	phases := func(of cluster.Phase) map[string]cluster.Phase { return map[string]cluster.Phase{"cp-1": of} }
	start := action.StartVM{Node: cluster.Node{Name: "cp-1"}}
	running := []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.StartVM, Subject: "cp-1"}}}
	orphan := cluster.Saw([]cluster.VM{{Node: "wk-1"}})
	for name, c := range map[string]struct {
		o     cluster.Observed
		p     plan.Plan
		waits []cluster.WaitStatus
		err   error
		want  string // condition, reason and message
		about string // whom and what it concerns
	}{
		"all is well":                         {p: plan.Plan{Phases: phases(cluster.PhaseReady)}, want: "Ready Converged: 1 node is Ready at main@sha1:000000000000"},
		"all is well, and nothing is fetched": {p: plan.Plan{Phases: phases(cluster.PhaseReady)}, err: errors.New("no route"), want: "Ready Converged: 1 node is Ready at main@sha1:000000000000; the repository cannot be fetched: no route"},
		"something runs":                      {o: cluster.Observed{Running: running}, p: plan.Plan{Phases: phases(cluster.PhaseReady)}, want: "Reconciling Progressing: 0 of 0 nodes Ready; start vm cp-1"},
		"a snapshot is taken": {o: cluster.Observed{Running: []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.TakeSnapshot, Subject: "dev"}}}}, p: plan.Plan{Phases: phases(cluster.PhaseReady), Actions: []action.Action{action.TakeSnapshot{Cluster: "dev"}}},
			want: "Ready Converged: 1 node is Ready at main@sha1:000000000000"},
		"something runs beside a snapshot": {o: cluster.Observed{Running: running}, p: plan.Plan{Phases: phases(cluster.PhaseReady), Actions: []action.Action{action.TakeSnapshot{Cluster: "dev"}}}, want: "Reconciling Progressing: 0 of 0 nodes Ready; start vm cp-1"},
		"something begins":                 {p: plan.Plan{Phases: phases(cluster.PhaseReady), Actions: []action.Action{start}}, want: "Reconciling Progressing: 0 of 0 nodes Ready; " + start.Info().Text},
		"something waits":                  {p: plan.Plan{Phases: phases(cluster.PhaseReady), Waiting: []cluster.Wait{wait.Wait}}, waits: []cluster.WaitStatus{wait}, want: "Reconciling Progressing: 0 of 0 nodes Ready; cp-1: waits"},
		"nodes wait for one that waits": {p: plan.Plan{Phases: phases(cluster.PhaseReady), Waiting: []cluster.Wait{
			{Subject: "wk-2", Reason: cluster.WaitingForTurn, About: "wk-1", Message: "waits until wk-1 has its turn"},
			{Subject: "wk-1", Reason: cluster.WaitingForHop, About: "cp-1", Message: "waits until cp-1 is Ready"}, wait.Wait}},
			want: "Reconciling Progressing: 0 of 0 nodes Ready; cp-1: waits"},
		"nodes wait for each other": {p: plan.Plan{Phases: phases(cluster.PhaseReady), Waiting: []cluster.Wait{
			{Subject: "wk-1", Reason: cluster.WaitingForTurn, About: "wk-2", Message: "waits for wk-2"}, {Subject: "wk-2", Reason: cluster.WaitingForTurn, About: "wk-1", Message: "waits for wk-1"}}},
			want: "Reconciling Progressing: 0 of 0 nodes Ready; wk-2: waits for wk-1"},
		"something waits for too long": {p: plan.Plan{Phases: phases(cluster.PhaseReady), Waiting: []cluster.Wait{wait.Wait}}, waits: []cluster.WaitStatus{wait, late}, want: "Stalled NodeUnknown: cp-1: waits (for longer than it should)", about: "cp-1 y"},
		"something is wrong at once":   {p: plan.Plan{Phases: phases(cluster.PhaseReady), Waiting: []cluster.Wait{wait.Wait}}, waits: []cluster.WaitStatus{atOnce}, want: "Stalled NodeUnknown: cp-1: waits", about: "cp-1 y"},
		"something is blocked":         {p: plan.Plan{Phases: phases(cluster.PhaseUnknown), Blocked: []cluster.Block{block}}, waits: []cluster.WaitStatus{late}, want: "Stalled ActionFailed: cp-1: failed", about: "cp-1 x"},
		"nothing is seen":              {p: plan.Plan{Phases: phases(cluster.PhaseUnknown)}, want: "Unknown NodeUnknown: nothing can be seen"},
		"nothing is seen, and why":     {p: plan.Plan{Phases: phases(cluster.PhaseUnknown)}, waits: []cluster.WaitStatus{late}, want: "Unknown NodeUnknown: cp-1: waits", about: "cp-1 y"},
		"a machine answers": {o: cluster.Observed{Machines: map[string]cluster.Machine{"cp-1": {Reach: cluster.Configured}}}, p: plan.Plan{Phases: phases(cluster.PhaseUnknown), Waiting: []cluster.Wait{wait.Wait}},
			want: "Reconciling Progressing: 0 of 0 nodes Ready; cp-1: waits"},

		"suspended":                    {o: cluster.Observed{Facts: intends(suspend)}, p: plan.Plan{Phases: phases(cluster.PhaseReady), Blocked: []cluster.Block{block}}, want: "Suspended SuspendedByAdmin: " + suspendedWords("dev")},
		"suspended, and nothing built": {o: cluster.Observed{Facts: intends(suspend)}, p: plan.Plan{Phases: phases(cluster.PhaseAbsent)}, want: "Suspended SuspendedByAdmin: " + nothingBuiltWords("dev")},
		"suspended, and no nodes":      {o: cluster.Observed{Facts: intends(suspend)}, want: "Suspended SuspendedByAdmin: " + suspendedWords("dev")},
		"nothing built":                {p: plan.Plan{Phases: phases(cluster.PhaseAbsent), Actions: []action.Action{start}}, want: "Reconciling Progressing: 0 of 0 nodes Ready; " + start.Info().Text},
		"something was left": {o: cluster.Observed{Facts: intends(left), Orphans: orphan}, p: plan.Plan{Phases: phases(cluster.PhaseAbsent)},
			want: "Stalled VMNotShown: suspended, and not all of it was destroyed: wk-1: is left", about: "wk-1 "},
		"something may be left": {o: cluster.Observed{Facts: intends(left)}, p: plan.Plan{Phases: phases(cluster.PhaseAbsent)},
			want: "Stalled VMNotShown: suspended, and not all of it was destroyed: wk-1: is left", about: "wk-1 "},
		"what was left is deleted":        {o: cluster.Observed{Facts: intends(left), Orphans: cluster.Saw[[]cluster.VM](nil)}, p: plan.Plan{Phases: phases(cluster.PhaseAbsent)}, want: "Suspended SuspendedByAdmin: " + nothingBuiltWords("dev")},
		"an orphan, and nothing was left": {o: cluster.Observed{Facts: intends(suspend), Orphans: orphan}, p: plan.Plan{Phases: phases(cluster.PhaseAbsent)}, want: "Suspended SuspendedByAdmin: " + nothingBuiltWords("dev")},

		"being destroyed":                 {o: cluster.Observed{Facts: intends(destroy)}, p: plan.Plan{Phases: phases(cluster.PhaseReady)}, want: "Reconciling Destroying: being destroyed"},
		"being destroyed, and suspended":  {o: cluster.Observed{Facts: intends(destroy, suspend)}, p: plan.Plan{Phases: phases(cluster.PhaseAbsent)}, want: "Reconciling Destroying: being destroyed"},
		"destroyed":                       {o: cluster.Observed{Facts: intends(destroy)}, p: plan.Plan{Phases: phases(cluster.PhaseReady), Destroyed: true}, want: "Suspended SuspendedByAdmin: " + nothingBuiltWords("dev")},
		"resumed, and destroyed":          {p: plan.Plan{Phases: phases(cluster.PhaseReady), Destroyed: true}, want: "Ready Converged: 1 node is Ready at main@sha1:000000000000"},
		"being destroyed for too long":    {o: cluster.Observed{Facts: intends(destroy)}, waits: []cluster.WaitStatus{late}, want: "Stalled NodeUnknown: being destroyed: cp-1: waits (for longer than it should)", about: "cp-1 y"},
		"it cannot be destroyed":          {o: cluster.Observed{Facts: intends(destroy)}, p: plan.Plan{Blocked: []cluster.Block{block}}, want: "Stalled ActionFailed: being destroyed: cp-1: failed", about: "cp-1 x"},
		"some of it cannot, others begin": {o: cluster.Observed{Facts: intends(destroy)}, p: plan.Plan{Blocked: []cluster.Block{block}, Actions: []action.Action{start}}, want: "Reconciling Destroying: being destroyed"},
		"some of it cannot, others run":   {o: cluster.Observed{Facts: intends(destroy), Running: running}, p: plan.Plan{Blocked: []cluster.Block{block}}, want: "Reconciling Destroying: being destroyed"},
	} {
		s := cluster.Status{Waiting: c.waits}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Revision: "main@sha1:0000000000000000000000000000000000000000", Spec: cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp-1"}}}}}
		setCondition(&s, d, c.o, c.p, c.err)
		about := s.Concerns + " " + s.About
		if got := fmt.Sprintf("%s %s: %s", s.Condition, s.Reason, s.Message); got != c.want || strings.TrimPrefix(about, " ") != c.about {
			t.Errorf("%s:\ngot  %s (%s)\nwant %s (%s)", name, got, about, c.want, c.about)
		}
	}
}

// TestWhatANodeWaitsFor: a table has room for one thing, and of what is late, done, blocked
// and waited for the first is it.
func TestStatusOfSnapshots(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	failed := []cluster.Backoff{{ActionID: cluster.ActionID{Kind: cluster.TakeSnapshot, Subject: "dev"}, Error: "no space\nleft"}, {ActionID: cluster.ActionID{Kind: cluster.StartVM, Subject: "dev"}, Error: "other"}}
	for name, c := range map[string]struct {
		o    cluster.Observed
		want *cluster.SnapshotStatus
	}{
		"none are taken": {},
		"one is there":   {cluster.Observed{Snapshots: cluster.EtcdSnapshots{Enabled: true, Verified: cluster.Saw(at), Newest: at, Due: at.Add(time.Hour), Kept: 2, Bytes: 3}}, &cluster.SnapshotStatus{Verified: at, Newest: at, Due: at.Add(time.Hour), Kept: 2, Bytes: 3}},
		"not seen":       {cluster.Observed{Snapshots: cluster.EtcdSnapshots{Enabled: true, Verified: cluster.Unseen[time.Time]("no folder")}}, &cluster.SnapshotStatus{Error: "no folder"}},
		"one has failed": {cluster.Observed{Backoffs: failed, Snapshots: cluster.EtcdSnapshots{Enabled: true, Verified: cluster.Saw(time.Time{})}}, &cluster.SnapshotStatus{Error: "no space left"}},
	} {
		if got := statusOfSnapshots("dev", c.o); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestWhatANodeWaitsFor(t *testing.T) {
	wait := func(reason cluster.Reason) cluster.WaitStatus {
		return cluster.WaitStatus{Wait: cluster.Wait{Subject: "cp-1", Reason: reason, Message: "waits because of " + string(reason)}}
	}
	other := wait(cluster.TaskOverdue)
	other.Subject = "cp-2"
	begins := []action.Action{action.StartVM{Node: cluster.Node{Name: "cp-1"}}}
	runs := []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.CreateVM}, Node: "cp-1"}}
	blocked := []cluster.Block{{Subject: "cp-2", Message: "another's"}, {Subject: "cp-1", Message: "is blocked"}}
	for _, c := range []struct {
		o     cluster.Observed
		p     plan.Plan
		waits []cluster.WaitStatus
		want  string
	}{
		{cluster.Observed{Running: runs}, plan.Plan{Actions: begins, Blocked: blocked}, []cluster.WaitStatus{wait(cluster.NodeUnknown), wait(cluster.TaskOverdue)}, "waits because of TaskOverdue"},
		{cluster.Observed{Running: runs}, plan.Plan{Actions: begins, Blocked: blocked}, []cluster.WaitStatus{wait(cluster.ActionOverdue)}, "waits because of ActionOverdue"},
		{cluster.Observed{Running: runs}, plan.Plan{Actions: begins, Blocked: blocked}, []cluster.WaitStatus{wait(cluster.NodeUnknown), other}, "start vm"},
		{cluster.Observed{Running: runs}, plan.Plan{Blocked: blocked}, []cluster.WaitStatus{wait(cluster.NodeUnknown)}, "create vm"},
		{cluster.Observed{}, plan.Plan{Blocked: blocked}, []cluster.WaitStatus{wait(cluster.NodeUnknown)}, "is blocked"},
		{cluster.Observed{}, plan.Plan{Blocked: blocked[:1]}, []cluster.WaitStatus{wait(cluster.NodeUnknown)}, "waits because of NodeUnknown"},
		{cluster.Observed{}, plan.Plan{}, nil, ""},
	} {
		ns := cluster.NodeStatus{Name: "cp-1"}
		if addConcerns(&ns, c.o, c.p, c.waits); ns.WaitsFor != c.want {
			t.Errorf("it waits for %q, want %q", ns.WaitsFor, c.want)
		}
	}
}

// TestClocksGoOn: since when something has had a word is kept while it has it, and over a
// restart, where the new agent sees the same first.
func TestClocksGoOn(t *testing.T) {
	now, before := time.Unix(1000, 0).UTC(), time.Unix(10, 0).UTC()
	for name, c := range map[string]struct {
		has     string // here, before
		earlier clock.Clock
		word    string
		want    time.Time
		changed bool
		kept    bool // what the earlier agent saw
	}{
		"the first":                     {"", clock.Clock{}, "Ready", now, true, false},
		"the same":                      {"Ready", clock.Clock{State: "Ready", Since: before}, "Ready", now.Add(-time.Second), false, true},
		"another":                       {"Booting", clock.Clock{}, "Ready", now, true, false},
		"as an earlier agent saw it":    {"", clock.Clock{State: "Ready", Since: before}, "Ready", before, true, false},
		"first unknown, then as it was": {"Unknown", clock.Clock{State: "Ready", Since: before}, "Ready", before, true, false},
		"first another, then as it was": {"Booting", clock.Clock{State: "Ready", Since: before}, "Ready", now, true, false},
		"otherwise than it was":         {"", clock.Clock{State: "Ready", Since: before}, "Booting", now, true, false},
		"unknown, and it was not":       {"", clock.Clock{State: "Ready", Since: before}, "Unknown", now, true, true},
	} {
		in, earlier := map[string]stamp{}, map[string]clock.Clock{}
		if c.has != "" {
			in["cp-1"] = stamp{word: c.has, at: now.Add(-time.Second)}
		}
		if c.earlier.State != "" {
			earlier["cp-1"] = c.earlier
		}
		changed := false
		got := stampChange(in, earlier, "cp-1", c.word, now, func(from string) { changed = from == c.has })
		if _, kept := earlier["cp-1"]; !got.Equal(c.want) || changed != c.changed || kept != c.kept {
			t.Errorf("%s: since %v, changed: %v, kept: %v", name, got, changed, kept)
		}
	}
}

// TestStatesOfAddons: what is known of the release of an addon, in one word.
func TestStatesOfAddons(t *testing.T) {
	installs := []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.InstallAddon, Subject: "a"}}}
	for name, c := range map[string]struct {
		o    cluster.Observed
		want string
	}{
		"it is installed now": {cluster.Observed{Running: installs}, "installing "},
		"another is":          {cluster.Observed{Running: []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.InstallAddon, Subject: "b"}}}}, "unknown "},
		"nothing is seen":     {cluster.Observed{Releases: cluster.Unseen[map[string]cluster.Release]("no answer")}, "unknown no answer"},
		"it is not there":     {cluster.Observed{Releases: cluster.Saw(map[string]cluster.Release{})}, "absent "},
		"it failed":           {cluster.Observed{Releases: cluster.Saw(map[string]cluster.Release{"a": {Status: "failed", Ready: true, Why: "a hook"}})}, "failed a hook"},
		"it is ready":         {cluster.Observed{Releases: cluster.Saw(map[string]cluster.Release{"a": {Status: "deployed", Ready: true, Why: "x"}})}, "ready "},
		"it is not":           {cluster.Observed{Releases: cluster.Saw(map[string]cluster.Release{"a": {Status: "deployed", Why: "1 of 2 pods"}})}, "deployed 1 of 2 pods"},
	} {
		_, r, _, d := newSteps(t)
		d.Spec.Addons = []cluster.Addon{{Name: "a"}}
		if got := r.addons(time.Unix(1, 0), d, c.o); len(got) != 1 || got[0].State+" "+got[0].Message != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestSinceWhenAWaitLasts: it began when the world shows that it did, else when it was first
// seen, and is overdue when it has lasted longer than it may. What to do about it is shown then.
func TestSinceWhenAWaitLasts(t *testing.T) {
	_, r, _, _ := newSteps(t)
	at := func(n int) time.Time { return time.Unix(int64(n), 0).UTC() }
	bounded := cluster.Wait{Subject: "a", Hint: "look", Within: 10 * time.Second}
	began, endless := bounded, bounded
	began.Subject, began.Began = "b", at(95)
	endless.Subject, endless.Within = "c", 0
	p := plan.Plan{Waiting: []cluster.Wait{bounded, began, endless}}
	for _, c := range []struct {
		now     int
		since   []time.Time
		overdue []bool
	}{
		{100, []time.Time{at(100), at(95), at(100)}, []bool{false, false, false}},
		{106, []time.Time{at(100), at(95), at(100)}, []bool{false, true, false}},
		{110, []time.Time{at(100), at(95), at(100)}, []bool{false, true, false}},
		{111, []time.Time{at(100), at(95), at(100)}, []bool{true, true, false}},
	} {
		for i, w := range r.waiting(at(c.now), p) {
			if !w.Since.Equal(c.since[i]) || w.Overdue != c.overdue[i] || (w.Hint != "") != c.overdue[i] {
				t.Errorf("at %d: %+v", c.now, w)
			}
		}
	}
	r.waiting(at(120), plan.Plan{})
	if w := r.waiting(at(130), p); !w[0].Since.Equal(at(130)) {
		t.Errorf("after a break: %+v", w[0])
	}
}

// TestPassesWorthShowing: of passes in which nothing happened the last is kept.
func TestPassesWorthShowing(t *testing.T) {
	_, r, _, _ := newSteps(t)
	var want []time.Time
	for i, c := range []struct {
		p        cluster.PassStatus
		replaces bool
	}{
		{cluster.PassStatus{}, false},
		{cluster.PassStatus{}, true},
		{cluster.PassStatus{Started: []string{"create vm"}}, false},
		{cluster.PassStatus{}, false},
		{cluster.PassStatus{Failed: []string{"create vm"}}, false},
		{cluster.PassStatus{Error: "panic"}, false},
		{cluster.PassStatus{}, false},
	} {
		c.p.At = time.Unix(int64(i), 0)
		if r.keepPass(c.p); c.replaces {
			want = want[1:]
		}
		want = append([]time.Time{c.p.At}, want...)
		var got []time.Time
		for _, p := range r.memo.passes {
			got = append(got, p.At)
		}
		if !slices.Equal(got, want) {
			t.Errorf("after %d: %v, want %v", i, got, want)
		}
	}
}

// TestConditionsAreLoggedWhenTheyChange: a condition that is new, and one that is Stalled for
// another reason or at another revision; not that all is well at the start.
func TestConditionsAreLoggedWhenTheyChange(t *testing.T) {
	_, r, _, _ := newSteps(t)
	logged := 0
	r.log = slog.New(handler(func(string) { logged++ }))
	status := func(c cluster.Condition, reason cluster.Reason, revision cluster.Revision) cluster.Status {
		return cluster.Status{Condition: c, Reason: reason, Revision: revision}
	}
	for i, c := range []struct {
		s    cluster.Status
		want bool
	}{
		{status(cluster.Ready, cluster.Converged, rev(1)), false},
		{status(cluster.Ready, cluster.Converged, rev(2)), false},
		{status(cluster.Stalled, cluster.ActionFailed, rev(2)), true},
		{status(cluster.Stalled, cluster.ActionFailed, rev(2)), false},
		{status(cluster.Stalled, cluster.VMNotShown, rev(2)), true},
		{status(cluster.Stalled, cluster.VMNotShown, rev(3)), true},
		{status(cluster.Reconciling, cluster.Progressing, rev(3)), true},
		{status(cluster.Reconciling, cluster.Destroying, rev(4)), false},
		{status(cluster.Ready, cluster.Converged, rev(4)), true},
	} {
		before := logged
		if r.publish(time.Unix(int64(i), 0), c.s, ""); (logged > before) != c.want {
			t.Errorf("%d: %s because of %s is logged: %v", i, c.s.Condition, c.s.Reason, logged > before)
		}
	}
	_, r, _, _ = newSteps(t)
	r.log = slog.New(handler(func(string) { logged = -1 }))
	if r.publish(time.Unix(1, 0), status(cluster.Stalled, cluster.ActionFailed, rev(1)), ""); logged != -1 {
		t.Error("that a cluster is Stalled at the start is not logged")
	}
}

// TestSinceWhenAConditionHolds: a condition that an earlier agent saw last goes on, where this
// one has seen nothing else.
func TestSinceWhenAConditionHolds(t *testing.T) {
	now, before := time.Unix(1000, 0).UTC(), time.Unix(10, 0).UTC()
	for name, c := range map[string]struct {
		first, then cluster.Condition
		want        time.Time
	}{
		"the same":                      {"", cluster.Ready, before},
		"first unknown, then the same":  {cluster.Unknown, cluster.Ready, before},
		"another":                       {"", cluster.Stalled, now},
		"first another, then the same":  {cluster.Stalled, cluster.Ready, now},
		"first unknown, and then other": {cluster.Unknown, cluster.Stalled, now},
	} {
		_, r, _, _ := newSteps(t)
		r.c.Earlier.Condition = clock.Clock{State: string(cluster.Ready), Since: before}
		if c.first != "" {
			r.publish(now.Add(-time.Minute), cluster.Status{Condition: c.first}, "")
		}
		if r.publish(now, cluster.Status{Condition: c.then}, ""); !r.Status().Since.Equal(c.want) {
			t.Errorf("%s: since %v, want %v", name, r.Status().Since, c.want)
		}
	}
}

// TestAFailedFetchIsMentioned: once, in the message of a status, or as a problem.
func TestAFailedFetchIsMentioned(t *testing.T) {
	for name, c := range map[string]struct {
		s    cluster.Status
		err  error
		want int
	}{
		"Ready":               {cluster.Status{Condition: cluster.Ready}, errors.New("no route"), 0},
		"because of it":       {cluster.Status{Condition: cluster.Unknown, Reason: cluster.RepositoryUnavailable}, errors.New("no route"), 0},
		"for want of history": {cluster.Status{Condition: cluster.Stalled, Reason: cluster.HistoryUnknown}, errors.New("no route"), 0},
		"something else":      {cluster.Status{Condition: cluster.Stalled, Reason: cluster.ActionFailed}, errors.New("no route"), 1},
		"no failure":          {cluster.Status{Condition: cluster.Stalled, Reason: cluster.ActionFailed}, nil, 0},
	} {
		_, r, _, _ := newSteps(t)
		r.memo.fetchErr = c.err
		if r.publish(time.Unix(1, 0), c.s, ""); len(r.Status().Problems) != c.want {
			t.Errorf("%s: %v", name, r.Status().Problems)
		}
	}
}

// TestDistanceOfLooks: how long a cluster has been doing the same is counted from when it
// began to.
func TestDistanceOfLooks(t *testing.T) {
	_, r, _, _ := newSteps(t)
	for i, sig := range []string{"", "", "a", "a", "b"} {
		r.publish(time.Unix(int64(i+1), 0), cluster.Status{}, sig)
		if want := time.Unix([]int64{1, 1, 3, 3, 5}[i], 0); !r.memo.changed.Equal(want) {
			t.Errorf("%d: since %v, want %v", i, r.memo.changed, want)
		}
	}
}

// TestNothingToWorkFrom: why there is nothing to work from yet.
func TestNothingToWorkFrom(t *testing.T) {
	for name, c := range map[string]struct {
		problems cluster.Problems
		err      error
		want     cluster.Reason
	}{
		"it starts":        {nil, nil, cluster.Starting},
		"nothing fetched":  {nil, errors.New("no route"), cluster.RepositoryUnavailable},
		"invalid":          {cluster.Problems{{Severity: cluster.Error, Message: "no"}}, errors.New("no route"), cluster.InventoryInvalid},
		"odd, and fetched": {cluster.Problems{{Severity: cluster.Warning, Message: "odd"}}, nil, cluster.Starting},
	} {
		_, r, _, _ := newSteps(t)
		r.memo.problems, r.memo.fetchErr = c.problems, c.err
		if r.reportUnknown(time.Unix(1, 0)); r.Status().Reason != c.want {
			t.Errorf("%s: %+v", name, r.Status())
		}
	}
}

// TestPhasesThatPass: which phases may be over at once, so that the one before is still
// reported for a while.
func TestPhasesThatPass(t *testing.T) {
	for _, c := range []struct {
		before, seen cluster.Phase
		want         bool
	}{
		{cluster.PhaseReady, cluster.PhaseReady, false},
		{cluster.PhaseUnknown, cluster.PhaseUnknown, false},
		{cluster.PhaseBooting, cluster.PhaseUnknown, true},
		{cluster.PhaseBooting, cluster.PhaseStopped, false},
		{cluster.PhaseReady, cluster.PhaseStopped, false},
		{cluster.PhaseCreating, cluster.PhaseStopped, true},
		{cluster.PhaseAbsent, cluster.PhaseStopped, true},
		{cluster.PhaseBooting, cluster.PhaseUnreachable, true},
		{cluster.PhaseReady, cluster.PhaseBooting, true},
		{cluster.PhaseStopped, cluster.PhaseBooting, false},
		{cluster.PhaseReady, cluster.PhaseJoining, true},
		{cluster.PhaseMaintenance, cluster.PhaseJoining, false},
		{cluster.PhaseJoining, cluster.PhaseReady, false},
	} {
		if got := isPassing(c.before, c.seen); got != c.want {
			t.Errorf("%s after %s: %v", c.seen, c.before, got)
		}
	}
	_, r, _, _ := newSteps(t)
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	if got := r.holdPhase("cp-1", cluster.PhaseUnreachable, false, at(1)); got != cluster.PhaseUnreachable {
		t.Errorf("the first: %s", got)
	}
	r.memo.phases["cp-1"] = stamp{word: string(cluster.PhaseReady), at: at(1)}
	if got := r.holdPhase("cp-1", cluster.PhaseUnreachable, false, at(2)); got != cluster.PhaseReady {
		t.Errorf("for a moment: %s", got)
	}
	if got := r.holdPhase("cp-1", cluster.PhaseUnreachable, false, at(6)); got != cluster.PhaseReady {
		t.Errorf("for 4 seconds: %s", got)
	}
	if got := r.holdPhase("cp-1", cluster.PhaseUnreachable, false, at(7)); got != cluster.PhaseUnreachable {
		t.Errorf("for 5 seconds: %s", got)
	}
	if len(r.memo.passing) > 0 {
		t.Errorf("held though it is reported: %v", r.memo.passing)
	}
	r.holdPhase("cp-1", cluster.PhaseReady, false, at(8))
	if got := r.holdPhase("cp-1", cluster.PhaseUnreachable, false, at(9)); got != cluster.PhaseReady {
		t.Errorf("after a break: %s", got)
	}
	if got := r.holdPhase("cp-1", cluster.PhaseStopped, false, at(10)); got != cluster.PhaseStopped || len(r.memo.passing) > 0 {
		t.Errorf("seen to be stopped: %s", got)
	}
	r.holdPhase("cp-1", cluster.PhaseUnreachable, false, at(11))
	if got := r.holdPhase("cp-1", cluster.PhaseUnreachable, false, at(12)); got != cluster.PhaseReady {
		t.Errorf("for a moment: %s", got)
	}
	if got := r.holdPhase("cp-1", cluster.PhaseUnreachable, true, at(13)); got != cluster.PhaseUnreachable || len(r.memo.passing) > 0 {
		t.Errorf("taken down: %s", got)
	}
}

// TestDelay: a quiet cluster is looked at every interval, what is waited for earlier, and no later
// than when a phase is to be reported that is not yet.
func TestDelay(t *testing.T) {
	now := time.Unix(100_000, 0)
	for _, c := range []struct {
		condition cluster.Condition
		interval  time.Duration
		lasts     time.Duration
		passing   bool
		want      time.Duration
	}{
		{cluster.Ready, time.Minute, time.Hour, false, time.Minute},
		{cluster.Ready, time.Minute, time.Hour, true, passingWithin},
		{cluster.Suspended, 2 * time.Second, time.Hour, true, 2 * time.Second},
		{cluster.Stalled, time.Minute, time.Hour, false, time.Minute},
		{cluster.Stalled, time.Minute, time.Hour, true, passingWithin},
		{cluster.Stalled, time.Minute, time.Second, false, shortest},
		{cluster.Reconciling, time.Minute, time.Hour, false, longest},
		{cluster.Reconciling, time.Minute, 20 * time.Second, true, 2 * time.Second},
		{cluster.Reconciling, 5 * time.Second, time.Hour, false, 5 * time.Second},
	} {
		_, r, _, _ := newSteps(t)
		r.c.Interval, r.memo.changed = c.interval, now.Add(-c.lasts)
		r.status.Store(&cluster.Status{Condition: c.condition})
		if c.passing {
			r.memo.passing["cp-1"] = stamp{word: string(cluster.PhaseUnreachable), at: now}
		}
		if got := r.delay(now); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestNodesOfAStatus: a node that is only a member of etcd any longer is not among them, and
// the log has each phase after the first, with what a node waits for that was Ready.
func TestNodesOfAStatus(t *testing.T) {
	_, r, _, d := newSteps(t)
	var log bytes.Buffer
	r.log = slog.New(slog.NewTextHandler(&log, nil))
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	d.Removed = []cluster.Node{{Name: "left"}}
	for i, c := range []struct {
		phase cluster.Phase
		p     plan.Plan
		want  string
	}{
		{cluster.PhaseBooting, plan.Plan{}, ""},
		{cluster.PhaseReady, plan.Plan{}, `detail="cp-1 is Ready" `},
		{cluster.PhaseReady, plan.Plan{}, ""},
		{cluster.PhaseAbsent, plan.Plan{Blocked: []cluster.Block{{Subject: "cp-1", Message: "is blocked"}}}, `detail="cp-1 is Absent, no longer Ready: is blocked" `},
		{cluster.PhaseReady, plan.Plan{Blocked: []cluster.Block{{Subject: "cp-1", Message: "is blocked"}}}, `detail="cp-1 is Ready" `},
		{cluster.PhaseAbsent, plan.Plan{}, `detail="cp-1 is Absent" `},
	} {
		log.Reset()
		c.p.Phases = map[string]cluster.Phase{"cp-1": c.phase}
		got := r.nodes(at(i), d, cluster.Observed{}, c.p, nil)
		if len(got) != 1 || got[0].Name != "cp-1" || got[0].Phase != c.phase || !strings.Contains(log.String(), c.want) || (c.want == "") != (log.Len() == 0) {
			t.Errorf("%d: %+v; logged %s", i, got, log.String())
		}
	}
}

// TestWhatStaysInForce: while the newest revision is not in force, a status that is about that
// has how the cluster stands at the one that is, if there is one.
func TestWhatStaysInForce(t *testing.T) {
	const invalid = "dev: the inventory is invalid: no"
	for name, c := range map[string]struct {
		view  *view
		other bool // something else is blocked, and first
		want  string
	}{
		"nothing was seen yet": {nil, false, invalid},
		"none is in force":     {&view{}, false, invalid},
		"the last good one":    {&view{inForce: true}, false, invalid + "; main@sha1:000000000000 stays in force: all nodes are Ready"},
		"something else":       {&view{inForce: true}, true, "cp-1: is blocked"},
	} {
		_, r, _, d := newSteps(t)
		r.memo.problems = cluster.Problems{{Severity: cluster.Error, Message: "no"}}
		if c.view != nil {
			r.view.Store(c.view)
		}
		p := plan.Plan{Phases: map[string]cluster.Phase{"cp-1": cluster.PhaseReady}, Blocked: []cluster.Block{r.findRefusal().block}}
		if c.other {
			p.Blocked = append([]cluster.Block{{Subject: "cp-1", Message: "is blocked"}}, p.Blocked...)
		}
		r.reportPass(time.Now(), d, cluster.Observed{}, p, nil)
		if s := r.Status(); s.Message != c.want {
			t.Errorf("%s: %s", name, s.Message)
		}
	}
}

// TestSinceWhenBlocked: a block has since when it is there, as long as it is in every pass,
// whatever its message.
func TestSinceWhenBlocked(t *testing.T) {
	r := &Reconciler{memo: newMemo()}
	began := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	stamp := func(after time.Duration, blocks ...cluster.Block) time.Time {
		return r.stampBlocks(began.Add(after), blocks)[0].Since
	}
	orphan := cluster.Block{Subject: "cp-4", Reason: cluster.OrphanEtcdMember, About: "07", Message: "3 voters"}
	other := cluster.Block{Subject: "cp-5", Reason: cluster.OrphanEtcdMember, About: "08"}
	if got := stamp(0, orphan); !got.Equal(began) {
		t.Errorf("first: %v", got)
	}
	orphan.Message = "4 voters"
	if got := stamp(time.Minute, orphan, other); !got.Equal(began) {
		t.Errorf("with another message: %v", got)
	}
	if got := stamp(2*time.Minute, other); !got.Equal(began.Add(time.Minute)) {
		t.Errorf("the other: %v", got)
	}
	if got := stamp(3*time.Minute, orphan); !got.Equal(began.Add(3 * time.Minute)) {
		t.Errorf("after a pass without it: %v", got)
	}
}

// TestCordonedNodesAreCounted: a Ready node on which no new pods are placed is no node like the others.
func TestCordonedNodesAreCounted(t *testing.T) {
	nodes := []cluster.NodeStatus{{Name: "cp-1", Phase: cluster.PhaseReady, Cordoned: true, InTurn: true}, {Name: "wk-1", Phase: cluster.PhaseReady}, {Name: "wk-2", Phase: cluster.PhaseStopped, Cordoned: true}}
	o := cluster.Observed{Running: []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.StartVM, Subject: "wk-2"}}}}
	if got := describeProgress(nodes, o, plan.Plan{}); got != "2 of 3 nodes Ready, 1 of them cordoned; start vm wk-2" {
		t.Errorf("%q", got)
	}
}

// TestStatusOfACordonedNode: a status has which nodes are out of service, and whether the agent took them out.
func TestStatusOfACordonedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 2), journaltest.NewFiles()
		a := start(t, f, files)
		defer a.stop()
		until(t, a, cluster.Ready)
		f.set(func() {
			kn := f.turns["wk-1"]
			kn.Cordoned = true
			f.turns["wk-1"] = kn
		})
		time.Sleep(2 * time.Minute)
		for _, n := range a.Status().Nodes {
			if n.Cordoned != (n.Name == "wk-1") || n.InTurn {
				t.Errorf("%+v", n)
			}
		}
	})
}
