package reconcile

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// worker is a worker that is as the inventory has it, and what is seen of it.
func worker(d cluster.Desired, n cluster.Node) cluster.Observed {
	o := seen(d, noVM)
	o.VMs[n.Name] = cluster.VM{Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning, Tags: n.VMTags(), Hardware: cluster.Saw(drift.WantHardware(d.Spec, n))}
	o.Machines = map[string]cluster.Machine{n.Name: {Reach: cluster.Configured, ConfigDigest: d.Configs[n.Name].Digest}}
	return o
}

// keptOf has the journal keep what the inventory has of a node.
func keptOf(t *testing.T, r *Reconciler, d cluster.Desired, n cluster.Node) {
	t.Helper()
	text := drift.Settle(d, worker(d, n), n, true)
	if text == "" {
		t.Fatal("nothing is kept")
	}
	must(r.c.Journal.Update(func(f *cluster.Facts) { f.Settled[n.Name], f.Lost = text, false }))
}

// TestWhatIsBegunIsWrittenFirst: which fields of a node an action begins to change is durable
// before it does, so that it is taken for no edit later.
func TestWhatIsBegunIsWrittenFirst(t *testing.T) {
	for name, c := range map[string]struct {
		push  bool // the inventory has changed them
		dies  bool
		asked []string
		begun bool
	}{
		"what was pushed":           {true, false, []string{"change vm"}, true},
		"what was edited":           {false, false, []string{"change vm"}, false},
		"it cannot be written":      {true, true, nil, false},
		"there is nothing to write": {false, true, []string{"change vm"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, r, files, d := newSteps(t)
				n := d.Spec.Nodes[3]
				d.Configs = map[string]cluster.Config{n.Name: {Digest: "one"}}
				keptOf(t, r, d, n)
				if c.push {
					n.Cores++
					d.Spec.Nodes = append(slices.Clone(d.Spec.Nodes[:3]), n)
				}
				if c.dies {
					files.DieAt = files.Steps + 1
				}
				s.after = func(string) {
					if o := drift.OriginOf(d, cluster.Observed{Facts: r.c.Journal.Facts()}, n, "cores"); o.Begun != c.begun {
						t.Errorf("begun when it is asked for: %+v", o)
					}
				}
				err := r.execute(t.Context(), d, action.ChangeVM{Node: n, Drifts: []drift.Drift{{Field: "cores"}}}, func(cluster.Progress) {})
				if !slices.Equal(s.done, c.asked) || (err == nil) != (c.asked != nil) {
					t.Errorf("asked for %v: %v", s.done, err)
				}
			})
		})
	}
}

// TestWhatIsBegunMeanwhileIsKept: what an action notes while a pass looks is not overwritten with
// what that has seen before.
func TestWhatIsBegunMeanwhileIsKept(t *testing.T) {
	_, r, _, d := newSteps(t)
	n := d.Spec.Nodes[3]
	d.Configs = map[string]cluster.Config{n.Name: {Digest: "one"}}
	keptOf(t, r, d, n)
	o := worker(d, n)
	o.Facts = r.c.Journal.Facts()
	old := n
	n.Cores++
	later := d
	later.Spec.Nodes = append(slices.Clone(d.Spec.Nodes[:3]), n)
	if err := r.noteBegun(later, action.ChangeVM{Node: n, Drifts: []drift.Drift{{Field: "cores"}}}.Info()); err != nil {
		t.Fatal(err)
	}
	want := r.c.Journal.Facts().Settled[n.Name]
	if want == o.Facts.Settled[n.Name] {
		t.Fatal("nothing is noted")
	}
	if err := r.learnFacts(d, &o); err != nil {
		t.Fatal(err)
	}
	if got := r.c.Journal.Facts().Settled[n.Name]; got != want {
		t.Errorf("kept: %s, want %s", got, want)
	}
	o = worker(d, old)
	o.Facts = r.c.Journal.Facts()
	if err := r.learnFacts(d, &o); err != nil {
		t.Fatal(err)
	}
	if got := r.c.Journal.Facts().Settled[n.Name]; got == want {
		t.Error("the pass after it learns nothing")
	}
}

