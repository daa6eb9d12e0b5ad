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
