package probe

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// FindTaken lists the addresses that this host has, and those of the routers it sends to: what
// no machine of a cluster can have. It needs no privilege, and unlike netlink no socket. What
// cannot be read is left out.
func FindTaken() []netip.Addr {
	var out []netip.Addr
	// The namespace of this thread, as net.InterfaceAddrs: "self" is that of the first thread, which a
	// goroutine may have left in another one.
	for file, parse := range map[string]func(string) []netip.Addr{
		"/proc/thread-self/net/fib_trie": parseFIB, "/proc/thread-self/net/if_inet6": parseInet6, "/proc/thread-self/net/route": parseRoutes, "/proc/thread-self/net/ipv6_route": parseRoutes6,
	} {
		if text, err := os.ReadFile(file); err == nil { // there may be no IPv6
			out = append(out, parse(string(text))...)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// parseFIB lists the local addresses of the kernel's routing table: a line with an address, and
// below it how it is routed. Source: Linux 6.18, net/ipv4/fib_trie.c, fib_trie_seq_show.
func parseFIB(table string) (out []netip.Addr) {
	var last string
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && f[0] == "|--":
			last = f[1]
		case len(f) == 3 && f[0] == "/32" && f[1] == "host" && f[2] == "LOCAL":
			if a, err := netip.ParseAddr(last); err == nil && !a.IsLoopback() {
				out = append(out, a)
			}
		}
	}
	return out
}

// parseInet6 lists the addresses of the kernel's interfaces: 32 hex digits begin each line
// (proc_net(5)). Each link has some that begin with fe80; they are no one's but the link's.
func parseInet6(table string) (out []netip.Addr) {
	for line := range strings.Lines(table) {
		digits, _, _ := strings.Cut(line, " ")
		out = append(out, parseHex6(digits)...)
	}
	return out
}

// parseRoutes6 lists the gateways of the kernel's IPv6 routes: the fifth column, in 32 hex digits. Those that begin with fe80 are
// of one link alone. Source: Linux 6.18, net/ipv6/route.c, rt6_info_route.
func parseRoutes6(table string) (out []netip.Addr) {
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 4 {
			out = append(out, parseHex6(f[4])...)
		}
	}
	return out
}

// parseHex6 is an address of 32 hex digits; none of what is no machine's to have, or is one link's alone.
func parseHex6(digits string) []netip.Addr {
	b, err := hex.DecodeString(digits)
	a, ok := netip.AddrFromSlice(b)
	if err != nil || !ok || !a.Is6() || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() {
		return nil
	}
	return []netip.Addr{a}
}

// parseRoutes lists the gateways of the kernel's routes: the third column, as the host's
// processor orders its bytes (proc_net(5)).
func parseRoutes(table string) (out []netip.Addr) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 4 || len(f[2]) != 8 {
			continue
		}
		n, err := strconv.ParseUint(f[2], 16, 32)
		if err != nil || n == 0 {
			continue // the head of the table, or a network of this host's own
		}
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], uint32(n))
		out = append(out, netip.AddrFrom4(b))
	}
	return out
}
