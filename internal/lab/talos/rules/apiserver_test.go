package rules

import "testing"

func TestCheckAPIServer(t *testing.T) {
	for _, c := range []struct {
		name, value, want string
	}{
		{"audit-log-maxage", "30", ""},
		{"audit-log-maxage", "for-ever", `invalid argument "for-ever" for "--audit-log-maxage" flag: strconv.ParseInt: parsing "for-ever": invalid syntax`},
		{"feature-gates", "for-ever", ""},
	} {
		if got := CheckAPIServer(map[string][]string{c.name: {c.value}}); got != c.want {
			t.Errorf("--%s=%s: %q, want %q", c.name, c.value, got, c.want)
		}
	}
}
