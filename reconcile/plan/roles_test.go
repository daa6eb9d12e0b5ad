package plan

import (
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// TestNodesKeepTheirRole: a node that is moved to the other list of the inventory keeps running
// as what it is, also where it is to be replaced: a control plane that became a worker would
// take its vote with it. Meanwhile nothing else is disrupted, and whoever is drained returns.
func TestNodesKeepTheirRole(t *testing.T) {
	for _, c := range []struct {
		node    string
		role    cluster.Role
		replace string
		why     string
	}{
		{"cp-3", cluster.Worker, "", "it runs as a controlplane, and the inventory has it as a worker: a node keeps its role"},
		{"cp-3", cluster.Worker, "again", "it runs as a controlplane, and the inventory has it as a worker: a node keeps its role"},
		{"wk-1", cluster.ControlPlane, "", "it runs as a worker, and the inventory has it as a controlplane: a node keeps its role"},
		{"wk-1", cluster.ControlPlane, "again", "it runs as a worker, and the inventory has it as a controlplane: a node keeps its role"},
	} {
		w := newWorld(3, 2)
		for range 100 {
			if w.step().Converged() {
				break
			}
		}
		w.o.MembersAgree, w.o.MembersAsked = cluster.Saw(true), namesOf(w.o.Members.Value)
		at := func(name string) *cluster.Node {
			return &w.d.Spec.Nodes[slices.IndexFunc(w.d.Spec.Nodes, func(n cluster.Node) bool { return n.Name == name })]
		}
		n := at(c.node)
		was := n.Role
		n.Role, n.Replace = c.role, c.replace
		n.Tags, n.Labels = []string{string(c.role)}, map[string]string{"of": string(c.role)} // the other list has others
		w.d.Configs[c.node] = cluster.Config{Digest: "new", Summary: cluster.ConfigSummary{Role: c.role}}
		mach := w.o.Machines[c.node]
		mach.Change, mach.Summary = &cluster.Change{For: "new", Reboots: true}, cluster.ConfigSummary{Role: was}
		w.o.Machines[c.node] = mach
		at("wk-2").Cores = 8 // which takes a turn
		p := Make(w.d, w.o, w.p)
		if !slices.ContainsFunc(p.Blocked, func(b cluster.Block) bool {
			return b.Subject == c.node && b.Reason == cluster.FixedConfigChanged && b.About == "role" && len(b.Message) > len(c.why) && b.Message[:len(c.why)] == c.why && b.Hint != ""
		}) {
			t.Errorf("%+v: %v", c, p.Blocked)
		}
		if slices.ContainsFunc(p.Blocked, func(b cluster.Block) bool { return b.Reason == cluster.OrphanEtcdMember }) {
			t.Errorf("%+v: its member is reported as nobody's: %v", c, p.Blocked)
		}
		if !slices.ContainsFunc(p.Waiting, func(x cluster.Wait) bool { return x.Subject == "wk-2" }) {
			t.Errorf("%+v: wk-2 does not wait: %v", c, p.Waiting)
		}
		for _, a := range p.Actions {
			if i := a.Info(); i.Disrupts || i.Destructive || i.Kind == cluster.ChangeConfig || i.Kind == cluster.DropConfig || i.Node == c.node {
				t.Errorf("%+v: %s", c, i.Text)
			}
		}
		// What was drained before returns to service.
		effect.EditNode(&w.o, "wk-2", func(kn *cluster.KubeNode) { kn.Cordoned, kn.Turn = true, "cores" })
		if p := Make(w.d, w.o, w.p); !slices.ContainsFunc(p.Actions, func(a action.Action) bool {
			i := a.Info()
			return i.Kind == cluster.UncordonNode && i.Subject == "wk-2"
		}) {
			t.Errorf("%+v: wk-2 stays out of service: %v, %v", c, p.Actions, p.Waiting)
		}
		// A node that does not answer is what it is to etcd and Kubernetes: a control plane keeps its vote,
		// and a worker gets no machine that takes one. Kubernetes shows that of a node that has come: a
		// control plane has its label later than its Node object.
		for _, x := range []struct {
			reach   cluster.Reach
			settled bool
		}{{cluster.Configured, true}, {cluster.Silent, false}, {cluster.Silent, true}} {
			reach := x.reach
			vm := w.o.VMs[c.node]
			vm.Uptime = time.Hour
			w.o.VMs[c.node], w.o.Facts.Settled = vm, map[string]string{}
			if x.settled {
				w.o.Facts.Settled[c.node] = "as the inventory had it"
			}
			mach.Reach, mach.Summary = reach, cluster.ConfigSummary{}
			w.o.Machines[c.node] = mach
			effect.EditNode(&w.o, c.node, func(kn *cluster.KubeNode) { kn.Ready = reach != cluster.Silent })
			w.o.LostSince = map[uint64]time.Time{}
			for _, mem := range w.o.Members.Value {
				w.o.LostSince[mem.ID] = w.o.Now.Add(-time.Hour)
			}
			p := Make(w.d, w.o, w.p)
			known := was == cluster.ControlPlane || x.settled && reach == cluster.Silent
			if got := slices.ContainsFunc(p.Blocked, func(b cluster.Block) bool { return b.About == "role" }); got != known {
				t.Errorf("%+v, %+v: blocked is %v: %v", c, x, got, p.Blocked)
			}
			for _, a := range p.Actions {
				if i := a.Info(); known && (i.Disrupts || i.Destructive || i.Kind == cluster.RemoveMember) {
					t.Errorf("%+v, silent: %s", c, i.Text)
				}
			}
		}
	}
}

// TestRoleOfSilentNodes: a worker that does not answer is no control plane because of the Node
// object of another machine.
func TestRoleOfSilentNodes(t *testing.T) {
	for uuid, want := range map[string]cluster.Role{"": cluster.Worker, "own": cluster.ControlPlane} {
		w := newWorld(1, 1)
		n, _ := w.d.Spec.Node("wk-1")
		w.o.VMs["wk-1"] = w.vm(n)
		kn := cluster.KubeNode{Name: "wk-1", ControlPlane: true}
		if uuid == "own" {
			kn.UUID = cluster.NodeUUID(w.d.Spec.ID, "wk-1")
		}
		w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"wk-1": kn})
		w.o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Silent}
		if got := newPlanner(w.d, w.o, w.p).roleOf(n); got != want {
			t.Errorf("with the Node object of %q: %s", uuid, got)
		}
	}
}
