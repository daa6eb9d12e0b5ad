package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// resolveCapacity checks what the inventory gives of its hosts, and that its own nodes
// do not ask for more. What else is on a host only its agent sees.
func (l *loader) resolveCapacity() {
	hosts := l.cluster.Proxmox.Nodes
	if l.cluster.Proxmox.Node != "" {
		hosts = []string{l.cluster.Proxmox.Node}
	}
	l.checkTotal(hosts)
	for _, host := range slices.Sorted(maps.Keys(l.cluster.PVECapacity)) {
		field, bound := "pve_capacity."+host, l.cluster.PVECapacity[host]
		if len(hosts) > 0 && !slices.Contains(hosts, host) {
			l.Wrong(field, "write one of "+strings.Join(hosts, ", ")+", or remove it", "%s is not among the cluster's hosts", host)
			continue
		}
		var cores int
		var memory int64
		var names []string
		for _, n := range l.spec.Nodes {
			if n.Placement.Pin == host {
				cores, memory, names = cores+n.Cores, memory+n.MemoryMiB, append(names, n.Name)
			}
		}
		who := fmt.Sprintf("the %d nodes on %s together want", len(names), host)
		if len(names) == 1 {
			who = names[0] + ", which is on " + host + ", wants"
		}
		if bound.CPU > 0 && cores > bound.CPU {
			l.Wrong(field+".cpu", "ask for fewer cores in "+NodesFile+", or correct the bound", "%s %d cores", who, cores)
		}
		if bound.RAM > 0 && memory > int64(bound.RAM) {
			l.Wrong(field+".ram", "ask for less ram in "+NodesFile+", or correct the bound; the number counts MiB", "%s %d MiB of memory", who, memory)
		}
		if l.spec.Capacity == nil {
			l.spec.Capacity = map[string]cluster.HostCapacity{}
		}
		l.spec.Capacity[host] = cluster.HostCapacity{Cores: bound.CPU, MemoryMiB: int64(bound.RAM)}
	}
}

// checkTotal checks that all hosts together have what nodes want that are spread over them. Whether each finds
// room on one of them only its agent sees.
func (l *loader) checkTotal(hosts []string) {
	var wanted, bound hostCapacity
	spread, all := false, hostCapacity{CPU: 1, RAM: 1}
	for _, host := range hosts {
		given := l.cluster.PVECapacity[host]
		bound.CPU, bound.RAM = bound.CPU+given.CPU, bound.RAM+given.RAM
		all.CPU, all.RAM = min(all.CPU, given.CPU), min(all.RAM, given.RAM)
	}
	for _, n := range l.spec.Nodes {
		wanted.CPU, wanted.RAM, spread = wanted.CPU+n.Cores, wanted.RAM+int(n.MemoryMiB), spread || len(n.Placement.Among) > 0
	}
	if !spread {
		return
	}
	for i, host := range hosts {
		if slices.Contains(hosts[:i], host) { // it would count twice
			l.Wrong(yamlschema.Element("proxmox.nodes", i), "keep one of them", "%s is in the list twice", host)
		}
	}
	if all.CPU > 0 && wanted.CPU > bound.CPU {
		l.Wrong("pve_capacity", "ask for fewer cores in "+NodesFile+", or correct the bounds", "the %d nodes together want %d cores, and all hosts together have %d", len(l.spec.Nodes), wanted.CPU, bound.CPU)
	}
	if all.RAM > 0 && wanted.RAM > bound.RAM {
		l.Wrong("pve_capacity", "ask for less ram in "+NodesFile+", or correct the bounds; the numbers count MiB", "the %d nodes together want %d MiB of memory, and all hosts together have %d MiB", len(l.spec.Nodes), wanted.RAM, bound.RAM)
	}
}
