package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
	"github.com/talos-agent/talos-agent/reconcile/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func intentOf(f cluster.Facts, kind cluster.IntentKind) cluster.Intent {
	in, _ := f.Intent(kind)
	return in
}

func wanted(s cluster.Spec, n cluster.Node) cluster.Hardware { return drift.WantHardware(s, n) }

// agent is a Reconciler on a fake world, running until the test stops it.
type agent struct {
	*Reconciler
	stop func()
}

func start(t *testing.T, f *fake, files *journaltest.Files, changes ...func(*Config)) agent {
	t.Helper()
	j, err := journal.Open(files, "dev", f.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Cluster: "dev", ID: f.spec.ID, Source: f, Host: hostEyes{f}, Observers: []Observer{otherEyes{f}}, Renderer: f,
		Images: f, VMs: f, Machines: fakeMachines{f}, Nodes: f, Releases: f, Journal: j, Policy: func() cluster.Policy { return cluster.Policy{} }}
	for _, change := range changes {
		change(&c)
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	return agent{r, func() { cancel(); <-done }}
}

// TestOutcomesAndPassesAreTold: whoever counts hears of every action that ended,
// how, and of every pass.
func TestOutcomesAndPassesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.fail["create"] = 2
		j, err := journal.Open(journaltest.NewFiles(), "dev", f.spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		ended, passes, running := map[string]int{}, 0, 0
		r, err := New(Config{Cluster: "dev", ID: f.spec.ID, Source: f, Host: hostEyes{f}, Observers: []Observer{otherEyes{f}}, Renderer: f,
			Images: f, VMs: f, Machines: fakeMachines{f}, Nodes: f, Releases: f, Journal: j, Policy: func() cluster.Policy { return cluster.Policy{} },
			OnAction: func(o cluster.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				ended[string(o.Action)+" "+string(o.Result)]++
			},
			OnPass:   func(time.Duration) { passes++ },
			OnStatus: func(s cluster.Status) { running = max(running, len(s.Running)) }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		a := agent{r, func() { cancel(); <-done }}
		until(t, a, cluster.Ready)
		f.set(func() { f.hang["delete"] = true })
		if err := r.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		a.stop()
		for what, want := range map[string]int{"create vm failed": 2, "create vm done": 1, "bootstrap etcd done": 1, "delete vm interrupted": 1} {
			if ended[what] != want {
				t.Errorf("%s: told %d times, want %d (%v)", what, ended[what], want, ended)
			}
		}
		if passes < 5 || running == 0 {
			t.Errorf("%d passes, at most %d actions under way", passes, running)
		}
	})
}

// TestWhatEndsDuringAPassIsNotDoneAgain: an action that ends while a pass renders and
// looks is under way to that pass: what it left is not in the facts that it has.
func TestWhatEndsDuringAPassIsNotDoneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.renders, f.hang["bootstrap"] = 700*time.Millisecond, true
		f.spec.Addons = []cluster.Addon{{Name: "web", Namespace: "web", Ownership: cluster.Managed, Chart: cluster.Chart{Repository: "https://charts.example.org", Name: "web", Version: "1.0.0"}}}
		a := start(t, f, journaltest.NewFiles())
		time.Sleep(time.Minute)
		a.stop()
		fetched := 0
		for _, what := range f.did() {
			if what == "chart web" {
				fetched++
			}
		}
		if fetched != 1 {
			t.Errorf("the chart was fetched %d times: %q", fetched, f.did())
		}
	})
}

// until waits, in virtual time, until the condition is met.
func until(t *testing.T, a agent, want cluster.Condition) cluster.Status {
	t.Helper()
	for range 3600 {
		if s := a.Status(); s.Condition == want {
			return s
		}
		time.Sleep(time.Second)
	}
	t.Fatalf("never %s: %+v", want, a.Status())
	return cluster.Status{}
}

func TestBringUpInThreeCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(3, 2), journaltest.NewFiles()
		for range 3 {
			a := start(t, f, files)
			time.Sleep(4 * time.Second)
			a.stop()
		}
		a := start(t, f, files)
		s := until(t, a, cluster.Ready)
		a.stop()
		if f.founded != 1 {
			t.Errorf("etcd was founded %d times", f.founded)
		}
		if len(s.Nodes) != 5 || s.Nodes[0].Phase != cluster.PhaseReady || s.Applied != rev(1) {
			t.Errorf("status %+v", s)
		}
		in, _ := a.c.Journal.Facts().Intent(cluster.IntendBootstrap)
		if in.Node != "cp-1" || !in.Done {
			t.Errorf("intent %+v", in)
		}
	})
}

// TestStatusIsNotWrittenAgain: what was published is shared, and stays as it was.
func TestStatusIsNotWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		j, err := journal.Open(journaltest.NewFiles(), "dev", f.spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		var r *Reconciler
		told := 0
		r, err = New(Config{Cluster: "dev", ID: f.spec.ID, Source: f, Host: hostEyes{f}, Observers: []Observer{otherEyes{f}}, Renderer: f,
			Images: f, VMs: f, Machines: fakeMachines{f}, Nodes: f, Releases: f, Journal: j, Policy: func() cluster.Policy { return cluster.Policy{} },
			OnStatus: func(s cluster.Status) {
				told += len(s.Running)
				if n := len(r.status.Load().Running); n > 0 {
					t.Errorf("the published status was given %d actions that run", n)
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		until(t, agent{r, nil}, cluster.Ready)
		cancel()
		<-done
		if told == 0 {
			t.Error("nobody was told of an action that runs")
		}
	})
}

func TestQuietWhenReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		did, steps := len(f.did()), files.Steps
		time.Sleep(time.Hour)
		if len(f.did()) != did || files.Steps != steps {
			t.Errorf("a converged cluster was changed: %v", f.did()[did:])
		}
		a.stop()
	})
}

