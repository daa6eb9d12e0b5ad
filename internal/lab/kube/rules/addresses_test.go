package rules

import "testing"

func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		cidr string
		n    int
		want string
	}{
		{"10.96.0.0/12", 1, "10.96.0.1"}, {"10.96.0.0/12", 256, "10.96.1.0"}, {"10.96.0.0/12,fd00::/108", 10, "10.96.0.10"},
		{"10.244.0.0/16", 3 << 8, "10.244.3.0"}, {"fd00::/108", 257, "fd00::101"},
	} {
		if got := NthAddr(FirstRange(c.cidr), c.n); got.String() != c.want {
			t.Errorf("address %d of %s: %v, want %s", c.n, c.cidr, got, c.want)
		}
	}
	if NthAddr(FirstRange(""), 1).IsValid() {
		t.Error("an address of nothing")
	}
}

// TestNextRange: a node of a dual-stack cluster gets a part of each of the pods' networks, and one of IPv4 alone that of IPv4.
func TestNextRange(t *testing.T) {
	for networks, want := range map[string][]string{
		"10.244.0.0/16":                  {"10.244.0.0/24", "10.244.2.0/24", "10.244.3.0/24"},
		"10.244.0.0/16,fd00:1:0:f0::/60": {"10.244.0.0/24,fd00:1:0:f0::/64", "10.244.2.0/24,fd00:1:0:f2::/64", "10.244.3.0/24,fd00:1:0:f3::/64"},
		"10.244.0.0/16,fd00:1::/64":      {"10.244.0.0/24,fd00:1::/64", "10.244.2.0/24", "10.244.3.0/24"},
		"10.244.0.0/24,fd00:1::/56":      {"10.244.0.0/24,fd00:1::/64", "", ""},
		"":                               {"", "", ""},
	} {
		used := 0
		for _, w := range want {
			var got string
			if got, used = NextRange(networks, used, map[string]bool{"10.244.1.0/24": true}); got != w {
				t.Errorf("%s: %q, want %q", networks, got, w)
			}
		}
	}
}
