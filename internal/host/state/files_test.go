package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/fault"
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

// TestOddFiles: what the agent did not write there is named, with what to do; a pipe
// must not be waited for.
func TestOddFiles(t *testing.T) {
	s := Dir{Path: t.TempDir()}
	path := filepath.Join(s.Path, "dev.json")
	for want, put := range map[string]func() error{
		"is a directory":          func() error { return os.Mkdir(path, 0o700) },
		"is a symbolic link":      func() error { return os.Symlink("/etc/passwd", path) },
		"is not a regular file":   func() error { return unix.Mkfifo(path, 0o600) },
		"is larger than 1048576 ": func() error { return os.WriteFile(path, make([]byte, MaxFile+1), 0o600) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		_, err := s.Read("dev.json")
		if err == nil || !strings.Contains(err.Error(), path+" "+want) || !strings.Contains(fault.HintOf(err), "move it away") {
			t.Errorf("%v (%s), want %q", err, fault.HintOf(err), want)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Read("dev.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
