package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
	"github.com/talos-agent/talos-agent/reconcile/plan"
)

// handler is a log of which the test sees each message as it comes.
type handler func(message string)

func (h handler) Enabled(context.Context, slog.Level) bool { return true }
func (h handler) Handle(_ context.Context, r slog.Record) error {
	h(r.Message)
	return nil
}
func (h handler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h handler) WithGroup(string) slog.Handler      { return h }

// seen is what is observed of the nodes of a cluster: their VMs, and no others.
func seen(d cluster.Desired, vm cluster.VM) cluster.Observed {
	o := cluster.Observed{Now: time.Unix(1000, 0), VMs: map[string]cluster.VM{}, Orphans: cluster.Saw[[]cluster.VM](nil)}
	for _, n := range d.Spec.Nodes {
		o.VMs[n.Name] = vm
	}
	return o
}

var (
	noVM     = cluster.VM{Presence: cluster.Absent}
	ourVM    = cluster.VM{Presence: cluster.Present, Owner: cluster.Ours}
	unseenVM = cluster.VM{Presence: cluster.PresenceUnknown}
)

// loseJournal has a reconciler find a journal that cannot be read.
func loseJournal(t *testing.T, r *Reconciler, files *journaltest.Files) {
	t.Helper()
	files.Saved["dev.json"] = []byte("no journal")
	j, err := journal.Open(files, "dev", r.c.ID)
	if err != nil || j.Fresh() || !j.Facts().Lost {
		t.Fatalf("fresh: %v, %+v, %v", j.Fresh(), j.Facts(), err)
	}
	r.c.Journal = j
}

