package dualstack

import (
	"fmt"
	"net/netip"
)

// The bounds of networks, as lengths of prefixes.
//
// Kubernetes 1.36: kube-apiserver takes services of at most 20 bits; kube-controller-manager gives each node a /64 of the pods'
// network, and takes one of at most 16 bits more. Talos 1.14: KubeNetworkConfig, at least 4 bits of each network are of hosts.
const (
	shortestNodes    = 32 // what a provider gives whole
	longestNodes     = 112
	shortestPods     = 48
	ofNode           = 64 // each node's part of the pods' network
	longestServices  = 108
	smallestServices = 124
)

// Where addresses of machines may come from: all that is global, and all that is unique local.
var (
	global      = netip.MustParsePrefix("2000::/3")
	uniqueLocal = netip.MustParsePrefix("fc00::/7")
)

// Finding is something that is wrong with networks.
type Finding struct {
	Field         string // of the network: cidr6
	Message, Hint string
}

// Check lists what is wrong with the networks, which are on. A network that is not valid is reported by whoever read it.
func (n Networks) Check() (out []Finding) {
	wrong := func(field, hint, format string, args ...any) {
		out = append(out, Finding{field, fmt.Sprintf(format, args...), hint})
	}
	named := []struct {
		field, what       string
		prefix            netip.Prefix
		shortest, longest int
		hint              string
	}{
		{"cidr6", "nodes", n.CIDR, shortestNodes, longestNodes, "write the prefix of the link, which is a /64 as a rule, and a /112 at the smallest"},
		{"pod_cidr6", "pods", n.Pods, shortestPods, ofNode, "write something between /48 and /64: every node gets a /64 of it"},
		{"svc_cidr6", "services", n.Services, longestServices, smallestServices, "write something between /108 and /124, like a /112"},
	}
	for i, x := range named {
		switch {
		case !x.prefix.IsValid():
			continue
		case !contains(global, x.prefix) && !contains(uniqueLocal, x.prefix):
			wrong(x.field, "write a global network (2000::/3) or a unique local one, like "+ExamplePrefix, "%s is neither global nor unique local: no machine can have an address of it", x.prefix)
		case x.prefix.Bits() < x.shortest || x.prefix.Bits() > x.longest:
			wrong(x.field, x.hint, "%s are not taken in a /%d", x.what, x.prefix.Bits())
		}
		for _, other := range named[:i] {
			if other.prefix.IsValid() && x.prefix.Overlaps(other.prefix) {
				wrong(x.field, "choose networks that share no address", "%s %s overlap with %s %s", x.what, x.prefix, other.what, other.prefix)
			}
		}
	}
	switch g := n.Gateway; {
	case !g.IsValid() || g.IsLinkLocalUnicast():
	case !n.CIDR.Contains(g):
		wrong("gateway6", "choose one inside it, or the router's link-local address, like fe80::1", "%s is not in network.cidr6 %s", g, n.CIDR)
	case g == n.CIDR.Addr():
		wrong("gateway6", "write the router's own address", "%s is the address of all routers of network.cidr6", g)
	}
	return out
}

// RoomForNodes is how many nodes the pods' network has a part for.
func (n Networks) RoomForNodes() int { return 1 << max(0, ofNode-n.Pods.Bits()) }

// contains reports whether a network lies in another one.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}
