package reconcile

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
	"github.com/talos-agent/talos-agent/reconcile/plan"
)

// anyPlan draws waits and blocks.
func anyPlan(t *rapid.T) plan.Plan {
	subject := rapid.SampledFrom([]string{"dev", "cp-1", "wk-1"})
	about := rapid.SampledFrom([]string{"", "cores", "create vm"})
	words := rapid.StringMatching(`[a-z]{1,5}(: [0-9]{1,2} of 9)?`)
	reasons := cluster.Reasons()
	reason := func() cluster.Reason {
		return reasons[rapid.IntRange(0, len(reasons)-1).Draw(t, "reason")].Reason
	}
	p := plan.Plan{Phases: map[string]cluster.Phase{"cp-1": cluster.PhaseReady, "wk-1": cluster.PhaseJoining}}
	for range rapid.IntRange(0, 4).Draw(t, "waits") {
		p.Waiting = append(p.Waiting, cluster.Wait{Subject: subject.Draw(t, "subject"), Reason: reason(), About: about.Draw(t, "about"), Message: words.Draw(t, "message"), Within: time.Minute})
	}
	for range rapid.IntRange(0, 2).Draw(t, "blocks") {
		p.Blocked = append(p.Blocked, cluster.Block{Subject: subject.Draw(t, "subject"), Reason: reason(), About: about.Draw(t, "about"), Message: words.Draw(t, "message")})
	}
	return p
}

// reworded is the same plan in other words.
func reworded(p plan.Plan) plan.Plan {
	waits, blocks := p.Waiting, p.Blocked
	p.Waiting, p.Blocked = nil, nil
	for i, w := range waits {
		w.Message, w.Hint = fmt.Sprint("other words ", i), "another hint"
		p.Waiting = append(p.Waiting, w)
	}
	for i, b := range blocks {
		b.Message, b.Hint = fmt.Sprint("other words ", i), "another hint"
		p.Blocked = append(p.Blocked, b)
	}
	return p
}

// TestRewordingChangesNothing: whatever the sentences of a plan are, its clocks,
// its signature and the cause of its condition are the same.
func TestRewordingChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPlan(t)
		other := reworded(p)
		begin := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
		r := &Reconciler{}
		first := r.waiting(begin, p)
		second := r.waiting(begin.Add(2*time.Minute), other)
		for i, w := range second {
			if !w.Since.Equal(first[i].Since) || !w.Overdue {
				t.Errorf("the clock of %v was started again", w.Key())
			}
		}
		if a, b := signPlan(p, cluster.Observed{}), signPlan(other, cluster.Observed{}); a != b {
			t.Errorf("signature\n%s\n%s", a, b)
		}
		var a, b cluster.Status
		a.Waiting, b.Waiting = second, second
		setCondition(&a, cluster.Desired{}, cluster.Observed{}, p, nil)
		setCondition(&b, cluster.Desired{}, cluster.Observed{}, other, nil)
		if a.Condition != b.Condition || a.Cause() != b.Cause() {
			t.Errorf("%s because of %v, in other words %s because of %v", a.Condition, a.Cause(), b.Condition, b.Cause())
		}
	})
}

// TestClusterThatWasNeverThere: of a cluster that is in no repository there are no
// files to look at, so that the hint is that of the problem.
func TestClusterThatWasNeverThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.removed = true
		f.problems = cluster.Problems{{Severity: cluster.Error, File: "inventory/dev", Message: "there is no such cluster", Hint: "add that folder"}}
		a := start(t, f, journaltest.NewFiles())
		s := until(t, a, cluster.Stalled)
		if s.Message != "dev: the inventory is invalid: inventory/dev: there is no such cluster" || s.Hint != "add that folder" || s.Reason != cluster.InventoryInvalid {
			t.Errorf("status %+v", s)
		}
		a.stop()
	})
}

// TestEveryStalledPushIsLogged: whoever pushes a fix that does not help, or another
// mistake, finds it in the log, once for each push.
func TestEveryStalledPushIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles(), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		until(t, a, cluster.Ready)
		for i := 2; i < 5; i++ {
			f.set(func() {
				f.head, f.parents[rev(i)] = rev(i), rev(i-1)
				f.problems = cluster.Problems{{Severity: cluster.Error, File: "nodes.yaml", Line: i, Message: "cpu is a number"}}
			})
			a.Look()
			time.Sleep(10 * time.Minute)
			if s := a.Status(); s.Condition != cluster.Stalled || s.Reason != cluster.InventoryInvalid || s.Concerns != "dev" || s.Revision != rev(i) {
				t.Fatalf("status %+v", s)
			}
		}
		a.stop()
		for i := 2; i < 5; i++ {
			if n := strings.Count(log.String(), fmt.Sprintf(`msg="cluster condition changed" cluster=dev detail="Stalled: dev: the inventory is invalid: nodes.yaml:%d`, i)); n != 1 {
				t.Errorf("push %d is logged %d times in\n%s", i, n, log.String())
			}
		}
	})
}

