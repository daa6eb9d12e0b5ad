package formats

import (
	"net/netip"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

var macAddress = pattern.New(`^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`)

// readInterfaces reads the interfaces of a node: that with its address has the network, the
// gateway, the VIP and the VLAN. VMs have one interface.
func (t *talhelperReader) readInterfaces(n talhelperNode, own netip.Addr) {
	all := n.sections("networkInterfaces")
	main := 0
	for i, s := range all {
		if holdsAddress(s.value, own) {
			main = i
		}
	}
	for i, s := range all {
		if i != main {
			n.d.Leave(draft.Origin{File: s.file, Line: s.value.line}, s.path, "is an interface besides that of the node's address", "a VM has one interface")
			continue
		}
		t.readLink(n, s, own)
		s.taken["interface"] = true // Talos finds that of a VM
		t.readSelector(n, s)
		if vlans := s.value.get("vlans"); vlans != nil {
			t.readVLANs(n, s, own)
		}
		s.rest(talhelperHints)
	}
}

// holdsAddress reports whether an interface, or a VLAN of it, has an address.
func holdsAddress(v *value, own netip.Addr) bool {
	if list := v.get("addresses"); list != nil {
		for _, item := range list.items {
			if a, _, ok := parseIPv4(item.text); ok && a == own {
				return true
			}
		}
	}
	if vlans := v.get("vlans"); vlans != nil {
		for _, inner := range vlans.items {
			if holdsAddress(inner, own) {
				return true
			}
		}
	}
	return false
}

// readLink reads the addresses and routes of an interface or of a VLAN of it.
func (t *talhelperReader) readLink(n talhelperNode, s *section, own netip.Addr) {
	addresses := s.texts("addresses")
	if one := s.text("cidr"); one != "" {
		addresses = append(addresses, one)
	}
	for _, written := range addresses {
		a, bits, ok := parseIPv4(written)
		switch {
		case !ok:
			s.leave("addresses", "is no IPv4 address", "nodes have IPv4 addresses")
		case own.IsValid() && a != own:
			s.leave("addresses", "has an address besides that of the node", "nodes have one address")
		case bits >= 0:
			network := netip.PrefixFrom(a, bits).Masked()
			putInto(t.d, t.d.Cluster, s.origin("addresses"), draft.Text(network.String()), "network", "cidr")
			n.node.Set(draft.Origin{}, draft.Text(a.String()), "ip")
		}
	}
	for _, route := range s.sections("routes") {
		to, gateway := route.text("network"), route.text("gateway")
		if to != "" && to != "0.0.0.0/0" {
			route.leave("network", "is a route besides the default one", hintByPatch)
		} else if a, _, ok := parseIPv4(gateway); ok {
			putInto(t.d, t.d.Cluster, route.origin("gateway"), draft.Text(a.String()), "network", "gateway")
		}
		route.rest(map[string]string{})
	}
	if vip := s.section("vip"); vip != nil {
		if a, _, ok := parseIPv4(vip.text("ip")); ok {
			putInto(t.d, t.d.Cluster, vip.origin("ip"), draft.Text(a.String()), "network", "vip")
		}
		vip.rest(nil)
	}
	if dhcp, ok := s.truth("dhcp"); ok && dhcp && len(addresses) == 0 {
		s.leave("dhcp", "gives the node its address", "reserve it in the DHCP server, whose lines validate prints, or write network.cidr and network.gateway for static addresses")
	}
	s.taken["dhcpOptions"] = true // of what the agent configures itself
}

// readSelector reads the hardware address of the interface, which the VM gets.
func (t *talhelperReader) readSelector(n talhelperNode, s *section) {
	selector := s.section("deviceSelector")
	if selector == nil {
		return
	}
	for _, key := range []string{"hardwareAddr", "permanentAddr"} {
		mac := selector.text(key)
		switch {
		case mac == "":
		case macAddress.MatchString(mac):
			n.node.Set(draft.Origin{Name: key, File: s.file}, draft.Text(mac), "mac")
		default:
			selector.leave(key, "is no whole MAC address", "each VM gets one that is derived from its name, unless nodes.yaml has mac:")
		}
	}
	for _, key := range []string{"busPath", "pciID", "driver", "physical"} {
		selector.taken[key] = true // of real hardware
	}
	selector.rest(nil)
}

// readVLANs reads the VLANs of an interface: that with the node's address becomes the tag
// of the VM's interface.
func (t *talhelperReader) readVLANs(n talhelperNode, s *section, own netip.Addr) {
	for _, v := range s.sections("vlans") {
		if !holdsAddress(v.value, own) {
			t.d.Leave(draft.Origin{File: v.file, Line: v.value.line}, v.path, "is a VLAN without the node's address", hintByPatch)
			continue
		}
		t.readLink(n, v, own)
		if tag, ok := v.number("vlanId"); ok {
			putInto(t.d, t.d.Cluster, v.origin("vlanId"), draft.Number(tag), "network", "vlan")
		}
		v.rest(nil)
	}
}
