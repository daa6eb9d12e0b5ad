package readiness

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// RunsImages reports whether another node of the role of n is Ready with the images that n is to have, so that
// they are known to work. A machine whose etcd gets another image proves nothing: that starts with the next boot.
func RunsImages(d cluster.Desired, o cluster.Observed, phases map[string]cluster.Phase, n cluster.Node, images cluster.Images) bool {
	return images.Etcd == o.Machines[n.Name].Summary.Images.Etcd && slices.ContainsFunc(d.Spec.Nodes, func(other cluster.Node) bool {
		return other.Name != n.Name && other.Role == n.Role && phases[other.Name] == cluster.PhaseReady && o.Machines[other.Name].Summary.Images == images
	})
}