// TestNodeThatIsForgottenIsNew: the machine of a node that root took for lost is followed by a new
// one, whatever the switches are.
func TestNodeThatIsForgottenIsNew(t *testing.T) {
	_, r, _, d := newSteps(t)
	n := d.Spec.Nodes[3]
	d.Configs = map[string]cluster.Config{n.Name: {Digest: "one"}}
	keptOf(t, r, d, n)
	must(r.c.Journal.Update(func(f *cluster.Facts) { f.Forget(cluster.Forgotten{Node: n.Name, At: time.Unix(990, 0)}) }))
	for _, vm := range []cluster.VM{unseenVM, noVM} {
		o := seen(d, noVM)
		o.VMs[n.Name], o.Facts = vm, r.c.Journal.Facts()
		o.Members, o.Nodes = cluster.Saw([]cluster.Member{}), cluster.Saw(map[string]cluster.KubeNode{})
		if err := r.learnFacts(d, &o); err != nil {
			t.Fatal(err)
		}
		f := r.c.Journal.Facts()
		if _, known := f.Settled[n.Name]; known != (vm.Presence != cluster.Absent) || (len(f.Forgotten) > 0) != known {
			t.Errorf("VM %v: %+v", vm.Presence, f)
		}
	}
}

// TestInstalledAddons: an addon was installed when its release was seen to be deployed in its
// namespace, until the inventory does not have it any more.
func TestInstalledAddons(t *testing.T) {
	web := cluster.Addon{Name: "web", Namespace: "apps"}
	moved := web
	moved.Namespace = "elsewhere"
	release := func(status string) cluster.Seen[map[string]cluster.Release] {
		return cluster.Saw(map[string]cluster.Release{"web": {Namespace: "apps", Status: status, Digest: "x"}})
	}
	unseen := release("deployed")
	unseen.Known = false
	was := []string{"apps/web"}
	for name, c := range map[string]struct {
		before   []string
		addons   []cluster.Addon
		releases cluster.Seen[map[string]cluster.Release]
		want     []string
	}{
		"it is deployed":               {nil, []cluster.Addon{web}, release("deployed"), was},
		"it never was completed":       {nil, []cluster.Addon{web}, release("pending-install"), nil},
		"it failed":                    {nil, []cluster.Addon{web}, release("failed"), nil},
		"not seen":                     {nil, []cluster.Addon{web}, unseen, nil},
		"of another namespace":         {nil, []cluster.Addon{moved}, release("deployed"), nil},
		"it was, and fails":            {was, []cluster.Addon{web}, release("failed"), was},
		"it was, and is uninstalled":   {was, []cluster.Addon{web}, cluster.Saw(map[string]cluster.Release{}), was},
		"it was, and is not seen":      {was, []cluster.Addon{web}, unseen, was},
		"the inventory has moved it":   {was, []cluster.Addon{moved}, release("deployed"), nil},
		"the inventory has it no more": {was, nil, release("deployed"), nil},
	} {
		_, r, _, d := newSteps(t)
		d.Spec.Addons = c.addons
		must(r.c.Journal.Update(func(f *cluster.Facts) { f.Installed, f.Lost = c.before, false }))
		o := seen(d, ourVM)
		o.Releases, o.Facts = c.releases, r.c.Journal.Facts()
		if err := r.learnFacts(d, &o); err != nil {
			t.Fatal(err)
		}
		if got := r.c.Journal.Facts().Installed; !slices.Equal(got, c.want) || !slices.Equal(o.Facts.Installed, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	_, r, _, _ := newSteps(t)
	must(r.c.Journal.Update(func(f *cluster.Facts) { f.Installed = was }))
	if must(r.c.Journal.Update(forgetFounding)); len(r.c.Journal.Facts().Installed) > 0 {
		t.Error("a cluster of which nothing is left had addons")
	}
}
