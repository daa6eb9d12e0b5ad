package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/talos-agent/talos-agent/internal/doctor"
)

// wayTo finds how this host reaches an address, and who answers there, if it is
// on one of the host's own networks.
func wayTo(ctx context.Context, ip netip.Addr) (doctor.Way, error) {
	w, err := routeTo(ip)
	if err != nil || w.Loopback || w.Via.IsValid() {
		return w, err
	}
	link, err := netlink.LinkByName(w.Link)
	if err != nil {
		return w, fmt.Errorf("look for the interface of the route: %w", err)
	}
	w.MAC, err = whoAnswers(ctx, link.Attrs().Index, ip)
	return w, err
}

// routeTo finds how this host would reach an address, and sends nothing.
func routeTo(ip netip.Addr) (doctor.Way, error) {
	routes, err := netlink.RouteGet(ip.AsSlice())
	if err != nil {
		return doctor.Way{}, fmt.Errorf("look for a route: %w", err)
	}
	if len(routes) == 0 {
		return doctor.Way{}, errors.New("there is no route")
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return doctor.Way{}, fmt.Errorf("look for the interface of the route: %w", err)
	}
	w := doctor.Way{Link: link.Attrs().Name, Loopback: link.Attrs().Flags&net.FlagLoopback != 0}
	if via, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		w.Via = via.Unmap()
	}
	return w, nil
}

// resolveWithin is how long the kernel may ask for a neighbour: it does so
// three times, once a second.
const resolveWithin = 4 * time.Second

// whoAnswers finds the MAC behind an address on a link, "" when nobody answers.
// A datagram to the discard port has the kernel ask.
func whoAnswers(parent context.Context, link int, ip netip.Addr) (string, error) {
	ctx, cancel := context.WithTimeout(parent, resolveWithin)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", netip.AddrPortFrom(ip, 9).String())
	if err != nil {
		return "", fmt.Errorf("ask for a neighbour: %w", err)
	}
	defer func() { _ = c.Close() }()
	// What it says of an earlier try is told by the table as well.
	if _, err := c.Write([]byte{0}); err != nil && !errors.Is(err, syscall.EHOSTUNREACH) {
		return "", fmt.Errorf("ask for a neighbour: %w", err)
	}
	for {
		mac, over, err := inTable(link, ip)
		if err != nil || over {
			return mac, err
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return "", parent.Err()
		}
	}
}

// inTable looks an address up in the neighbour table; over is false while the
// kernel still asks.
func inTable(link int, ip netip.Addr) (mac string, over bool, err error) {
	all, err := netlink.NeighList(link, family(ip))
	if err != nil {
		return "", false, fmt.Errorf("read the neighbour table: %w", err)
	}
	for _, n := range all {
		if at, ok := netip.AddrFromSlice(n.IP); !ok || at.Unmap() != ip {
			continue
		}
		switch {
		case n.State&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY|netlink.NUD_PROBE|netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0:
			return strings.ToUpper(n.HardwareAddr.String()), true, nil
		case n.State&netlink.NUD_FAILED != 0:
			return "", true, nil
		}
	}
	return "", false, nil
}

func family(ip netip.Addr) int {
	if ip.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// neighbours are all entries of the neighbour table in which somebody answered.
func neighbours() ([]doctor.Neighbour, error) {
	all, err := netlink.NeighList(0, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("read the neighbour table: %w", err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var out []doctor.Neighbour
	for _, n := range all {
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok || len(n.HardwareAddr) == 0 || n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE|netlink.NUD_NOARP) != 0 {
			continue // nobody answered, or nobody was asked
		}
		out = append(out, doctor.Neighbour{Link: names[n.LinkIndex], IP: ip.Unmap(), MAC: strings.ToUpper(n.HardwareAddr.String())})
	}
	return out, nil
}