// TestFactsOfALostJournal: what is known of a cluster whose journal is lost is decided when
// its VMs are seen, and reported once; one that never had a journal is new when none of its
// VMs is there.
func TestFactsOfALostJournal(t *testing.T) {
	for name, c := range map[string]struct {
		lost    bool // there was a journal, and none can be read
		known   bool // there is one
		vm      cluster.VM
		isLost  bool
		written bool
		warned  int
	}{
		"new, and seen":        {false, false, noVM, false, false, 0},
		"new, and not seen":    {false, false, unseenVM, true, false, 0},
		"new, with VMs":        {false, false, ourVM, true, true, 1},
		"lost, and all seen":   {true, false, noVM, false, true, 0},
		"lost, and not seen":   {true, false, unseenVM, true, true, 1},
		"lost, and there VMs":  {true, false, ourVM, true, true, 1},
		"lost, and unproven":   {true, false, cluster.VM{Presence: cluster.Present, Owner: cluster.Foreign}, true, true, 1},
		"new, and unproven":    {false, false, cluster.VM{Presence: cluster.Present, Owner: cluster.Foreign}, false, false, 0},
		"lost, and a moved VM": {true, false, cluster.VM{Presence: cluster.Present, Owner: cluster.Foreign, Moved: true}, true, true, 1},
		"known, with VMs":      {false, true, ourVM, false, true, 0},
		"known, and not seen":  {false, true, unseenVM, false, true, 0},
	} {
		_, r, files, d := newSteps(t)
		if c.lost {
			loseJournal(t, r, files)
		}
		if c.known {
			must(r.c.Journal.Update(func(f *cluster.Facts) { f.Lost = false }))
		}
		warned, before := 0, files.Steps
		r.log = slog.New(handler(func(string) { warned++ }))
		r.memo.last = &Fetched{Revision: rev(1)}
		for range 2 {
			o := seen(d, c.vm)
			if err := r.learnFacts(d, &o); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if r.c.Journal.Facts().Lost != c.isLost || (files.Steps > before) != c.written || warned != c.warned {
			t.Errorf("%s: lost: %v, written: %v, warned %d times", name, r.c.Journal.Facts().Lost, files.Steps > before, warned)
		}
	}
}

// TestFactsAreWrittenWhenTheyMatter: what a cluster of nothing is remembered by is held until
// an action begins, and anything else is durable before anything is planned.
func TestFactsAreWrittenWhenTheyMatter(t *testing.T) {
	etcd := func(o *cluster.Observed) { o.Members = cluster.Saw([]cluster.Member{{Name: "cp-1"}}) }
	for name, c := range map[string]struct {
		given   func(r *Reconciler)
		first   cluster.VM // in the pass before
		vm      cluster.VM
		see     func(*cluster.Observed)
		written bool
	}{
		"nothing":                   {nil, noVM, noVM, nil, false},
		"etcd, and no VM":           {nil, noVM, noVM, etcd, true},
		"a VM":                      {nil, noVM, ourVM, nil, true},
		"a VM at the start":         {nil, ourVM, ourVM, nil, true},
		"nothing, after an action":  {func(r *Reconciler) { r.memo.last = nil; must(r.c.Journal.Keep()) }, noVM, noVM, nil, true},
		"a VM of an unread journal": {func(r *Reconciler) { r.memo.last = nil }, ourVM, ourVM, nil, true},
	} {
		_, r, files, d := newSteps(t)
		r.memo.last = &Fetched{Revision: rev(1)}
		if c.given != nil {
			c.given(r)
		}
		before := files.Steps
		first, o := seen(d, c.first), seen(d, c.vm)
		if c.see != nil {
			c.see(&o)
		}
		if err := errors.Join(r.learnFacts(d, &first), r.learnFacts(d, &o)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if (files.Steps > before) != c.written || r.c.Journal.Fresh() == (c.written || before > 0) {
			t.Errorf("%s: written: %v, fresh: %v", name, files.Steps > before, r.c.Journal.Fresh())
		}
	}
	_, r, files, d := newSteps(t)
	files.DieAt = 1
	o := seen(d, ourVM)
	if err := r.learnFacts(d, &o); !errors.Is(err, journaltest.ErrDead) {
		t.Errorf("what cannot be written is learned: %v", err)
	}
}

// must fails where a test cannot go on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// TestWhatIsLearnedOfEtcd: etcd was founded when it has members, and they are known.
func TestWhatIsLearnedOfEtcd(t *testing.T) {
	members := []cluster.Member{{Name: "cp-1"}}
	for name, c := range map[string]struct {
		members cluster.Seen[[]cluster.Member]
		want    bool
	}{
		"members":         {cluster.Saw(members), true},
		"none":            {cluster.Saw[[]cluster.Member](nil), false},
		"those of before": {cluster.Seen[[]cluster.Member]{Value: members, Why: "no answer"}, false},
	} {
		_, r, _, d := newSteps(t)
		o := seen(d, ourVM)
		o.Members = c.members
		must(r.learnFacts(d, &o))
		if in, ok := r.c.Journal.Facts().Intent(cluster.IntendBootstrap); ok != c.want || in.Done != c.want || r.c.Journal.Facts().WasReady() != c.want {
			t.Errorf("%s: %+v", name, in)
		}
	}
}

// TestConfigIsForgottenWithItsMachines: what nodes run is forgotten when it is seen that none
// is there, unless etcd was, or may have been, founded.
func TestConfigIsForgottenWithItsMachines(t *testing.T) {
	for name, c := range map[string]struct {
		vm      cluster.VM
		founded bool
		want    bool
	}{
		"nothing is there":           {noVM, false, false},
		"a VM is there":              {ourVM, false, true},
		"it is not seen":             {unseenVM, false, true},
		"nothing is there, but etcd": {noVM, true, true},
	} {
		_, r, _, d := newSteps(t)
		must(r.c.Journal.Update(func(f *cluster.Facts) {
			f.Lost = false
			f.Intend(cluster.Intent{Kind: cluster.IntendConfig, Revision: rev(7)})
			if c.founded {
				f.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: "cp-1"})
			}
		}))
		o := seen(d, c.vm)
		must(r.learnFacts(d, &o))
		if _, ok := r.c.Journal.Facts().Intent(cluster.IntendConfig); ok != c.want {
			t.Errorf("%s: kept: %v", name, ok)
		}
	}
}

