package talosagent

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	function = regexp.MustCompile(`(?m)^func (\w+)`)
	thinned  = regexp.MustCompile(`\b(Thinner|testing\.Short\(\)|every\()`)
)

// TestExhaustiveTestsRunInFull: whatever is run in part with the race detector is
// run in full without it, by make exhaust.
func TestExhaustiveTestsRunInFull(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Fields(string(makefile))
	found := 0
	for _, s := range house(t) {
		if !s.test || s.dir == "" {
			continue
		}
		text, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		ends := append(function.FindAllSubmatchIndex(text, -1), []int{len(text)})
		for i, at := range ends[:len(ends)-1] {
			name := string(text[at[2]:at[3]])
			if !strings.HasPrefix(name, "Test") || !thinned.Match(text[at[0]:ends[i+1][0]]) {
				continue
			}
			found++
			if !slices.Contains(listed, name) || !slices.Contains(listed, "./"+s.dir) {
				t.Errorf("%s: %s is run in part with the race detector: name it and ./%s in the Makefile, among the exhaustive tests", s.path, name, s.dir)
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d exhaustive tests were found", found)
	}
}
