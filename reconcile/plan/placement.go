package plan

import "github.com/talos-agent/talos-agent/internal/cluster"

// placeNode answers on which host a node's VM is made: where it is pinned.
func (m *planner) placeNode(n cluster.Node) string { return n.Placement.Pin }

// bootNode answers what a node's new VM boots from: the Talos image.
func (m *planner) bootNode(cluster.Node) cluster.Boot {
	return cluster.Boot{Medium: cluster.BootImage, Image: m.d.Image}
}

// carrier is the host that carries a node's VM; while that is not seen, the one
// that should.
func carrier(n cluster.Node, vm cluster.VM) string { return orElse(vm.Host, n.Placement.Pin) }