// TestInvalidInventoryLeavesTheLastGood: the last good revision stays in force, and the
// status shows both what is wrong and how the cluster stands; also after a restart.
func TestInvalidInventoryLeavesTheLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		kill := func() {
			f.set(func() {
				delete(f.vms, "wk-1")
				delete(f.machines, "wk-1")
			})
		}
		healed := func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.machines["wk-1"].Reach == cluster.Configured
		}
		f.set(func() {
			f.head, f.parents[rev(2)] = rev(2), rev(1)
			f.problems = cluster.Problems{{Severity: cluster.Error, File: "nodes.yaml", Line: 3, Message: "cpu is a number"}}
		})
		kill()
		a.Look()
		s := until(t, a, cluster.Stalled)
		if !strings.Contains(s.Message, "nodes.yaml:3") || !strings.Contains(s.Message, rev(1).Short()+" stays in force: ") || s.Revision != rev(2) || s.Applied != rev(1) {
			t.Errorf("status %+v", s)
		}
		time.Sleep(10 * time.Minute)
		s = a.Status()
		if !healed() || s.Condition != cluster.Stalled || s.Reason != cluster.InventoryInvalid || !strings.HasSuffix(s.Message, "; "+rev(1).Short()+" stays in force: all nodes are Ready") {
			t.Errorf("healed: %v, %s: %s", healed(), s.Condition, s.Message)
		}
		if fc, err := a.Forecast(t.Context()); err != nil || len(fc.Blocked) != 1 || fc.Blocked[0].Reason != cluster.InventoryInvalid || fc.Revision != rev(1) {
			t.Errorf("forecast %+v, %v", fc, err)
		}
		if err := a.Accept(rev(2)); err == nil || !strings.Contains(err.Error(), "nodes.yaml:3") {
			t.Errorf("accept is for a history that was refused, not for an invalid inventory: %v", err)
		}
		if applied := a.c.Journal.Facts().Applied; applied != rev(1) {
			t.Errorf("applied %s", applied)
		}
		if err := a.AcceptBootstrap(); err == nil {
			t.Error("bootstrap is declared never sent to a cluster whose records say that it was")
		}
		a.stop()

		// After a restart it is recalled.
		kill()
		a = start(t, f, files)
		time.Sleep(10 * time.Minute)
		if s := a.Status(); !healed() || s.Condition != cluster.Stalled || s.Revision != rev(2) || s.Applied != rev(1) || !strings.HasSuffix(s.Message, "all nodes are Ready") {
			t.Errorf("healed: %v, %+v", healed(), s)
		}

		// A cluster that was removed is left alone: maybe its VMs are being deleted.
		f.set(func() { f.head, f.parents[rev(3)], f.removed = rev(3), rev(2), true })
		a.Look()
		time.Sleep(time.Minute)
		kill()
		did := len(f.did())
		time.Sleep(10 * time.Minute)
		if s := a.Status(); len(f.did()) != did || strings.Contains(s.Message, "in force") {
			t.Errorf("changed after it was removed: %v, %s", f.did()[did:], s.Message)
		}

		a.stop()
		f.set(func() { f.fetchErr = errors.New("connection refused") })
		a = start(t, f, files) // which does not know but from what is recalled
		time.Sleep(10 * time.Minute)
		if s := a.Status(); len(f.did()) != did || s.Condition != cluster.Stalled || !strings.Contains(s.Message, "no longer in the repository") {
			t.Errorf("changed after it was removed: %v, %s", f.did()[did:], s.Message)
		}
		f.set(func() { f.fetchErr = nil })

		f.set(func() { f.head, f.parents[rev(4)], f.removed, f.problems = rev(4), rev(3), false, nil })
		a.Look()
		time.Sleep(time.Second)
		until(t, a, cluster.Ready)
		if err := a.Accept(rev(4)); err == nil {
			t.Error("a revision is accepted that is applied already")
		}
		a.stop()
	})
}

// TestUnfitConfigsLeaveTheLastGood: an inventory can be valid and its configs not.
func TestUnfitConfigsLeaveTheLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		f.unfit.Store(new(rev(2)))
		f.push(rev(2), rev(1))
		for range 2 {
			a.Look()
			time.Sleep(time.Minute)
			f.set(func() {
				vm := f.vms["wk-1"]
				vm.Power = cluster.Stopped
				f.vms["wk-1"] = vm
			})
			time.Sleep(10 * time.Minute)
			s := a.Status()
			if s.Reason != cluster.InventoryInvalid || s.Revision != rev(2) || s.Applied != rev(1) || !strings.HasSuffix(s.Message, "all nodes are Ready") || f.vms["wk-1"].Power != cluster.PowerRunning {
				t.Errorf("%+v", s)
			}
			a.stop()
			a = start(t, f, files) // what was applied is recalled
		}
		a.stop()

		// What cannot be recalled is not in force.
		f.set(func() { f.forgot = true })
		a = start(t, f, files)
		defer a.stop()
		time.Sleep(time.Minute)
		did := len(f.did())
		f.set(func() { delete(f.vms, "wk-1") })
		time.Sleep(10 * time.Minute)
		if s := a.Status(); s.Condition != cluster.Stalled || len(f.did()) != did || strings.Contains(s.Message, "in force") {
			t.Errorf("%+v, did %v", s, f.did()[did:])
		}
	})
}

// TestRecallIsTriedAgain: what was in force may be unreadable for a while only, such as on a
// host that is busy with its start, and the repository may not answer for long.
func TestRecallIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		a.stop()
		f.set(func() {
			f.forgot, f.fetchErr = true, errors.New("connection refused")
			vm := f.vms["wk-1"]
			vm.Power = cluster.Stopped
			f.vms["wk-1"] = vm
		})
		a = start(t, f, files)
		defer a.stop()
		time.Sleep(10 * time.Minute)
		var asked int
		var power cluster.Power
		look := func() { f.set(func() { asked, power = f.recalls, f.vms["wk-1"].Power }) }
		if look(); power != cluster.Stopped || asked < 2 || asked > 10 {
			t.Errorf("%+v, asked %d times", a.Status(), asked)
		}
		f.set(func() { f.forgot = false })
		time.Sleep(10 * time.Minute)
		look()
		if s := a.Status(); power != cluster.PowerRunning || s.Applied != rev(1) {
			t.Errorf("%+v", s)
		}
	})
}

func TestRewrittenHistoryWaitsForRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles())
		until(t, a, cluster.Ready)
		f.push(rev(7), "")
		a.Look()
		s := until(t, a, cluster.Stalled)
		if !strings.Contains(s.Message, "does not descend") || s.Applied != rev(1) || s.Revision != rev(7) {
			t.Errorf("status %+v", s)
		}
		if err := a.Accept(rev(7)); err != nil {
			t.Fatal(err)
		}
		if s := until(t, a, cluster.Ready); s.Applied != rev(7) {
			t.Errorf("applied %s", s.Applied)
		}
		a.stop()
	})
}

// TestAcceptedIsNotRefusedOnceMore: the first pass that knows of root's word
// asks for the revision again; until then nothing but the word is told.
func TestAcceptedIsNotRefusedOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		said := func(string, bool) { time.Sleep(time.Second) } // passes are made meanwhile
		a := start(t, f, journaltest.NewFiles(), func(c *Config) { c.OnCommand = said })
		defer a.stop()
		until(t, a, cluster.Ready)
		f.push(rev(7), "")
		a.Look()
		until(t, a, cluster.Stalled)
		if err := a.Accept(rev(7)); err != nil {
			t.Fatal(err)
		}
		if s := a.Status(); s.Condition == cluster.Stalled {
			t.Errorf("after it was accepted: %s", s.Message)
		}
	})
}

// While it cannot be told whether a revision descends from the applied one, the
// cluster is not called Ready at it.
func TestUnknownDescentIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles())
		until(t, a, cluster.Ready)
		f.set(func() { f.unsure = errors.New("the history has a hole") })
		f.push(rev(2), rev(1))
		a.Look()
		if s := until(t, a, cluster.Stalled); s.Revision != rev(2) || s.Applied != rev(1) || !strings.Contains(s.Message, "the history has a hole") {
			t.Errorf("%+v", s)
		}
		f.set(func() { f.unsure = nil })
		if s := until(t, a, cluster.Ready); s.Applied != rev(2) {
			t.Errorf("%+v", s)
		}
		a.stop()
	})
}

// TestApprovalHoldsForTheSame: a revision that asks for the same as the one whose changes were approved,
// as a commit to a README does, needs no other approval, also where the agent was started in between.
// Any other does, and so does one that is as before again after another one was in force, and one that
// cannot be compared.
func TestApprovalHoldsForTheSame(t *testing.T) {
	is := func(name, bundle string) cluster.Snapshot {
		return cluster.Snapshot{Revision: cluster.Revision(name + bundle), Spec: cluster.Spec{Name: name}, Bundle: cluster.SecretString(bundle)}
	}
	if a := is("a", "x"); !asksSame(a, cluster.Snapshot{Revision: "b", Spec: a.Spec, Bundle: a.Bundle}) || asksSame(a, is("b", "x")) || asksSame(a, is("a", "y")) {
		t.Error("what asks for the same is taken for another, or the other way round")
	}
	for _, restarts := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, files := newFake(1, 2), journaltest.NewFiles()
			a := start(t, f, files)
			defer func() { a.stop() }()
			until(t, a, cluster.Ready)
			same := func(*cluster.Spec) {}
			cores := func(n int) func(*cluster.Spec) {
				return func(s *cluster.Spec) { s.ApplyApproved, s.Nodes[1].Cores = true, n }
			}
			push := func(n int, edit func(*cluster.Spec)) {
				t.Helper()
				f.change(rev(n), rev(n-1), edit)
				if a.Look(); n == 2 {
					return
				}
				time.Sleep(2 * time.Minute)
			}
			approve := func() {
				t.Helper()
				until(t, a, cluster.Stalled)
				shown, err := a.Forecast(t.Context())
				if err == nil {
					err = a.Approve(shown.Digest)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			approvedFor := func() cluster.Revision {
				in, _ := a.c.Journal.Facts().Intent(cluster.IntendApproved)
				return in.Revision
			}
			has := func() int {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.vms["wk-1"].Hardware.Value.Cores
			}
			f.set(func() { f.fail["drain"] = 2 }) // so that it is still to be done
			push(2, cores(2))
			time.Sleep(2 * time.Minute)
			approve()
			if restarts {
				a.stop()
				f.change(rev(3), rev(2), same)
				a = start(t, f, files)
				time.Sleep(2 * time.Minute)
			} else {
				push(3, same)
			}
			until(t, a, cluster.Ready)
			if has() != 2 || approvedFor() != rev(3) {
				t.Errorf("restarts: %v: wk-1 has %d cores, and %s is approved", restarts, has(), approvedFor().Short())
			}
			push(4, cores(3))
			if st := until(t, a, cluster.Stalled); st.Reason != cluster.ChangeUnapproved || has() != 2 {
				t.Errorf("restarts: %v: %s: %s, and wk-1 has %d cores", restarts, st.Reason, st.Message, has())
			}
			// Back to what was approved, which another revision has ended.
			push(5, cores(2))
			until(t, a, cluster.Ready)
			if approvedFor() != rev(3) {
				t.Errorf("restarts: %v: %s is approved", restarts, approvedFor().Short())
			}
		})
	}
}

// TestApprovalThatCannotBeCompared: an agent that was started since, and does not have the revision that
// was approved any more, has the changes of the next one wait for an approval of their own.
func TestApprovalThatCannotBeCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 2), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		f.set(func() { f.fail["drain"] = 2 })
		f.change(rev(2), rev(1), func(s *cluster.Spec) { s.ApplyApproved, s.Nodes[1].Cores = true, 2 })
		time.Sleep(2 * time.Minute)
		until(t, a, cluster.Stalled)
		shown, err := a.Forecast(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Approve(shown.Digest); err != nil {
			t.Fatal(err)
		}
		a.stop()
		f.push(rev(3), rev(2)) // without what was before
		a = start(t, f, files)
		defer a.stop()
		time.Sleep(2 * time.Minute)
		if st := until(t, a, cluster.Stalled); st.Reason != cluster.ChangeUnapproved || st.Revision != rev(3) {
			t.Errorf("%s: %s", st.Reason, st.Message)
		}
	})
}