// TestPassingPhases: what is over within a second is not reported as a phase of the
// node; what lasts is, since it began to.
func TestPassingPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 1)
		var mu sync.Mutex
		var phases []string
		seen := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(phases)
		}
		a := start(t, f, journaltest.NewFiles(), func(c *Config) {
			c.OnStatus = func(s cluster.Status) {
				if len(s.Nodes) != 2 {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if ph := string(s.Nodes[1].Phase); len(phases) == 0 || phases[len(phases)-1] != ph {
					phases = append(phases, ph)
				}
			}
		})
		defer a.stop()
		until(t, a, cluster.Ready)
		if got := seen(); slices.Contains(got, "Stopped") || got[len(got)-1] != "Ready" {
			t.Errorf("while it came up: %v", got)
		}
		mu.Lock()
		phases = nil
		mu.Unlock()
		silent := func(d time.Duration) {
			var was cluster.Machine
			f.set(func() { was, f.machines["wk-1"] = f.machines["wk-1"], cluster.Machine{Reach: cluster.Silent} })
			a.Look()
			time.Sleep(d)
			f.set(func() { f.machines["wk-1"] = was })
			a.Look()
			until(t, a, cluster.Ready)
		}
		for range 3 {
			silent(2 * time.Second)
		}
		if got := seen(); len(got) > 1 {
			t.Errorf("silent for a moment: %v", got)
		}
		silent(20 * time.Second)
		if got := strings.Join(seen(), " "); got != "Ready Booting Ready" {
			t.Errorf("silent for long: %v", got)
		}
	})
}

// TestNodesHaveAllThatConcernsThem: nothing that is known of a node is hidden by
// something else that is.
func TestNodesHaveAllThatConcernsThem(t *testing.T) {
	ns := cluster.NodeStatus{Name: "wk-1"}
	o := cluster.Observed{Running: []cluster.Running{{ActionID: cluster.ActionID{Kind: cluster.StartVM, Subject: "wk-1"}, Node: "wk-1"},
		{ActionID: cluster.ActionID{Kind: cluster.StartVM, Subject: "wk-2"}, Node: "wk-2"}}}
	p := plan.Plan{Blocked: []cluster.Block{{Subject: "wk-1", About: "cores"}, {Subject: "wk-1", About: "mac"}, {Subject: "wk-2"}}}
	addConcerns(&ns, o, p, []cluster.WaitStatus{{Wait: cluster.Wait{Subject: "wk-1"}}, {Wait: cluster.Wait{Subject: "dev"}}})
	if len(ns.Blocked) != 2 || len(ns.Waiting) != 1 || ns.WaitsFor != "start vm" {
		t.Errorf("%+v", ns)
	}
	e := newExecutor(&Reconciler{c: Config{Usual: func() map[cluster.ActionKind]time.Duration { return nil }}})
	for _, node := range []string{"wk-1", "wk-2", ""} {
		run := cluster.Running{ActionID: cluster.ActionID{Kind: cluster.StartVM, Subject: node}, Node: node}
		e.running[run.ActionID] = &run
	}
	shared := cluster.Status{Nodes: []cluster.NodeStatus{ns, {Name: "wk-3"}}}
	s := e.addRunning(shared)
	if len(s.Running) != 3 || len(s.Nodes[0].Running) != 1 || s.Nodes[0].Running[0].Subject != "wk-1" || s.Nodes[1].Running == nil || len(s.Nodes[1].Running) != 0 {
		t.Errorf("%+v", s)
	}
	if shared.Nodes[0].Running != nil {
		t.Error("what is shared was written to")
	}
}

// TestALockOfARunningVMIsMentioned: a node that waits for nothing shows that Proxmox VE
// holds a lock on its VM, which may make it slow, or switch it off.
func TestALockOfARunningVMIsMentioned(t *testing.T) {
	o := cluster.Observed{VMs: map[string]cluster.VM{"cp-1": {Power: cluster.PowerRunning, Lock: "backup"}}}
	ns := cluster.NodeStatus{Name: "cp-1", Phase: cluster.PhaseReady}
	addConcerns(&ns, o, plan.Plan{}, nil)
	if want := "nothing; Proxmox VE has locked the vm (backup)"; ns.WaitsFor != want {
		t.Errorf("it waits for %q, want %q", ns.WaitsFor, want)
	}
	waits := []cluster.WaitStatus{{Wait: cluster.Wait{Subject: "cp-1", Message: "boots"}}}
	if addConcerns(&ns, o, plan.Plan{}, waits); ns.WaitsFor != "boots" {
		t.Errorf("it waits for %q", ns.WaitsFor)
	}
}

// TestManyErrorsAreLoggedInPart: the log has some of the errors of a commit, and how many more
// there are; the status has them all.
func TestManyErrorsAreLoggedInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles(), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		until(t, a, cluster.Ready)
		f.set(func() {
			f.head, f.parents[rev(2)] = rev(2), rev(1)
			f.problems = cluster.Problems{{Severity: cluster.Warning, File: "nodes.yaml", Message: "odd"}}
			for i := range 40 {
				f.problems = append(f.problems, cluster.Problem{Severity: cluster.Error, File: "nodes.yaml", Line: i + 1, Message: "cpu is a number"})
			}
		})
		a.Look()
		until(t, a, cluster.Stalled)
		s := a.Status()
		a.stop()
		logged := strings.Count(log.String(), `msg="the inventory is invalid"`)
		if logged != maxLogged+1 || !strings.Contains(log.String(), "30 more errors are in the status") || len(s.Problems) < 40 {
			t.Errorf("logged %d times, and %d in the status:\n%s", logged, len(s.Problems), log.String())
		}
	})
}
