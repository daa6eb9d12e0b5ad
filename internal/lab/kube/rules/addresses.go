package rules

import (
	"encoding/binary"
	"net/netip"
	"strings"
)

// FirstRange reads the first of several ranges separated by commas; the zero
// Prefix if that is none.
func FirstRange(cidrs string) netip.Prefix {
	first, _, _ := strings.Cut(cidrs, ",")
	p, err := netip.ParsePrefix(strings.TrimSpace(first))
	if err != nil {
		return netip.Prefix{}
	}
	return p.Masked()
}

// NthAddr is the n-th address of a range, which may lie behind its end; the zero
// Addr if the range is none.
func NthAddr(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// NextRange returns the next part of each of several networks separated by commas after so many that are not taken: a /24 of the
// first, and with it a /64 of one of IPv6 behind it. It is "" when there is none left. With it is how many there are then.
func NextRange(networks string, used int, taken map[string]bool) (string, int) {
	network := FirstRange(networks)
	for {
		addr := NthAddr(network, used<<8)
		if !addr.Is4() || !network.Contains(addr) || network.Bits() > 24 {
			return "", used
		}
		used++
		if free := netip.PrefixFrom(addr, 24).String(); !taken[free] {
			return free + next6(networks, used-1), used
		}
	}
}

// next6 is the n-th /64 of the second of several networks, with a comma in front, "" when there is none.
func next6(networks string, n int) string {
	_, second, _ := strings.Cut(networks, ",")
	network := FirstRange(second)
	if !network.IsValid() || !network.Addr().Is6() || network.Bits() > 64 {
		return ""
	}
	b := network.Addr().As16()
	binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])+uint64(n))
	if addr := netip.AddrFrom16(b); network.Contains(addr) {
		return "," + netip.PrefixFrom(addr, 64).String()
	}
	return ""
}
