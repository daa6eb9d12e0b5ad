package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/budget"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// disrupt is an action that has a node down while it is under way.
type disrupt struct{ node cluster.Node }

func (a disrupt) Info() action.Info {
	return action.Info{Kind: "disrupt", Subject: a.node.Name, Node: a.node.Name, VMID: a.node.VMID, Disrupts: true,
		Claims: []cluster.Claim{cluster.ClaimNode(a.node.Name)}, Text: "disrupt " + a.node.Name}
}

// drawMembers draws the members of an etcd: of nodes, some of them learners or not
// healthy, of no node, or of a node that has another one. alive are those that are
// up for certain.
func drawMembers(t *rapid.T, w *world) (alive []cluster.Member) {
	var members []cluster.Member
	for i := range rapid.IntRange(1, 7).Draw(t, "members") {
		n := rapid.SampledFrom(w.d.Spec.ControlPlanes()).Draw(t, "of")
		m := cluster.Member{ID: uint64(i + 1), Name: n.Name, Address: n.IP.String(), Learner: rapid.IntRange(0, 9).Draw(t, "learner") == 0}
		if rapid.IntRange(0, 5).Draw(t, "no node") == 0 {
			m.Name, m.Address = fmt.Sprint("other-", i), "192.0.2.9"
		}
		members = append(members, m)
	}
	for _, n := range w.d.Spec.ControlPlanes() {
		healthy := rapid.IntRange(0, 2).Draw(t, "healthy") > 0
		w.o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {State: "Running", Healthy: healthy}}}
		of := slices.DeleteFunc(slices.Clone(members), func(m cluster.Member) bool { return m.Name != n.Name })
		if healthy && len(of) == 1 {
			alive = append(alive, of[0])
		}
	}
	w.o.Members = cluster.Saw(members)
	w.o.MembersAgree = rapid.SampledFrom([]cluster.Seen[bool]{cluster.Saw(true), cluster.Saw(true), cluster.Saw(true), cluster.Saw(false), {}}).Draw(t, "agree")
	if rapid.IntRange(0, 9).Draw(t, "unknown") == 0 {
		w.o.Members = cluster.Unseen[[]cluster.Member]("timeout")
	}
	return alive
}

// TestNodePutBackVotesOnce: a control plane that the inventory has again, of which it is
// remembered that it was removed, is counted once while the VMs cannot be seen.
func TestNodePutBackVotesOnce(t *testing.T) {
	w := newWorld(3, 0)
	var members []cluster.Member
	for i, n := range w.d.Spec.Nodes {
		members = append(members, cluster.Member{ID: uint64(i + 1), Name: n.Name, Address: n.IP.String()})
		w.o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {State: "Running", Healthy: n.Name != "cp-2"}}}
	}
	w.o.Members, w.o.MembersAgree, w.o.MembersAsked = cluster.Saw(members), cluster.Saw(true), []string{"cp-1", "cp-3"}
	w.o.Orphans = cluster.Unseen[[]cluster.VM]("403 permission check failed")
	w.d.Removed = w.d.Spec.Nodes[2:]
	if EtcdWithout(w.d, w.o, "cp-1") == "" || leftover.EtcdOf(w.d, w.o).WithoutMember("cp-1", 1) == "" {
		t.Error("cp-1 may go down, and one of three members would be left")
	}
	if all := w.d.AllNodes(); len(all) != 3 {
		t.Errorf("%d nodes are watched, and there are 3", len(all))
	}
}

// TestProjectionKeepsQuorum: whatever is seen of etcd, a node goes down only if a
// majority of voters is left that are up for certain, counted by hand; to know
// less, or to have one more down, never turns a no into a yes.
func TestProjectionKeepsQuorum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(5, 0)
		alive := drawMembers(t, w)
		node := rapid.SampledFrom(w.d.Spec.Nodes).Draw(t, "node").Name
		voters, learners, left := 0, 0, 0
		for _, m := range w.o.Members.Value {
			if m.Learner {
				learners++
			} else {
				voters++
			}
		}
		for _, m := range alive {
			if m.Name != node && !m.Learner {
				left++
			}
		}
		e := quorum.Of(w.d.Spec.Nodes, w.o)
		may := e.Without(node) == ""
		safe := left > voters/2 && w.o.Members.Known && w.o.MembersAgree.Known && w.o.MembersAgree.Value && learners == 0
		if may != safe {
			t.Fatalf("%+v without %s: %v, and %d healthy voters of %d are left", w.o.Members, node, may, left, voters)
		}
		w.o.MembersAgree = cluster.Unseen[bool]("timeout")
		if quorum.Of(w.d.Spec.Nodes, w.o).Without(node) == "" {
			t.Error("what is not known counts as yes")
		}
		if other := rapid.SampledFrom(w.d.Spec.Nodes).Draw(t, "down").Name; !may && e.Down(other).Without(node) == "" {
			t.Errorf("%+v allows with %s down what it does not with it up", e, other)
		}
	})
}

