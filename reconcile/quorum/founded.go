package quorum

import "github.com/talos-agent/talos-agent/internal/cluster"

// WasSeen reports whether any etcd of this cluster was seen: then bootstrap
// is over for ever.
func WasSeen(o cluster.Observed) bool {
	if o.Members.Known && len(o.Members.Value) > 0 {
		return true
	}
	for _, m := range o.Machines {
		if s := m.Services["etcd"]; m.Reach == cluster.Configured && s.State == "Running" {
			return true
		}
	}
	return false
}

// IsNeverFounded reports whether a control plane provably has no etcd: it does
// not exist, has no config yet, or reports that its etcd still waits to be
// bootstrapped or to join. Silence proves nothing.
func IsNeverFounded(o cluster.Observed, n cluster.Node) bool {
	m := o.Machines[n.Name]
	if o.VMs[n.Name].Presence == cluster.Absent || m.Reach == cluster.Maintenance {
		return true
	}
	return m.Reach == cluster.Configured && m.Services["etcd"].State == "Preparing"
}
