package ingress

import (
	"net/netip"
	"slices"

	cfgconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
)

// DropsAPI reports whether the ingress firewall of a config drops new connections to the
// Talos API from the host, which has the first address of the machine's network. Open
// connections stay: what is established is accepted first. Source: Talos 1.13,
// internal/app/machined/pkg/controllers/network/nftables_chain_config.go: where the
// default is to block, a rule accepts what comes from its subnets; where it is to accept,
// a rule drops what does not.
func DropsAPI(firewall cfgconfig.NetworkRuleConfig, machine netip.Prefix) bool {
	if firewall == nil || !machine.IsValid() {
		return false
	}
	host := machine.Masked().Addr().Next()
	blocks := firewall.DefaultAction() == nethelpers.DefaultActionBlock
	contains := func(p netip.Prefix) bool { return p.Contains(host) }
	for _, r := range firewall.Rules() {
		if r.Protocol() != nethelpers.ProtocolTCP || !slices.ContainsFunc(r.PortRanges(), func(p [2]uint16) bool {
			return p[0] <= constants.ApidPort && constants.ApidPort <= p[1]
		}) {
			continue
		}
		match := slices.ContainsFunc(r.Subnets(), contains) && !slices.ContainsFunc(r.ExceptSubnets(), contains)
		if match == blocks {
			return !blocks
		}
	}
	return blocks
}
