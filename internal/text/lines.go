package text

import "strings"

// What is kept of the last lines of a console.
const (
	mostLines = 20
	mostWidth = 200 // characters of a line
)

// LastLines are the last lines of a cleaned console, cut to a bearable length.
// Empty ones are left out, and of equal ones in a row all but one.
func LastLines(s string) []string {
	out := []string{}
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(strings.ReplaceAll(line, "\t", " "))
		if r := []rune(line); len(r) > mostWidth {
			line = string(r[:mostWidth-1]) + "…"
		}
		if line == "" || len(out) > 0 && out[len(out)-1] == line {
			continue
		}
		out = append(out, line)
	}
	return out[max(0, len(out)-mostLines):]
}
