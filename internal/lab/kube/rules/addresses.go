package rules

import (
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

// NextRange returns the next /24 of a network after so many that is not taken, "" when there is none left, and how many there are with it.
func NextRange(network netip.Prefix, used int, taken map[string]bool) (string, int) {
	for {
		addr := NthAddr(network, used<<8)
		if !addr.Is4() || !network.Contains(addr) || network.Bits() > 24 {
			return "", used
		}
		used++
		if free := netip.PrefixFrom(addr, 24).String(); !taken[free] {
			return free, used
		}
	}
}
