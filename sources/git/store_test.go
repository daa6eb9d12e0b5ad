package git

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

var first = map[string]string{
	".sops.yaml":                  "creation_rules: []\n",
	"inventory/dev/cluster.yaml":  "cluster_name: dev\n",
	"inventory/dev/nodes.yaml":    "controlplane: []\n",
	"inventory/dev/patches/a b.y": "empty: \"\"\n",
	"größe.yaml":                  "x: 1\n",
}

func with(files map[string]string, name, text string) map[string]string {
	out := map[string]string{name: text}
	for k, v := range files {
		if k != name {
			out[k] = v
		}
	}
	return out
}

// transports are the ways to one and the same repository.
var transports = map[string]func(t testing.TB, o *origin) Config{
	"http": func(t testing.TB, o *origin) Config { return Config{URL: serveHTTP(t, o, false).url()} },
	"https": func(t testing.TB, o *origin) Config {
		h := serveHTTP(t, o, true)
		return Config{URL: h.url(), CA: h.ca()}
	},
	"ssh":  func(t testing.TB, o *origin) Config { return serveSSH(t).config(o) },
	"bare": func(t testing.TB, o *origin) Config { return Config{URL: o.dir} },
	"file": func(t testing.TB, o *origin) Config { return Config{URL: "file://" + o.dir} },
	"https, in memory": func(t testing.TB, o *origin) Config {
		h := serveHTTP(t, o, true)
		return Config{URL: h.url(), CA: h.ca(), Dir: "-"}
	},
}

func TestBranchThroughItsLife(t *testing.T) {
	for name, config := range transports {
		t.Run(name, func(t *testing.T) {
			o := newOrigin(t)
			c := config(t, o)
			if c.Dir == "-" {
				c.Dir = ""
			} else {
				c.Dir = t.TempDir()
			}
			s := open(t, c)

			_, err := s.Head(t.Context())
			wantKind(t, err, ErrEmpty, "empty", "push a first commit to main")

			one := o.commit("one\n\nmore", first)
			c1 := head(t, s)
			if want := "main@sha1:" + one; c1.Revision != want || c1.Hash != one || c1.Subject != "one" || c1.Time.IsZero() {
				t.Errorf("commit %+v, want revision %s", c1, want)
			}
			equal(t, readAll(t, s, c1), first)
			if again := head(t, s); again != c1 {
				t.Errorf("unchanged branch: %+v, then %+v", c1, again)
			}

			second := with(first, "inventory/dev/nodes.yaml", "controlplane: [a]\n")
			two := o.commit("two", second)
			c2 := head(t, s)
			if c2.Hash != two || c2.Content == c1.Content {
				t.Errorf("after a push: %+v, want %s", c2, two)
			}
			equal(t, readAll(t, s, c2), second)
			equal(t, readAll(t, s, c1), first) // the old state is still there
			descends(t, s, two, one, true)
			descends(t, s, one, two, false)
			descends(t, s, two, two, true)

			// The head goes back to an old commit.
			o.run("update-ref", "refs/heads/main", one)
			if c := head(t, s); c != c1 {
				t.Errorf("after going back: %+v, want %+v", c, c1)
			}
			o.run("update-ref", "refs/heads/main", two)
			if c := head(t, s); c != c2 {
				t.Errorf("after going forth: %+v, want %+v", c, c2)
			}

			// History is rewritten.
			o.run("update-ref", "refs/heads/main", one)
			o.run("reset", "-q", "--hard", one)
			three := o.commit("three", with(first, "x", "y"))
			c3 := head(t, s)
			if c3.Hash != three {
				t.Errorf("after a force-push: %+v, want %s", c3, three)
			}
			descends(t, s, three, one, true)
			descends(t, s, three, two, false)
			descends(t, s, three, strings.Repeat("ab", 20), false)

			// All of it is replaced by one commit without parents.
			root := o.run("commit-tree", "-m", "root", two+"^{tree}")
			o.run("update-ref", "refs/heads/main", root)
			c4 := head(t, s)
			if c4.Hash != root || c4.Content != c2.Content {
				t.Errorf("after starting over: %+v, want %s with the files of %+v", c4, root, c2)
			}
			descends(t, s, root, three, false)

			o.run("update-ref", "refs/heads/other", one)
			o.run("update-ref", "-d", "refs/heads/main")
			_, err = s.Head(t.Context())
			wantKind(t, err, ErrNoBranch, "no branch main", "set branch to one of: other")
		})
	}
}

