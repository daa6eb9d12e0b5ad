// Package dhcp is the DHCP server of a lab, as far as machines and the agent see it: who gets which address, and its
// lease file, which is one of dnsmasq.
//
// The protocol itself is left out: a machine asks when it boots, and keeps what it got until it boots again. The
// server gives away the address of another machine as soon as Move asks for that, as a real one does when a
// lease has ended.
package dhcp

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config is what a server gives away.
type Config struct {
	// Reservations are the addresses of MACs, in lower case.
	Reservations map[string]netip.Prefix
	// From is the first address for all others, with the length of its network; zero: they get none.
	From netip.Prefix
}

// Server is a DHCP server. The zero value gives no client an address.
type Server struct {
	c Config

	mu     sync.Mutex
	leases map[string]netip.Prefix // by lower-case MAC
	moves  map[string]netip.Prefix // what they get when they ask again
}

// New returns a server without leases.
func New(c Config) *Server {
	return &Server{c: c, leases: map[string]netip.Prefix{}, moves: map[string]netip.Prefix{}}
}

// Lease gives a machine its address; invalid: there is none for it.
func (s *Server) Lease(mac string) netip.Prefix {
	mac = strings.ToLower(mac)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.moves[mac]; ok {
		delete(s.moves, mac)
		s.leases[mac] = p
	}
	if have, ok := s.leases[mac]; ok {
		return have
	}
	p, reserved := s.c.Reservations[mac]
	if !reserved {
		p = s.nextFree()
	}
	if p.IsValid() {
		s.leases[mac] = p
	}
	return p
}

// nextFree is the first address that no client has; invalid: there is none. s.mu is held.
func (s *Server) nextFree() netip.Prefix {
	if !s.c.From.IsValid() {
		return netip.Prefix{}
	}
	taken := map[netip.Addr]bool{}
	for _, all := range []map[string]netip.Prefix{s.leases, s.c.Reservations, s.moves} {
		for _, p := range all {
			taken[p.Addr()] = true
		}
	}
	ip := s.c.From.Addr()
	for taken[ip] {
		ip = ip.Next()
	}
	if !s.c.From.Contains(ip) {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(ip, s.c.From.Bits())
}

// Move has a machine get another address when it asks again, whoever had that before: until then its lease is the
// old one, if it has one.
func (s *Server) Move(mac string, to netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moves[strings.ToLower(mac)] = to
}

// leaseTime is how long leases are. Machines that run renew them, so that each has at least half of it left.
const leaseTime = 12 * time.Hour

// File is the lease file at a time, as dnsmasq 2.90 writes it (lease.c, lease_update_file).
func (s *Server) File(now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, mac := range slices.Sorted(maps.Keys(s.leases)) {
		fmt.Fprintf(&b, "%d %s %s * ff:%s\n", now.Add(leaseTime).Unix(), mac, s.leases[mac].Addr(), strings.TrimPrefix(mac, "bc:24:"))
	}
	return b.String()
}

// Addresses are the addresses of machines by MAC, in upper case, as the agent's host finds them in the file.
func (s *Server) Addresses() map[string][]netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]netip.Addr{}
	for mac, p := range s.leases {
		out[strings.ToUpper(mac)] = []netip.Addr{p.Addr()}
	}
	return out
}
