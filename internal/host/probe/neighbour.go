package probe

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// FindMAC is the MAC of the machine that has an address on one of this host's networks,
// in upper case; "" when the kernel does not know it. It needs no privilege, and
// unlike netlink no socket.
func FindMAC(addr netip.Addr) string {
	table, err := os.ReadFile("/proc/thread-self/net/arp")
	if err != nil {
		return "" // not known
	}
	return findInARP(string(table), addr)
}

// complete is the flag of an entry that somebody answered for (linux/if_arp.h: ATF_COM).
const complete = 0x2

// findInARP finds an address in the kernel's table: IP address, HW type, flags, HW
// address, mask, device (proc_net(5)).
func findInARP(table string, addr netip.Addr) string {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 || f[0] != addr.String() {
			continue
		}
		if flags, err := strconv.ParseUint(f[2], 0, 32); err == nil && flags&complete != 0 {
			return strings.ToUpper(f[3])
		}
	}
	return ""
}