func descends(t *testing.T, s *Store, head, ancestor string, want bool) {
	t.Helper()
	got, err := s.Descends(t.Context(), head, ancestor)
	if err != nil || got != want {
		t.Errorf("%.7s descends from %.7s: %v, %v; want %v", head, ancestor, got, err, want)
	}
}

func TestMergedHistory(t *testing.T) {
	o := newOrigin(t)
	base := o.commit("base", first)
	side := o.commit("side", with(first, "side", "1"))
	o.run("reset", "-q", "--hard", base)
	o.commit("trunk", with(first, "trunk", "1"))
	o.run("merge", "-q", "-m", "merge", side)
	s := open(t, Config{URL: serveHTTP(t, o, false).url(), Dir: t.TempDir()})
	c := head(t, s)
	descends(t, s, c.Hash, side, true)
	descends(t, s, c.Hash, base, true)
}

func TestOneListOfReferencesWhenNothingMoved(t *testing.T) {
	o := newOrigin(t)
	h := serveHTTP(t, o, false)
	dir := t.TempDir()
	s := open(t, Config{URL: h.url(), Dir: dir})
	o.commit("one", first)
	head(t, s)
	count := func(want int32, what string, s *Store) {
		t.Helper()
		before := h.requests.Load()
		head(t, s)
		if n := h.requests.Load() - before; n != want {
			t.Errorf("%s: %d requests, want %d", what, n, want)
		}
	}
	count(1, "nothing moved", s)
	count(1, "after a restart", open(t, Config{URL: h.url(), Dir: dir}))
	o.commit("two", with(first, "b", "2"))
	count(2, "moved", s)
	// The second pack holds the new blob, the new tree and the new commit.
	before := *o
	before.dir = filepath.Join(dir, storeDir)
	if got, want := before.run("count-objects", "-v"), o.run("count-objects", "-v"); inPack(got) != strings.Fields(want)[1] {
		t.Errorf("the store has %s objects in packs, the origin %s in all", inPack(got), strings.Fields(want)[1])
	}
	o.run("update-ref", "refs/heads/main", "HEAD~1")
	count(1, "went back", s)
}

// inPack takes a figure out of what git count-objects -v prints.
func inPack(out string) string {
	_, rest, _ := strings.Cut(out, "in-pack: ")
	return strings.Fields(rest)[0]
}

