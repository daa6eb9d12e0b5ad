package git

import (
	"io/fs"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// TestCommitThatIsTooLarge: a file that is not read keeps no revision from being read,
// before and after it is removed. Where the server cannot leave it out, the revision is
// named, and nothing is fetched again for it.
func TestCommitThatIsTooLarge(t *testing.T) {
	for _, filters := range []string{"true", "false"} {
		t.Run(filters, func(t *testing.T) {
			o := newOrigin(t)
			o.run("config", "uploadpack.allowFilter", filters)
			files := map[string]string{"inventory/dev/cluster.yaml": "a: b\n"}
			good := o.commit("good", files)
			h := serveHTTP(t, o, false)
			var packs atomic.Int32
			h.setFront(func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPost {
					packs.Add(1)
				}
				return false
			})
			dir := t.TempDir()
			config := Config{URL: h.url(), Dir: dir, Limits: Limits{Object: 2 << 20}}
			s := open(t, config)
			if c := head(t, s); c.Hash != good {
				t.Fatalf("head is %+v", c)
			}
			files["big"] = strings.Repeat("\x00", 3<<20)
			poison := o.commit("poison", files)
			if filters == "true" {
				c := head(t, s)
				fsys, err := s.Tree(t.Context(), c)
				check(t, err)
				if b, err := fs.ReadFile(fsys, "inventory/dev/cluster.yaml"); string(b) != "a: b\n" {
					t.Errorf("%q, %v", b, err)
				}
				if info, err := fs.Stat(fsys, "big"); err != nil || info.Size() <= 1<<20 {
					t.Errorf("the file that was left out: %v, %v", info, err)
				}
				_, err = fs.ReadFile(fsys, "big")
				wantKind(t, err, ErrLimit, "big", "larger than 1048576 bytes, the limit for one file")
				before := packs.Load()
				s = open(t, config) // another process, with the copy of this one
				head(t, s)
				if fsys, err = s.Tree(t.Context(), c); err == nil {
					_, err = fs.ReadFile(fsys, "big")
				}
				wantKind(t, err, ErrLimit, "larger than 1048576 bytes")
				if head(t, s); packs.Load() != before {
					t.Error("it is fetched again for what was left out")
				}
			} else {
				for range 3 {
					c, err := s.Head(t.Context())
					wantKind(t, err, ErrLimit, "unpacks to more than 2 MiB", "uploadpack.allowFilter true")
					if c.Revision != "main@sha1:"+poison || c.Hash != poison {
						t.Errorf("the revision is %+v", c)
					}
				}
				if n := packs.Load(); n != 2 {
					t.Errorf("%d packs were asked for, want the first and one with what is too large", n)
				}
			}
			delete(files, "big")
			reverted := o.commit("revert", files)
			if filters == "false" {
				c, err := s.Head(t.Context())
				wantKind(t, err, ErrLimit, "unpacks to more than 2 MiB", "uploadpack.allowFilter true")
				if c.Hash != reverted {
					t.Errorf("the revision is %+v", c)
				}
				o.run("config", "uploadpack.allowFilter", "true") // as the hint has it
			}
			if c := head(t, s); c.Hash != reverted {
				t.Errorf("head is %+v", c)
			}
			if ok, err := s.Descends(t.Context(), reverted, good); !ok || err != nil {
				t.Errorf("descends: %v, %v", ok, err)
			}
		})
	}
}

// TestLongCommitMessage: a commit that is too long to be the newest one is one of the
// history like any other.
func TestLongCommitMessage(t *testing.T) {
	o := newOrigin(t)
	good := o.commit("good", map[string]string{"a": "b"})
	h := serveHTTP(t, o, false)
	s := open(t, Config{URL: h.url(), Dir: t.TempDir()})
	head(t, s)
	tree := o.run("rev-parse", "HEAD^{tree}")
	long := o.object("commit", []byte("tree "+tree+"\nparent "+good+"\nauthor a <a@example.org> 1000000000 +0000\ncommitter a <a@example.org> 1000000000 +0000\n\n"+strings.Repeat("x", 2<<20)+"\n"))
	o.run("update-ref", "refs/heads/main", long)
	c, err := s.Head(t.Context())
	wantKind(t, err, ErrLimit, "commit "+long)
	if c.Hash != long {
		t.Errorf("the revision is %+v", c)
	}
	next := o.commit("revert", map[string]string{"a": "b"})
	if c := head(t, s); c.Hash != next {
		t.Errorf("head is %+v", c)
	}
	if ok, err := s.Descends(t.Context(), next, good); !ok || err != nil {
		t.Errorf("descends: %v, %v", ok, err)
	}
	if hint := fault.HintOf(err); hint != "" {
		t.Errorf("hint %q", hint)
	}
}

// TestServerFailsTwice: a pack that makes no sense has the server asked once more, and that
// it does not answer then is an error like any other.
func TestServerFailsTwice(t *testing.T) {
	o := newOrigin(t)
	o.commit("one", map[string]string{"a": "1"})
	h := serveHTTP(t, o, false)
	s := open(t, Config{URL: h.url(), Dir: t.TempDir()})
	head(t, s)
	next := o.commit("two", map[string]string{"a": "2"})
	var asked atomic.Int32
	h.setFront(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			_, _ = w.Write([]byte("0008NAK\nPACK, and no more"))
			return true
		}
		if asked.Add(1) == 1 {
			return false
		}
		http.Error(w, "down for repairs", http.StatusServiceUnavailable)
		return true
	})
	_, err := s.Head(t.Context())
	wantKind(t, err, ErrUnreachable, "503")
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
	h.setFront(nil)
	if c := head(t, s); c.Hash != next {
		t.Errorf("head is %+v", c)
	}
}
