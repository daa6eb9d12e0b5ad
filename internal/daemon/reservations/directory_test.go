package reservations

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/daemon/publicfiles"
	"github.com/talos-agent/talos-agent/internal/fault"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// read returns the files of a directory.
func read(dir string) map[string]string {
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	must(err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(err)
		out[e.Name()] = string(b)
	}
	return out
}

func at(node, mac, ip string) Reservation {
	r := Reservation{Node: node, MAC: mac}
	if ip != "" {
		r.IP = netip.MustParseAddr(ip)
	}
	return r
}

// kept is the reservation of a node that runs.
func kept(node, ip string) Reservation {
	r := at(node, "BC:24:11:00:00:01", ip)
	r.Kept = true
	return r
}

const (
	comment = "# node cp-1 of cluster dev, written by talos-agent\n"
	first   = comment + "bc:24:11:00:00:01,10.10.0.11,cp-1\n"
	moved   = comment + "bc:24:11:00:00:01,10.10.0.12,cp-1\n"
	older   = "bc:24:11:00:00:01,10.10.0.9,cp-1\n"
)

// TestSet: what is there, what is asked for, and what is there then.
func TestSet(t *testing.T) {
	one := []Reservation{at("cp-1", "BC:24:11:00:00:01", "10.10.0.11")}
	for name, c := range map[string]struct {
		have, want map[string]string
		all        []Reservation
		part       bool // not all of the cluster's
	}{
		"none":                 {},
		"the first":            {all: one, want: map[string]string{"own.dev.cp-1": first}},
		"another address":      {have: map[string]string{"own.dev.cp-1": first}, all: []Reservation{at("cp-1", "BC:24:11:00:00:01", "10.10.0.12")}, want: map[string]string{"own.dev.cp-1": moved}},
		"edited by hand":       {have: map[string]string{"own.dev.cp-1": first + "x"}, all: one, want: map[string]string{"own.dev.cp-1": first}},
		"too long":             {have: map[string]string{"own.dev.cp-1": first + strings.Repeat("#", publicfiles.MaxFile)}, all: one, want: map[string]string{"own.dev.cp-1": first}},
		"one less":             {have: map[string]string{"own.dev.cp-1": first, "own.dev.wk-1": "x"}, all: one, want: map[string]string{"own.dev.cp-1": first}},
		"one less, of a part":  {have: map[string]string{"own.dev.wk-1": "x"}, all: one, part: true, want: map[string]string{"own.dev.cp-1": first, "own.dev.wk-1": "x"}},
		"the last":             {have: map[string]string{"own.dev.cp-1": first}},
		"an unknown address":   {have: map[string]string{"own.dev.cp-1": older}, all: []Reservation{at("cp-1", "BC:24:11:00:00:01", "")}, want: map[string]string{"own.dev.cp-1": older}},
		"nothing of it known":  {all: []Reservation{at("cp-1", "", "")}},
		"an unknown MAC":       {have: map[string]string{"own.dev.cp-1": older}, all: []Reservation{at("cp-1", "", "10.10.0.11")}, want: map[string]string{"own.dev.cp-1": older}},
		"one that runs":        {have: map[string]string{"own.dev.cp-1": first}, all: []Reservation{kept("cp-1", "10.10.0.12")}, want: map[string]string{"own.dev.cp-1": first}},
		"one without a file":   {all: []Reservation{kept("cp-1", "10.10.0.12")}, want: map[string]string{"own.dev.cp-1": moved}},
		"no file of ours":      {have: map[string]string{"own.dev.cp-1": older}, all: []Reservation{kept("cp-1", "10.10.0.11")}, want: map[string]string{"own.dev.cp-1": first}},
		"what was interrupted": {have: map[string]string{".own.dev.cp-1": "x", ".own.dev.wk-1": "y"}, all: one, part: true, want: map[string]string{"own.dev.cp-1": first}},
		"those of others": {
			have: map[string]string{"own.prod.cp-1": "a", "own.dev": "b", "own.dev.": "c", "other.dev.cp-1": "d", "own.dev.cp-1.bak": "e", "mine": "f", ".own.prod.cp-1": "g", "x.own.dev.cp-1": "h"},
			want: map[string]string{"own.prod.cp-1": "a", "own.dev": "b", "own.dev.": "c", "other.dev.cp-1": "d", "own.dev.cp-1.bak": "e", "mine": "f", ".own.prod.cp-1": "g", "x.own.dev.cp-1": "h"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.have {
				must(os.WriteFile(filepath.Join(dir, name), []byte(text), publicfiles.Mode))
			}
			for range 2 { // the second time nothing is left to do
				if err := New(dir, "own").Set("dev", c.all, !c.part); err != nil {
					t.Fatal(err)
				}
				if got := read(dir); !maps.Equal(got, c.want) {
					t.Errorf("got  %q\nwant %q", got, c.want)
				}
			}
		})
	}
}