// TestSnapshotThatNodesRunIsKept: what nodes run is not read again from the repository, unless
// a revision of that name may have been something else.
func TestSnapshotThatNodesRunIsKept(t *testing.T) {
	for revision, want := range map[cluster.Revision]bool{rev(1): true, "HEAD@sha1:00+dirty": false} {
		_, r, _, d := newSteps(t)
		d.Revision = revision
		must(r.c.Journal.Update(func(f *cluster.Facts) { f.Intend(cluster.Intent{Kind: cluster.IntendConfig, Revision: revision}) }))
		o := seen(d, ourVM)
		must(r.learnFacts(d, &o))
		if got := r.base.snap.Revision == revision; got != want {
			t.Errorf("%s: kept: %v", revision, got)
		}
	}
}

// TestWhatActionsNoteMeanwhileIsKept: what an action writes down after a pass has begun to
// learn is newer than what the pass has seen.
func TestWhatActionsNoteMeanwhileIsKept(t *testing.T) {
	_, r, files, d := newSteps(t)
	loseJournal(t, r, files)
	noted := cluster.Intent{Kind: cluster.IntendConfig, Revision: rev(7)}
	r.log = slog.New(handler(func(string) {
		must(r.c.Journal.Update(func(f *cluster.Facts) {
			f.Intend(noted)
			f.Restarts["cp-1"] = cluster.Restart{Target: "t"}
		}))
	}))
	r.memo.last = &Fetched{Revision: rev(1)}
	o := seen(d, ourVM)
	must(r.learnFacts(d, &o))
	if f := r.c.Journal.Facts(); !intentOf(f, cluster.IntendConfig).Equal(noted) || f.Restarts["cp-1"].Target != "t" || f.Applied != rev(1) {
		t.Errorf("%+v", f)
	}
}

// TestClockThatWasSetBack: what the journal has as begun in times to come has begun by now, and what was before is as it was.
func TestClockThatWasSetBack(t *testing.T) {
	_, r, _, d := newSteps(t)
	o := seen(d, ourVM)
	now, before, later := o.Now.UTC(), o.Now.UTC().Add(-time.Minute), o.Now.UTC().Add(8760*time.Hour)
	must(r.c.Journal.Update(func(f *cluster.Facts) {
		f.Installs["cp-1"], f.Installs["cp-2"] = cluster.Install{Image: "i", At: later}, cluster.Install{Image: "i", At: before}
		f.Restarts["cp-1"] = cluster.Restart{Target: "t", At: later, Reset: cluster.Reset{At: later}}
		f.Restarts["cp-2"] = cluster.Restart{Target: "t", At: before}
	}))
	must(r.learnFacts(d, &o))
	f := r.c.Journal.Facts()
	if a, b := f.Installs["cp-1"], f.Installs["cp-2"]; !a.At.Equal(now) || !b.At.Equal(before) {
		t.Errorf("installations: %v and %v", a.At, b.At)
	}
	if a, b := f.Restarts["cp-1"], f.Restarts["cp-2"]; !a.At.Equal(now) || !a.Reset.At.Equal(now) || !b.At.Equal(before) || !b.Reset.At.IsZero() {
		t.Errorf("restarts: %+v and %+v", a, b)
	}
}

// TestNotesOfAMachineThatIsDeleted: what was done to a machine does not hold for the next one of its name; that a VM cannot be seen
// does not mean that it is deleted.
func TestNotesOfAMachineThatIsDeleted(t *testing.T) {
	for what, c := range map[string]struct {
		vm   cluster.VM
		left bool
	}{"deleted": {noVM, false}, "there": {ourVM, true}, "unseen": {unseenVM, true}} {
		_, r, _, d := newSteps(t)
		o := seen(d, ourVM)
		o.VMs["cp-2"] = c.vm
		must(r.c.Journal.Update(func(f *cluster.Facts) {
			f.Installs["cp-2"], f.Restarts["cp-2"], f.Earlier["cp-2"] = cluster.Install{Image: "i", Done: true}, cluster.Restart{Target: "t", Boot: "b"}, "v1.13.9"
		}))
		o.Facts = r.c.Journal.Facts()
		must(r.learnFacts(d, &o))
		f := r.c.Journal.Facts()
		_, installed := f.Installs["cp-2"]
		_, restarted := f.Restarts["cp-2"]
		if _, earlier := f.Earlier["cp-2"]; installed != c.left || restarted != c.left || earlier != c.left {
			t.Errorf("%s: installed %t, restarted %t, what was before %t", what, installed, restarted, earlier)
		}
	}
}

