// Package dualstack is what a cluster has of IPv6 beside its IPv4 networks, which stay the first family: the networks, which
// of them Kubernetes takes together, and which address a node has.
//
// The package is pure. It must not know where networks are written, or what is made of them.
package dualstack

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Networks are the IPv6 networks of a cluster. The zero value is none: it has IPv4 alone.
type Networks struct {
	CIDR     netip.Prefix // of the nodes
	Gateway  netip.Addr   // zero: none
	Pods     netip.Prefix
	Services netip.Prefix
}

// On reports whether the cluster has both families.
func (n Networks) On() bool { return n.CIDR.IsValid() }

// Address is an IPv6 address as files have it.
type Address struct{ netip.Addr }

// Prefix is an IPv6 network as files have it.
type Prefix struct{ netip.Prefix }

// The spellings of IPv6 for JSON Schemas: whether it is one is for ParseAddress and ParsePrefix.
const (
	AddressPattern = `^[0-9A-Fa-f:]*:[0-9A-Fa-f:]*$`
	PrefixPattern  = `^[0-9A-Fa-f:]*:[0-9A-Fa-f:]*/\d{1,3}$`
)

// Examples of both.
const (
	ExampleAddress = "fd00:10:10::21"
	ExamplePrefix  = "fd00:10:10::/64"
)

// ParseAddress reads an IPv6 address. The text of its error is what to write instead.
func ParseAddress(s string) (Address, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return Address{}, errors.New("write one like " + ExampleAddress)
	case a.Is4():
		return Address{}, errors.New("write an IPv6 address, like " + ExampleAddress)
	case a.Is4In6():
		return Address{}, errors.New("write an IPv6 address: this is " + a.Unmap().String() + " in another spelling")
	case a.Zone() != "":
		return Address{}, errors.New("write it without %" + a.Zone() + ": it is that of the nodes' own link")
	}
	return Address{a}, nil
}

// ParsePrefix reads an IPv6 network. The text of its error is what to write instead.
func ParsePrefix(s string) (Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return Prefix{}, errors.New("write one like " + ExamplePrefix)
	case p.Addr().Is4():
		return Prefix{}, errors.New("write an IPv6 network, like " + ExamplePrefix)
	case p.Addr().Is4In6():
		return Prefix{}, errors.New("write an IPv6 network, like " + ExamplePrefix + ": these are IPv4 addresses in another spelling")
	case p != p.Masked():
		return Prefix{}, errors.New("write " + p.Masked().String() + ": the bits after the / must be zero")
	}
	return Prefix{p}, nil
}

// Fill fills in the networks inside a cluster that are not written: two of a /48 of unique local addresses that follows from
// the cluster's identity alone, which is its owner and its name, so that it keeps its own (RFC 4193, section 3.2).
func (n Networks) Fill(cluster string) Networks {
	sum := sha256.Sum256([]byte("IPv6 networks of cluster " + cluster))
	local := [16]byte{0: 0xfd}
	copy(local[1:6], sum[:])
	if !n.Services.IsValid() {
		n.Services = netip.PrefixFrom(netip.AddrFrom16(local), longestServices)
	}
	if !n.Pods.IsValid() {
		local[6] = 1
		n.Pods = netip.PrefixFrom(netip.AddrFrom16(local), 56)
	}
	return n
}

// AddressOf is the address of a node in the IPv6 network: its base, and on it the number that the node's IPv4 address has in the
// IPv4 network. ok is false where that is beyond the network, or the node has no such number.
func (n Networks) AddressOf(ip netip.Addr, in netip.Prefix) (a netip.Addr, ok bool) {
	if !ip.Is4() || !in.IsValid() || !in.Contains(ip) || !n.On() {
		return netip.Addr{}, false
	}
	own, base := ip.As4(), in.Masked().Addr().As4()
	number := binary.BigEndian.Uint32(own[:]) - binary.BigEndian.Uint32(base[:])
	if room := 128 - n.CIDR.Bits(); room < 32 && number>>room > 0 {
		return netip.Addr{}, false
	}
	b := n.CIDR.Masked().Addr().As16()
	binary.BigEndian.PutUint32(b[12:], binary.BigEndian.Uint32(b[12:])+number) // what is beyond the prefix is zero in the base
	return netip.AddrFrom16(b), true
}

// Misplaced is why an address cannot be a node's, and what to write instead; "" where it can.
func (n Networks) Misplaced(a netip.Addr) (message, hint string) {
	switch {
	case !n.CIDR.Contains(a):
		return fmt.Sprintf("%s is not in network.cidr6 %s", a, n.CIDR), "choose one inside it"
	case a == n.CIDR.Addr():
		return fmt.Sprintf("%s is the address of all routers of network.cidr6", a), "choose another one"
	case a == n.Gateway:
		return fmt.Sprintf("%s is the gateway6", a), "choose another one"
	}
	return "", ""
}
