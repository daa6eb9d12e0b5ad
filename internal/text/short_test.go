package text

import (
	"testing"
	"time"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"a\n b", 3, "a b"}, {"ångström", 8, "ångström"}, {"ångström", 7, "ångstr…"}, {"", 1, ""}} {
		if got := Cut(c.text, c.n); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Hour: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 15 * time.Minute: "15m00s",
		47*time.Hour + 5*time.Minute: "47h05m", 49 * time.Hour: "2d"} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