// TestApproveWithoutSteps: a plan in which no step waits is not approved: an approval of nothing
// would be one of whatever the revision changes.
func TestApproveWithoutSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 2), journaltest.NewFiles()
		a := start(t, f, files)
		defer a.stop()
		until(t, a, cluster.Ready)
		protect := func(protected bool) {
			f.set(func() {
				vm := f.vms["wk-2"]
				vm.Protected = protected
				f.vms["wk-2"] = vm
			})
			time.Sleep(2 * time.Minute) // of virtual time: a quiet cluster is looked at every minute
		}
		f.change(rev(2), rev(1), func(s *cluster.Spec) { s.ApplyApproved, s.Nodes = true, s.Nodes[:2] })
		protect(true)
		until(t, a, cluster.Stalled)
		for _, protected := range []bool{true, false} {
			protect(protected)
			shown, err := a.Forecast(t.Context())
			if err != nil || shown.Revision != rev(2) || shown.Unapproved == protected {
				t.Fatalf("protected: %v: %+v %v", protected, shown, err)
			}
			err = a.Approve(shown.Digest)
			in, approved := a.c.Journal.Facts().Intent(cluster.IntendApproved)
			if refused := cluster.ReasonOf(err) == cluster.NothingToAccept; refused != protected || approved == protected {
				t.Errorf("protected: %v: %v, and approved: %+v", protected, err, in)
			}
		}
	})
}

// TestNameLostPods: at the first drain of each node, and at no other step; not where they stay,
// because there is no other node.
func TestNameLostPods(t *testing.T) {
	for _, workers := range []int{0, 1} {
		f := newFake(1, workers)
		f.lost = map[string][]string{"cp-1": {"a/1"}, "wk-1": {"b/2"}}
		j, err := journal.Open(journaltest.NewFiles(), "dev", f.spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(Config{Cluster: "dev", ID: f.spec.ID, Source: f, Host: hostEyes{f}, Renderer: f, Images: f, VMs: f, Machines: fakeMachines{f}, Nodes: f, Releases: f, Journal: j,
			Policy: func() cluster.Policy { return cluster.Policy{} }})
		if err != nil {
			t.Fatal(err)
		}
		fc := cluster.Forecast{Steps: []cluster.Step{{Action: cluster.PullImages, Subject: "cp-1"}, {Action: cluster.DrainNode, Subject: "cp-1"}, {Action: cluster.RebootNode, Subject: "cp-1"},
			{Action: cluster.DrainNode, Subject: "cp-1"}, {Action: cluster.DrainNode, Subject: "wk-1"}}}
		r.nameLostPods(t.Context(), cluster.Desired{Snapshot: cluster.Snapshot{Spec: f.spec}}, &fc)
		var got []string
		for _, s := range fc.Steps {
			got = append(got, strings.TrimPrefix(s.Text, "; deletes pods that no controller starts again: "))
		}
		want := []string{"", "a/1", "", "", "b/2"}
		if workers == 0 {
			want = make([]string, len(fc.Steps))
		}
		if !slices.Equal(got, want) || len(fc.Notes) > 0 {
			t.Errorf("%d workers: %q, want %q; notes %q", workers, got, want, fc.Notes)
		}
	}
}

// TestForecastOfASuspendedCluster: a plan, which is of what resume would do, has it that nothing of
// it is done before; and so has that of a directory.
func TestForecastOfASuspendedCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		a := start(t, f, files)
		defer a.stop()
		until(t, a, cluster.Ready)
		notes := func() []string {
			pushed, err := a.Forecast(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			shown, err := a.ForecastOf(t.Context(), a.view.Load().desired.Repository().Snapshot)
			if err != nil || !slices.Equal(pushed.Notes, shown.Notes) {
				t.Errorf("pushed %q, of a directory %q, %v", pushed.Notes, shown.Notes, err)
			}
			return pushed.Notes
		}
		if got := notes(); len(got) > 0 {
			t.Errorf("%q", got)
		}
		if err := a.Suspend(); err != nil {
			t.Fatal(err)
		}
		until(t, a, cluster.Suspended)
		if got := notes(); !slices.Equal(got, []string{"the cluster is suspended: nothing of this is done before `talos-agent resume dev`"}) {
			t.Errorf("%q", got)
		}
	})
}

