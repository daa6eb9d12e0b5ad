package inventory

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// spread is the strategy that leaves the host of a node to the agent.
const spread = "spread"

// place returns on which hosts a node's VM may be made.
func (l *loader) place(d draft) cluster.Placement {
	all := l.hosts()
	host, field := d.Node, d.field+".node"
	if pinned := l.cluster.Placement.Pinned[d.name]; pinned != "" && d.name != "" {
		if host != "" && host != pinned {
			l.Wrong("placement.pinned."+d.name, "write one of them", "%s is pinned to %s, and names %s itself", d.name, pinned, host)
		}
		host, field = pinned, "placement.pinned."+d.name
	}
	switch {
	case len(all) == 0: // which is reported
	case host != "" && !slices.Contains(all, host):
		l.Wrong(field, "add it to proxmox.nodes, or write one of "+strings.Join(all, ", "), "%s is not among the cluster's hosts", host)
	case host != "":
	case len(all) == 1:
		host = all[0]
	case l.strategy(d.role) == spread:
		return cluster.Placement{Among: all}
	case !l.Has(d.field + ".node"):
		l.Wrong(d.field+".node", "write node: and one of "+strings.Join(all, ", ")+", or placement: spread in "+ClusterFile, "is missing: the cluster has several hosts")
	}
	return cluster.Placement{Pin: host}
}

// hosts are the hosts of the cluster; none where what is written about them is wrong, which is reported.
func (l *loader) hosts() []string {
	p := l.cluster.Proxmox
	switch {
	case p.Node != "" && l.Has("proxmox.nodes"):
		l.Wrong("proxmox.nodes", "keep one of them", "node and nodes are both written")
		return nil
	case p.Node != "":
		return []string{p.Node}
	case !l.Has("proxmox.nodes") && !l.Has("proxmox.node") && l.Has("proxmox") && !l.Misspelt("proxmox.nodes") && !l.Misspelt("proxmox.node"):
		l.Wrong("proxmox.node", "write the name of the Proxmox VE host, like node: pve1", "is missing")
		return nil
	}
	return p.Nodes
}

// strategy is the strategy of placement for a role.
func (l *loader) strategy(role cluster.Role) string {
	p := l.cluster.Placement
	own := p.Worker
	if role == cluster.ControlPlane {
		own = p.ControlPlane
	}
	return cmp.Or(own, p.Strategy)
}

// checkPinned reports hosts of nodes that are not there.
func (l *loader) checkPinned() {
	for _, name := range slices.Sorted(maps.Keys(l.cluster.Placement.Pinned)) {
		if !slices.ContainsFunc(l.spec.Nodes, func(n cluster.Node) bool { return n.Name == name }) {
			l.Wrong("placement.pinned."+name, "write the name of a node in "+NodesFile+", or remove it", "there is no node %s", yamlschema.Quote(name))
		}
	}
}
