package plan

import (
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// planBootstrap plans the one call that founds etcd.
func (m *planner) planBootstrap() {
	cps := m.d.Spec.ControlPlanes()
	if len(cps) == 0 || quorum.WasSeen(m.o) {
		return
	}
	intent, intended := m.o.Facts.Intent(cluster.IntendBootstrap)
	if intent.Done {
		// etcd was there once. When no control plane answers, it is not known
		// to be gone; when all of them report that it is, only a restore helps.
		if all(cps, func(n cluster.Node) bool { return quorum.IsNeverFounded(m.o, n) }) {
			m.block(cluster.Block{Subject: m.d.Spec.Name,
				Reason: cluster.EtcdLost, Message: "this cluster had an etcd, and no control plane has it any more; a second bootstrap would make an empty cluster in its place",
				Hint: fmt.Sprintf("restore a snapshot, or give the cluster up with `talos-agent destroy %s`", m.d.Spec.Name)})
		} else {
			m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.EtcdUnreachable, Message: "etcd of this cluster does not answer", Within: etcdWithin,
				Hint: "look at the control planes: `talos-agent status` shows what each one does"})
		}
		return
	}
	chosen := cps[0]
	if intended {
		i := slices.IndexFunc(cps, func(n cluster.Node) bool { return n.Name == intent.Node && n.UUID == intent.UUID })
		if i < 0 || m.plan.Phases[intent.Node] == cluster.PhaseAbsent {
			m.block(cluster.Block{Subject: m.d.Spec.Name,
				Reason: cluster.BootstrapUncertain, Message: fmt.Sprintf("bootstrap was sent to %s, which was deleted; whether it founded a cluster is not known, and founding a second one could split it", intent.Node),
				Hint: fmt.Sprintf("nothing of value can be lost if the cluster never came up: `talos-agent destroy %s` and start over", m.d.Spec.Name)})
			return
		}
		chosen = cps[i]
	} else if m.o.Facts.Lost && !leftover.SeesAllVMs(m.o) {
		m.wait(cluster.Wait{Subject: m.d.Spec.Name, Within: seeWithin, Reason: cluster.VMsUnknown, Message: m.blindStart()})
		return
	} else if m.o.Facts.Lost {
		m.block(cluster.Block{Subject: m.d.Spec.Name,
			Reason: cluster.JournalLost, Message: "the agent's own state is lost, so that it cannot know whether bootstrap was sent before",
			Hint: fmt.Sprintf("if this cluster never came up: `talos-agent accept %s --bootstrap`; otherwise wait until its control planes answer", m.d.Spec.Name)})
		return
	}
	mach := m.o.Machines[chosen.Name]
	if m.plan.Phases[chosen.Name] != cluster.PhaseJoining || chosen.Locked {
		return // the node's own wait or block shows what is missing
	}
	if !intended {
		for _, n := range cps {
			if n.Name != chosen.Name && !quorum.IsNeverFounded(m.o, n) {
				m.wait(cluster.Wait{Subject: m.d.Spec.Name, Within: joinWithin,
					Reason: cluster.BootstrapUncertain, Message: fmt.Sprintf("waits until it is known that %s has no etcd, before founding one on %s", n.Name, chosen.Name)})
				return
			}
		}
	}
	switch {
	case mach.Stage != "booting" && mach.Stage != "running", mach.Services["etcd"].State != "Preparing":
		m.wait(cluster.Wait{Subject: chosen.Name, Within: joinWithin,
			Reason: cluster.WaitingForEtcd, Message: fmt.Sprintf("waits until etcd on %s is ready to be bootstrapped", chosen.Name)})
	default:
		m.do(action.Bootstrap{Node: chosen})
	}
}

// mayBeFounded reports whether there is an etcd, as far as is known.
func (m *planner) mayBeFounded() bool { return m.o.Facts.BootstrapSent() || m.o.Facts.Lost }
