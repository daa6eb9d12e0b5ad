package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Recordings returns a folder of what real systems were asked and answered, or skips: they are no
// part of the repository. TALOS_AGENT_RECORDINGS names where they are, else they are looked for
// beside it.
func Recordings(t testing.TB, folder ...string) string {
	t.Helper()
	root := os.Getenv("TALOS_AGENT_RECORDINGS")
	if root == "" {
		root = filepath.Join(findTop(t), "..", "shared")
	}
	dir := filepath.Join(append([]string{root}, folder...)...)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("there are no recordings of real systems: %v (set TALOS_AGENT_RECORDINGS to their folder)", err)
	}
	return dir
}

// CheckShown compares how many recorded exchanges the lab answers alike with what a row of the
// table for users has. A run of some subtests has counted a part only, and is not compared.
func CheckShown(t testing.TB, row string, agree, all int) {
	t.Helper()
	if run := flag.Lookup("test.run"); run != nil && strings.Contains(run.Value.String(), "/") {
		return
	}
	const page = "docs/explanation/what-was-shown-where.md"
	text, err := os.ReadFile(filepath.Join(findTop(t), page))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%d of %d", agree, all)
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.TrimSpace(cells[1]) == row {
			if have := strings.TrimSpace(cells[2]); have != want {
				t.Errorf("%s has %q for %q, and %s agree", page, have, row, want)
			}
			return
		}
	}
	t.Errorf("%s has no row %q, of which %s agree", page, row, want)
}

// findTop returns the folder of the repository that the test runs in.
func findTop(t testing.TB) string {
	t.Helper()
	top, err := os.Getwd()
	for ; err == nil && !isTop(top); top = filepath.Dir(top) {
		if top == filepath.Dir(top) {
			t.Fatal("the test does not run inside of the repository")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func isTop(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
