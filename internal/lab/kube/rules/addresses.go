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
