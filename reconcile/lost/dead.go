// Package lost judges which machines of nodes do not come back: those that are dead, by all that is seen,
// and those of which an administrator has it so.
//
// It is pure. What is done about them is for the planner.
package lost

import (
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// ReplaceEvery is how much time lies between two dead nodes that get new machines: what
// makes nodes die may not be the nodes.
const ReplaceEvery = time.Hour

// DeadFor is how long a node must be seen to be dead, while all else works, by this agent
// and its own clock, before it gets a new machine, however long Kubernetes has it as not
// Ready: when a network or a host is back, or a VM that was paused goes on, some nodes
// are Ready minutes before others; and a clock that was set makes every node long dead.
const DeadFor = 10 * time.Minute

// looksDead reports whether a node that worked does not answer any more, on its own
// address and to Kubernetes, although its VM runs; or whether its replacement has come so
// far that its VM is being deleted.
func looksDead(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	kn := o.Nodes.Value[n.Name]
	if !o.Nodes.Known || kn.Ready || kn.NotReadySince.IsZero() || !leftover.IsOwn(d, kn) {
		return false
	}
	phase := readiness.Classify(n, o)
	return phase == cluster.PhaseUnreachable || phase == cluster.PhaseLeaving && kn.Turn == cluster.TurnRemoval
}

// DueAt is when a dead node may get a new machine: it has been dead for as long as the
// inventory has it, and its VM has run for as long. false: never.
func DueAt(d cluster.Desired, o cluster.Observed, n cluster.Node) (time.Time, bool) {
	limit := d.Spec.ReplaceDead.Of(n.Role)
	if limit <= 0 || n.Protect || n.Locked || d.Spec.ObserveOnly || !looksDead(d, o, n) {
		return time.Time{}, false
	}
	due := o.Nodes.Value[n.Name].NotReadySince.Add(limit)
	vm := o.VMs[n.Name]
	if started := o.Now.Add(-vm.Uptime).Add(limit); vm.Power == cluster.PowerRunning && started.After(due) {
		due = started
	}
	return due, true
}

// BelievedAt is when a dead node was seen to be so for DeadFor. What has begun to be
// deleted was.
func BelievedAt(o cluster.Observed, n cluster.Node) time.Time {
	if o.VMs[n.Name].Deleting {
		return time.Time{}
	}
	seen, ok := o.DeadSince[n.Name]
	if !ok {
		seen = o.Now
	}
	return seen.Add(DeadFor)
}

// DeadNodes are the nodes that look dead while all else works.
func DeadNodes(d cluster.Desired, o cluster.Observed) []string {
	var out []string
	for _, n := range d.Spec.Nodes {
		if looksDead(d, o, n) && mayBeOther(d, o, n) == "" {
			out = append(out, n.Name)
		}
	}
	return out
}

// DeadNode is the node that gets a new machine because it is dead, "" when none does: one
// at a time, and only when everything else shows that it is the node.
func DeadNode(d cluster.Desired, o cluster.Observed) string {
	for _, n := range d.Spec.Nodes {
		if due, ok := DueAt(d, o, n); ok && !due.After(o.Now) && !BelievedAt(o, n).After(o.Now) && SparesDead(d, o, n) == "" {
			return n.Name
		}
	}
	return ""
}

// SparesDead returns why a dead node does not get a new machine, "" when it does: one
// that got its own lately, or has not come with it yet, counts against all others.
func SparesDead(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	var last time.Time
	for _, other := range d.Spec.Nodes {
		switch kn := o.Nodes.Value[other.Name]; {
		case other.Name == n.Name:
		case kn.Turn == cluster.TurnRemoval:
			return other.Name + " is being replaced"
		case kn.Name == "":
			return other.Name + " has not come yet"
		}
	}
	for _, kn := range o.Nodes.Value {
		if kn.Created.After(last) {
			last = kn.Created
		}
	}
	if next := last.Add(ReplaceEvery); !last.IsZero() && next.After(o.Now) {
		return "the last node came at " + text.Moment(last) + "; the next one may at " + text.Moment(next)
	}
	if d.Spec.IsOnlyPlane(n) {
		return "it is the only control plane"
	}
	if own := readiness.OwnEndpoint(d, n); own.Reason != "" {
		return own.Message
	}
	return mayBeOther(d, o, n)
}

// mayBeOther returns what may be why a node looks dead, other than the node, "" when
// nothing is seen.
func mayBeOther(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	down, neighbours := 0, 0
	host := o.VMs[n.Name].Carrier(n)
	for _, other := range d.Spec.Nodes {
		switch {
		case readiness.Classify(other, o) != cluster.PhaseReady:
			down++
		case o.VMs[other.Name].Carrier(other) == host:
			neighbours++
		}
	}
	h := o.Hosts[host]
	switch {
	case 3*down > len(d.Spec.Nodes):
		return fmt.Sprintf("%d of %d nodes are not Ready, so that it may not be the node", down, len(d.Spec.Nodes))
	case !h.Known || h.Quorate.Known && !h.Quorate.Value:
		return fmt.Sprintf("host %s is not seen, or has no quorum", host)
	case neighbours == 0:
		return fmt.Sprintf("no other node on host %s is Ready, so that it may be the host", host)
	}
	return ""
}
