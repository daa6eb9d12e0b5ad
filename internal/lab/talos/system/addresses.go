package system

import (
	"net/netip"
	"slices"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// ListAddresses lists the addresses of a machine's link: the node's own first, then that of IPv6 on its cloud-init drive, which
// only a nocloud image reads and which stays when a machine config comes, then those of the config.
func ListAddresses(g world.Guest, image world.Image, own netip.Prefix, others ...netip.Prefix) []netip.Prefix {
	all := []netip.Prefix{own}
	if image.Platform == "nocloud" {
		others = append([]netip.Prefix{g.Address6}, others...)
	}
	for _, p := range others {
		if p.IsValid() && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
