package gitserver

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
)

// An executable file stays one, and links are carried as they are.
func TestCommitKeepsModes(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		_, r := newGit(b, "")
		err := r.Edit(func(s storage.Storer) error {
			h := must[plumbing.Hash](b)(storeObject(s, blob("x")))
			tree := must[plumbing.Hash](b)(storeTree(s, map[string]file{
				"run": {filemode.Executable, h}, "link": {filemode.Symlink, h}, "module": {filemode.Submodule, h},
			}))
			c := must[plumbing.Hash](b)(storeObject(s, &object.Commit{TreeHash: tree}))
			return r.moveBranch(s, "main", c)
		})
		if err != nil {
			b.Fatal(err)
		}
		head := must[string](b)(r.Commit("main", content("run", "y", "new", "z"), "change"))
		err = r.Edit(func(s storage.Storer) error {
			whole, err := wholeTree(s, plumbing.NewHash(head))
			for name, mode := range map[string]filemode.FileMode{
				"run": filemode.Executable, "link": filemode.Symlink, "module": filemode.Submodule, "new": filemode.Regular,
			} {
				if whole[name].mode != mode {
					b.Errorf("%s has mode %v, want %v", name, whole[name].mode, mode)
				}
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	})
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a": "1", "d/e/f": "2", ".sops.yaml": "3", ".git/config": "no"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadFiles(dir)
	if err != nil || !maps.EqualFunc(got, content("a", "1", "d/e/f", "2", ".sops.yaml", "3"), bytes.Equal) {
		t.Errorf("files are %q (%v)", got, err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFiles(dir); err == nil {
		t.Errorf("a link was read: %q", got)
	}
}

// A client that does not read its pack keeps nobody from the repository.
func TestRepoDoesNotWaitForASlowClient(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		_, r := newGit(b, "")
		head := must[string](b)(r.Commit("main", content("a", "1"), "base"))
		pr, pw := io.Pipe()
		slow := make(chan error)
		go func() {
			slow <- r.uploadPack(strings.NewReader(fmt.Sprintf("0032want %s\n00000009done\n", head)), pw, true)
		}()
		if _, err := io.ReadFull(pr, make([]byte, len("0008NAK\n"))); err != nil {
			b.Fatal(err)
		}
		synctest.Wait() // it hangs with the pack in its hands
		must[string](b)(r.Commit("main", content("a", "2"), "meanwhile"))
		_ = pr.Close()
		if err := <-slow; err == nil {
			b.Error("a pack went nowhere without an error")
		}
	})
}

func TestRepoCommits(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		_, r := newGit(b, "")
		at := func(hash string) (all []string) {
			b.Helper()
			if err := r.Edit(func(s storage.Storer) error { all = filesAt(b, s, hash); return nil }); err != nil {
				b.Fatal(err)
			}
			return all
		}
		check := func(hash string, want ...string) {
			b.Helper()
			if got := at(hash); !slices.Equal(got, want) {
				b.Errorf("%s holds %q, want %q", hash, got, want)
			}
			if head := must[string](b)(r.Head("main")); head != hash {
				b.Errorf("main is at %s, not %s", head, hash)
			}
		}
		if _, err := r.Head("main"); err == nil {
			b.Error("an empty repository has a head")
		}
		one := must[string](b)(r.Commit("main", content("a", "1", "dir/b", "2", "dir.txt", "3"), "one"))
		check(one, "a=1", "dir.txt=3", "dir/b=2")
		two := must[string](b)(r.Commit("main", map[string][]byte{"a": nil, "dir/c": []byte("4"), "empty": {}}, "two"))
		check(two, "dir.txt=3", "dir/b=2", "dir/c=4", "empty=")
		three := must[string](b)(r.Commit("main", map[string][]byte{"only": []byte("5"), "dir.txt": nil, "dir/b": nil, "dir/c": nil, "empty": nil}, "three"))
		check(three, "only=5")
		if err := r.Reset("main", one); err != nil {
			b.Fatal(err)
		}
		check(one, "a=1", "dir.txt=3", "dir/b=2")
		fresh := must[string](b)(r.Rewrite("main", content("new", "6"), "rewritten"))
		check(fresh, "new=6")
		for _, known := range []string{one, two, three, fresh} {
			if !r.Has(known) {
				b.Errorf("%s is gone", known)
			}
		}
		for _, unknown := range []string{"", "main", strings.Repeat("0", 40)} {
			if r.Has(unknown) {
				b.Errorf("%q is there", unknown)
			}
		}
		for name, bad := range map[string]error{
			"reset to nothing": r.Reset("main", strings.Repeat("1", 40)),
			"bad branch":       second(r.Commit("a..b", content("a", "1"), "x")),
			"bad path":         second(r.Commit("main", content("../a", "1"), "x")),
			"git folder":       second(r.Commit("main", content("x/.git/config", "1"), "x")),
			"file and folder":  second(r.Commit("main", content("a", "1", "a/b", "1"), "x")),
		} {
			if bad == nil {
				b.Errorf("%s went through", name)
			}
		}
		check(fresh, "new=6")
	})
}
