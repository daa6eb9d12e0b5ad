package inventory

import (
	"net/netip"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/dualstack"
)

// resolveIPv6 fills in and checks what the cluster has of IPv6.
func (l *loader) resolveIPv6() {
	n := &l.cluster.Network
	if !l.Has("network.cidr6") {
		for _, field := range []string{"network.gateway6", "network.pod_cidr6", "network.svc_cidr6"} {
			l.needsIPv6(field, l.Has(field))
		}
		return
	}
	switch {
	case !n.CIDR6.IsValid():
		return
	case l.spec.Network.Mode == cluster.AddressStatic, l.unread("network.cidr"), l.unread("network.gateway"), l.unread("network.address_mode"):
	case !l.Has("network.cidr") && !l.Has("network.gateway"):
		l.Wrong("network.cidr6", "write cidr and gateway, too", "a cluster cannot have IPv6 alone: IPv4 is its first family")
	default:
		l.Wrong("network.cidr6", "remove address_mode, or cidr6", "needs static addresses: nothing shows which IPv6 address a node gets by DHCP")
	}
	net := dualstack.Networks{CIDR: n.CIDR6.Prefix, Gateway: n.Gateway6.Addr, Pods: n.PodCIDR6.Prefix, Services: n.ServiceCIDR6.Prefix}
	l.spec.Network.IPv6 = net.Fill(l.spec.ID)
	for _, f := range l.spec.Network.IPv6.Check() {
		l.Wrong("network."+f.Field, f.Hint, "%s", f.Message)
	}
}

// needsIPv6 reports what is written of IPv6 in a cluster that has none.
func (l *loader) needsIPv6(field string, written bool) {
	if written && l.clusterRead && !l.unread("network.cidr6") {
		l.Wrong(field, "write the IPv6 network of the nodes as network.cidr6 in "+ClusterFile+", or remove it", "needs network.cidr6")
	}
}

// address6 is the IPv6 address of a node: what is written, or else what follows from its IPv4 address.
func (l *loader) address6(d draft) netip.Addr {
	n, field := l.spec.Network, d.field+".ip6"
	switch written := l.Has(field); {
	case !n.IPv6.On():
		l.needsIPv6(field, written && !l.Has("network.cidr6"))
		return netip.Addr{}
	case written || l.Misspelt(field):
		if message, hint := n.IPv6.Misplaced(d.ip6); d.ip6.IsValid() && message != "" {
			l.Wrong(field, hint, "%s", message)
		}
		return d.ip6
	}
	ip6, ok := n.IPv6.AddressOf(d.ip, n.CIDR)
	message, hint := n.IPv6.Misplaced(ip6)
	switch {
	case !ok && d.ip.IsValid() && n.CIDR.IsValid() && n.CIDR.Contains(d.ip):
		l.wrongOf(d, d.ipField, "write a larger network.cidr6, like a /64", "%s has a number in network.cidr %s that is beyond network.cidr6 %s", d.showIP(), n.CIDR, n.IPv6.CIDR)
	case ok && message != "":
		l.wrongOf(d, d.ipField, hint+", or another gateway6", "the IPv6 address that follows from %s cannot be: %s", d.showIP(), message)
	}
	return ip6
}
