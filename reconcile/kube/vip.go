package kube

import (
	"context"
	"net/netip"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// vipPause is how long a VIP at which no API answered is not asked again: to ask takes
// readyWithin when no machine has the address.
const vipPause = 5 * time.Second

// vip is the control planes' virtual address as it was seen last.
type vip struct {
	addr  netip.Addr
	asked time.Time
	seen  cluster.VirtualIP
}

// due reports whether it is time to ask again.
func (v vip) due(now time.Time) bool {
	if v.seen.Served {
		return now.Sub(v.asked) >= readyFor
	}
	return now.Sub(v.asked) >= vipPause
}

// seeVIP asks what answers at the cluster's VIP, when a kube-apiserver is ready on its
// own address: before that there is none to hold it. It is all that is ever asked
// through it.
func (k *Cluster) seeVIP(ctx context.Context, conn *kubeapi.Connection, addr netip.Addr) cluster.Seen[cluster.VirtualIP] {
	now := time.Now()
	k.mu.Lock()
	_, ready := k.best()
	v := k.vip
	k.mu.Unlock()
	switch {
	case !addr.IsValid():
		return cluster.Unseen[cluster.VirtualIP]("the cluster has no VIP")
	case !ready:
		return cluster.Unseen[cluster.VirtualIP]("no kube-apiserver is ready on a control plane's own address")
	case v.addr == addr && !v.due(now):
		return cluster.Saw(v.seen)
	}
	v = vip{addr: addr, asked: now, seen: k.askVIP(ctx, conn, addr)}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == conn { // otherwise it was asked with other credentials
		k.vip = v
	}
	return cluster.Saw(v.seen)
}

// askVIP asks once, over a new connection: an old one leads to whoever had the address
// then. Whoever shows the cluster's certificate there serves it, ready or not.
func (k *Cluster) askVIP(ctx context.Context, conn *kubeapi.Connection, addr netip.Addr) cluster.VirtualIP {
	_, _, err := askReadyz(ctx, conn, addr, true)
	if err == nil {
		return cluster.VirtualIP{Served: true}
	}
	return cluster.VirtualIP{Why: kubeapi.Reason(err), MAC: k.neighbour(addr)}
}