// TestGuardedNodes: a node that was protected or locked stays so when it leaves the
// inventory, as long as a VM of it may be there.
func TestGuardedNodes(t *testing.T) {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "a"}, {Name: "c", Protect: true}, {Name: "b", Locked: true}}}}}
	left := cluster.Observed{Orphans: cluster.Saw([]cluster.VM{{Node: "left"}})}
	for name, c := range map[string]struct {
		before []string
		o      cluster.Observed
		want   []string
	}{
		"now":                            {nil, left, []string{"b", "c"}},
		"no longer":                      {[]string{"a"}, left, []string{"b", "c"}},
		"no longer, and nothing is seen": {[]string{"a"}, cluster.Observed{}, []string{"b", "c"}},
		"left, with its VM":              {[]string{"left"}, left, []string{"b", "c", "left"}},
		"left, without its VM":           {[]string{"other"}, left, []string{"b", "c"}},
		"left, and nothing is seen":      {[]string{"other"}, cluster.Observed{}, []string{"b", "c", "other"}},
	} {
		if got := guardedNodes(c.before, d, c.o); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestReplacedNodes: the tokens of a node are remembered, the last one last, as long as it, or a
// VM of it, may be there. Without records a VM counts as if it were from before its replacement.
func TestReplacedNodes(t *testing.T) {
	spec := func(token string) cluster.Desired {
		return cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "wk-1", Replace: token}}}}}
	}
	made := func(token string) cluster.VM { vm := ourVM; vm.Replace = token; return vm }
	edited := func(edit func(*cluster.VM)) cluster.VM { vm := made("b"); edit(&vm); return vm }
	orphan := func(d cluster.Desired, vm cluster.VM) cluster.Observed {
		o := seen(d, vm)
		o.Orphans = cluster.Saw([]cluster.VM{{Node: "wk-9"}})
		return o
	}
	was := cluster.Facts{Replaced: map[string][]string{"wk-1": {"a"}, "wk-9": {"x"}}}
	for what, c := range map[string]struct {
		before cluster.Facts
		d      cluster.Desired
		o      cluster.Observed
		want   string
	}{
		"made for another one":            {was, spec("b"), seen(spec("b"), made("b")), "map[wk-1:[a b]]"},
		"not yet":                         {was, spec("b"), seen(spec("b"), made("a")), "map[wk-1:[a]]"},
		"back to the one before":          {cluster.Facts{Replaced: map[string][]string{"wk-1": {"a", "b"}}}, spec("a"), seen(spec("a"), made("a")), "map[wk-1:[b a]]"},
		"no token any longer":             {was, spec(""), seen(spec(""), made("a")), "map[wk-1:[a]]"},
		"another's vm":                    {was, spec("b"), seen(spec("b"), edited(func(vm *cluster.VM) { vm.Owner = cluster.Foreign })), "map[wk-1:[a]]"},
		"not seen":                        {was, spec("b"), seen(spec("b"), edited(func(vm *cluster.VM) { vm.Presence = cluster.PresenceUnknown })), "map[wk-1:[a]]"},
		"without its mark":                {was, spec("b"), seen(spec("b"), edited(func(vm *cluster.VM) { vm.Unmarked = true })), "map[wk-1:[a]]"},
		"being deleted":                   {was, spec("b"), seen(spec("b"), edited(func(vm *cluster.VM) { vm.Deleting = true })), "map[wk-1:[a]]"},
		"a removed one whose vm is there": {was, spec("a"), orphan(spec("a"), made("a")), "map[wk-1:[a] wk-9:[x]]"},
		"it is not seen which there are":  {was, spec("a"), cluster.Observed{}, "map[wk-1:[a] wk-9:[x]]"},
		"the records are lost":            {cluster.Facts{Lost: true}, spec("b"), seen(spec("b"), made("a")), "map[wk-1:[b]]"},
	} {
		if got := fmt.Sprint(replacedNodes(c.before, c.d, c.o)); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	f := cluster.Facts{}
	for i := range 3 * tokensKept {
		d := spec(fmt.Sprint("t", i))
		f.Replaced = replacedNodes(f, d, seen(d, made(fmt.Sprint("t", i))))
	}
	if n := len(f.Replaced["wk-1"]); n != tokensKept || f.LastToken("wk-1") != fmt.Sprint("t", 3*tokensKept-1) {
		t.Errorf("%d tokens are kept: %v", n, f.Replaced)
	}
}

