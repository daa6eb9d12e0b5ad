package platform

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openWith opens a file to read it and closes it again.
func openWith(path string, flags int) error {
	f, err := os.OpenFile(path, os.O_RDONLY|flags, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func TestFlags(t *testing.T) {
	dir := t.TempDir()
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, path string
		flags      int
		isLink     bool
	}{
		{"a file", file, NoFollow | NoWait, false},
		{"a link that may be followed", link, NoWait, false},
		{"a link that may not", link, NoFollow, true},
		{"a pipe that has no writer", pipe, NoFollow | NoWait, false},
	} {
		err := openWith(c.path, c.flags)
		if IsLink(err) != c.isLink || err != nil && !c.isLink {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if err := openWith(filepath.Join(dir, "none"), NoFollow); IsLink(err) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestLock: a lock is of one open file, and ends when that is closed.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, second := open(), open()
	if err := Lock(first); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second); !errors.Is(err, ErrLocked) {
		t.Errorf("a lock that is taken: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second); err != nil {
		t.Errorf("a lock that was released: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestOwner(t *testing.T) {
	info, err := os.Stat(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if uid, gid, ok := Owner(info); !ok || uid != os.Geteuid() || gid != os.Getegid() {
		t.Errorf("%d, %d, %v", uid, gid, ok)
	}
}

func TestFreeSpace(t *testing.T) {
	if free, err := FreeSpace(t.TempDir()); err != nil || free <= 0 {
		t.Errorf("%d bytes are free (%v)", free, err)
	}
	if _, err := FreeSpace(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

func TestSync(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Sync(file), Sync(dir)); err != nil {
		t.Error(err)
	}
	if err := Sync(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestSyncDir(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := SyncDir(dir); err != nil {
		t.Error(err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	if err := SyncDir(dir); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a directory that was closed: %v", err)
	}
}
