package inventory

import (
	"path"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// resolveUpgrade checks when nodes are upgraded, but for the canary.
func (l *loader) resolveUpgrade() {
	c := &l.cluster
	l.spec.Upgrade, _ = cluster.ParseUpgradeMode(c.Upgrade) // any other was reported when it was read
	if c.Upgrade == "window" && !l.Has("window") {
		l.Warn("upgrade", `add one, like window: {days: [sat, sun], from: "22:00", to: "05:00", time_zone: Europe/Berlin}`,
			"is window, and there is none here: nothing is upgraded unless the host's policy has one")
	}
}

// checkCanary checks that the node to be upgraded first is one, and can be upgraded. Where
// nodes.yaml is wrong it is not known which there are.
func (l *loader) checkCanary() {
	name := l.cluster.Canary
	if name == "" || !l.nodesRead || slices.ContainsFunc(l.Problems, isAboutNodes) {
		return
	}
	i := slices.IndexFunc(l.spec.Nodes, func(n cluster.Node) bool { return n.Name == name })
	switch {
	case i < 0:
		l.Wrong("canary", "write the name of a node of nodes.yaml, best that of a worker", "%q is no node of this cluster", name)
	case l.spec.Nodes[i].Locked:
		l.Wrong("canary", "write the name of another node, or take `locked` from it in nodes.yaml", "%s is locked, so it is never upgraded, and no other node would be", name)
	}
}

// isAboutNodes reports whether a problem is an error of nodes.yaml.
func isAboutNodes(p cluster.Problem) bool {
	return p.Severity == cluster.Error && path.Base(p.File) == NodesFile
}