func TestFileSystemContract(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", first)
	names := make([]string, 0, len(first))
	for n := range first {
		names = append(names, n)
	}
	s := open(t, Config{URL: serveHTTP(t, o, false).url()})
	fsys, err := s.Tree(t.Context(), head(t, s))
	check(t, err)
	check(t, fstest.TestFS(fsys, names...))

	dir := t.TempDir()
	check(t, os.CopyFS(dir, fsys))
	d := must(OpenDir(Config{Dir: dir}))
	fsys, err = d.Tree(t.Context(), head(t, d))
	check(t, err)
	check(t, fstest.TestFS(fsys, names...))
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	o := newOrigin(t)
	blob := o.object("blob", []byte("text"))
	lfs := o.object("blob", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n"))
	link := o.object("blob", []byte("../../etc/shadow"))
	h := serveHTTP(t, o, false)
	s := open(t, Config{URL: h.url(), Dir: t.TempDir()})

	commit := o.commitTree(
		treeEntry("100644", "ok", blob), treeEntry("100755", "run", blob), treeEntry("120000", "link", link),
		treeEntry("160000", "sub", strings.Repeat("ab", 20)), treeEntry("100644", "large", lfs))
	fsys, err := s.Tree(t.Context(), head(t, s))
	check(t, err)
	for name, words := range map[string][]string{
		"link":      {"link", "symbolic link", "not followed"},
		"link/x":    {"symbolic link"},
		"sub":       {"sub", "submodule"},
		"sub/x.yml": {"submodule"},
		"large":     {"large", "Git LFS", "untrack"},
	} {
		_, err := fs.ReadFile(fsys, name)
		wantKind(t, err, ErrNotRegular, words...)
		var pe *fs.PathError
		if !errors.As(err, &pe) || pe.Path != name {
			t.Errorf("%s: error %v names another path", name, err)
		}
	}
	for _, name := range []string{"ok", "run"} {
		if b, err := fs.ReadFile(fsys, name); err != nil || string(b) != "text" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for name, want := range map[string]error{"no": fs.ErrNotExist, "ok/x": fs.ErrNotExist, "../x": fs.ErrInvalid, "/ok": fs.ErrInvalid} {
		if _, err := fs.ReadFile(fsys, name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if s.suspect.Load() {
		t.Errorf("a well-formed tree of %s made the store suspect", commit)
	}

	for _, odd := range []string{"..", ".", ".git", ".GIT", "a/b", "a\nb", "a\x1b[31m", "\xff"} {
		t.Run(fmt.Sprintf("%q", odd), func(t *testing.T) {
			o.commitTree(treeEntry("100644", odd, blob))
			fsys, err := s.Tree(t.Context(), head(t, s))
			check(t, err)
			_, err = fs.ReadDir(fsys, ".")
			wantKind(t, err, ErrUnsupported, "odd name")
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("error %q carries a control character", err)
			}
		})
	}
	o.commitTree(treeEntry("100644", "same", blob), treeEntry("100644", "same", lfs))
	fsys, err = s.Tree(t.Context(), head(t, s))
	check(t, err)
	_, err = fs.ReadFile(fsys, "same")
	wantKind(t, err, ErrUnsupported, `"same" twice`)
}

// TestBrokenAtItsOrigin: what a commit lacks is not fetched again and again.
// Git itself does not serve such commits; a server with other plans does.
func TestBrokenAtItsOrigin(t *testing.T) {
	blob := packObject{kind: plumbing.BlobObject, data: []byte("text")}
	id := plumbing.ComputeHash(blob.kind, blob.data).String()
	for name, entry := range map[string][]byte{
		"a blob for a directory": treeEntry("40000", "x", id),
		"a tree cut short":       treeEntry("100644", "x", id)[:15],
		"a tree that is missing": treeEntry("40000", "x", strings.Repeat("ab", 20)),
	} {
		t.Run(name, func(t *testing.T) {
			tree := packObject{kind: plumbing.TreeObject, data: entry}
			commit := packObject{kind: plumbing.CommitObject, data: []byte("tree " + plumbing.ComputeHash(tree.kind, tree.data).String() + "\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n")}
			tip := plumbing.ComputeHash(commit.kind, commit.data).String()
			h := serveHTTP(t, newOrigin(t), false)
			h.setFront(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPost {
					w.Header().Set("Content-Type", packType)
					_, _ = w.Write(append([]byte("0008NAK\n"), makePack(blob, tree, commit)...))
					return true
				}
				line := tip + " refs/heads/main\x00ofs-delta\n"
				w.Header().Set("Content-Type", refsType)
				fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%04x%s0000", len(line)+4, line)
				return true
			})
			s := open(t, Config{URL: h.url(), Dir: t.TempDir()})
			for i := range 4 {
				before := h.requests.Load()
				c := head(t, s)
				if n := h.requests.Load() - before; n > 2 || i > 1 && n > 1 {
					t.Errorf("Head %d: %d requests", i, n)
				}
				fsys, err := s.Tree(t.Context(), c)
				check(t, err)
				if _, err = fs.ReadFile(fsys, "x/y"); err == nil || errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("error %v: what cannot be read is not absent", err)
				}
			}
		})
	}
}

func TestLimitsOfATree(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", map[string]string{"a": "1234", "b": "1234", "c": "12345", "d/e/f/g": "1", "d/h": "1"})
	h := serveHTTP(t, o, false)
	for name, tc := range map[string]struct {
		limits Limits
		read   []string
		words  []string
	}{
		"file":    {Limits{Blob: 4}, []string{"a", "c"}, []string{"read c", "larger than 4 bytes, the limit for one file"}},
		"total":   {Limits{Total: 8}, []string{"a", "b", "a", "c"}, []string{"read c", "larger than 8 bytes"}},
		"entries": {Limits{Entries: 5}, []string{"a", "a", "d/h"}, []string{"more than 5 directory entries"}},
		"depth":   {Limits{Depth: 3}, []string{"d/h", "d/e/f/g"}, []string{"4 directories deep, the limit is 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{URL: h.url(), Limits: tc.limits})
			fsys, err := s.Tree(t.Context(), head(t, s))
			check(t, err)
			for i, f := range tc.read {
				_, err := fs.ReadFile(fsys, f)
				if i < len(tc.read)-1 {
					check(t, err)
					continue
				}
				wantKind(t, err, ErrLimit, tc.words...)
			}
		})
	}
}

func TestStoreIsMadeAgain(t *testing.T) {
	o := newOrigin(t)
	one := o.commit("one", first)
	h := serveHTTP(t, o, false)
	packs := func(dir string) []string { return must(filepath.Glob(filepath.Join(dir, storeDir, packDir, "*.pack"))) }

	damage := map[string]func(t *testing.T, dir string){
		"broken pack": func(t *testing.T, dir string) {
			for _, p := range packs(dir) {
				b := must(os.ReadFile(p))
				for i := 20; i < len(b); i++ {
					b[i] ^= 0x55
				}
				check(t, os.WriteFile(p, b, 0o600))
			}
		},
		"no packs": func(t *testing.T, dir string) { check(t, os.RemoveAll(filepath.Join(dir, storeDir, "objects"))) },
		"empty reference, as after a power cut": func(t *testing.T, dir string) {
			check(t, os.WriteFile(filepath.Join(dir, storeDir, "refs/heads/main"), nil, 0o600))
		},
		"empty HEAD": func(t *testing.T, dir string) {
			check(t, os.WriteFile(filepath.Join(dir, storeDir, "HEAD"), nil, 0o600))
		},
		"empty index": func(t *testing.T, dir string) {
			check(t, os.Truncate(strings.TrimSuffix(packs(dir)[0], "pack")+"idx", 0))
		},
		"no store": func(t *testing.T, dir string) { check(t, os.RemoveAll(filepath.Join(dir, storeDir))) },
		"half a pack left behind": func(t *testing.T, dir string) {
			check(t, os.WriteFile(filepath.Join(dir, storeDir, packPartial), []byte("PACK"), 0o600))
		},
		"half a fresh store left behind": func(t *testing.T, dir string) {
			check(t, os.CopyFS(filepath.Join(dir, freshDir), os.DirFS(filepath.Join(dir, storeDir))))
			check(t, os.RemoveAll(filepath.Join(dir, storeDir)))
		},
	}
	for name, harm := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			head(t, open(t, Config{URL: h.url(), Dir: dir}))
			harm(t, dir)
			s := open(t, Config{URL: h.url(), Dir: dir})
			c := head(t, s)
			if c.Hash != one {
				t.Fatalf("head %s, want %s", c.Hash, one)
			}
			equal(t, readAll(t, s, c), first)
		})
	}

	t.Run("deleted while it is in use", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, Config{URL: h.url(), Dir: dir})
		c := head(t, s)
		fsys, err := s.Tree(t.Context(), c)
		check(t, err)
		for range 2 {
			check(t, os.RemoveAll(dir))
			if again := head(t, s); again != c {
				t.Errorf("head %+v, want %+v", again, c)
			}
			if len(packs(dir)) != 1 {
				t.Errorf("%d packs", len(packs(dir)))
			}
			equal(t, readAll(t, s, c), first)
			_, err = fs.ReadFile(fsys, "größe.yaml")
			check(t, err)
			equal(t, readAll(t, open(t, Config{URL: h.url(), Dir: dir}), c), first) // whole, for the next start
		}
	})

	t.Run("found again by the next process", func(t *testing.T) {
		dir := t.TempDir()
		c := head(t, open(t, Config{URL: h.url(), Dir: dir}))
		s := open(t, Config{URL: h.url(), Dir: dir}) // which asks nobody
		found, err := s.Find(one)
		if err != nil || found != c {
			t.Fatalf("%+v, %v", found, err)
		}
		equal(t, readAll(t, s, found), first)
		if newest, err := s.Find(""); err != nil || newest != c {
			t.Errorf("%+v, %v", newest, err)
		}
		for _, no := range []string{"main", strings.Repeat("0", 40)} {
			if _, err := s.Find(no); err == nil {
				t.Errorf("found %q", no)
			}
		}
		for _, none := range []string{one, ""} {
			if _, err := open(t, Config{URL: h.url(), Dir: t.TempDir()}).Find(none); err == nil {
				t.Error("found in an empty store")
			}
		}
	})

	t.Run("an object that cannot be read", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, Config{URL: h.url(), Dir: dir})
		c := head(t, s)
		fsys, err := s.Tree(t.Context(), c)
		check(t, err)
		check(t, os.Remove(packs(dir)[0]))
		if _, err := fs.ReadFile(fsys, "größe.yaml"); err == nil {
			t.Fatal("read a file out of a pack that is deleted")
		}
		if c2 := head(t, s); c2 != c {
			t.Errorf("head %+v, want %+v", c2, c)
		}
		equal(t, readAll(t, s, c), first)
		// The old file system reads from the new store.
		_, err = fs.ReadFile(fsys, "größe.yaml")
		check(t, err)
	})
}

