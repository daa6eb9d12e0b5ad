package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// Recordings returns a folder of what real systems were asked and answered, or skips: they are no
// part of the repository. TALOS_AGENT_RECORDINGS names where they are, else they are looked for
// beside it.
func Recordings(t testing.TB, folder ...string) string {
	t.Helper()
	root := os.Getenv("TALOS_AGENT_RECORDINGS")
	if root == "" {
		top, err := os.Getwd()
		for ; err == nil && !isTop(top); top = filepath.Dir(top) {
			if top == filepath.Dir(top) {
				t.Fatal("the test does not run inside of the repository")
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		root = filepath.Join(top, "..", "shared")
	}
	dir := filepath.Join(append([]string{root}, folder...)...)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("there are no recordings of real systems: %v (set TALOS_AGENT_RECORDINGS to their folder)", err)
	}
	return dir
}

func isTop(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
