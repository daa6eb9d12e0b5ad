package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// A journal that could not be read back is not written: with it, no start of
// the daemon would succeed any more.
func TestNothingIsWrittenThatCannotBeRead(t *testing.T) {
	s := stateFiles{dir: t.TempDir()}
	if err := s.Write("dev.json", make([]byte, maxJournal)); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Read("dev.json"); err != nil || len(b) != maxJournal {
		t.Errorf("read %d bytes: %v", len(b), err)
	}
	if err := s.Write("dev.json.new", make([]byte, maxJournal+1)); err == nil {
		t.Error("wrote a file that is too large to be read")
	}
	if _, err := os.Stat(filepath.Join(s.dir, "dev.json.new")); err == nil {
		t.Error("left a file that is too large to be read")
	}
}

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
