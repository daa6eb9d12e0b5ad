package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// resolveCapacity checks what the inventory gives of its hosts, and that its own nodes
// do not ask for more. What else is on a host only its agent sees.
func (l *loader) resolveCapacity() {
	hosts := l.cluster.Proxmox.Nodes
	if l.cluster.Proxmox.Node != "" {
		hosts = []string{l.cluster.Proxmox.Node}
	}
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
