package agent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/forwards"
	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
)

// Forwards are where it is written which ports of the host lead to which nodes;
// *forwards.Directory is one.
type Forwards interface {
	// Set makes what is there of a cluster its rules; without any nothing of it is there.
	Set(cluster string, rules []forwards.Rule) error
}

// forwarded is which ports of the host lead to nodes of a cluster.
type forwarded struct {
	cluster string
	rules   []forwards.Rule
	ended   bool      // the cluster is not managed any more
	checked time.Time // it is news again with another one
}

func isSameForwarded(a, b forwarded) bool {
	same := func(a, b forwards.Rule) bool { return a.Forward == b.Forward && slices.Equal(a.Nodes, b.Nodes) }
	return a.ended == b.ended && a.checked.Equal(b.checked) && slices.EqualFunc(a.rules, b.rules, same)
}

// startForwards starts to write which ports of the host lead to nodes, beside the loops of
// the clusters.
func (a *Agent) startForwards() {
	if a.c.Forwards == nil {
		return
	}
	a.forwarded = outbox.New(outbox.Config[forwarded]{
		Send: func(_ context.Context, f forwarded) error { return a.c.Forwards.Set(f.cluster, f.rules) },
		Same: isSameForwarded,
		OnAttempt: func(name string, f forwarded, err error) {
			a.c.OnForwarded(name, err)
			if err == nil && f.ended {
				a.forwarded.Remove(name)
			}
		},
	})
}

// forward takes which ports of the host lead to nodes of a cluster since its last pass:
// those that the host allows, to nodes that are Ready, or to all of a role of which none is.
func (m *managedCluster) forward(s cluster.Status, now time.Time) {
	if m.agent.forwarded == nil {
		return
	}
	d, _, err := m.InForce()
	p := m.agent.c.Policy()
	if err != nil || len(bounds.BlockUnknown(m.name, p)) > 0 {
		return // nothing is known of it yet, or of what the host allows
	}
	f := forwarded{cluster: m.name, checked: now.Truncate(checkReservations)}
	for _, wanted := range d.Spec.Forwards {
		if s.Destroying || !p.AllowsForward(wanted.Port) {
			continue
		}
		role := cluster.Worker
		if wanted.ControlPlanes {
			role = cluster.ControlPlane
		}
		if nodes := servingOf(s, role); len(nodes) > 0 {
			f.rules = append(f.rules, forwards.Rule{Forward: wanted, Nodes: nodes})
		}
	}
	m.agent.forwarded.Put(m.name, f)
}

// servingOf are the addresses of nodes of a role that are Ready, in order, or of all that have a machine where
// none is: what they serve may work still.
func servingOf(s cluster.Status, role cluster.Role) []netip.Addr {
	var all, ready []netip.Addr
	for _, n := range s.Nodes {
		ip, err := netip.ParseAddr(n.Address)
		if err != nil || !ip.Is4() || n.Role != role || n.Phase == cluster.PhaseAbsent || n.Phase == cluster.PhaseCreating {
			continue
		}
		if all = append(all, ip); n.Phase == cluster.PhaseReady {
			ready = append(ready, ip)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	slices.SortFunc(ready, netip.Addr.Compare)
	if len(ready) == 0 {
		return all
	}
	return ready
}

// endForwards has no port of the host lead to a cluster that is not managed any more.
func (a *Agent) endForwards(name string) {
	if a.forwarded != nil {
		a.forwarded.Put(name, forwarded{cluster: name, ended: true})
	}
}
