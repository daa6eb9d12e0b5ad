//go:build linux

package tokens

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPutFileLinks: no name leads out of the repository, however late a symbolic link takes the place of a directory.
func TestPutFileLinks(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink(elsewhere, filepath.Join(dir, "patches")); err != nil {
		t.Fatal(err)
	}
	like, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	a := &Account{root: root}
	for name, put := range map[string]func(from, to string) error{"link": root.Link, "rename": root.Rename} {
		if err := a.putFile("patches/x.yaml", []byte("x\n"), like, put); err == nil {
			t.Errorf("%s: a file is written through a symbolic link", name)
		}
		if err := a.putFile(name+".yaml", []byte("x\n"), like, put); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.makeDirectory("patches", like); err == nil {
		t.Error("a symbolic link is taken for a directory")
	}
	for at, want := range map[string]int{elsewhere: 0, dir: 3} {
		if entries, err := os.ReadDir(at); err != nil || len(entries) != want {
			t.Errorf("%s has %v, %v", at, entries, err)
		}
	}
}