func TestPacksDoNotPileUp(t *testing.T) {
	n := world.NewMemory()
	o := &memOrigin{sto: memory.NewStorage()}
	serveMemory(t, n, "10.0.0.1:80", o)
	dir := t.TempDir()
	packs := func() int { return len(must(filepath.Glob(filepath.Join(dir, storeDir, packDir, "*.pack")))) }
	s := open(t, Config{URL: "http://10.0.0.1/infra.git", Dial: n.DialContext, Dir: dir})
	most, parents := 0, []string{}
	for i := range maxPacks + 5 {
		id := o.commit(fmt.Sprint(i), nil, parents...)
		o.setMain(id)
		parents = []string{id}
		if c := head(t, s); c.Hash != id {
			t.Fatalf("head %+v, want %s", c, id)
		}
		most = max(most, packs())
	}
	if n := packs(); most != maxPacks || n != 5 {
		t.Errorf("%d packs at most and %d at the end; the limit is %d", most, n, maxPacks)
	}
}

func TestEverythingOnDiskIsPrivate(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	o := newOrigin(t)
	o.commit("one", first)
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, Config{URL: serveHTTP(t, o, false).url(), Dir: dir})
	head(t, s)
	s.suspect.Store(true)
	o.commit("two", with(first, "a", "1"))
	head(t, s)
	check(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", p, info.Mode())
		}
		return err
	}))
	o2 := *o
	o2.dir = filepath.Join(dir, storeDir)
	if out := o2.run("fsck", "--full"); out != "" {
		t.Errorf("git fsck reports %s", out)
	}
}