// TestTwoMembersOfANode: of a node that was rebuilt while its old member is still
// listed, nobody knows which one answers: to take another node down could lose the
// quorum.
func TestTwoMembersOfANode(t *testing.T) {
	w := newWorld(3, 0)
	members := []cluster.Member{{ID: 9, Name: "cp-1", Address: "10.10.0.11"}}
	for i, n := range w.d.Spec.Nodes {
		members = append(members, cluster.Member{ID: uint64(i + 1), Name: n.Name, Address: n.IP.String()})
		w.o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}}}
	}
	w.o.Members, w.o.MembersAgree = cluster.Saw(members), cluster.Saw(true)
	if why := quorum.Of(w.d.Spec.Nodes, w.o).Without("cp-2"); why != "with cp-2 down 1 of 4 members of etcd would be healthy, and 3 are needed" {
		t.Errorf("%q", why)
	}
}

// TestDisruptionsKeepTheBudget: whatever is planned side by side, never are more
// nodes of a role down than its budget allows, and etcd keeps its quorum.
func TestDisruptionsKeepTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		w.o.MembersAgree = cluster.Saw(true)
		var members []cluster.Member
		for _, n := range w.d.Spec.ControlPlanes() {
			members = append(members, cluster.Member{Name: n.Name})
		}
		w.o.Members = cluster.Saw(members)
		m := newPlanner(w.d, w.o, w.p)
		before := m.etcd
		for _, n := range rapid.Permutation(w.d.Spec.Nodes).Draw(t, "order") {
			m.do(disrupt{n})
		}
		down := map[string]bool{}
		for _, n := range w.d.Spec.Nodes {
			if m.plan.Phases[n.Name] != cluster.PhaseReady {
				down[n.Name] = true
			}
		}
		for _, a := range m.plan.Actions {
			n, _ := w.d.Spec.Node(a.Info().Node)
			if down[n.Name] && len(unavailable(w, down, n.Role)) > 1 {
				t.Errorf("%s, while %v are unavailable", a.Info(), unavailable(w, down, n.Role))
			}
			down[n.Name] = true
			if all := unavailable(w, down, n.Role); len(all) > 1 {
				t.Errorf("%v are unavailable at once", all)
			}
			if n.Role == cluster.ControlPlane {
				// Nothing keeps the etcd of an only control plane up while it restarts.
				if before = before.Down(n.Name); len(before.Healthy) <= len(members)/2 && len(members) > 1 {
					t.Errorf("%s, and etcd has no quorum: %+v", a.Info(), before)
				}
			}
		}
	})
}

// TestTurnsGoOnWithALowerBudget: of two workers that are drained, and of which one is
// allowed since, the first goes on; beside one that does not work, or was cordoned by
// somebody, none does.
func TestTurnsGoOnWithALowerBudget(t *testing.T) {
	drained := cluster.KubeNode{Ready: true, Cordoned: true, Turn: "a change"}
	for name, tt := range map[string]struct {
		second cluster.KubeNode
		edit   func(*planner)
		want   string
	}{
		"drained":         {drained, nil, "wk-1"},
		"not Ready":       {cluster.KubeNode{Cordoned: true, Turn: "a change"}, nil, ""},
		"pressed":         {cluster.KubeNode{Ready: true, Cordoned: true, Turn: "a change", Pressure: "DiskPressure"}, nil, ""},
		"by hand":         {cluster.KubeNode{Ready: true, Cordoned: true}, nil, ""},
		"not cordoned":    {cluster.KubeNode{Ready: true, Turn: "a change"}, nil, ""},
		"not at work yet": {drained, func(m *planner) { m.plan.Phases["wk-2"] = cluster.PhaseJoining }, ""},
		"being changed":   {drained, func(m *planner) { m.o.Running = []cluster.Running{{Node: "wk-2", Disrupts: true}} }, ""},
		"being removed": {drained, func(m *planner) {
			m.d.Spec.Nodes = slices.DeleteFunc(slices.Clone(m.d.Spec.Nodes), func(n cluster.Node) bool { return n.Name == "wk-2" })
			delete(m.plan.Phases, "wk-2")
		}, "wk-1"},
		"drained, behind one that is not at work": {drained, func(m *planner) { m.plan.Phases["wk-1"] = cluster.PhaseJoining }, ""},
	} {
		w := newWorld(1, 3)
		w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"wk-1": drained, "wk-2": tt.second, "wk-3": {Ready: true}})
		m := newPlanner(w.d, w.o, w.p)
		m.plan.Phases["wk-1"], m.plan.Phases["wk-2"] = cluster.PhaseReady, cluster.PhaseReady
		m.budgets[cluster.Worker] = budget.Budget{Allowed: 1, Unavailable: []string{"wk-1", "wk-2"}}
		if tt.edit != nil {
			tt.edit(m)
		}
		got := ""
		for _, n := range []string{"wk-3", "wk-2", "wk-1"} {
			if node, ok := m.d.Spec.Node(n); ok {
				m.do(disrupt{node})
			}
		}
		for _, a := range m.plan.Actions {
			got += a.Info().Node
		}
		if got != tt.want {
			t.Errorf("%s: %q goes on, want %q", name, got, tt.want)
		}
		for _, wait := range m.plan.Waiting { // one that is drained is not to wait for ever
			if (wait.Within > 0) != (wait.Subject != "wk-3" && m.o.Nodes.Value[wait.Subject].Turn != "") {
				t.Errorf("%s: %+v", name, wait)
			}
		}
	}
}

