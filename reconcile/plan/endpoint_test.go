package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"github.com/talos-agent/talos-agent/reconcile/lost"
)

// TestEndpointOfANode: where the endpoint of the cluster is the address of a control plane, that
// one gets no new machine, which would look for etcd at itself: not for another `replace`, nor
// because it is dead, nor because somebody destroyed its VM or emptied its disk. Others do.
func TestEndpointOfANode(t *testing.T) {
	for _, c := range []struct {
		name, endpoint, node string
		discovery, held      bool
	}{
		{"of another", "https://10.10.0.11:6443", "cp-2", false, false},
		{"its own", "https://10.10.0.11:6443", "cp-1", false, true},
		{"its own, and discovery", "https://10.10.0.11:6443", "cp-1", true, false},
		{"a virtual one", "https://10.10.0.5:6443", "cp-1", false, false},
	} {
		w := newWorld(3, 2)
		w.d.Spec.Network.Endpoint = c.endpoint
		for range 100 {
			if w.step().Converged() {
				break
			}
		}
		w.o.MembersAgree, w.o.MembersAsked = cluster.Saw(true), namesOf(w.o.Members.Value)
		i := slices.IndexFunc(w.d.Spec.Nodes, func(n cluster.Node) bool { return n.Name == c.node })
		cfg := w.d.Configs[c.node]
		cfg.Summary.Discovery = c.discovery
		w.d.Configs[c.node] = cfg
		planned := func(what string, kind cluster.ActionKind) {
			t.Helper()
			p := Make(w.d, w.o, w.p)
			held := slices.ContainsFunc(p.Blocked, func(b cluster.Block) bool {
				return b.Subject == c.node && b.Reason == cluster.EndpointIsNode && strings.Contains(b.Message, c.endpoint) && b.Hint != ""
			})
			var does bool
			for _, a := range p.Actions {
				does = does || a.Info().Kind == kind && a.Info().Subject == c.node
			}
			if held != c.held || does == c.held {
				t.Errorf("%s, %s: blocked is %v, %s is %v: %v, %v", c.name, what, held, kind, does, p.Blocked, p.Waiting)
			}
		}
		w.d.Spec.Nodes[i].Replace = "again"
		planned("another token", cluster.DrainNode)
		w.d.Spec.Nodes[i].Replace = ""
		w.o.Now = w.o.Now.Add(2 * lost.ReplaceEvery)
		if why := lost.SparesDead(w.d, w.o, w.d.Spec.Nodes[i]); strings.Contains(why, c.endpoint) != c.held {
			t.Errorf("%s, dead: %q", c.name, why)
		}
		vm := w.o.VMs[c.node]
		w.o.VMs[c.node] = cluster.VM{VMID: w.d.Spec.Nodes[i].VMID, Node: c.node, Presence: cluster.Absent}
		w.o.Machines[c.node] = cluster.Machine{Reach: cluster.Silent}
		w.o.Members.Value = slices.DeleteFunc(slices.Clone(w.o.Members.Value), func(m cluster.Member) bool { return m.Name == c.node })
		effect.EditNode(&w.o, c.node, func(kn *cluster.KubeNode) { kn.Ready = false })
		planned("destroyed by hand", cluster.DeleteNode)
		w.unregister(c.node)
		planned("destroyed by hand, and its Node object deleted", cluster.CreateVM)
		w.o.VMs[c.node] = vm
		w.o.Machines[c.node] = cluster.Machine{Reach: cluster.Maintenance}
		planned("its disk emptied", cluster.ApplyConfig)
	}
}
