package probe

import (
	"encoding/binary"
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
		"/proc/thread-self/net/fib_trie": parseFIB, "/proc/thread-self/net/if_inet6": parseInet6, "/proc/thread-self/net/route": parseRoutes,
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
		if len(digits) != 32 {
			continue
		}
		var b [16]byte
		for i := range b {
			n, err := strconv.ParseUint(digits[2*i:2*i+2], 16, 8)
			if err != nil {
				return out
			}
			b[i] = byte(n)
		}
		if a := netip.AddrFrom16(b); !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			out = append(out, a)
		}
	}
	return out
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