// TestSeenCards: what a VM had of its network when that was the inventory's, also of a node that has
// left while etcd may have a member of it.
func TestSeenCards(t *testing.T) {
	n := cluster.Node{Name: "wk-1", MAC: "BC:24:11:00:00:01"}
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}}}}
	before := map[string]string{"wk-1": "before", "wk-9": "removed"}
	for what, c := range map[string]struct {
		edit func(*cluster.VM)
		want string
	}{
		"as the inventory has it": {func(*cluster.VM) {}, "map[wk-1:BC:24:11:00:00:01 ]"},
		"another mac":             {func(vm *cluster.VM) { vm.Hardware.Value.MAC = "other" }, "map[wk-1:before]"},
		"another address":         {func(vm *cluster.VM) { vm.Hardware.Value.Address = "other" }, "map[wk-1:before]"},
		"not read":                {func(vm *cluster.VM) { vm.Hardware.Known = false }, "map[wk-1:before]"},
		"another's":               {func(vm *cluster.VM) { vm.Owner = cluster.Foreign }, "map[wk-1:before]"},
		"not seen":                {func(vm *cluster.VM) { vm.Presence = cluster.PresenceUnknown }, "map[wk-1:before]"},
	} {
		vm := ourVM
		vm.Hardware = cluster.Saw(drift.WantHardware(d.Spec, n))
		c.edit(&vm)
		o := seen(d, vm)
		o.Members = cluster.Saw([]cluster.Member{{ID: 1, Name: "cp-1"}})
		if got := fmt.Sprint(seenCards(before, d, o)); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	o := seen(d, unseenVM)
	if got := fmt.Sprint(seenCards(before, d, o)); got != "map[wk-1:before wk-9:removed]" {
		t.Errorf("while the members of etcd are not known: %s", got)
	}
	o.Members = cluster.Saw([]cluster.Member{{ID: 9, Name: "wk-9"}})
	if got := fmt.Sprint(seenCards(before, d, o)); got != "map[wk-1:before wk-9:removed]" {
		t.Errorf("while it has left a member of etcd: %s", got)
	}
}

// TestRemovedNodesAreWatchedAtOnce: a node that is removed, at another address or in another
// role, is looked at in the next pass, which comes at once; one that was removed before is
// looked at already.
func TestRemovedNodesAreWatchedAtOnce(t *testing.T) {
	at := func(name, address string) []cluster.VM {
		return []cluster.VM{{VMID: 1, Node: name, Hardware: cluster.Saw(cluster.Hardware{Address: address})}}
	}
	for name, c := range map[string]struct {
		after  []cluster.VM
		member bool // of etcd, in the second pass
		wakes  bool
	}{
		"the same":      {at("left", "10.0.0.9/24"), false, false},
		"another":       {at("other", "10.0.0.9/24"), false, true},
		"another place": {at("left", "10.0.0.8/24"), false, true},
		"another role":  {at("left", "10.0.0.9/24"), true, true},
	} {
		_, r, _, d := newSteps(t)
		first, second := seen(d, ourVM), seen(d, ourVM)
		first.Orphans, second.Orphans = cluster.Saw(at("left", "10.0.0.9/24")), cluster.Saw(c.after)
		if c.member {
			second.Members = cluster.Saw([]cluster.Member{{Name: "left"}})
		}
		r.learnWatched(&d, &first)
		<-r.exec.wake
		r.learnWatched(&d, &second)
		wakes := false
		select {
		case <-r.exec.wake:
			wakes = true
		default:
		}
		if wakes != c.wakes {
			t.Errorf("%s: looked at once: %v, %+v", name, wakes, r.memo.removing)
		}
	}
}