func TestHTTPRefusals(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", first)
	h := serveHTTP(t, o, true)
	const token = "canary-token-2c8e"
	status := func(code int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { http.Error(w, body, code); return true }
	}
	elsewhere := serveHTTP(t, o, true)
	elsewhere.setFront(func(w http.ResponseWriter, r *http.Request) bool {
		t.Errorf("a request reached the other host, with Authorization %q", r.Header.Get("Authorization"))
		return false
	})
	for name, tc := range map[string]struct {
		front func(http.ResponseWriter, *http.Request) bool
		token string
		kind  error
		words []string
	}{
		"credentials wanted": {status(401, "who are you?"), "", ErrAuth, []string{"asks for credentials", "who are you?", "token_file"}},
		"token refused":      {status(401, "bad "+token), token, ErrAuth, []string{"refuses the token", "[redacted]", "expired"}},
		"forbidden":          {status(403, ""), token, ErrAuth, []string{"403", "read access"}},
		"not found":          {status(404, ""), token, ErrNotFound, []string{"404", "looks the same"}},
		"server error":       {status(502, "bad gateway\nmore"), token, ErrUnreachable, []string{"502", "bad gateway"}},
		"rate limit":         {status(429, "slow down"), token, ErrUnreachable, []string{"429", "slow down"}},
		"web page": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>")
			return true
		}, "", ErrUnsupported, []string{"smart HTTP", "text/html"}},
		"redirect to another host": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, elsewhere.URL+r.URL.String(), http.StatusFound)
			return true
		}, token, ErrNotFound, []string{"sends us to " + elsewhere.URL, "put its address into url"}},
		"redirect to plain http": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://"+r.Host+r.URL.String(), http.StatusFound)
			return true
		}, token, ErrNotFound, []string{"sends us to http://"}},
		"redirect to a sign-in page": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "/users/sign_in?secret=1", http.StatusFound)
			return true
		}, "", ErrNotFound, []string{"/users/sign_in", "token is needed"}},
		"endless references": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", refsType)
			line := fmt.Sprintf("%s refs/heads/%s\x00", strings.Repeat("1", 40), strings.Repeat("x", 200))
			for {
				if _, err := fmt.Fprintf(w, "%04x%s", len(line)+4, line); err != nil {
					return true
				}
				line = fmt.Sprintf("%s refs/heads/%s", strings.Repeat("1", 40), strings.Repeat("x", 200))
			}
		}, "", ErrLimit, []string{"list of references is too long"}},
		"error line": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", refsType)
			fmt.Fprint(w, "0030ERR access denied or repository not exported")
			return true
		}, "", ErrNotFound, []string{"access denied"}},
	} {
		t.Run(name, func(t *testing.T) {
			h.setFront(tc.front)
			s := open(t, Config{URL: h.url(), CA: h.ca(), Token: tc.token})
			_, err := s.Head(t.Context())
			wantKind(t, err, tc.kind, tc.words...)
			if strings.Contains(fmt.Sprintf("%v %+v", err, err), token) {
				t.Errorf("the token is in the error: %v", err)
			}
		})
	}
	h.setFront(nil)
	t.Run("unknown authority", func(t *testing.T) {
		_, err := open(t, Config{URL: h.url()}).Head(t.Context())
		wantKind(t, err, ErrUnreachable, "certificate is not trusted", "ca_file")
	})
	t.Run("nobody listens", func(t *testing.T) {
		_, err := open(t, Config{URL: "http://127.0.0.1:1/x.git"}).Head(t.Context())
		wantKind(t, err, ErrUnreachable, "connection refused")
	})
	t.Run("https to a plain port", func(t *testing.T) {
		p := serveHTTP(t, o, false)
		_, err := open(t, Config{URL: strings.Replace(p.url(), "http:", "https:", 1)}).Head(t.Context())
		wantKind(t, err, ErrUnreachable)
	})
	t.Run("no such repository", func(t *testing.T) {
		_, err := open(t, Config{URL: h.URL + "/other.git", CA: h.ca()}).Head(t.Context())
		wantKind(t, err, ErrNotFound)
	})
}

