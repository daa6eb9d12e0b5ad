package addresses

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// askEvery is how far apart the machines of a network are asked for at least.
const askEvery = 30 * time.Second

// mostAsked is the longest prefix short of which no address is asked for: the kernel keeps 128 neighbours without a
// question, and forgets the oldest beyond 1024 (/proc/sys/net/ipv4/neigh/default: gc_thresh1, gc_thresh3).
const mostAsked = 24

// discard is the port that a datagram goes to: it has the kernel ask for the neighbour, and gets no answer (RFC 863).
const discard = 9

// Ask has the kernel ask who has the addresses of a network, so that its table has those who answer a
// moment later: a datagram of one byte to each that allowed has. None is asked for in a network that is larger than a
// /24 or that this host has no address in, nor more often than every 30 seconds.
func (f *Finder) Ask(ctx context.Context, network netip.Prefix, allowed func(netip.Addr) bool, now time.Time) {
	if !network.IsValid() || !network.Addr().Is4() || network.Bits() < mostAsked || !f.own(ctx, network) || !f.isDue(network, now) {
		return
	}
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return // it is asked again, and the table is read all the same
	}
	defer func() { _ = c.Close() }()
	first := network.Masked().Addr()
	for ip := first.Next(); network.Contains(ip) && network.Contains(ip.Next()) && ctx.Err() == nil; ip = ip.Next() {
		if allowed(ip) {
			// That one has not answered an earlier one is no reason not to ask the others.
			_, _ = c.WriteToUDPAddrPort([]byte{0}, netip.AddrPortFrom(ip, discard))
		}
	}
}

// isDue reports whether it is time to ask, and notes that it is done.
func (f *Finder) isDue(network netip.Prefix, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last, ok := f.asked[network]; ok && now.Sub(last) < askEvery && !now.Before(last) {
		return false
	}
	f.asked[network] = now
	return true
}

// isOwn reports whether this host has an address in a network, by how the kernel would reach it: what is behind a
// router is no neighbour.
func isOwn(ctx context.Context, network netip.Prefix) bool {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp4", netip.AddrPortFrom(network.Masked().Addr().Next(), discard).String())
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	own, err := netip.ParseAddrPort(c.LocalAddr().String())
	return err == nil && network.Contains(own.Addr())
}
