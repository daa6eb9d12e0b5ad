package readiness

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Unplaced is a workload of kube-system with a pod that no node takes.
type Unplaced struct {
	Name, Why string
	Served    bool // another pod of it is ready
	DNS       bool
}

// ListUnplaced lists them by name.
func ListUnplaced(o cluster.Observed) []Unplaced {
	found := map[string]Unplaced{}
	for _, p := range o.SystemPods.Value {
		if why := p.Unschedulable; why != "" && (found[p.Workload].Why == "" || why < found[p.Workload].Why) {
			found[p.Workload] = Unplaced{Name: p.Workload, Why: why, DNS: p.DNS}
		}
	}
	for _, p := range o.SystemPods.Value {
		if w, ok := found[p.Workload]; ok && p.Ready {
			w.Served = true
			found[p.Workload] = w
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Unplaced) int { return cmp.Compare(a.Name, b.Name) })
}

// WarnOfUnplaced warns of pods of kube-system that no node takes, where others do their
// work: more replicas than nodes are no reason not to be Ready.
func WarnOfUnplaced(o cluster.Observed) cluster.Problems {
	var out cluster.Problems
	for _, w := range ListUnplaced(o) {
		if w.Served {
			out = append(out, cluster.Problem{Severity: cluster.Warning, Message: fmt.Sprintf("no node takes a pod of %s in kube-system, of which another is ready: %s", w.Name, w.Why),
				Hint: "give it fewer replicas, or the cluster another node"})
		}
	}
	return out
}
