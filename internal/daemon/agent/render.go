package agent

import (
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/rendering"
)

// Render implements api.Cluster.
func (m *managedCluster) Render(node string, showSecrets bool) (cluster.Rendering, error) {
	d, o, err := m.InForce()
	if err != nil {
		return cluster.Rendering{}, err
	}
	if err := m.checkNode(d, node); err != nil {
		return cluster.Rendering{}, err
	}
	runs := func(name string) bool { return o.Machines[name].Reach == cluster.Configured }
	return rendering.Render(d, runs, rendering.Options{Node: node, ShowSecrets: showSecrets})
}

// checkNode refuses a node that the inventory does not have; "" is all of them.
func (m *managedCluster) checkNode(d cluster.Desired, node string) error {
	var names []string
	for _, n := range d.Repository().Spec.Nodes {
		names = append(names, n.Name)
		if n.Name == node {
			return nil
		}
	}
	if node == "" {
		return nil
	}
	return m.unknownNode(node, names)
}
