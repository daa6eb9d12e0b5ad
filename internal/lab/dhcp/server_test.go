package dhcp

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func at(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestServer: reserved addresses are kept for whom they are, all others get the next one, and keep it.
func TestServer(t *testing.T) {
	s := New(Config{Reservations: map[string]netip.Prefix{"bc:24:11:00:00:01": at("10.0.0.102/24")}, From: at("10.0.0.101/24")})
	for _, c := range []struct{ mac, want string }{
		{"BC:24:11:00:00:02", "10.0.0.101/24"}, {"bc:24:11:00:00:03", "10.0.0.103/24"}, {"bc:24:11:00:00:01", "10.0.0.102/24"}, {"bc:24:11:00:00:02", "10.0.0.101/24"},
	} {
		if got := s.Lease(c.mac); got != at(c.want) {
			t.Errorf("%s gets %v, want %s", c.mac, got, c.want)
		}
	}
	s.Move("BC:24:11:00:00:02", at("10.0.0.103/24"))
	if got := s.Addresses()["BC:24:11:00:00:02"]; len(got) != 1 || got[0].String() != "10.0.0.101" {
		t.Errorf("before it asks it has %v", got)
	}
	if got := s.Lease("bc:24:11:00:00:02"); got != at("10.0.0.103/24") {
		t.Errorf("it is moved to %v", got)
	}
	now := time.Unix(1796000000, 0)
	if line := "1796043200 bc:24:11:00:00:01 10.0.0.102 * ff:11:00:00:01\n"; !strings.HasPrefix(s.File(now), line) {
		t.Errorf("the file is %q", s.File(now))
	}
}

// TestServerGivesNothing: without a range, and where it has ended.
func TestServerGivesNothing(t *testing.T) {
	if got := New(Config{}).Lease("bc:24:11:00:00:01"); got.IsValid() {
		t.Errorf("%v", got)
	}
	s := New(Config{From: at("10.0.0.255/24")})
	if one, two := s.Lease("bc:24:11:00:00:01"), s.Lease("bc:24:11:00:00:02"); one != at("10.0.0.255/24") || two.IsValid() {
		t.Errorf("%v, %v", one, two)
	}
}
