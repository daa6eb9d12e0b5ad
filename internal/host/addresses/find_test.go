package addresses

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	leaseFile = `1796000000 bc:24:11:00:00:01 10.10.0.101 dev-wk-1 ff:11:00:00:01
1795000000 bc:24:11:00:00:01 10.10.0.90 * ff:old
0 BC:24:11:00:00:02 10.10.0.102 * *
1796000000 06-bc:24:11:00:00:03 10.10.0.103 * *
1796000000 bc:24:11:00:00:04 not-an-address * *
soon bc:24:11:00:00:04 10.10.0.104 * *
1796000000 bc:24:11:00:00:0
duid 00:01:00:01:2a:00:00:00:bc:24:11:00:00:01
1796000000 12345 fd00::101 dev-wk-1 00:01
1796000000 bc:24:11:00:00:05 10.10.0.105 * *
`
	arpTable = `IP address       HW type     Flags       HW address            Mask     Device
10.10.0.101      0x1         0x2         bc:24:11:00:00:01     *        vmbr1
10.10.0.120      0x1         0x2         bc:24:11:00:00:01     *        vmbr1
10.10.0.106      0x1         0x2         bc:24:11:00:00:06     *        vmbr1
10.10.0.107      0x1         0x0         00:00:00:00:00:00     *        vmbr1
10.10.0.108      0x1         0x6         bc:24:11:00:00:08     *        vmbr1
short line
`
)

// write writes a file of the test, and returns its name.
func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestFind: the leases that end last come first, then the neighbours who have answered, and nothing else is taken.
func TestFind(t *testing.T) {
	f := New(write(t, "leases", leaseFile))
	f.arp = write(t, "arp", arpTable)
	got, err := f.Find()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"BC:24:11:00:00:01": {"10.10.0.101", "10.10.0.90", "10.10.0.120"}, "BC:24:11:00:00:02": {"10.10.0.102"},
		"BC:24:11:00:00:06": {"10.10.0.106"}, "BC:24:11:00:00:08": {"10.10.0.108"},
	}
	for mac, ips := range want {
		if have := got[mac]; !slices.EqualFunc(have, ips, func(ip netip.Addr, text string) bool { return ip.String() == text }) {
			t.Errorf("%s: %v, want %v", mac, have, ips)
		}
	}
	if len(got) != len(want) {
		t.Errorf("there are %v", slices.Sorted(maps.Keys(got)))
	}
	if where := f.Where(); !strings.HasPrefix(where, f.files[0]+", the table of neighbours") {
		t.Errorf("%q", where)
	}
}

// TestFindUnread: what cannot be read is named, and the rest is found all the same.
func TestFindUnread(t *testing.T) {
	large := write(t, "large", strings.Repeat("x", maxFile+1))
	missing := filepath.Join(t.TempDir(), "missing")
	f := New(missing, t.TempDir(), large, write(t, "leases", leaseFile))
	f.arp = filepath.Join(t.TempDir(), "no arp")
	got, err := f.Find()
	if err == nil || len(got["BC:24:11:00:00:01"]) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	for _, words := range []string{"cannot read the leases: open " + missing, " is no file", large + " is larger than 4 MiB", "cannot read the table of neighbours: "} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%q is not in %v", words, err)
		}
	}
}

// TestFindHere: the kernel's own table can be read.
func TestFindHere(t *testing.T) {
	if _, err := New().Find(); err != nil {
		t.Error(err)
	}
}

// TestAsk: each allowed address of a network that this host is in gets a datagram, not more often than it may be, and
// those of other networks and of large ones get none.
func TestAsk(t *testing.T) {
	own := netip.MustParsePrefix("127.77.3.0/29")
	heard := func(ip string) chan bool {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip), Port: discard})
		if err != nil {
			t.Skipf("the discard port cannot be listened to here: %v", err)
		}
		t.Cleanup(func() { _ = c.Close() })
		out := make(chan bool, 10)
		go func() {
			b := make([]byte, 8)
			for {
				if _, _, err := c.ReadFromUDP(b); err != nil {
					close(out)
					return
				}
				out <- true
			}
		}()
		return out
	}
	first, last := heard("127.77.3.1"), heard("127.77.3.6")
	var asked []netip.Addr
	allowed := func(ip netip.Addr) bool {
		asked = append(asked, ip)
		return ip != netip.MustParseAddr("127.77.3.3")
	}
	f, now := New(), time.Now()
	f.own = func(context.Context, netip.Prefix) bool { return true } // 127.0.0.1 is this host's address to itself, whatever the network
	f.Ask(t.Context(), own, allowed, now)
	<-first
	<-last
	if len(asked) != 6 || asked[0].String() != "127.77.3.1" || asked[5].String() != "127.77.3.6" {
		t.Errorf("asked %v", asked)
	}
	for name, x := range map[string]struct {
		network netip.Prefix
		at      time.Time
		own     bool
	}{
		"too soon":       {own, now.Add(askEvery - 1), true},
		"too large":      {netip.MustParsePrefix("127.77.2.0/23"), now, true},
		"IPv6":           {netip.MustParsePrefix("fd00::/126"), now, true},
		"nothing":        {netip.Prefix{}, now, true},
		"another's":      {netip.MustParsePrefix("127.77.4.0/29"), now, false},
		"still too soon": {own, now, true},
	} {
		asked = nil
		f.own = func(context.Context, netip.Prefix) bool { return x.own }
		if f.Ask(t.Context(), x.network, allowed, x.at); len(asked) > 0 {
			t.Errorf("%s: asked %v", name, asked)
		}
	}
	f.own = func(context.Context, netip.Prefix) bool { return true }
	for _, at := range []time.Time{now.Add(askEvery), now.Add(-time.Hour)} {
		asked = nil
		if f.Ask(t.Context(), own, allowed, at); len(asked) != 6 {
			t.Errorf("at %v asked %v", at, asked)
		}
	}
}

// TestIsOwn: a network of this host is one that it has an address in.
func TestIsOwn(t *testing.T) {
	if !isOwn(t.Context(), netip.MustParsePrefix("127.0.0.0/24")) {
		t.Error("127.0.0.1 is not this host's")
	}
	if isOwn(t.Context(), netip.MustParsePrefix("127.77.3.0/29")) {
		t.Error("an address that the host does not have is its own")
	}
}
