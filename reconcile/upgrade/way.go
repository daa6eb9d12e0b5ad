package upgrade

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/upgrade/components"
)

// A component of a node comes up with another version within a few minutes, of which an image that is pulled is the most. What one step
// waits for may be all nodes at once.
const (
	stepWithin = 5 * time.Minute
	nodeWithin = 30 * time.Second
)

// WaitsOfWay are the waits of a cluster for the hop of Kubernetes that its nodes make now, for the hops after the first, and of other
// extensions of Talos for that hop.
func WaitsOfWay(d cluster.Desired, o cluster.Observed, s Supply) (out []cluster.Wait) {
	asked := d.Repository()
	wait := func(about, message string) cluster.Wait {
		return cluster.Wait{Subject: d.Spec.Name, Reason: cluster.WaitingForHop, About: about, Message: message}
	}
	if asked.IsHop(cluster.HopKubernetes) {
		hop := asked.Hops[0]
		out = append(out, wait(hop.String(), fmt.Sprintf("%s comes to the nodes one component after the other%s", hop, text.Colon(components.Describe(asked.StageWaits))+components.DescribeRemoved(hop, o))))
	} else if asked.Back.Kubernetes || asked.StageWaits.Reason != "" {
		words := fmt.Sprintf("Kubernetes goes back to %s, one component after the other%s", asked.Spec.Versions.Kubernetes, text.Colon(components.Describe(asked.StageWaits)))
		if after := waysBack(asked); len(after) > 1 {
			words += "; after it: " + cluster.DescribeHops(after[1:])
		}
		out = append(out, wait("back", words))
	}
	if node := awaited(d, o); node != "" && len(out) > 0 {
		// Since the step of that node, and not since the hop began.
		out[0].About, out[0].Within = out[0].About+" on "+node, stepWithin+time.Duration(len(d.Spec.Nodes))*nodeWithin
		out[0].Hint = fmt.Sprintf("`kubectl -n kube-system get pods,events` and `talosctl -n %s logs kubelet` show why it does not start", node)
	}
	for i := 1; i < len(asked.Hops); i++ {
		hop := asked.Hops[i]
		what := "; reboots no node"
		if hop.Kind == cluster.HopTalos {
			if what = "; reboots its node"; len(d.Spec.Nodes) != 1 {
				what = fmt.Sprintf("; reboots all %d nodes", len(d.Spec.Nodes))
			}
			what += s.Describe(hop)
		} else {
			what += describeRemovedLater(asked.Hops[:i], hop, o)
		}
		out = append(out, wait(hop.String(), fmt.Sprintf("%s comes after %s", hop, asked.Hops[i-1])+what))
	}
	for _, w := range []cluster.Wait{waitForKubernetes(d, o), awaitWay(d, o)} {
		if w.Reason != "" {
			out = append(out, w)
		}
	}
	return out
}

// awaitWay is the wait of a cluster of which a hop of Kubernetes is half done, forward or back, and does not go on because there is no way
// to all that its inventory asks for; without a reason where there is none.
func awaitWay(d cluster.Desired, o cluster.Observed) cluster.Wait {
	asked := d.Repository()
	if asked.NoWay == "" || asked.Back.Kubernetes {
		return cluster.Wait{}
	}
	oldest, newest, ahead := components.Between(asked.Spec, o)
	if ahead == "" {
		return cluster.Wait{}
	}
	return cluster.Wait{Subject: d.Spec.Name, Reason: cluster.WaitingForHop, About: "half done",
		Message: fmt.Sprintf("its Kubernetes stays between %s and %s, as there is no way to all that is asked for, of it %s: %s", oldest, newest, asked.Goal.Kubernetes, ahead),
		Hint:    fmt.Sprintf("set `talos_version` to what the nodes run, and `kubernetes_version` alone to %s, to which it goes back, or to %s, to which it goes on", oldest, newest)}
}

// DescribeRemovedOnWay is which APIs the hops of Kubernetes take away on the way of a cluster that makes none for now, to follow other
// words; "" : none, or nothing is known yet.
func DescribeRemovedOnWay(d cluster.Desired, o cluster.Observed) (out string) {
	hops := d.Repository().Hops
	for i, hop := range hops {
		if hop.Kind != cluster.HopKubernetes {
			continue
		}
		if words := describeRemovedLater(hops[:i], hop, o); words != "" {
			out += fmt.Sprintf("; %s: %s", hop, strings.TrimPrefix(words, "; "))
		}
	}
	return out
}

// awaited is the node that a step of Kubernetes waits for because it has its config, and does not run what that names yet; "" : it waits
// for none, or for one that has a wait of its own.
func awaited(d cluster.Desired, o cluster.Observed) string {
	for _, n := range d.Spec.Nodes {
		if d.Repository().StageWaits.Subject == n.Name && !n.Locked && components.IsComingUp(n, o) {
			return n.Name
		}
	}
	return ""
}

// BlockLocked reports the nodes that are locked in the inventory and hold up a hop of Kubernetes, or its way back, with what they have: a
// control plane the others at once, a worker what comes when all others have made it.
func BlockLocked(d cluster.Desired, o cluster.Observed) (out []cluster.Block) {
	asked := d.Repository()
	if asked.Held != "" || asked.StageWaits.Reason == "" || !asked.IsHop(cluster.HopKubernetes) && !asked.Back.Kubernetes {
		return nil
	}
	to := asked.Spec.Versions.Kubernetes
	lacks := func(n cluster.Node) bool {
		if asked.Back.Kubernetes {
			return components.HasNewer(to, cluster.Spec{Nodes: []cluster.Node{n}}, o)
		}
		oldest := components.OldestOn(n, o)
		return oldest == "" || ladder.IsOlder(oldest, to)
	}
	isOpen := slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool { return !n.Locked && lacks(n) })
	for _, n := range d.Spec.Nodes {
		if !n.Locked || !lacks(n) || isOpen && (n.Role != cluster.ControlPlane || asked.Back.Kubernetes) {
			continue
		}
		words := fmt.Sprintf("it is not given Kubernetes %s, because it is locked in the inventory", to)
		if len(asked.Hops) > 1 || asked.Back.Kubernetes && len(asked.Hops) > 0 {
			words += fmt.Sprintf(", and %s waits for it", asked.Hops[len(asked.Hops)-1])
		}
		out = append(out, cluster.Block{Subject: n.Name, Reason: cluster.NodeLocked, About: "upgrade", Message: words, Hint: "remove `locked: true` from nodes.yaml"})
	}
	return out
}

// describeRemovedLater is which APIs a hop to come takes away, which the ones before it do not, as components.DescribeRemoved; "" : none,
// or nothing is known yet.
func describeRemovedLater(before []cluster.Hop, hop cluster.Hop, o cluster.Observed) string {
	if !o.Deprecated.Known && !o.ReleaseAPIs.Known {
		return ""
	}
	for _, earlier := range before {
		if earlier.Kind == cluster.HopKubernetes {
			o.Deprecated = components.KeptAPIs(earlier.To, o)
		}
	}
	return components.DescribeRemoved(hop, o)
}
