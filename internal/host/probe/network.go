//go:build linux

package probe

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

	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/retry"
)

// findWay finds how this host reaches an address that is asked for, and who answers
// there, if it is on a network where that may be asked.
func findWay(parent context.Context, wants doctor.Wants, ip netip.Addr) (doctor.Way, error) {
	w, err := findRoute(ip)
	if err != nil || w.Loopback || w.Via.IsValid() {
		return w, err
	}
	if !wants.MayAsk(ip, w) {
		w.Unasked = true
		return w, nil
	}
	link, err := netlink.LinkByName(w.Link)
	if err != nil {
		return w, fmt.Errorf("look for the interface of the route: %w", err)
	}
	ctx, cancel := context.WithTimeout(parent, neighbourTimeout)
	defer cancel()
	w.MAC, w.Earlier, err = resolveNeighbour(ctx, link.Attrs().Index, ip, func(mac string) bool { return wants.Expects(ip, mac) })
	return w, errors.Join(err, parent.Err())
}

// findRoute finds how this host would reach an address, and sends nothing.
func findRoute(ip netip.Addr) (doctor.Way, error) {
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

// neighbourTimeout is how long the kernel may ask for a neighbour: three times, once a
// second. One that it knows from earlier it takes at its word for another five
// seconds before (ARP: /proc/sys/net/ipv4/neigh/default, delay_first_probe_time),
// and its timers strike up to an eighth late.
const neighbourTimeout = 11 * time.Second

// resolveNeighbour finds the MAC behind an address on a link, "" when no one answers.
// A datagram to the discard port has the kernel ask. Of a MAC that the kernel knows
// from earlier and that is as expected, no more is asked; of another one, until it
// has answered again, or the kernel has given it up: earlier means that neither came
// about until ctx ended.
func resolveNeighbour(ctx context.Context, link int, ip netip.Addr, expected func(mac string) bool) (mac string, earlier bool, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", netip.AddrPortFrom(ip, 9).String())
	if err != nil {
		return "", false, fmt.Errorf("ask for a neighbour: %w", err)
	}
	defer func() { _ = c.Close() }()
	// What it reports of an earlier try the table has as well.
	if _, err := c.Write([]byte{0}); err != nil && !errors.Is(err, syscall.EHOSTUNREACH) {
		return "", false, fmt.Errorf("ask for a neighbour: %w", err)
	}
	for {
		last := ctx.Err() != nil // however long it takes until it is this one's turn
		mac, over, err := lookUpNeighbour(link, ip)
		if err != nil || over || mac != "" && expected(mac) {
			return mac, false, err
		}
		if last {
			return mac, mac != "", nil
		}
		_ = retry.Sleep(ctx, 50*time.Millisecond) // its end is heeded above
	}
}

// lookUpNeighbour looks an address up in the neighbour table; over is false while the
// kernel still asks, be it for one who has answered earlier (rtnetlink(7): stale,
// delay and probe are that).
func lookUpNeighbour(link int, ip netip.Addr) (mac string, over bool, err error) {
	all, err := netlink.NeighList(link, addressFamily(ip))
	if err != nil {
		return "", false, fmt.Errorf("read the neighbour table: %w", err)
	}
	for _, n := range all {
		if at, ok := netip.AddrFromSlice(n.IP); !ok || at.Unmap() != ip {
			continue
		}
		mac = strings.ToUpper(n.HardwareAddr.String())
		switch {
		case n.State&(netlink.NUD_REACHABLE|netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0:
			return mac, true, nil
		case n.State&(netlink.NUD_STALE|netlink.NUD_DELAY|netlink.NUD_PROBE) != 0:
			return mac, false, nil
		case n.State&netlink.NUD_FAILED != 0:
			return "", true, nil
		}
	}
	return "", false, nil
}

func addressFamily(ip netip.Addr) int {
	if ip.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// listNeighbours are all entries of the neighbour table in which somebody answered.
func listNeighbours() ([]doctor.Neighbour, error) {
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

// FindRouter is where this host sends what is not for its own networks; zero
// when there is no such place, or it is unknown.
func FindRouter() netip.Addr {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return netip.Addr{}
	}
	for _, r := range routes {
		if ip, ok := netip.AddrFromSlice(r.Gw); ok && (r.Dst == nil || r.Dst.IP.IsUnspecified()) {
			return ip.Unmap()
		}
	}
	return netip.Addr{}
}