// TestForecastNamesLostPods: the plan of a push, and that of a directory, name at the first drain of
// each node the pods that no controller starts again, some by name; and note where none can be listed.
func TestForecastNamesLostPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 3), journaltest.NewFiles()
		a := start(t, f, files)
		defer a.stop()
		until(t, a, cluster.Ready)
		f.set(func() {
			f.lost = map[string][]string{"cp-1": {"default/kept"}, "wk-2": {"a/1"}, "wk-3": {"a/1", "a/2", "a/3", "a/4", "a/5", "b/6", "b/7"}}
		})
		f.change(rev(2), rev(1), func(s *cluster.Spec) {
			s.ApplyApproved, s.Nodes = true, slices.Clone(s.Nodes)
			s.Nodes[3].Cores++
		})
		until(t, a, cluster.Stalled)
		shown := func() cluster.Forecast {
			t.Helper()
			fc, err := a.Forecast(t.Context())
			if err != nil || len(fc.Steps) == 0 {
				t.Fatalf("%+v %v", fc, err)
			}
			return fc
		}
		drains := func(fc cluster.Forecast) (texts []string) {
			for _, s := range fc.Steps {
				if s.Action == cluster.DrainNode || strings.Contains(s.Text, "controller") {
					texts = append(texts, s.Text)
				}
			}
			return texts
		}
		named := shown()
		want := []string{"drain wk-3 to change cores from 0 to 1; deletes pods that no controller starts again: a/1, a/2, a/3, a/4, a/5, and 2 more"}
		if got := drains(named); !slices.Equal(got, want) || len(named.Notes) > 0 {
			t.Errorf("%q, notes %q", got, named.Notes)
		}
		ofDir, err := a.ForecastOf(t.Context(), cluster.Snapshot{Revision: "dir@sent", Spec: f.spec, Bundle: cluster.SecretString("x")})
		if got := drains(ofDir); err != nil || !slices.Equal(got, want) {
			t.Errorf("of a directory: %q %v", got, err)
		}
		f.set(func() { f.unlisted = errors.New("connection refused") })
		unnamed := shown()
		if got, note := drains(unnamed), "which pods are deleted that no controller starts again is not known of wk-3: connection refused"; !slices.Equal(got, []string{"drain wk-3 to change cores from 0 to 1"}) || !slices.Equal(unnamed.Notes, []string{note}) {
			t.Errorf("%q, notes %q", got, unnamed.Notes)
		}
		if err := a.Approve(named.Digest); named.Digest != unnamed.Digest || err != nil {
			t.Errorf("digest %s, and %s where no pods are listed: %v", named.Digest, unnamed.Digest, err)
		}
	})
}

func TestSuspendDestroyResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 2), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		if err := a.Suspend(); err != nil {
			t.Fatal(err)
		}
		told(t, a, cluster.Suspended)
		until(t, a, cluster.Suspended)
		fc, err := a.ForecastDestroy(t.Context(), nil)
		if err != nil || len(fc.Steps) != 3 || !fc.Destructive() {
			t.Errorf("forecast of the tear-down: %+v %v", fc, err)
		}
		if err := a.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		told(t, a, cluster.Reconciling)
		time.Sleep(1500 * time.Millisecond) // one VM is gone, one going
		a.stop()
		a = start(t, f, files) // a crash does not stop a tear-down
		for range 100 {
			if strings.Contains(a.Status().Message, "is destroyed") {
				break
			}
			time.Sleep(time.Second)
		}
		if len(f.vms) != 0 {
			t.Fatalf("left: %v; %+v", f.vms, a.Status())
		}
		time.Sleep(10 * time.Minute)
		if len(f.vms) != 0 {
			t.Fatalf("built again although suspended: %v", f.vms)
		}
		if s := a.Status(); s.Condition != cluster.Suspended || !strings.Contains(s.Message, "`talos-agent resume dev` builds it") {
			t.Errorf("long after the tear-down: %s: %s", s.Condition, s.Message)
		}
		if facts := a.c.Journal.Facts(); facts.BootstrapSent() || facts.Fingerprint != "" || !facts.Suspended() {
			t.Errorf("facts after the tear-down: %+v", facts)
		}
		f.set(func() { f.founded = 0 })
		if err := a.Resume(); err != nil {
			t.Fatal(err)
		}
		told(t, a, cluster.Reconciling)
		until(t, a, cluster.Ready)
		a.stop()
	})
}

// TestRefresh: who asks for everything now does not wait for what failed, nor for
// what an observer remembers.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.fail["create"] = 7
		a := start(t, f, journaltest.NewFiles())
		defer a.stop()
		for {
			if _, resting := a.exec.snapshot(); len(resting) == 1 && resting[0].Failed == 7 {
				break
			}
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		if len(f.did()) != 2 { // download and upload
			t.Fatalf("did %v", f.did())
		}
		a.Refresh()
		time.Sleep(2 * time.Second)
		if !slices.Contains(f.did(), "create cp-1") {
			t.Errorf("it still rests: %v", f.did())
		}
		if got, want := f.asked.take(), []string{"host " + f.spec.ID, "other " + f.spec.ID}; !slices.Equal(got, want) {
			t.Errorf("forgot %v", got)
		}
		until(t, a, cluster.Ready)
		// An administrator may have changed the host for the command that follows.
		for _, command := range []func() error{a.Suspend, a.Resume, func() error { return a.Destroy(nil, nil) }} {
			if err := command(); err != nil {
				t.Fatal(err)
			}
			if got := f.asked.take(); !slices.Equal(got, []string{"host " + f.spec.ID}) {
				t.Errorf("after a command: forgot %v", got)
			}
		}
	})
}

// TestDestroyEnds: a destruction that has to leave a VM ends, with the reason, also
// over a restart; what kept the VM may go away later, and the VM stays.
func TestDestroyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		protect := func(on bool) {
			f.set(func() {
				vm := f.vms["wk-1"]
				vm.Protected = on
				f.vms["wk-1"] = vm
			})
		}
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		protect(true) // which no pass has seen yet
		fc, err := a.ForecastDestroy(t.Context(), nil)
		if err != nil || len(fc.Steps) != 1 || len(fc.Blocked) != 1 || fc.Blocked[0].Reason != cluster.VMProtected {
			t.Errorf("forecast: %+v %v", fc, err)
		}
		if err := a.Destroy(nil, []int{999}); err == nil || !strings.Contains(err.Error(), "has no vm 999") {
			t.Errorf("another's vm: %v", err)
		}
		if err := a.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		if !a.Status().Destroying {
			t.Error("it is not being destroyed")
		}
		var ends string
		for range 2 {
			s := until(t, a, cluster.Stalled)
			if s.Destroying || !s.Suspended || s.Reason != cluster.VMProtected || s.Concerns != "wk-1" || s.Hint == "" || len(s.Blocked) != 1 || ends != "" && s.Message != ends {
				t.Errorf("it ends with %+v", s)
			}
			ends = s.Message
			a.stop()
			a = start(t, f, files)
		}
		protect(false)
		f.push(rev(2), rev(1))
		time.Sleep(10 * time.Minute)
		if len(f.vms) != 1 || !slices.Contains(f.did(), "delete cp-1") {
			t.Fatalf("left: %v", f.vms)
		}
		protect(true)
		if err := a.Destroy(nil, []int{f.vms["wk-1"].VMID}); err != nil {
			t.Fatal(err)
		}
		if s := until(t, a, cluster.Suspended); s.Destroying || len(f.vms) != 0 {
			t.Errorf("%+v, left: %v", s, f.vms)
		}
		a.stop()
	})
}

