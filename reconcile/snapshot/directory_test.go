package snapshot

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// TestFolder: on a real disk, for their owner alone.
func TestFolder(t *testing.T) {
	path, key, b := filepath.Join(t.TempDir(), "state", "snapshots"), newKey(t), sent(t, 100)
	if _, err := FindFolder(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	dir, err := OpenFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := newStore(dir, key)
	e := mustWrite(t, s, from(0), b)
	for name, want := range map[string]fs.FileMode{".": 0o700, e.File: 0o600} {
		if info, err := os.Stat(filepath.Join(path, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(b)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the same name: %v", err)
	}
	fill(t, s, b, 1)
	if got, err := s.Prune(t.Context(), "dev"); err != nil || !slices.Equal(removed(got), []string{e.File}) {
		t.Errorf("%v, %v", removed(got), err)
	}
	names, err := dir.List()
	slices.Sort(names)
	if want := []string{lockFile, "dev-20261127T084500Z-scheduled.etcd"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%v, %v", names, err)
	}
}

// TestFolderIsThatOfItsPath: what is at the path now counts, also where it is another one than that which was
// opened; and where nothing is there, that is no empty folder.
func TestFolderIsThatOfItsPath(t *testing.T) {
	path, key, b := filepath.Join(t.TempDir(), "snapshots"), newKey(t), sent(t, 100)
	dir, err := OpenFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(dir, key)
	first := mustWrite(t, s, from(0), b)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.List(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("moved away: %v, %v", got, err)
	}
	if _, err := s.Write(t.Context(), from(1), bytes.NewReader(b)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("written where nothing is: %v", err)
	}
	if err := os.WriteFile(path, []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := s.List(t.Context()); err == nil {
		t.Errorf("a file is in its place: %v", got)
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.List(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("made anew: %v, %v", got, err)
	}
	second := mustWrite(t, s, from(2), b)
	for name, want := range map[string]string{path: second.File, path + ".old": first.File} {
		entries, err := os.ReadDir(name)
		names := []string{}
		for _, e := range entries {
			if e.Name() != lockFile {
				names = append(names, e.Name())
			}
		}
		if err != nil || !slices.Equal(names, []string{want}) {
			t.Errorf("%s: %q, %v, want %s", name, names, err, want)
		}
	}
	if err := dir.Close(); err != nil {
		t.Error(err)
	}
}

// TestLockOfAFolder: it is of one process at a time.
func TestLockOfAFolder(t *testing.T) {
	path := t.TempDir()
	open := func() *Folder {
		dir, err := FindFolder(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := dir.Close(); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	one, two := open(), open()
	release, err := one.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Lock(); err == nil {
		t.Error("two have it")
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if release, err = two.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(path, lockFile)), os.Mkdir(filepath.Join(path, lockFile), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Lock(); err == nil {
		t.Error("a folder was locked")
	}
}

// TestOddFilesOfAFolder: links, pipes and folders are not read, whatever they are called.
func TestOddFilesOfAFolder(t *testing.T) {
	path, key := t.TempDir(), newKey(t)
	dir, err := OpenFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := newStore(dir, key)
	e := mustWrite(t, s, from(0), sent(t, 5))
	link, pipe, folder := "dev-20261127T000000Z-manual.etcd", "dev-20261127T000001Z-manual.etcd", "dev-20261127T000002Z-manual.etcd"
	at := func(name string) string { return filepath.Join(path, name) }
	if err := errors.Join(os.Symlink(e.File, at(link)), unix.Mkfifo(at(pipe), 0o600), os.Mkdir(at(folder), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{link, pipe, folder, "none"} {
		if f, err := dir.Open(name); err == nil {
			t.Errorf("%s was opened: %v", name, f.Close())
		}
	}
	all, err := s.List(t.Context())
	if err != nil || len(all) != 1 || all[0].State != retention.Unverified || all[0].Problem != "" {
		t.Errorf("%+v, %v", all, err)
	}
}
