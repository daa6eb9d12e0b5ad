package network

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"

	networkpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/network"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	cfgconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/proto"

	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// Settings are what a config sets for the link. Zero: nothing.
type Settings struct {
	Address netip.Prefix   // the node's
	Others  []netip.Prefix // further ones
	Alias   string
	VIP     netip.Addr

	link, mac string
}

// Read works out what a config sets for the link of that name and hardware address.
func Read(cfg config.Provider, link, mac string) (*Settings, error) {
	s := &Settings{link: link, mac: mac}
	if err := s.findAlias(cfg); err != nil {
		return nil, err
	}
	for _, l := range cfg.NetworkCommonLinkConfigs() {
		on := s.isOurs(l.Name())
		if v, ok := l.(cfgconfig.NetworkVLANConfig); ok {
			on = s.isOurs(v.ParentLink())
		}
		for _, a := range l.Addresses() {
			s.acceptAddress(on, a.Address())
		}
	}
	for _, v := range cfg.NetworkVirtualIPConfigs() {
		if s.isOurs(v.Link()) {
			s.VIP = v.VIP()
		}
	}
	return s, s.readLegacy(cfg)
}

func (s *Settings) findAlias(cfg config.Provider) error {
	var spec networkpb.LinkStatusSpec
	if err := proto.ResourceSpecToProto(system.NewLink(s.link, s.mac), &spec); err != nil {
		return fmt.Errorf("describe link %s: %w", s.link, err)
	}
	for _, a := range cfg.NetworkLinkAliasConfigs() {
		selector := a.LinkSelector()
		matches, err := selector.EvalBool(celenv.LinkLocator(), map[string]any{"link": &spec})
		if err != nil {
			return fmt.Errorf("evaluate link selector of %s: %w", a.Name(), err)
		}
		if matches && s.Alias == "" {
			s.Alias = strings.Replace(a.Name(), "%d", "0", 1)
		}
	}
	return nil
}

func (s *Settings) isOurs(link string) bool {
	return link == s.link || s.Alias != "" && link == s.Alias
}

// readLegacy finds the same in what versions up to v1.11 are given.
func (s *Settings) readLegacy(cfg config.Provider) error {
	if cfg.Machine().Network() == nil {
		return nil
	}
	for _, d := range cfg.Machine().Network().Devices() {
		on := s.isOurs(d.Interface())
		if sel := d.Selector(); sel != nil {
			on = sameMAC(sel.HardwareAddress(), s.mac) || sameMAC(sel.PermanentAddress(), s.mac)
		}
		for _, a := range d.Addresses() {
			p, err := netip.ParsePrefix(a)
			if err != nil {
				return fmt.Errorf("read address of %s: %w", d.Interface(), err)
			}
			s.acceptAddress(on && !d.Ignore(), p)
		}
		if v := d.VIPConfig(); v != nil && on {
			if ip, err := netip.ParseAddr(v.IP()); err == nil {
				s.VIP = ip
			}
		}
	}
	return nil
}

// acceptAddress accepts an address of the machine's link. The first of IPv4 is the node's.
func (s *Settings) acceptAddress(ours bool, p netip.Prefix) {
	switch {
	case !ours || p == s.Address:
	case !s.Address.IsValid() && p.Addr().Is4():
		s.Address = p
	default:
		s.Others = append(s.Others, p)
	}
}

// sameMAC compares hardware addresses in any spelling; an empty one equals
// nothing.
func sameMAC(a, b string) bool {
	x, errX := net.ParseMAC(a)
	y, errY := net.ParseMAC(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
