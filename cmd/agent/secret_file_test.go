package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// TestWriteSecret: a file that is there is replaced, and what stands in the way is
// told of the file that was named.
func TestWriteSecret(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "dev.kubeconfig")
	must(os.WriteFile(path, []byte("old"), 0o644))
	must(writeSecret(path, []byte("new")))
	if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
		t.Errorf("%q %v", b, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	err := writeSecret(filepath.Join(dir, "nowhere", "x"), []byte("new"))
	if want := "write " + dir + "/nowhere/x: there is no directory " + dir + "/nowhere"; err == nil || err.Error() != want || fault.HintOf(err) == "" {
		t.Errorf("got %v, want %s", err, want)
	}
	// A secret that does not come to its place is left nowhere.
	folder := filepath.Join(dir, "folder")
	must(os.Mkdir(folder, 0o755))
	for _, path := range []string{folder, folder + "/"} {
		err := writeSecret(path, []byte("new"))
		if want := "write " + path + ": it is a directory"; err == nil || err.Error() != want || fault.HintOf(err) == "" {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, in := range []string{dir, folder} {
		if left, err := filepath.Glob(filepath.Join(in, ".*")); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}
