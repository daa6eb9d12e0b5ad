package plan

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Elsewhere tells of the VMs that are on another host than in the inventory:
// somebody migrated them. They are managed where they are, so that a cluster
// is Ready all the same; but a VM that is made again is made where the inventory
// says.
func Elsewhere(d cluster.Desired, o cluster.Observed) cluster.Problems {
	var out cluster.Problems
	for _, n := range d.Spec.Nodes {
		vm := o.VMs[n.Name]
		if vm.Presence != cluster.Present || vm.Owner != cluster.Ours || carrier(n, vm) == n.Placement.Pin {
			continue
		}
		message := fmt.Sprintf("vm %d is on %s, and the inventory has %s", vm.VMID, vm.Host, n.Placement.Pin)
		hint := fmt.Sprintf("write `node: %s` for %s in nodes.yaml", vm.Host, n.Name)
		switch h := o.Hosts[n.Placement.Pin]; {
		case h.Known:
			hint += fmt.Sprintf(", or migrate it back: `qm migrate %d %s --online --with-local-disks` as root on %s", vm.VMID, n.Placement.Pin, vm.Host)
		case h.Why != "":
			message += ": " + h.Why
		}
		out = append(out, d.At(cluster.Warning, "nodes."+n.Name, message, hint))
	}
	return out
}
