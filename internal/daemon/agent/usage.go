package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/usage"
)

// keepUsage is how long a report answers everybody who asks for what is in use: Proxmox
// VE measures every ten seconds, and readers may ask as often as they like.
const keepUsage = 5 * time.Second

// usageReport is the last report of what is in use.
type usageReport struct {
	turn chan struct{} // holds a token while one is made
	at   time.Time
	of   usage.Report
}

// Usage implements api.Cluster.
func (m *managedCluster) Usage(ctx context.Context) (usage.Report, error) {
	select { // one at a time
	case m.used.turn <- struct{}{}:
		defer func() { <-m.used.turn }()
	case <-ctx.Done():
		return usage.Report{}, ctx.Err()
	}
	if !m.used.at.IsZero() && time.Since(m.used.at) < keepUsage {
		return m.used.of, nil
	}
	r := usage.Report{Cluster: m.name, At: time.Now().UTC().Truncate(time.Second), Hosts: []usage.Host{}, VMs: []usage.VM{}}
	hosts := map[string]bool{}
	for _, n := range m.Status().Nodes {
		r.VMs = append(r.VMs, usage.VM{Node: n.Name, VMID: n.VMID})
		if n.Host != "" {
			hosts[n.Host] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		r.Hosts = append(r.Hosts, usage.Host{Name: name})
	}
	if err := m.agent.pve.Usage(ctx, &r); err != nil {
		return usage.Report{}, err
	}
	m.used.at, m.used.of = time.Now(), r
	return r, nil
}