// TestSetTouchesNothingThatIsRight: dnsmasq reads what is written, and refuses what it has.
func TestSetTouchesNothingThatIsRight(t *testing.T) {
	dir, all := t.TempDir(), []Reservation{at("cp-1", "BC:24:11:00:00:01", "10.10.0.11")}
	d, file := New(dir, "own"), filepath.Join(dir, "own.dev.cp-1")
	must(d.Set("dev", all, true))
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	must(os.Chtimes(file, long, long))
	must(d.Set("dev", all, true))
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(long) {
		t.Errorf("it was written again: %v, %v", info, err)
	}
}

// TestEverybodyMayRead: whatever the umask is, and whatever is in the place of a file.
func TestEverybodyMayRead(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	all := []Reservation{at("cp-1", "BC:24:11:00:00:01", "10.10.0.11")}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, make := range map[string]func(string){
		"nothing":       func(string) {},
		"a closed file": func(file string) { must(os.WriteFile(file, []byte(first), 0o600)) },
		"a link": func(file string) {
			must(os.WriteFile(elsewhere, []byte("x"), 0o600))
			must(os.Symlink(elsewhere, file))
		},
		"a pipe": func(file string) { must(syscall.Mkfifo(file, publicfiles.Mode)) },
	} {
		dir := t.TempDir()
		make(filepath.Join(dir, "own.dev.cp-1"))
		if err := New(dir, "own").Set("dev", all, true); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		info, err := os.Lstat(filepath.Join(dir, "own.dev.cp-1"))
		if err != nil || info.Mode() != publicfiles.Mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if b, err := os.ReadFile(elsewhere); err != nil || string(b) != "x" {
		t.Errorf("what a link leads to is %q, %v", b, err)
	}
}

// TestSetFails: the error has the path and what to do.
func TestSetFails(t *testing.T) {
	all := []Reservation{at("cp-1", "BC:24:11:00:00:01", "10.10.0.11")}
	missing := filepath.Join(t.TempDir(), "missing")
	err := New(missing, "own").Set("dev", all, true)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) || !strings.Contains(fault.HintOf(err), "install -d -m 0755 -o talos-agent -g talos-agent "+missing) {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	dir := t.TempDir()
	must(os.MkdirAll(filepath.Join(dir, "own.dev.cp-1", "x"), 0o755)) // in the place of a file
	if err := New(dir, "own").Set("dev", all, true); err == nil || !strings.Contains(err.Error(), "write the reservation of cp-1 in "+dir) {
		t.Errorf("%v", err)
	}
	if left := slices.Sorted(maps.Keys(listNames(dir))); !slices.Equal(left, []string{"own.dev.cp-1"}) {
		t.Errorf("left %q", left)
	}
	if err := New(dir, "own").Set("dev", nil, true); err == nil || !strings.Contains(err.Error(), "remove own.dev.cp-1 in "+dir) {
		t.Errorf("%v", err)
	}
}

func listNames(dir string) map[string]bool {
	out := map[string]bool{}
	entries, err := os.ReadDir(dir)
	must(err)
	for _, e := range entries {
		out[e.Name()] = true
	}
	return out
}

// TestSetsOfClusters: whatever is set in which order, what is there is what was set last of each
// cluster of each owner.
func TestSetsOfClusters(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		must(os.RemoveAll(dir))
		must(os.Mkdir(dir, 0o755))
		want := map[string]string{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			owner, cluster := rapid.SampledFrom([]string{"a", "a-b", "b"}).Draw(t, "owner"), rapid.SampledFrom([]string{"dev", "dev-2", "b"}).Draw(t, "cluster")
			maps.DeleteFunc(want, func(name, _ string) bool { return strings.HasPrefix(name, owner+"."+cluster+".") })
			var all []Reservation
			for _, node := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"n", "n-1", "dev", "a"}), 0, 4, rapid.ID[string]).Draw(t, "nodes") {
				r := at(node, "BC:24:11:00:00:01", "10.10.0.11")
				want[owner+"."+cluster+"."+node] = string(r.file(cluster))
				all = append(all, r)
			}
			if err := New(dir, owner).Set(cluster, all, true); err != nil {
				t.Fatal(err)
			}
		}
		if got := read(dir); !maps.Equal(got, want) {
			t.Fatalf("got  %q\nwant %q", got, want)
		}
	})
}
