package state

import (
	"os"
	"path/filepath"
	"testing"
)

// A journal that could not be read back is not written: with it, no start of
// the daemon would succeed any more.
func TestNothingIsWrittenThatCannotBeRead(t *testing.T) {
	s := Dir{Path: t.TempDir()}
	if err := s.Write("dev.json", make([]byte, MaxFile)); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Read("dev.json"); err != nil || len(b) != MaxFile {
		t.Errorf("read %d bytes: %v", len(b), err)
	}
	if err := s.Write("dev.json.new", make([]byte, MaxFile+1)); err == nil {
		t.Error("wrote a file that is too large to be read")
	}
	if _, err := os.Stat(filepath.Join(s.Path, "dev.json.new")); err == nil {
		t.Error("left a file that is too large to be read")
	}
}
