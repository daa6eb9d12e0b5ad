package dualstack

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func prefix(s string) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(s)
}

// TestParse: what is no IPv6 is refused with what to write.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"fd00:10::15": "", "fe80::1": "", "2001:DB8:0::1": "",
		"10.0.0.1":        "write an IPv6 address, like " + ExampleAddress,
		"::ffff:10.0.0.1": "write an IPv6 address: this is 10.0.0.1 in another spelling",
		"fe80::1%eth0":    "write it without %eth0: it is that of the nodes' own link",
		"fd00::1/64":      "write one like " + ExampleAddress,
		"":                "write one like " + ExampleAddress,
	} {
		if a, err := ParseAddress(text); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("address %q is %s, %v, want %q", text, a, err, want)
		}
	}
	for text, want := range map[string]string{
		"fd00:10::/64": "", "2001:DB8::/32": "",
		"10.0.0.0/24":         "write an IPv6 network, like " + ExamplePrefix,
		"::ffff:10.0.0.0/112": "write an IPv6 network, like " + ExamplePrefix + ": these are IPv4 addresses in another spelling",
		"fd00:10::1/64":       "write fd00:10::/64: the bits after the / must be zero",
		"fd00:10::":           "write one like " + ExamplePrefix,
		"fd00:10::/129":       "write one like " + ExamplePrefix,
	} {
		if p, err := ParsePrefix(text); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("network %q is %s, %v, want %q", text, p, err, want)
		}
	}
}