// TestWhenAClusterWasReady: that is written down once, of a cluster that goes on, and with
// which nothing is left to do.
func TestWhenAClusterWasReady(t *testing.T) {
	intends := func(kind cluster.IntentKind) cluster.Facts {
		return cluster.Facts{Intents: []cluster.Intent{{Kind: kind}}}
	}
	for name, c := range map[string]struct {
		o    cluster.Observed
		p    plan.Plan
		want bool
	}{
		"ready":             {cluster.Observed{}, plan.Plan{}, true},
		"ready before":      {cluster.Observed{Facts: intends(cluster.SeenReady)}, plan.Plan{}, false},
		"suspended":         {cluster.Observed{Facts: intends(cluster.IntendSuspend)}, plan.Plan{}, false},
		"destroyed":         {cluster.Observed{Facts: intends(cluster.IntendDestroy)}, plan.Plan{}, false},
		"something runs":    {cluster.Observed{Running: []cluster.Running{{}}}, plan.Plan{}, false},
		"something is left": {cluster.Observed{}, plan.Plan{Blocked: []cluster.Block{{}}}, false},
	} {
		_, r, files, _ := newSteps(t)
		if err := r.learnReady(c.o, &c.p); err != nil || r.c.Journal.Facts().WasReady() != c.want || (files.Steps > 0) != c.want {
			t.Errorf("%s: %v, %v", name, r.c.Journal.Facts().WasReady(), err)
		}
	}
}

// TestSameFacts: whatever a pass can learn is news.
func TestSameFacts(t *testing.T) {
	some := func() cluster.Facts {
		return cluster.Facts{Applied: rev(1), Restarts: map[string]cluster.Restart{"a": {Target: "t"}}, Settled: map[string]string{"a": "s"}, Replaced: map[string][]string{"a": {"t"}}, Cards: map[string]string{"a": "c"}, Guarded: []string{"a"}, Installed: []string{"a"}, Forgotten: []cluster.Forgotten{{Node: "a"}},
			Intents: []cluster.Intent{{Kind: cluster.IntendApproved, VMs: []int{1}}, {Kind: cluster.IntendBootstrap}, {Kind: cluster.IntendConfig, Revision: rev(1)}}}
	}
	for name, change := range map[string]func(*cluster.Facts){
		"lost":      func(f *cluster.Facts) { f.Lost = true },
		"applied":   func(f *cluster.Facts) { f.Applied = rev(2) },
		"restarts":  func(f *cluster.Facts) { f.Restarts["a"] = cluster.Restart{Target: "u"} },
		"settled":   func(f *cluster.Facts) { f.Settled["a"] = "t" },
		"replaced":  func(f *cluster.Facts) { f.Replaced["a"] = []string{"t", "u"} },
		"cards":     func(f *cluster.Facts) { f.Cards["a"] = "d" },
		"guarded":   func(f *cluster.Facts) { f.Guarded = nil },
		"installed": func(f *cluster.Facts) { f.Installed = nil },
		"forgotten": func(f *cluster.Facts) { f.Forgotten[0].Left = true },
		"approved":  func(f *cluster.Facts) { f.Intents[0].VMs = nil },
		"founded":   func(f *cluster.Facts) { f.Intents[1].Done = true },
		"config":    func(f *cluster.Facts) { f.Intents[2].Revision = rev(2) },
	} {
		if other := some(); !sameFacts(some(), other) {
			t.Error("the same are not the same")
		} else if change(&other); sameFacts(some(), other) {
			t.Errorf("%s: no news", name)
		}
	}
}

