package plan

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// disrupt is an action that has a node down while it is under way.
type disrupt struct{ node cluster.Node }

func (a disrupt) Info() Info {
	i := infoOfNode("disrupt", a.node, "disrupt "+a.node.Name)
	i.Disrupts = true
	return i
}

// drawEtcd draws an etcd of up to seven members, some of them learners, unhealthy,
// or no node of the inventory.
func drawEtcd(t *rapid.T) etcd {
	e := etcd{agreed: rapid.SampledFrom([]cluster.Seen[bool]{cluster.Saw(true), cluster.Saw(true), cluster.Saw(true), cluster.Saw(false), {}}).Draw(t, "agreed")}
	for i := range rapid.IntRange(1, 7).Draw(t, "members") {
		name := fmt.Sprintf("cp-%d", i+1)
		if rapid.IntRange(0, 9).Draw(t, "learner") == 0 {
			e.learners = append(e.learners, name)
			continue
		}
		e.voters = append(e.voters, name)
		if rapid.IntRange(0, 2).Draw(t, "unhealthy") == 0 {
			e.unhealthy = append(e.unhealthy, name)
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "unknown") == 0 {
		e.unknown = "timeout"
	}
	return e
}

// TestProjectionKeepsQuorum: whatever is seen of etcd, a node goes down only if a
// majority of healthy voters is left, counted by hand; to know less, or to have
// one more unhealthy, never turns a no into a yes.
func TestProjectionKeepsQuorum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEtcd(t)
		node := fmt.Sprintf("cp-%d", rapid.IntRange(1, 8).Draw(t, "node"))
		left := 0
		for _, v := range e.voters {
			if v != node && !slices.Contains(e.unhealthy, v) {
				left++
			}
		}
		may := e.without(node) == ""
		safe := left > len(e.voters)/2 && e.unknown == "" && e.agreed.Known && e.agreed.Value && len(e.learners) == 0
		if may != safe {
			t.Fatalf("%+v without %s: %v, and %d healthy voters are left", e, node, may, left)
		}
		less := e
		less.agreed = cluster.Unseen[bool]("timeout")
		if less.without(node) == "" {
			t.Error("what is not known counts as yes")
		}
		if len(e.voters) > 0 {
			if worse := e.down(rapid.SampledFrom(e.voters).Draw(t, "down")); !may && worse.without(node) == "" {
				t.Errorf("%+v allows what %+v does not", worse, e)
			}
		}
	})
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
				if before = before.down(n.Name); len(before.voters)-len(before.unhealthy) <= len(before.voters)/2 {
					t.Errorf("%s, and etcd has no quorum: %+v", a.Info(), before)
				}
			}
		}
	})
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

// TestWhyADisruptionWaits: what a person reads when a node may not go down.
func TestWhyADisruptionWaits(t *testing.T) {
	voters := []string{"cp-1", "cp-2", "cp-3"}
	for _, c := range []struct {
		e    etcd
		want string
	}{
		{etcd{voters: voters, agreed: cluster.Saw(true)}, ""},
		{etcd{voters: voters, unhealthy: []string{"cp-1"}, agreed: cluster.Saw(true)}, ""},
		{etcd{voters: voters, unhealthy: []string{"cp-2"}, agreed: cluster.Saw(true)}, "with cp-1 down 1 of 3 members of etcd would be healthy, and 2 are needed"},
		{etcd{voters: voters[:1], agreed: cluster.Saw(true)}, "with cp-1 down 0 of 1 members of etcd would be healthy, and 1 are needed"},
		{etcd{voters: voters, learners: []string{"cp-4"}, agreed: cluster.Saw(true)}, "cp-4 is still a learner of etcd"},
		{etcd{voters: voters, agreed: cluster.Saw(false)}, "the members of etcd do not all name the same members"},
		{etcd{voters: voters}, "whether all members of etcd name the same members is not known"},
		{etcd{unknown: "timeout"}, "the members of etcd are not known: timeout"},
	} {
		if got := c.e.without("cp-1"); got != c.want {
			t.Errorf("%+v: %q, want %q", c.e, got, c.want)
		}
	}
}

// TestDriftsAreComparedOnce: every field of the hardware is in the list exactly
// once, so that none drifts unseen.
func TestDriftsAreComparedOnce(t *testing.T) {
	w := newWorld(1, 0)
	want := WantHardware(w.d.Spec, w.d.Spec.Nodes[0])
	have := cluster.Hardware{CPUType: "host", Cores: 1, MemoryMiB: 1, Balloon: true, Machine: "pc", BIOS: "seabios", SCSIHardware: "lsi", MAC: "x", Bridge: "vmbr9", VLAN: 9,
		System: cluster.DiskSeen{Datastore: "other", Bytes: 1 << 30}, Data: map[string]cluster.DiskSeen{"talos-x": {Bytes: 1 << 30}}, Address: "x", Agent: true}
	seen := map[string]How{}
	for _, d := range hardwareDrifts(want, have) {
		if _, twice := seen[d.Field]; twice || d.How == "" || d.Reason != cluster.HardwareDrift {
			t.Errorf("drift %+v", d)
		}
		seen[d.Field] = d.How
	}
	if len(seen) != len(hardwareFields)+3 { // two of the system disk, one disk too many
		t.Errorf("%d drifts of %d fields: %v", len(seen), len(hardwareFields), seen)
	}
	if d := hardwareDrifts(want, want); len(d) > 0 {
		t.Errorf("the same differs: %v", d)
	}
}

// TestADigestIsNotOfWords: an approval is for what is done, however it is put.
func TestADigestIsNotOfWords(t *testing.T) {
	w := newWorld(1, 1)
	f := Forecast(w.d, w.o, w.p)
	for i := range f.Steps {
		f.Steps[i].Text = "other words"
	}
	if digest(f) != f.Digest {
		t.Error("other words make another digest")
	}
	w.d.Spec.Nodes[1].Cores++
	if Forecast(w.d, w.o, w.p).Digest == f.Digest {
		t.Error("another size does not")
	}
}
