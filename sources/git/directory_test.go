package git

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(p), 0o755))
		check(t, os.WriteFile(p, []byte(text), 0o644))
	}
}

func TestPlainDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, first)
	d := must(OpenDir(Config{Dir: dir}))
	c := head(t, d)
	if !strings.HasPrefix(c.Revision, "dir@sha256:") || len(c.Revision) != len("dir@sha256:")+64 || c.Hash != "" {
		t.Errorf("commit %+v", c)
	}
	equal(t, readAll(t, d, c), first)

	// The name follows the contents alone: another place, another time.
	other := t.TempDir()
	write(t, other, first)
	check(t, os.Chtimes(filepath.Join(other, ".sops.yaml"), time.Unix(0, 0), time.Unix(0, 0)))
	if c2 := head(t, must(OpenDir(Config{Dir: other}))); c2 != c {
		t.Errorf("the same files are %+v and %+v", c, c2)
	}
	seen := map[string]string{c.Content: "at first"}
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"a file's contents", func() error { return os.WriteFile(filepath.Join(dir, ".sops.yaml"), []byte("x"), 0o644) }},
		{"a new file", func() error { return os.WriteFile(filepath.Join(dir, "new"), nil, 0o644) }},
		{"a file's name", func() error { return os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "new2")) }},
		{"a link", func() error { return os.Symlink("new2", filepath.Join(dir, "link")) }},
	} {
		check(t, change.do())
		c := head(t, d)
		if before, ok := seen[c.Content]; ok {
			t.Errorf("%s: the same content as %s", change.what, before)
		}
		seen[c.Content] = change.what
	}
	ok, err := d.Descends(t.Context(), "", "")
	if !ok || err != nil {
		t.Errorf("descends: %v, %v", ok, err)
	}
}

func TestDirectoryReadsRegularFilesOnly(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	check(t, os.WriteFile(outside, []byte("secret"), 0o600))
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1", "large": strings.Repeat("x", 100)})
	check(t, os.Symlink("a", filepath.Join(dir, "inside")))
	check(t, os.Symlink(outside, filepath.Join(dir, "outside")))
	check(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "updir")))
	check(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	d := must(OpenDir(Config{Dir: dir, Limits: Limits{Blob: 50}}))
	fsys, err := d.Tree(t.Context(), head(t, d))
	check(t, err)
	for name, want := range map[string]struct {
		kind error
		word string
	}{
		"inside":       {ErrNotRegular, "symbolic link"},
		"outside":      {ErrNotRegular, "symbolic link"},
		"updir/secret": {ErrNotRegular, "symbolic link"},
		"pipe":         {ErrNotRegular, "pipe"},
		"large":        {ErrLimit, "100 bytes"},
		"../secret":    {fs.ErrInvalid, ""},
		"no":           {fs.ErrNotExist, ""},
	} {
		_, err := fs.ReadFile(fsys, name)
		wantKind(t, err, want.kind, name, want.word)
	}
	if b, err := fs.ReadFile(fsys, "a"); err != nil || string(b) != "1" {
		t.Errorf("a: %q, %v", b, err)
	}
}

func TestDirectoryThatChanges(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1", "b": "1", "c": "1", "d": "1"})
	d := must(OpenDir(Config{Dir: dir}))
	old := head(t, d)
	fsys, err := d.Tree(t.Context(), old)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, "a"), []byte("2"), 0o644))
	check(t, os.Remove(filepath.Join(dir, "b")))
	check(t, os.Remove(filepath.Join(dir, "c")))
	check(t, os.Symlink("d", filepath.Join(dir, "c")))
	for _, name := range []string{"a", "b", "c"} {
		_, err := fs.ReadFile(fsys, name)
		wantKind(t, err, ErrChanged)
	}
	if b, err := fs.ReadFile(fsys, "d"); err != nil || string(b) != "1" {
		t.Errorf("d: %q, %v", b, err)
	}
	head(t, d)
	_, err = d.Tree(t.Context(), old)
	wantKind(t, err, ErrChanged)
}

func TestDirectoryLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		files  map[string]string
		limits Limits
		words  []string
	}{
		"entries": {map[string]string{"a": "", "d/b": "", "d/c": ""}, Limits{Entries: 3}, []string{"d: more than 3 directory entries"}},
		"total":   {map[string]string{"a": "123", "d/b": "45"}, Limits{Total: 4}, []string{"d/b", "larger than 4 bytes"}},
		"depth":   {map[string]string{"a/b/c/d": ""}, Limits{Depth: 2}, []string{"a/b/c: 3 directories deep"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tc.files)
			_, err := must(OpenDir(Config{Dir: dir, Limits: tc.limits})).Head(t.Context())
			wantKind(t, err, ErrLimit, tc.words...)
		})
	}
}

