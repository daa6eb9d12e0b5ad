package machineconfig

import (
	"net/netip"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/config"
)

// addressesOf lists the addresses that a machine config gives to links of a node, virtual ones
// included, in whichever documents they stand. Source: Talos 1.14, machinery,
// config/config/machine.go and network.go.
func addressesOf(p config.Config) []netip.Addr {
	var out []netip.Addr
	add := func(text string) { // an address, or one with its network
		if network, err := netip.ParsePrefix(text); err == nil {
			out = append(out, network.Addr())
		} else if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	if m := p.Machine(); m != nil {
		for _, device := range m.Network().Devices() {
			for _, text := range device.Addresses() {
				add(text)
			}
			if vip := device.VIPConfig(); vip != nil {
				add(vip.IP())
			}
			for _, vlan := range device.Vlans() {
				for _, text := range vlan.Addresses() {
					add(text)
				}
				if vip := vlan.VIPConfig(); vip != nil {
					add(vip.IP())
				}
			}
		}
	}
	for _, link := range p.NetworkCommonLinkConfigs() {
		for _, a := range link.Addresses() {
			out = append(out, a.Address().Addr())
		}
	}
	for _, vip := range p.NetworkVirtualIPConfigs() {
		out = append(out, vip.VIP())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
