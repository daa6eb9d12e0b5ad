package leftover

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// MayHideEtcd reports whether all VMs are seen and no etcd is, and there may be one
// all the same.
func MayHideEtcd(d cluster.Desired, o cluster.Observed) bool {
	return SeesAllVMs(o) && !quorum.WasSeen(o) && slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool { return MayHoldEtcd(n, o.VMs[n.Name]) })
}

// MayHoldEtcd reports whether a VM that is not proven to be a node's may be that of a
// control plane all the same: it was taken out of the pool, where its config cannot
// be read, or has lost its UUID.
func MayHoldEtcd(n cluster.Node, vm cluster.VM) bool {
	return n.Role == cluster.ControlPlane && vm.Presence == cluster.Present && vm.Owner == cluster.Foreign && !vm.Disproven
}

// Deletable are the VMs that a command to destroy may delete, as far as they are
// known when it is given. The VMIDs of all nodes are among them, whether their VMs
// exist or not: a VM that is still being created goes too. A second machine for a
// node is not: which one is right, a person decides.
func Deletable(d cluster.Desired, o cluster.Observed) []int {
	var out []int
	for _, n := range d.Spec.Nodes {
		out = append(out, n.VMID)
	}
	for _, vm := range o.Orphans.Value {
		if other, seen := FindTwin(o, vm); seen && other == 0 {
			out = append(out, vm.VMID)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// FindTwin returns the VMID of another machine for the node of a VM, 0 when there
// is none, and whether all that could be one is seen.
func FindTwin(o cluster.Observed, vm cluster.VM) (vmid int, seen bool) {
	own, isNode := o.VMs[vm.Node]
	switch {
	case !isNode || own.VMID == vm.VMID:
	case own.Presence == cluster.Present && (own.Owner == cluster.Ours || own.Moved):
		return own.VMID, true
	case IsUnseen(own):
		return 0, false
	}
	for _, other := range o.Orphans.Value {
		if other.Node == vm.Node && other.VMID != vm.VMID && own.VMID != vm.VMID {
			return other.VMID, true
		}
	}
	return 0, true
}
