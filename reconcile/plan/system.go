package plan

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// waitForPressure waits until a node is not short of anything.
func (m *planner) waitForPressure(n cluster.Node) {
	if s := m.o.Nodes.Value[n.Name].Pressure; s != "" {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.NodePressure, Message: "Kubernetes reports " + s, Within: pressureWithin,
			Hint: fmt.Sprintf("see what uses it up: `kubectl describe node %s`, `talosctl -n %s usage /var`; no new pods are placed there", n.Name, n.IP)})
	}
}

// planSystemPods waits for what every cluster needs of kube-system once its nodes
// are Ready; before that, its pods wait for them.
func (m *planner) planSystemPods() {
	for _, phase := range m.plan.Phases {
		if phase != cluster.PhaseReady {
			return
		}
	}
	for _, w := range readiness.AwaitSystemPods(m.d, m.o, readiness.Patience{API: apiWithin, DNS: joinWithin, Pods: pressureWithin}) {
		m.wait(w)
	}
}

// waitForSilent waits for a node at whose address nothing answers, or blames the VIP: a
// worker's Talos answers only once it got its certificate through it.
func (m *planner) waitForSilent(n cluster.Node, w cluster.Wait) {
	w.Hint += drift.HintOfReserved(m.d.Spec, m.o.Facts, n)
	if n.Role == cluster.Worker && readiness.LacksVIP(m.o) {
		w.Reason, w.Hint = cluster.VIPNotServed, "it goes on when the VIP answers: what the cluster waits for shows who has the address"
		w.Message = fmt.Sprintf("nothing answers at %s:50000: Talos on a worker that has its config waits for a certificate, which it gets through the VIP %s", n.IP, m.d.Repository().Spec.Network.VIP)
	}
	m.wait(w)
}
