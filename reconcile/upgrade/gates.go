package upgrade

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// mostCondition is how much of a condition is shown, in characters.
const mostCondition = 200

// AsksGates reports whether the gates of a cluster are to be looked at: it is to be upgraded, and no node is out of
// service that others wait for, so that a gate is never taken for what it was before the last turn.
func AsksGates(d cluster.Desired, o cluster.Observed) bool {
	asked := d.Repository()
	despite := o.Facts.UpgradeOrder(drift.Attempt(d, o.Facts)).Despite
	return len(asked.Spec.Gates) > 0 && IsUnderWay(d, o) && !slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool {
		return o.Nodes.Value[n.Name].Turn != "" && !slices.Contains(despite, n.Name)
	})
}

// ClosedGates are the waits for each condition among the gates of a cluster that does not hold, without their subject; none: all hold. A closed
// window is named besides: it is waited for once they hold.
func ClosedGates(d cluster.Desired, o cluster.Observed, p cluster.Policy) (out []cluster.Wait) {
	window := ""
	if opens, ever := d.Spec.Window.OpensWith(p.Window, o.Now); ever && opens.After(o.Now) && !o.Facts.UpgradeOrder(drift.Attempt(d, o.Facts)).Now {
		window = "; its window opens at " + text.Moment(opens)
	}
	for _, g := range d.Repository().Spec.Gates {
		why := ""
		switch seen, asked := o.Gates[g.Name]; {
		case g.Job.Manifest != "", asked && seen.Known && seen.Value:
			continue
		case !asked:
			why = "it was not looked at yet"
		case !seen.Known:
			why = "it is not known whether it holds: " + seen.Why
		default:
			why = "its condition does not hold: " + text.Cut(text.OneLine(g.Condition), mostCondition)
		}
		out = append(out, cluster.Wait{Reason: cluster.WaitingForGate, About: g.Name, Message: fmt.Sprintf("waits to be upgraded until the gate %s holds: %s%s", g.Name, why, window),
			Hint: "see what its condition is about, or push another one in `gates`; versions that are set back pass it"})
	}
	return out
}

// WordWait is why a node waits before it gets another version, in the words for one that goes back where it does.
func WordWait(message string, back bool) string {
	if rest, upgrades := strings.CutPrefix(message, "waits to be upgraded"); back && upgrades {
		return "waits to go back" + rest
	}
	return message
}

// OpenGates are the gates of a cluster as if all held, their Jobs too.
func OpenGates(d cluster.Desired) map[string]cluster.Seen[bool] {
	out := map[string]cluster.Seen[bool]{}
	for _, g := range d.Repository().Spec.Gates {
		out[g.Name] = cluster.Saw(true)
	}
	return out
}
