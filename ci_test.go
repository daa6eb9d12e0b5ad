package talosagent

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	function = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)`)
	thinned  = regexp.MustCompile(`\b(Thinner|daemontest\.Thin\(|testing\.Short\(\)|every\(|LeaveToExhaust\()`)
	// Of these only .ci/faults runs all instants.
	crashing = regexp.MustCompile(`\bevery\(`)
)

// testFunctions are the functions in the tests of each directory, by name, with their text.
func testFunctions(t *testing.T) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	for _, s := range house(t) {
		if !s.test || s.dir == "" {
			continue
		}
		text, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		if out[s.dir] == nil {
			out[s.dir] = map[string]string{}
		}
		ends := append(function.FindAllSubmatchIndex(text, -1), []int{len(text)})
		for i, at := range ends[:len(ends)-1] {
			_, body, _ := strings.Cut(string(text[at[3]:ends[i+1][0]]), "{")
			out[s.dir][string(text[at[2]:at[3]])] += body
		}
	}
	return out
}

// whichReach lists the functions whose text matches, and those that call such a one, however
// many others are between.
func whichReach(functions map[string]string, pattern *regexp.Regexp) []string {
	var out []string
	for {
		before := len(out)
		for name, text := range functions {
			if !slices.Contains(out, name) && name != "every" && pattern.MatchString(text) {
				out = append(out, name)
			}
		}
		if len(out) == before {
			slices.Sort(out)
			return out
		}
		pattern = regexp.MustCompile(pattern.String() + `|\b(` + strings.Join(out, "|") + `)\(`)
	}
}

// TestExhaustiveTestsRunInFull: whatever is run in part with the race detector, by itself or
// by what it calls, is run without it by make exhaust; and where that runs a part of the
// crash points as well, .ci/faults runs all.
func TestExhaustiveTestsRunInFull(t *testing.T) {
	read := func(path string) []string {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`[\w./]+`).FindAllString(string(text), -1)
	}
	makefile, faults := read("Makefile"), read(".ci/faults")
	found := 0
	for dir, functions := range testFunctions(t) {
		named := func(name string) bool { return slices.Contains(makefile, name) }
		if raced := read(dir + "/raced_test.go"); raced != nil {
			named = func(string) bool { return true } // make exhaust runs all of the package
			for _, name := range raced {
				if _, there := functions[name]; strings.HasPrefix(name, "Test") && !there {
					t.Errorf("%s: raced_test.go names %s, which is not there: is it called otherwise now?", dir, name)
				}
			}
		}
		for _, name := range whichReach(functions, thinned) {
			if !strings.HasPrefix(name, "Test") {
				continue
			}
			found++
			if !named(name) || !slices.Contains(makefile, "./"+dir) {
				t.Errorf("%s: %s is run in part with the race detector: name it and ./%[1]s in the Makefile, among the exhaustive tests", dir, name)
			}
		}
		for _, name := range whichReach(functions, crashing) {
			if strings.HasPrefix(name, "Test") && (!slices.Contains(faults, name) || !slices.Contains(faults, "./"+dir)) {
				t.Errorf("%s: %s has crash points: name it in .ci/faults, which runs all of them", dir, name)
			}
		}
	}
	if found < 12 {
		t.Errorf("only %d exhaustive tests were found", found)
	}
}
