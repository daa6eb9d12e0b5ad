// Package budget works out how many nodes may be out of service at once, and which are.
//
// The package is pure: no clock, no network, no log and no chance.
package budget

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// Budget is how many nodes of a role may be unavailable at once, and which are,
// whoever caused that.
type Budget struct {
	Allowed     int
	Unavailable []string // names of nodes
	Watched     []string // those that are Ready, and count as unavailable because they are watched after a change
}

// Allows reports whether a node may be made unavailable: one that is already
// spends nothing more.
func (b Budget) Allows(node string) bool {
	if slices.Contains(b.Unavailable, node) {
		return len(b.Unavailable) <= b.Allowed
	}
	return len(b.Unavailable) < b.Allowed
}

// Spent is the budget with one more node unavailable.
func (b Budget) Spent(node string) Budget {
	if !slices.Contains(b.Unavailable, node) {
		b.Unavailable = append(slices.Clone(b.Unavailable), node)
	}
	return b
}

// Describe is what a node waits for that may not be made unavailable.
func (b Budget) Describe() string {
	named := make([]string, len(b.Unavailable))
	for i, name := range b.Unavailable {
		if named[i] = name; slices.Contains(b.Watched, name) {
			named[i] = name + " (watched after a change)"
		}
	}
	if b.Allowed == 1 {
		return "waits until no node like it is unavailable: " + strings.Join(named, ", ")
	}
	return fmt.Sprintf("waits until fewer than %d nodes like it are unavailable: %s", b.Allowed, strings.Join(named, ", "))
}

// Of computes the budget of every role from what is seen, before any node
// is planned. A node that is not Ready, or under pressure, or cordoned by whomever, has
// spent a unit of it, and so has one on which a disruptive action is under way. One that
// is removed has from its drain on.
func Of(s cluster.Spec, phases map[string]cluster.Phase, o cluster.Observed, removed []cluster.Node) map[cluster.Role]Budget {
	out := map[cluster.Role]Budget{cluster.ControlPlane: {Allowed: 1}, cluster.Worker: {Allowed: max(1, s.MaxUnavailable)}}
	for _, n := range s.Nodes {
		kn := o.Nodes.Value[n.Name]
		if phases[n.Name] != cluster.PhaseReady || kn.Pressure != "" || kn.Cordoned || IsDisrupted(o, n) {
			b := out[n.Role]
			b.Unavailable = append(b.Unavailable, n.Name) // which no other node has
			if phases[n.Name] == cluster.PhaseReady && kn.Pressure == "" && !kn.Cordoned && !isChanged(o, n) {
				b.Watched = append(b.Watched, n.Name)
			}
			out[n.Role] = b
		}
	}
	for _, n := range removed {
		if IsDisrupted(o, n) || o.Nodes.Value[n.Name].Turn != "" {
			out[n.Role] = out[n.Role].Spent(n.Name)
		}
	}
	return out
}

// IsDisrupted reports whether a disruptive action is under way on a node, or an agent that has
// ended since has begun one of which the node is still to be seen to do well.
func IsDisrupted(o cluster.Observed, n cluster.Node) bool {
	return isWatched(o, n) || isWithin(o, o.Facts.Moved[n.Name]) || isChanged(o, n)
}

// isWatched reports whether a control plane was given something less than a minute ago that may isolate it, or restart its
// kube-apiserver.
func isWatched(o cluster.Observed, n cluster.Node) bool {
	in, _ := o.Facts.Intent(cluster.IntendWatch)
	return in.Node == n.Name && isWithin(o, in.At)
}

func isWithin(o cluster.Observed, at time.Time) bool {
	since := o.Now.Sub(at)
	return since >= 0 && since < action.WatchedFor
}

// AwaitWatch is the wait of a control plane for the next component of Kubernetes that was given one less than a minute ago, by an agent
// that has ended since; false: it need not wait for that. An agent that goes on has the minute in the action that gave it, unless that
// failed, for which the caller looks.
func AwaitWatch(o cluster.Observed, n cluster.Node, drifts []cluster.FieldDifference) (w cluster.Wait, waits bool) {
	if isChanged(o, n) || !isWatched(o, n) {
		return w, false
	}
	return cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForHop, Within: action.WatchedFor, Drift: drifts,
		Message: fmt.Sprintf("is watched for %v after what it was given last, before it is given the next component", action.WatchedFor)}, true
}

// isChanged reports whether a disruptive action is under way on a node.
func isChanged(o cluster.Observed, n cluster.Node) bool {
	return slices.ContainsFunc(o.Running, func(r cluster.Running) bool { return r.Node == n.Name && r.Disrupts })
}
