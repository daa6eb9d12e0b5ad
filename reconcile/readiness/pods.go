package readiness

import (
	"cmp"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Patience is how long something of kube-system may take: the API, the first pod of the cluster's DNS, and a node for a pod.
type Patience struct{ API, DNS, Pods time.Duration }

// AwaitSystemPods are the waits for what every cluster needs of kube-system once its nodes are Ready; before that, its pods wait for
// them.
func AwaitSystemPods(d cluster.Desired, o cluster.Observed, p Patience) (out []cluster.Wait) {
	if !o.SystemPods.Known {
		return []cluster.Wait{{Subject: d.Spec.Name, Reason: cluster.SystemPodsUnknown, Within: p.API,
			Message: "cannot see the pods of kube-system: " + cmp.Or(o.SystemPods.Why, "there is no answer yet")}}
	}
	dns, waits := AwaitDNS(d, o, p.DNS)
	if waits = waits && !o.Facts.WasReady(); waits {
		out = append(out, dns)
	}
	var names []string
	for _, w := range ListUnplaced(o) {
		if !w.Served && !(waits && w.DNS) {
			names = append(names, w.Name+": "+w.Why)
		}
	}
	if len(names) > 0 {
		out = append(out, cluster.Wait{Subject: d.Spec.Name, Reason: cluster.PodsUnschedulable, Within: p.Pods,
			Message: "no node takes pods of kube-system: " + text.JoinSome(names, 3, "; "), Hint: "`kubectl -n kube-system get pods,events` shows them; give the nodes what they lack, or add one"})
	}
	return out
}
