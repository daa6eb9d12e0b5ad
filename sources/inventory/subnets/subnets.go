// Package subnets counts IPv4 addresses within a network.
//
// The package is pure. It must not know whose addresses they are.
package subnets

import (
	"encoding/binary"
	"net/netip"
)

// HostPart is the part of an address behind the prefix of its network. Without
// a network the last byte counts as the host part.
func HostPart(a netip.Addr, cidr netip.Prefix) int {
	bits := 24
	if cidr.IsValid() {
		bits = cidr.Bits()
	}
	b := a.As4()
	return int(binary.BigEndian.Uint32(b[:]) & (1<<(32-bits) - 1))
}

// After returns the n-th address after a; ok is false beyond the last one.
func After(a netip.Addr, n int) (next netip.Addr, ok bool) {
	b := a.As4()
	sum := uint64(binary.BigEndian.Uint32(b[:])) + uint64(n)
	if sum > 1<<32-1 {
		return netip.Addr{}, false
	}
	binary.BigEndian.PutUint32(b[:], uint32(sum))
	return netip.AddrFrom4(b), true
}
