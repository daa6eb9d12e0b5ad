package probe

import (
	"os"
	"testing"
)

// must fails where a test cannot go on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// write writes a file with exactly its mode.
func write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