// TestCheck is the table of what Kubernetes and a link take.
func TestCheck(t *testing.T) {
	const pods, services = "fd00:1::/56", "fd00:2::/112"
	for name, c := range map[string]struct {
		cidr, gateway, pods, services string
		want                          []string // field: beginning of the message
	}{
		"unique local":               {"fd00:10::/64", "fd00:10::1", pods, services, nil},
		"global":                     {"2001:db8:0:1::/64", "fe80::1", "2001:db8:0:100::/56", "2001:db8:0:2::/108", nil},
		"no gateway":                 {"fd00:10::/64", "", pods, services, nil},
		"the smallest of each":       {"fd00:10::/112", "", "fd00:1::/64", "fd00:2::/124", nil},
		"the largest of each":        {"fd00:10::/32", "", "fd01:1::/48", "fd01:2::/108", nil},
		"too small a link":           {"fd00:10::/113", "", pods, services, []string{"cidr6: nodes are not taken in a /113"}},
		"too large a link":           {"fd10::/31", "", pods, services, []string{"cidr6: nodes are not taken in a /31"}},
		"everything":                 {"::/0", "", pods, services, []string{"cidr6: ::/0 is neither", "pod_cidr6: pods", "svc_cidr6: services"}},
		"link-local":                 {"fe80::/64", "", pods, services, []string{"cidr6: fe80::/64 is neither global nor unique local"}},
		"multicast":                  {"ff05::/64", "", pods, services, []string{"cidr6: ff05::/64 is neither"}},
		"loopback":                   {"::/64", "", pods, services, []string{"cidr6: ::/64 is neither"}},
		"pods of multicast":          {"fd00:10::/64", "", "ff05::/56", services, []string{"pod_cidr6: ff05::/56 is neither"}},
		"pods beyond 16 bits":        {"fd00:10::/64", "", "fd00:1::/47", services, []string{"pod_cidr6: pods are not taken in a /47"}},
		"pods for no node":           {"fd00:10::/64", "", "fd00:1::/65", services, []string{"pod_cidr6: pods are not taken in a /65"}},
		"services beyond 20 bits":    {"fd00:10::/64", "", pods, "fd00:2::/107", []string{"svc_cidr6: services are not taken in a /107"}},
		"services below 4 bits":      {"fd00:10::/64", "", pods, "fd00:2::/125", []string{"svc_cidr6: services are not taken in a /125"}},
		"pods over nodes":            {"fd00:1::/64", "", pods, services, []string{"pod_cidr6: pods fd00:1::/56 overlap with nodes fd00:1::/64"}},
		"services among nodes":       {"fd00:10::/64", "", pods, "fd00:10::1:0/112", []string{"svc_cidr6: services fd00:10::1:0/112 overlap with nodes"}},
		"services among pods":        {"fd00:10::/64", "", pods, "fd00:1::/112", []string{"svc_cidr6: services fd00:1::/112 overlap with pods"}},
		"a gateway elsewhere":        {"fd00:10::/64", "fd00:11::1", pods, services, []string{"gateway6: fd00:11::1 is not in network.cidr6"}},
		"the gateway of all routers": {"fd00:10::/64", "fd00:10::", pods, services, []string{"gateway6: fd00:10:: is the address of all routers"}},
	} {
		n := Networks{CIDR: prefix(c.cidr), Pods: prefix(c.pods), Services: prefix(c.services)}
		if c.gateway != "" {
			n.Gateway = netip.MustParseAddr(c.gateway)
		}
		got := n.Check()
		ok := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			ok = ok && strings.HasPrefix(got[i].Field+": "+got[i].Message, c.want[i]) && got[i].Hint != ""
		}
		if !ok {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestFill: what is not written follows from the cluster alone, and is right.
func TestFill(t *testing.T) {
	n := Networks{CIDR: prefix("fd00:10::/64")}
	one, again, other := n.Fill("a"), n.Fill("a"), n.Fill("b")
	if one != again || one.Pods == other.Pods || one.Services == other.Services || one.CIDR != n.CIDR || len(one.Check()) > 0 || one.RoomForNodes() != 256 {
		t.Errorf("%+v, %+v, %+v: %v", one, again, other, one.Check())
	}
	if got := fmt.Sprint(one.Pods, " ", one.Services); got != "fda1:b739:244c:100::/56 fda1:b739:244c::/108" {
		t.Errorf("clusters that are there would get others: %s", got)
	}
	n.Pods, n.Services = prefix("fd00:1::/60"), prefix("fd00:2::/112")
	if got := n.Fill("a"); got != n {
		t.Errorf("what is written is not kept: %+v", got)
	}
}

// TestAddressOf: whatever the networks, the address of a node is in the IPv6 network, no two have one, its number is that of the
// IPv4 address, and what has no room is refused.
func TestAddressOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits, bits6 := rapid.IntRange(0, 30).Draw(t, "bits"), rapid.IntRange(32, 112).Draw(t, "bits6")
		four := func(what string) netip.Addr {
			b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, what)
			return netip.AddrFrom4([4]byte(b))
		}
		in := netip.PrefixFrom(four("network"), bits).Masked()
		base := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "base"))
		base[0] = 0xfd
		n := Networks{CIDR: netip.PrefixFrom(netip.AddrFrom16(base), bits6).Masked()}
		number := rapid.Uint32Range(0, uint32(1<<(32-bits)-1)).Draw(t, "number")
		at := func(number uint32) netip.Addr {
			a := in.Addr().As4()
			sum := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
			sum += number
			return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
		}
		a, ok := n.AddressOf(at(number), in)
		if room := uint64(1) << min(32, 128-bits6); ok != (uint64(number) < room) {
			t.Fatalf("number %d in %s: %s, %v", number, n.CIDR, a, ok)
		}
		if !ok {
			return
		}
		b := a.As16()
		low := uint32(b[12])<<24 | uint32(b[13])<<16 | uint32(b[14])<<8 | uint32(b[15])
		c := n.CIDR.Addr().As16()
		if first := uint32(c[12])<<24 | uint32(c[13])<<16 | uint32(c[14])<<8 | uint32(c[15]); !n.CIDR.Contains(a) || low-first != number {
			t.Fatalf("number %d in %s is %s", number, n.CIDR, a)
		}
		if other := at(number ^ 1); in.Contains(other) {
			if b, ok := n.AddressOf(other, in); ok && b == a {
				t.Fatalf("two nodes have %s", a)
			}
		}
	})
	for name, c := range map[string]struct {
		ip     netip.Addr
		in, on string
	}{
		"no address":   {netip.Addr{}, "10.0.0.0/24", "fd00::/64"},
		"another one":  {netip.MustParseAddr("10.0.1.1"), "10.0.0.0/24", "fd00::/64"},
		"no network":   {netip.MustParseAddr("10.0.0.1"), "", "fd00::/64"},
		"IPv4 alone":   {netip.MustParseAddr("10.0.0.1"), "10.0.0.0/24", ""},
		"it is IPv6":   {netip.MustParseAddr("fd00::1"), "10.0.0.0/24", "fd00::/64"},
		"no room left": {netip.MustParseAddr("10.1.0.1"), "10.0.0.0/8", "fd00::/112"},
	} {
		if a, ok := (Networks{CIDR: prefix(c.on)}).AddressOf(c.ip, prefix(c.in)); ok {
			t.Errorf("%s: %s", name, a)
		}
	}
	if a, ok := (Networks{CIDR: prefix("fd00:10:10::/64")}).AddressOf(netip.MustParseAddr("10.10.0.21"), prefix("10.10.0.0/24")); !ok || a.String() != "fd00:10:10::15" {
		t.Errorf("the 21st address is %s", a)
	}
}

// TestMisplaced: a node is not the network, a router of it, or elsewhere.
func TestMisplaced(t *testing.T) {
	n := Networks{CIDR: prefix("fd00:10::/64"), Gateway: netip.MustParseAddr("fd00:10::1")}
	for text, want := range map[string]string{
		"fd00:10::2": "", "fd00:11::2": "fd00:11::2 is not in network.cidr6 fd00:10::/64", "fd00:10::": "fd00:10:: is the address of all routers of network.cidr6",
		"fd00:10::1": "fd00:10::1 is the gateway6", "fe80::2": "fe80::2 is not in network.cidr6 fd00:10::/64",
	} {
		if message, hint := n.Misplaced(netip.MustParseAddr(text)); message != want || (hint == "") != (want == "") {
			t.Errorf("%s: %q, %q, want %q", text, message, hint, want)
		}
	}
}
