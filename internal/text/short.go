package text

import (
	"fmt"
	"time"
)

// Cut is a text on one line and in n characters at most.
func Cut(s string, n int) string {
	s = OneLine(s)
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Duration is a duration in its two largest units, for people.
func Duration(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// Moment is a moment for people, the same whatever the time zone of the host.
func Moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