// clone makes a work tree of an origin.
func clone(t testing.TB, o *origin) (dir string, git func(args ...string) string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "infra")
	o.run("clone", "-q", "file://"+o.dir, dir)
	w := *o
	w.dir, w.tmp = filepath.Join(dir, ".git"), dir
	return dir, w.run
}

func TestWorkTree(t *testing.T) {
	o := newOrigin(t)
	one := o.commit("one", with(with(first, ".gitignore", "*.swp\n/build/\n!keep.swp\n"), "inventory/.gitignore", "local.yaml\n"))
	dir, git := clone(t, o)
	whole := must(OpenDir(Config{Dir: dir}))
	below := must(OpenDir(Config{Dir: filepath.Join(dir, "inventory")}))
	expect := func(what string, d *Directory, dirty bool) Commit {
		t.Helper()
		want := "HEAD@sha1:" + one
		if dirty {
			want += "+dirty"
		}
		c := head(t, d)
		if c.Revision != want || c.Hash != one || c.Subject != "one" {
			t.Errorf("%s: %+v, want revision %s", what, c, want)
		}
		return c
	}
	clean := expect("clean", whole, false)
	expect("clean, below", below, false)

	write(t, dir, map[string]string{"x.swp": "", "build/big": "", "inventory/dev/local.yaml": "", "inventory/y.swp": ""})
	if c := expect("with ignored files", whole, false); c.Content != clean.Content {
		t.Error("ignored files change the content")
	}
	expect("with ignored files, below", below, false)
	if files := readAll(t, whole, head(t, whole)); len(files) != len(first)+2 {
		t.Errorf("reads %d files, want %d", len(files), len(first)+2)
	}

	write(t, dir, map[string]string{"keep.swp": ""})
	expect("with a file that is not ignored after all", whole, true)
	expect("the same, below", below, false)
	check(t, os.Remove(filepath.Join(dir, "keep.swp")))

	write(t, dir, map[string]string{"inventory/dev/nodes.yaml": "workers: []\n"})
	c1 := expect("edited", whole, true)
	write(t, dir, map[string]string{"inventory/dev/nodes.yaml": "workers: [x]\n"})
	if c2 := expect("edited again", whole, true); c1.Content == c2.Content {
		t.Error("two dirty states have the same content")
	}
	git("checkout", "-q", ".")
	expect("restored", whole, false)
	check(t, os.Remove(filepath.Join(dir, "größe.yaml")))
	expect("a file removed", whole, true)
	git("checkout", "-q", ".")

	// A linked work tree has a file in place of .git.
	linked := filepath.Join(t.TempDir(), "linked")
	git("worktree", "add", "-q", "--detach", linked, one)
	expect("linked", must(OpenDir(Config{Dir: linked})), false)

	// A forced file that matches a pattern is tracked all the same.
	write(t, dir, map[string]string{"build/x/forced": "1"})
	git("add", "-f", "build/x/forced")
	git("commit", "-q", "-m", "one")
	one = git("rev-parse", "HEAD")
	expect("tracked though ignored", whole, false)
	write(t, dir, map[string]string{"build/x/forced": "2"})
	expect("tracked though ignored, edited", whole, true)
}

// TestNoUsableWorkTree names by contents what no commit names.
func TestNoUsableWorkTree(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", first)
	cases := map[string]func(t *testing.T) string{
		"no commit yet": func(t *testing.T) string {
			dir := t.TempDir()
			o.run("init", "-q", dir)
			return dir
		},
		"not in the commit": func(t *testing.T) string {
			dir, _ := clone(t, o)
			write(t, dir, map[string]string{"new/a": ""})
			return filepath.Join(dir, "new")
		},
		"sha256": func(t *testing.T) string {
			dir := t.TempDir()
			o.run("init", "-q", "--object-format=sha256", dir)
			write(t, dir, first)
			return dir
		},
		"broken": func(t *testing.T) string {
			dir, _ := clone(t, o)
			check(t, os.RemoveAll(filepath.Join(dir, ".git/objects")))
			return dir
		},
		"a file called .git": func(t *testing.T) string {
			dir := t.TempDir()
			write(t, dir, map[string]string{".git": "gitdir: /nonexistent\n", "a": ""})
			return dir
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			c := head(t, must(OpenDir(Config{Dir: prepare(t)})))
			if !strings.HasPrefix(c.Revision, "dir@sha256:") {
				t.Errorf("revision %s", c.Revision)
			}
		})
	}
}

// TestWorkTreeAndPushAgree: what validate reads before a push is what the
// daemon reads after it.
func TestWorkTreeAndPushAgree(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", first)
	dir, _ := clone(t, o)
	d := must(OpenDir(Config{Dir: dir}))
	s := open(t, Config{URL: o.dir})
	equal(t, readAll(t, d, head(t, d)), readAll(t, s, head(t, s)))
}