func TestTokenAndRedirectWithinOneHost(t *testing.T) {
	o := newOrigin(t)
	one := o.commit("one", first)
	h := serveHTTP(t, o, true)
	for user, want := range map[string]string{"": "x-access-token", "deploy-1@": "deploy-1"} {
		h.setFront(func(w http.ResponseWriter, r *http.Request) bool {
			if u, p, ok := r.BasicAuth(); !ok || u != want || p != "s3cret" {
				t.Errorf("%s %s with credentials %q:%q", r.Method, r.URL, u, p)
			}
			if path, ok := strings.CutPrefix(r.URL.Path, "/old"); ok {
				http.Redirect(w, r, path+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
				return true
			}
			return false
		})
		url := strings.Replace(h.URL, "https://", "https://"+user, 1) + "/old/infra.git"
		if c := head(t, open(t, Config{URL: url, CA: h.ca(), Token: "s3cret"})); c.Hash != one {
			t.Errorf("head %+v, want %s", c, one)
		}
	}
}

func TestUnsupportedRepositories(t *testing.T) {
	for name, config := range transports {
		t.Run(name+", sha256", func(t *testing.T) {
			o := newOrigin(t, "--object-format=sha256")
			c := config(t, o)
			c.Dir = ""
			o.commit("one", first)
			_, err := open(t, c).Head(t.Context())
			wantKind(t, err, ErrUnsupported, "SHA-1")
		})
		t.Run(name+", shallow", func(t *testing.T) {
			o := newOrigin(t)
			old := o.commit("one", first)
			o.commit("two", first)
			shallow := newOrigin(t)
			check(t, os.RemoveAll(shallow.dir))
			o.run("clone", "-q", "--bare", "--depth=1", "file://"+o.dir, shallow.dir)
			c := config(t, shallow)
			c.Dir = ""
			s := open(t, c)
			hd, err := s.Head(t.Context())
			if name != "bare" && name != "file" {
				wantKind(t, err, ErrUnsupported, "shallow", "--unshallow")
				return
			}
			check(t, err)
			// The ancestor is not there, and may be in the part that is missing.
			_, err = s.Descends(t.Context(), hd.Hash, old)
			wantKind(t, err, ErrUnsupported, "shallow", "--unshallow")
			shallow.run("fetch", "-q", "--unshallow", "origin")
			hd, err = s.Head(t.Context())
			check(t, err)
			if ok, err := s.Descends(t.Context(), hd.Hash, old); !ok || err != nil {
				t.Errorf("descends: %v, %v", ok, err)
			}
		})
	}
}

func TestStalledServer(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", first)
	stall := make(chan struct{})
	silent := must(net.Listen("tcp", "127.0.0.1:0"))
	var conns []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	}()
	defer func() {
		silent.Close()
		<-done
		for _, c := range conns {
			c.Close()
		}
	}()
	h := serveHTTP(t, o, false)
	defer close(stall)
	h.setFront(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			w.Header().Set("Content-Type", packType)
			fmt.Fprint(w, "0008NAK\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-stall:
			case <-r.Context().Done():
			}
			return true
		}
		return false
	})
	sshConfig := serveSSH(t).config(o)
	sshConfig.URL = "ssh://git@" + silent.Addr().String() + o.dir
	sshConfig.KnownHosts = append([]byte("* "), strings.SplitN(string(sshConfig.KnownHosts), " ", 2)[1]...)
	for name, c := range map[string]Config{"http, in the pack": {URL: h.url()}, "ssh, at once": sshConfig} {
		t.Run(name, func(t *testing.T) {
			c.Limits.Timeout = 50 * time.Millisecond
			_, err := open(t, c).Head(t.Context())
			wantKind(t, err, ErrUnreachable, "not done within 50ms")

			c.Limits.Timeout = 0
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(20*time.Millisecond, func() { cancel(nil) })
			_, err = open(t, c).Head(ctx)
			wantKind(t, err, context.Canceled)
			if errors.Is(err, ErrUnreachable) {
				t.Errorf("a cancelled read calls the server unreachable: %v", err)
			}
		})
	}
}