// TestDestroyOfAMovedVM: a VM of ours that somebody put into another pool is left, and
// is told of; nothing calls the cluster destroyed.
func TestDestroyOfAMovedVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 1)
		a := start(t, f, journaltest.NewFiles())
		defer a.stop()
		until(t, a, cluster.Ready)
		f.set(func() {
			vm := f.vms["wk-1"]
			vm.Owner, vm.Moved, vm.Pool = cluster.Foreign, true, "apps"
			f.vms["wk-1"] = vm
		})
		if err := a.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		s := until(t, a, cluster.Stalled)
		if s.Destroying || s.Reason != cluster.PoolDrift || s.Concerns != "wk-1" || len(f.vms) != 1 {
			t.Errorf("%+v", s)
		}
		if facts := a.c.Journal.Facts(); !facts.BootstrapSent() {
			t.Errorf("it is forgotten that a cluster was founded: %+v", facts)
		}
	})
}

// TestCommandDuringTheEndOfADestroy: what an administrator says while a pass decides
// that a destruction has ended is heard by the next pass, not lost.
func TestCommandDuringTheEndOfADestroy(t *testing.T) {
	for name, left := range map[string]bool{"something is left": true, "nothing is left": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(1, 0)
				a := start(t, f, journaltest.NewFiles())
				defer a.stop()
				until(t, a, cluster.Ready)
				f.set(func() {
					vm := f.vms["cp-1"]
					vm.Protected = left
					f.vms["cp-1"] = vm
				})
				resumed := make(chan error, 1)
				f.set(func() {
					f.during = func(o *cluster.Observed) {
						if o.Facts.Destroying() && (left || len(f.vms) == 0) {
							f.during = nil
							resumed <- a.Resume()
						}
					}
				})
				if err := a.Destroy(nil, nil); err != nil {
					t.Fatal(err)
				}
				if err := <-resumed; err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if facts := a.c.Journal.Facts(); facts.Suspended() || facts.Destroying() {
					t.Errorf("the word of the administrator is lost: %+v", facts)
				}
			})
		})
	}
}

// TestDestroyThatFails: it is Stalled while it is tried again, ends after some
// minutes, and begins afresh when somebody asks once more.
func TestDestroyThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles())
		defer a.stop()
		until(t, a, cluster.Ready)
		f.set(func() { f.fail["delete"] = 8 })
		if err := a.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		if s := until(t, a, cluster.Stalled); !s.Destroying || s.Reason != cluster.ActionFailed {
			t.Errorf("after three failures: %+v", s)
		}
		for a.Status().Destroying {
			time.Sleep(time.Second)
		}
		if s := a.Status(); s.Condition != cluster.Stalled || s.Reason != cluster.ActionFailed || !strings.Contains(s.Message, "8 tries to delete it failed: no luck") {
			t.Errorf("it ends with %+v", s)
		}
		time.Sleep(time.Hour)
		if len(f.vms) != 1 {
			t.Error("it was deleted after all")
		}
		if err := a.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		if s := until(t, a, cluster.Suspended); len(f.vms) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestDestroyUnderAnInvalidInventory: the last valid one says what goes, and the
// tear-down is not taken for refused because the newest is.
func TestDestroyUnderAnInvalidInventory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 1)
		a := start(t, f, journaltest.NewFiles())
		defer a.stop()
		until(t, a, cluster.Ready)
		f.set(func() {
			f.head, f.parents[rev(2)] = rev(2), rev(1)
			f.problems = cluster.Problems{{Severity: cluster.Error, File: "nodes.yaml", Line: 3, Message: "cpu is a number"}}
		})
		a.Look()
		until(t, a, cluster.Stalled)
		if err := a.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		told(t, a, cluster.Reconciling)
		for range 100 {
			if s := a.Status(); s.Condition != cluster.Reconciling {
				break
			}
			time.Sleep(time.Second)
		}
		if s := a.Status(); s.Condition != cluster.Suspended || len(f.vms) != 0 {
			t.Errorf("after the tear-down: %s (%s), left: %v", s.Condition, s.Message, f.vms)
		}
	})
}

// told checks that the status knows what root said as soon as it is said:
// whoever waits for the end of it would take an older status for the end.
func told(t *testing.T, a agent, want cluster.Condition) {
	t.Helper()
	if s := a.Status(); s.Condition != want {
		t.Errorf("right after root's word the cluster is %s (%s), want %s", s.Condition, s.Message, want)
	}
}

// TestForecastDestroyCountsWhatIsBeingMade: a VM whose creation began after the
// last look goes with the others, and is told with them.
func TestForecastDestroyCountsWhatIsBeingMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.hang["create"] = true
		a := start(t, f, journaltest.NewFiles())
		defer a.stop()
		for range 60_000 {
			if s := a.Status(); len(s.Running) == 1 && s.Running[0].Action == "create vm" {
				break
			}
			time.Sleep(time.Millisecond)
		}
		fc, err := a.ForecastDestroy(t.Context(), nil)
		if err != nil || len(fc.Steps) != 1 || !fc.Destructive() {
			t.Errorf("forecast of the tear-down: %+v %v", fc, err)
		}
	})
}

func TestFailuresRestAndAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.fail["create"] = 6
		a := start(t, f, journaltest.NewFiles())
		began := time.Now()
		time.Sleep(20 * time.Second)
		if s := a.Status(); s.Condition != cluster.Stalled || !strings.HasSuffix(s.Message, "no luck") {
			t.Errorf("after three failures: %s %s", s.Condition, s.Message)
		}
		// Trying again is no news: whoever is told of changes hears of none.
		since := a.Status().Since
		for range 40 {
			time.Sleep(time.Second)
			if s := a.Status(); s.Condition != cluster.Stalled || !s.Since.Equal(since) {
				t.Fatalf("while it is tried again: %s since %v, not %v", s.Condition, s.Since, since)
			}
		}
		until(t, a, cluster.Ready)
		if took := time.Since(began); took < 63*time.Second {
			t.Errorf("six failures were retried within %v", took)
		}
		a.stop()
	})
}

func TestPanicFailsOneActionOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.panics = true
		a := start(t, f, journaltest.NewFiles())
		time.Sleep(10 * time.Second)
		f.set(func() { f.panics = false })
		until(t, a, cluster.Ready)
		a.stop()
	})
}

// A panic in the loop itself, over a file nobody thought of, leaves the other
// clusters of the daemon alone, is told, and is over when its cause is.
func TestPanicFailsOnePassOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles())
		until(t, a, cluster.Ready)
		did := len(f.did())
		f.set(func() { f.poison = true })
		if s := until(t, a, cluster.Unknown); !strings.Contains(s.Message, "index out of range") || s.Revision != rev(1) {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Hour)
		f.set(func() { f.poison = false })
		until(t, a, cluster.Ready)
		if now := len(f.did()); now != did {
			t.Errorf("did %v", f.did()[did:])
		}
		a.stop()
	})
}

// TestOnePassForAllThatHappened: what happened before a pass began is seen by that pass, however many
// reasons there are to make it.
func TestOnePassForAllThatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles())
		until(t, a, cluster.Ready)
		time.Sleep(time.Second)
		f.set(func() { f.looks = 0 })
		a.Look()
		a.exec.wakeLoop()
		time.Sleep(time.Second)
		if n := f.looked(); n != 1 {
			t.Errorf("looked %d times, want once", n)
		}
		// In the pause after a pass, too.
		a.Look()
		synctest.Wait()
		a.Look()
		synctest.Wait()
		a.exec.wakeLoop()
		a.Look()
		time.Sleep(time.Second)
		if n := f.looked(); n != 3 {
			t.Errorf("looked %d times, want two more", n)
		}
		a.stop()
	})
}

// A machine that tells something new all the time does not have the host asked
// all the time.
func TestRestlessMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles())
		until(t, a, cluster.Ready)
		f.set(func() { f.looks = 0 })
		for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(5 * time.Millisecond) {
			a.Look()
		}
		a.stop()
		if most := int((time.Hour + bustle) / crowded); f.looks > most+10 {
			t.Errorf("looked %d times in an hour", f.looks)
		}
	})
}

// TestAWaitInOtherWords: a wait whose details change lasts on, and is overdue when
// it should be; another kind of wait begins anew.
func TestAWaitInOtherWords(t *testing.T) {
	r := &Reconciler{}
	begin := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	at := func(minute int, reason cluster.Reason, message string) cluster.WaitStatus {
		return r.waiting(begin.Add(time.Duration(minute)*time.Minute), plan.Plan{Waiting: []cluster.Wait{{Subject: "cilium", Reason: reason, Message: message, Hint: "look at its pods", Within: 15 * time.Minute}}})[0]
	}
	for minute := range 16 {
		if w := at(minute, cluster.AddonNotReady, fmt.Sprintf("becomes ready: %d of 9 pods ready", minute%3)); w.Overdue || !w.Since.Equal(begin) {
			t.Errorf("after %d minutes: %+v", minute, w)
		}
	}
	if w := at(16, cluster.AddonNotReady, "becomes ready: 1 of 9 pods ready"); !w.Overdue || w.Hint == "" {
		t.Errorf("it never becomes ready, and is not overdue: %+v", w)
	}
	if w := at(17, cluster.ReleaseUninstalling, "its release is being uninstalled"); w.Overdue || !w.Since.Equal(begin.Add(17*time.Minute)) {
		t.Errorf("another wait: %+v", w)
	}
}

// TestActionThatNeverEnds: an action that takes longer than those of its kind did
// makes the cluster Stalled, and its end ends that.
func TestActionThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.hang["create"] = true // it takes an hour
		began := time.Now()
		a := start(t, f, journaltest.NewFiles(), func(c *Config) {
			c.Usual = func() map[cluster.ActionKind]time.Duration {
				return map[cluster.ActionKind]time.Duration{cluster.CreateVM: 2 * time.Minute}
			}
		})
		s := until(t, a, cluster.Stalled)
		if took := time.Since(began); took < 20*time.Minute || took > 22*time.Minute {
			t.Errorf("Stalled after %v", took)
		}
		if s.Reason != cluster.ActionOverdue || s.Concerns != "cp-1" || s.About != string(cluster.CreateVM) || s.Hint == "" {
			t.Errorf("%+v: %s -> %s", s.Cause(), s.Message, s.Hint)
		}
		if n := s.Nodes[0]; !strings.HasPrefix(n.WaitsFor, "create vm has run since ") || !n.Running[0].Overdue {
			t.Errorf("its node: %+v", n)
		}
		f.set(func() { f.hang["create"] = false })
		until(t, a, cluster.Ready)
		a.stop()
	})
}

func TestStopsWithinTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.hang["create"] = true
		a := start(t, f, journaltest.NewFiles())
		time.Sleep(time.Minute)
		if s := a.Status(); len(s.Running) != 1 || s.Running[0].Action != "create vm" {
			t.Fatalf("running: %+v", s.Running)
		}
		began := time.Now()
		a.stop()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("stopping took %v", took)
		}
	})
}

func TestSourceDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 0), journaltest.NewFiles()
		f.fetchErr = errors.New("connection refused")
		a := start(t, f, files)
		s := until(t, a, cluster.Unknown)
		time.Sleep(time.Second)
		if s = a.Status(); !strings.Contains(s.Message, "connection refused") {
			t.Errorf("status %+v", s)
		}
		f.set(func() { f.fetchErr = nil })
		until(t, a, cluster.Ready)
		// Down again later: what is there is still looked after.
		f.set(func() {
			f.fetchErr = errors.New("connection refused")
			vm := f.vms["cp-1"]
			vm.Power = cluster.Stopped
			f.vms["cp-1"] = vm
		})
		time.Sleep(3 * time.Minute)
		s = until(t, a, cluster.Ready)
		if !strings.Contains(s.Message, "cannot be fetched") || f.vms["cp-1"].Power != cluster.PowerRunning {
			t.Errorf("status %+v", s)
		}
		a.stop()
		// And after a restart, when nothing was fetched since.
		f.set(func() {
			vm := f.vms["cp-1"]
			vm.Power = cluster.Stopped
			f.vms["cp-1"] = vm
		})
		a = start(t, f, files)
		s = until(t, a, cluster.Ready)
		if !strings.Contains(s.Message, "cannot be fetched") || s.Revision != rev(1) || f.vms["cp-1"].Power != cluster.PowerRunning {
			t.Errorf("status %+v", s)
		}
		a.stop()
	})
}

func TestLostJournalFailsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 0), journaltest.NewFiles()
		a := start(t, f, files)
		for len(f.did()) < 5 { // until the config is applied
			time.Sleep(100 * time.Millisecond)
		}
		a.stop()
		f.set(func() { f.founded = 0 })
		a = start(t, f, journaltest.NewFiles())
		s := until(t, a, cluster.Stalled)
		if s.Reason != cluster.JournalLost {
			t.Errorf("status %+v", s)
		}
		if err := a.AcceptBootstrap(); err != nil {
			t.Fatal(err)
		}
		until(t, a, cluster.Ready)
		if f.founded != 1 {
			t.Errorf("founded %d times", f.founded)
		}
		a.stop()

		// With etcd there, a lost journal is rebuilt.
		a = start(t, f, journaltest.NewFiles())
		until(t, a, cluster.Ready)
		if facts := a.c.Journal.Facts(); facts.Lost || !intentOf(facts, cluster.IntendBootstrap).Done || facts.Applied != rev(1) {
			t.Errorf("rebuilt facts %+v", facts)
		}
		a.stop()
	})
}

// A journal that was lost stays lost when something is written to it before it
// was seen what there is; and a host that cannot be asked is not called a loss.
func TestLostJournalThatIsWrittenTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 0), journaltest.NewFiles()
		a := start(t, f, files)
		for len(f.did()) < 5 { // until the config is applied
			time.Sleep(100 * time.Millisecond)
		}
		a.stop()
		f.set(func() { f.founded, f.blind = 0, true })
		a = start(t, f, journaltest.NewFiles())
		time.Sleep(time.Minute)
		if s := a.Status(); s.Condition != cluster.Reconciling || !strings.Contains(s.Message, "cannot see") || strings.Contains(s.Message, "lost") {
			t.Errorf("status %+v", s)
		}
		for _, tell := range []func() error{a.Suspend, a.Resume} {
			if err := tell(); err != nil {
				t.Fatal(err)
			}
		}
		f.set(func() { f.blind = false })
		if s := until(t, a, cluster.Stalled); s.Reason != cluster.JournalLost || f.founded != 0 {
			t.Errorf("status %+v, founded %d times", s, f.founded)
		}
		a.stop()

		// When nothing is left, there is nothing to remember.
		f.set(func() { clear(f.vms); clear(f.machines) })
		a = start(t, f, journaltest.NewFiles())
		until(t, a, cluster.Ready)
		a.stop()
	})
}

// A new cluster whose surroundings cannot be seen whole at first is not taken
// for an old one whose journal was lost.
func TestNewClusterInTheMist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		f.veiled = true
		a := start(t, f, journaltest.NewFiles())
		time.Sleep(time.Hour)
		if did := f.did(); slices.ContainsFunc(did, func(s string) bool { return strings.HasPrefix(s, "create") }) {
			t.Errorf("did %v", did)
		}
		f.set(func() { f.veiled = false })
		until(t, a, cluster.Ready)
		a.stop()
	})
}

func TestNothingBeforeTheJournalIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 0), journaltest.NewFiles()
		files.DieAt = 1
		a := start(t, f, files)
		s := until(t, a, cluster.Stalled)
		if len(f.did()) != 0 || s.Reason != cluster.JournalUnwritable {
			t.Errorf("did %v; %+v", f.did(), s)
		}
		a.stop()
	})
}

// TestFirstReadyIsWrittenDown: what is waited for only once must not be waited for
// again, so that a cluster is not Ready before that is known for good.
func TestFirstReadyIsWrittenDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 0), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		time.Sleep(time.Hour)
		if !a.c.Journal.Facts().WasReady() {
			t.Error("it is not written down")
		}
		a.stop()

		// The same once more, on a file system that is full just then.
		f, files = newFake(1, 0), journaltest.NewFiles()
		files.Full = fmt.Sprintf("%q:%q", "kind", cluster.SeenReady)
		a = start(t, f, files)
		if s := until(t, a, cluster.Stalled); s.Reason != cluster.JournalUnwritable || s.Nodes[0].Phase != cluster.PhaseReady {
			t.Errorf("%+v", s)
		}
		files.Mu.Lock()
		files.Full = ""
		files.Mu.Unlock()
		until(t, a, cluster.Ready)
		a.stop()
	})
}

// brokenGates panics whatever it is asked.
type brokenGates struct{ Gates }

func (brokenGates) SeeJobs(context.Context, cluster.Desired, []cluster.ObjectName) cluster.Seen[map[cluster.ObjectName]cluster.Job] {
	panic("an index out of range")
}

// TestGatesThatPanic: what looks at gates and breaks leaves them unknown, and the cluster is built all the same.
func TestGatesThatPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 0)
		a := start(t, f, journaltest.NewFiles(), func(c *Config) { c.Gates = brokenGates{} })
		until(t, a, cluster.Ready)
		a.stop()
	})
}
