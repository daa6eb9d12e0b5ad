package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/leases"
)

// lookout finds the addresses of nodes that have none in the inventory. It observes behind the machines, for it goes by
// which machine answered where.
type lookout struct {
	book   *leases.Book
	find   func(ctx context.Context, ask netip.Prefix, allowed func(netip.Addr) bool) leases.Seen // nil: they are not looked for
	policy func() cluster.Policy
	look   func() // has the next pass begin, with what was found
}

// Observe implements reconcile.Observer.
func (l lookout) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	if !slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool { return n.Leased }) {
		return
	}
	p, seen := l.policy(), leases.Seen{}
	if l.find != nil {
		ask := netip.Prefix{}
		if !l.book.Proven(d.Spec) {
			ask = d.Spec.Network.CIDR
		}
		seen = l.find(ctx, ask, func(ip netip.Addr) bool { return leases.Allows(p, ip) })
	}
	if l.book.Learn(d, o, seen, p) {
		l.look()
	}
}
