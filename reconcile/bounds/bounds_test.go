package bounds

import "testing"

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		src, allowed string
		want         bool
	}{
		{"https://charts.example.org", "https://charts.example.org", true},
		{"https://charts.example.org/a/b", "https://charts.example.org/a", true},
		{"https://charts.example.org/ab", "https://charts.example.org/a", false},
		{"https://charts.example.org.evil.net", "https://charts.example.org", false},
		{"http://charts.example.org", "https://charts.example.org", false},
		{"https://user@charts.example.org", "https://charts.example.org", false},
		{"https://charts.example.org/a/../b", "https://charts.example.org/a", false},
		{"https://charts.example.org/a/%2e%2e/b", "https://charts.example.org/a", false},
		{"oci://ghcr.io/org/chart", "oci://ghcr.io/org", true},
		{"https://CHARTS.example.org", "https://charts.example.org", true},
	} {
		if got := below(c.src, c.allowed); got != c.want {
			t.Errorf("below(%q, %q) = %v", c.src, c.allowed, got)
		}
	}
}
