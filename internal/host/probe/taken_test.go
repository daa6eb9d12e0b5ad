package probe

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// What the kernel of a Proxmox VE host with two bridges shows, in part.
const (
	fibTrie = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.10.0.0/20 2 0 2
        +-- 10.10.0.0/30 2 0 2
           |-- 10.10.0.0
              /20 link UNICAST
           |-- 10.10.0.1
              /32 host LOCAL
        |-- 10.10.15.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
     |-- 192.0.2.2
        /32 host LOCAL
`
	inet6 = `00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000be2411fffe000001 04 40 20 80    vmbr1
20010db8000000010000000000000001 04 40 00 80    vmbr1
`
	routes6 = "20010db8000000010000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 vmbr0\n" +
		"00000000000000000000000000000000 00 00000000000000000000000000000000 00 20010db80000000100000000000000fe 00000400 00000001 00000000 00000003 vmbr0\n" +
		"fd000000000000000000000000000000 08 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 vmbr1\n" +
		"00000000000000000000000000000001 80 00000000000000000000000000000000 00 zz 00000000 00000002 00000000 80200001 lo\n"
	routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"vmbr0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"vmbr1\t00000A0A\t00000000\t0001\t0\t0\t0\t00F0FFFF\t0\t0\t0\n"
)

// TestTakenAddresses: those of the host itself and of its routers, without the loopback,
// networks and broadcast addresses.
func TestTakenAddresses(t *testing.T) {
	list := func(texts ...string) (out []netip.Addr) {
		for _, s := range texts {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	for name, c := range map[string]struct{ got, want []netip.Addr }{
		"of the host":        {parseFIB(fibTrie), list("10.10.0.1", "192.0.2.2")},
		"of the host, IPv6":  {parseInet6(inet6), list("2001:db8:0:1::1")},
		"of routers, IPv6":   {parseRoutes6(routes6), list("2001:db8:0:1::fe")},
		"of routers":         {parseRoutes(routes), list("192.0.2.1")},
		"nothing":            {append(append(parseFIB(""), parseInet6("")...), parseRoutes("")...), nil},
		"what is not a list": {append(append(parseFIB("|-- x\n/32 host LOCAL\n"), parseInet6("xx000000000000000000000000000001 01\n")...), parseRoutes("a b zzzzzzzz d\n")...), nil},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}

// TestTakenHere: what is found on this machine are the addresses that its interfaces have.
func TestTakenHere(t *testing.T) {
	have, err := net.InterfaceAddrs()
	if err != nil {
		t.Skip("this machine shows no interfaces: ", err)
	}
	taken := FindTaken()
	for _, a := range have {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if !slices.Contains(taken, p.Addr()) {
			t.Errorf("%s is missing in %v", p.Addr(), taken)
		}
	}
}
