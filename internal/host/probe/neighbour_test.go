package probe

import (
	"net/netip"
	"testing"
)

func TestFindMACInTheTable(t *testing.T) {
	const table = `IP address       HW type     Flags       HW address            Mask     Device
10.10.0.1        0x1         0x2         bc:24:11:aa:bb:cc     *        vmbr1
10.10.0.5        0x1         0x0         00:00:00:00:00:00     *        vmbr1
10.10.0.50       0x1         0x2         bc:24:11:00:00:50     *        vmbr1
10.10.0.7        0x1         0x6         bc:24:11:00:00:07     *        vmbr1
10.10.0.8        broken
`
	for addr, want := range map[string]string{
		"10.10.0.1": "BC:24:11:AA:BB:CC", "10.10.0.5": "", "10.10.0.50": "BC:24:11:00:00:50", "10.10.0.7": "BC:24:11:00:00:07",
		"10.10.0.8": "", "10.10.0.9": "", "fd00::1": "",
	} {
		if got := findInARP(table, netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
}
