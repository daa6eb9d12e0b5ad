// Package settled has which nodes are as the inventory has them. It is pure.
package settled

import (
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// FindNodes returns what is to be kept of nodes: what the inventory had of each when it was seen
// to have that.
func FindNodes(d cluster.Desired, o cluster.Observed) map[string]string {
	out := map[string]string{}
	for _, n := range d.Spec.Nodes {
		vm, mach := o.VMs[n.Name], o.Machines[n.Name]
		whole := readiness.Classify(n, o) == cluster.PhaseReady && vm.Hardware.Known && mach.ConfigDigest != "" && !drift.LacksSystemDisk(vm) && !drift.HasOtherToken(n, vm)
		if text := drift.Settle(d, o, n, whole); text != "" {
			out[n.Name] = text
		}
	}
	return out
}