func unavailable(w *world, down map[string]bool, role cluster.Role) []string {
	var out []string
	for _, n := range w.d.Spec.Nodes {
		if n.Role == role && down[n.Name] {
			out = append(out, n.Name)
		}
	}
	return out
}

// TestADigestIsNotOfWords: an approval is for what is done, however it is put.
func TestADigestIsNotOfWords(t *testing.T) {
	w := newWorld(1, 1)
	f := Forecast(w.d, w.o, w.p)
	for i := range f.Steps {
		f.Steps[i].Text = "other words"
	}
	if action.DigestOf(f) != f.Digest {
		t.Error("other words make another digest")
	}
	w.d.Spec.Nodes[1].Cores++
	if Forecast(w.d, w.o, w.p).Digest == f.Digest {
		t.Error("another size does not")
	}
}

// TestNodeOfNobodyCountsForEtcd: what takes down a node that the inventory does not have,
// other than the steps of its removal, is asked of etcd.
func TestNodeOfNobodyCountsForEtcd(t *testing.T) {
	w := newWorld(1, 0)
	edits("made cps=3 workers=1", "remove cp-3", "machine cp-2 silent", "asked 2")(t, w)
	for _, name := range []string{"cp-3", "another"} {
		m := newPlanner(w.d, w.o, w.p)
		m.budgets[cluster.ControlPlane] = budget.Budget{Allowed: 1}
		m.do(disrupt{cluster.Node{Name: name}})
		if len(m.plan.Actions) > 0 {
			t.Errorf("%s goes down beside cp-2, which is silent", name)
		}
	}
}

// TestHintOfANetworkThatIsNotChanged: where the network of a control plane that does not answer may
// not be changed while its VM runs, a person is shown that a VM that is stopped is changed at once.
func TestHintOfANetworkThatIsNotChanged(t *testing.T) {
	for _, c := range []struct {
		what   string
		before []string
		reason cluster.Reason
	}{
		{"others are down", []string{"silent 1m cp-1 cp-2", "asked 1"}, cluster.WaitingForBudget},
		{"not all of etcd is seen", []string{"silent 1m cp-1", "asked 2"}, cluster.WaitingForQuorum},
		{"the window is closed", []string{"facts was-ready", "settled", "window cluster mon 00:00 05:00 UTC", "silent 1m cp-1", "asked 2"}, cluster.WaitingForWindow},
	} {
		w := &world{}
		for _, line := range append(append([]string{"made cps=3 workers=1"}, c.before...), "vlan 7") {
			w.run(t, line)
		}
		found := slices.ContainsFunc(Make(w.d, w.o, w.p).Waiting, func(got cluster.Wait) bool {
			return got.Subject == "cp-1" && got.Reason == c.reason && strings.Contains(got.Hint, "`qm shutdown 411` on pve1") && strings.Contains(got.Hint, "a vm that is stopped is changed at once")
		})
		if !found {
			t.Errorf("%s: %+v", c.what, Make(w.d, w.o, w.p).Waiting)
		}
		w.run(t, "vm cp-1 stopped")
		w.run(t, "edit cp-1 vlan=0")
		if p := Make(w.d, w.o, w.p); !slices.ContainsFunc(p.Actions, func(a action.Action) bool { return a.Info().Kind == cluster.ChangeVM && a.Info().Node == "cp-1" }) {
			t.Errorf("%s, and it is stopped: %s", c.what, p)
		}
	}
}
