package plan

import (
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// replaceEvery is how much time lies between two dead nodes that get new machines: what
// makes nodes die may not be the nodes.
const replaceEvery = time.Hour

// looksDead reports whether a node that worked does not answer any more, on its own
// address and to Kubernetes, although its VM runs; or whether its replacement has come so
// far that its VM is being deleted.
func looksDead(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	kn := o.Nodes.Value[n.Name]
	if !o.Nodes.Known || kn.Ready || kn.NotReadySince.IsZero() || !isOwn(d, kn) {
		return false
	}
	phase := Classify(n, o)
	return phase == cluster.PhaseUnreachable || phase == cluster.PhaseLeaving && kn.Turn == cluster.TurnRemoval
}

// dueAt is when a dead node may get a new machine: it has been dead for as long as the
// inventory has it, and its VM has run for as long. false: never.
func dueAt(d cluster.Desired, o cluster.Observed, n cluster.Node) (time.Time, bool) {
	limit := d.Spec.ReplaceDead.Of(n.Role)
	if limit <= 0 || n.Protect || n.Locked || d.Spec.ObserveOnly || !looksDead(d, o, n) {
		return time.Time{}, false
	}
	due := o.Nodes.Value[n.Name].NotReadySince.Add(limit)
	if vm := o.VMs[n.Name]; vm.Power == cluster.PowerRunning {
		if started := o.Now.Add(-vm.Uptime); started.Add(limit).After(due) {
			due = started.Add(limit)
		}
	}
	return due, true
}

// deadNode is the node that gets a new machine because it is dead, "" when none does: one
// at a time, and only when everything else shows that it is the node.
func deadNode(d cluster.Desired, o cluster.Observed) string {
	for _, n := range d.Spec.Nodes {
		if due, ok := dueAt(d, o, n); ok && !due.After(o.Now) && sparesDead(d, o, n) == "" {
			return n.Name
		}
	}
	return ""
}

// sparesDead returns why a dead node does not get a new machine, "" when it does.
func sparesDead(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	down, neighbours := 0, 0
	host := carrier(n, o.VMs[n.Name])
	for _, other := range d.Spec.Nodes {
		kn := o.Nodes.Value[other.Name]
		ready := Classify(other, o) == cluster.PhaseReady
		switch {
		case !ready:
			down++
		case carrier(other, o.VMs[other.Name]) == host:
			neighbours++
		}
		if other.Name != n.Name && kn.Turn == cluster.TurnRemoval {
			return other.Name + " is being replaced"
		}
	}
	var last time.Time
	for _, kn := range o.Nodes.Value {
		if kn.Created.After(last) {
			last = kn.Created
		}
	}
	if next := last.Add(replaceEvery); !last.IsZero() && next.After(o.Now) {
		return "the last node came at " + text.Moment(last) + "; the next one may at " + text.Moment(next)
	}
	h := o.Hosts[host]
	switch {
	case n.Role == cluster.ControlPlane && len(d.Spec.ControlPlanes()) == 1:
		return "it is the only control plane"
	case 3*down > len(d.Spec.Nodes):
		return fmt.Sprintf("%d of %d nodes are not Ready, so that it may not be the node", down, len(d.Spec.Nodes))
	case !h.Known || h.Quorate.Known && !h.Quorate.Value:
		return fmt.Sprintf("host %s is not seen, or has no quorum", host)
	case neighbours == 0:
		return fmt.Sprintf("no other node on host %s is Ready, so that it may be the host", host)
	}
	return ""
}

// waitForDead names when a dead node gets a new machine, and what keeps it from one.
func (m *planner) waitForDead(n cluster.Node) {
	due, ok := dueAt(m.d, m.o, n)
	if !ok {
		return
	}
	since := m.o.Nodes.Value[n.Name].NotReadySince
	w := cluster.Wait{Subject: n.Name, Reason: cluster.NodeDead, Message: fmt.Sprintf("has not been Ready since %s, and gets a new machine at %s", text.Moment(since), text.Moment(due))}
	if why := sparesDead(m.d, m.o, n); !due.After(m.o.Now) {
		if why == "" && m.dead != n.Name {
			why = m.dead + " comes first"
		}
		w.Message = fmt.Sprintf("has not been Ready since %s, and would get a new machine: %s", text.Moment(since), why)
	}
	m.wait(w)
}