// TestNothingOfOurs: a VM counts that is there, and proven to be the cluster's, or was taken
// out of its pool.
func TestNothingOfOurs(t *testing.T) {
	foreign := cluster.VM{Presence: cluster.Present, Owner: cluster.Foreign}
	moved := foreign
	moved.Moved = true
	controlPlane := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}}}}}
	for name, c := range map[string]struct {
		vm       cluster.VM
		orphans  []cluster.VM
		want     bool
		unproven bool
	}{
		"none":      {noVM, nil, true, false},
		"deleted":   {cluster.VM{Presence: cluster.Absent, Owner: cluster.Ours, Moved: true}, nil, true, false},
		"ours":      {ourVM, nil, false, false},
		"unproven":  {foreign, nil, true, true},
		"moved":     {moved, nil, false, false},
		"an orphan": {noVM, []cluster.VM{{Node: "left"}}, false, false},
		"both":      {foreign, []cluster.VM{{Node: "left"}}, false, false},
	} {
		o := cluster.Observed{VMs: map[string]cluster.VM{"cp-1": c.vm}, Orphans: cluster.Saw(c.orphans)}
		if nothingOfOurs(o) != c.want || isLeftUnproven(controlPlane, o) != c.unproven {
			t.Errorf("%s: nothing: %v, unproven: %v", name, nothingOfOurs(o), isLeftUnproven(controlPlane, o))
		}
	}
}

// TestWhatIsIntended: an intent that was never written is not the one of its kind.
func TestWhatIsIntended(t *testing.T) {
	asked := cluster.Intent{Kind: cluster.IntendDestroy, At: time.Unix(1, 0)}
	again := asked
	again.At = time.Unix(2, 0)
	facts := cluster.Facts{Intents: []cluster.Intent{asked}}
	if !isIntended(facts, asked) || isIntended(facts, again) || isIntended(facts, cluster.Intent{}) || isIntended(cluster.Facts{}, cluster.Intent{}) {
		t.Error("another intent is taken for the one that is written")
	}
}

// TestHowADestructionEnds: the cluster stays suspended, as it was suspended before, unless
// the command was withdrawn meanwhile.
func TestHowADestructionEnds(t *testing.T) {
	asked, again := time.Unix(1, 0).UTC(), time.Unix(2, 0).UTC()
	left := []cluster.Block{{Subject: "wk-1", Message: "is protected"}}
	for name, c := range map[string]struct {
		intents   []cluster.Intent
		whole     bool
		broken    bool
		suspended bool
		since     time.Time
		left      int
		logged    string
	}{
		"whole":                  {intents: []cluster.Intent{{Kind: cluster.IntendDestroy, At: asked}}, whole: true, suspended: true, logged: "the cluster is destroyed; it stays suspended"},
		"whole, and suspended":   {intents: []cluster.Intent{{Kind: cluster.IntendDestroy, At: asked}, {Kind: cluster.IntendSuspend, At: again}}, whole: true, suspended: true, since: again, logged: "the cluster is destroyed; it stays suspended"},
		"whole, and resumed":     {whole: true, logged: "the cluster is destroyed, and was resumed meanwhile"},
		"whole, and unwritten":   {intents: []cluster.Intent{{Kind: cluster.IntendDestroy, At: asked}}, whole: true, broken: true},
		"in part":                {intents: []cluster.Intent{{Kind: cluster.IntendDestroy, At: asked}}, suspended: true, left: 1, logged: "the destruction has ended and left something"},
		"in part, and resumed":   {},
		"in part, and asked for": {intents: []cluster.Intent{{Kind: cluster.IntendDestroy, At: again}}},
		"in part, and unwritten": {intents: []cluster.Intent{{Kind: cluster.IntendDestroy, At: asked}}, broken: true},
	} {
		_, r, files, _ := newSteps(t)
		must(r.c.Journal.Update(func(f *cluster.Facts) { f.Intents = c.intents }))
		logged := ""
		r.log = slog.New(handler(func(message string) { logged += message }))
		if c.broken {
			files.DieAt = files.Steps + 1
		}
		end := func() error { return r.endDestroy(cluster.Intent{Kind: cluster.IntendDestroy, At: asked}, left) }
		if c.whole {
			end = r.finishDestroy
		}
		err := end()
		f := r.c.Journal.Facts()
		in := intentOf(f, cluster.IntendSuspend)
		if (err != nil) != c.broken || f.Suspended() != c.suspended || !c.since.IsZero() && !in.At.Equal(c.since) || len(in.Left) != c.left || logged != c.logged {
			t.Errorf("%s: %v; %+v; logged %q", name, err, f.Intents, logged)
		}
	}
}