// TestConnectionCut: what was interrupted is tried again by the next Head, and
// is no reason to fetch everything again.
func TestConnectionCut(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", first)
	h := serveHTTP(t, o, false)
	s := open(t, Config{URL: h.url(), Dir: t.TempDir()})
	head(t, s)
	two := o.commit("two", with(first, "b", "2"))
	cut := func(when, kind, body string) {
		t.Helper()
		h.setFront(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != when {
				return false
			}
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, body)
			return true
		})
		before := h.requests.Load()
		_, err := s.Head(t.Context())
		wantKind(t, err, ErrUnreachable)
		if n := h.requests.Load() - before; n > 2 {
			t.Errorf("%s cut at %q: %d requests", when, body, n)
		}
	}
	cut(http.MethodGet, refsType, "")
	cut(http.MethodGet, refsType, "001e# service=git-upload-pack\n0000")
	cut(http.MethodPost, packType, "")
	cut(http.MethodPost, packType, "0008NAK\n")
	cut(http.MethodPost, packType, "0008NAK\n0010\x01PACK")
	h.setFront(nil)
	if c := head(t, s); c.Hash != two {
		t.Errorf("head %+v, want %s", c, two)
	}
}

// TestServerThatMakesNoSense: the store is made again once, not for ever.
func TestServerThatMakesNoSense(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", first)
	h := serveHTTP(t, o, false)
	s := open(t, Config{URL: h.url(), Dir: t.TempDir()})
	c := head(t, s)
	o.commit("two", with(first, "b", "2"))
	for _, body := range []string{"0008NAK\n0009\x01PACK0000", "0008NAK\n0013\x03fatal: \x1b[31mx\n\n", "0010ERR not our ref", "nonsense", "0008NAK\n000e\x01PACK\x00\x00\x00\x020000"} {
		h.setFront(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost {
				return false
			}
			w.Header().Set("Content-Type", packType)
			fmt.Fprint(w, body)
			return true
		})
		before := h.requests.Load()
		if _, err := s.Head(t.Context()); err == nil || strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("%q: error %q", body, err)
		}
		if n := h.requests.Load() - before; n > 4 {
			t.Errorf("%q: %d requests", body, n)
		}
		equal(t, readAll(t, s, c), first) // the old state is still there
	}
}

func TestHeadWaitsItsTurn(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", first)
	h := serveHTTP(t, o, false)
	entered, leave := make(chan struct{}), make(chan struct{})
	h.setFront(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			entered <- struct{}{}
			<-leave
		}
		return false
	})
	s := open(t, Config{URL: h.url()})
	result := make(chan error, 1)
	go func() { _, err := s.Head(context.Background()); result <- err }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Head(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("second Head: %v", err)
	}
	close(leave)
	check(t, <-result)
}
