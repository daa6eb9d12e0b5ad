package readiness

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// AwaitDNS is the wait for a pod that serves the cluster's DNS, for so long; false: one does, or Talos deploys none.
func AwaitDNS(d cluster.Desired, o cluster.Observed, within time.Duration) (w cluster.Wait, waits bool) {
	if !slices.ContainsFunc(d.Spec.ControlPlanes(), func(n cluster.Node) bool { return d.Configs[n.Name].DNS }) {
		return w, false
	}
	why, starts := "", "Talos has not deployed it yet"
	for _, name := range slices.Sorted(maps.Keys(o.SystemPods.Value)) {
		switch p := o.SystemPods.Value[name]; {
		case !p.DNS:
		case p.Ready:
			return w, false
		case p.Failing+p.Unschedulable != "":
			why = p.Name + ": " + cmp.Or(p.Failing, p.Unschedulable)
		default:
			starts = p.Name + " starts"
		}
	}
	return cluster.Wait{Subject: d.Spec.Name, Reason: cluster.ClusterDNSNotReady, Message: "waits for the cluster's DNS: " + cmp.Or(why, starts), Within: within,
		Hint: "`kubectl -n kube-system describe pods -l k8s-app=kube-dns` shows what it lacks"}, true
}
