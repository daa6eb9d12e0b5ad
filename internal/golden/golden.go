// Package golden compares what is generated with the file of it that is committed.
//
// Only tests import it; it has their flag -update, with which the files are written.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that tests compare with; commit only the changes you understand")

// Update reports whether the files are to be written, for tests whose files hold
// more than what is generated.
func Update() bool { return *update }

// Check compares what was generated with a file, or writes it.
func Check(t testing.TB, file string, got []byte) {
	t.Helper()
	if *update {
		Write(t, file, got)
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v (run the test with -update)", err)
	} else if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs from what is generated (- file, + generated); read this, and run the test with -update, or make docs:\n%s", file, d)
	}
}

// Write writes a file that tests compare with, unless it is so already.
func Write(t testing.TB, file string, text []byte) {
	t.Helper()
	if have, err := os.ReadFile(file); err == nil && string(have) == string(text) {
		return
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
