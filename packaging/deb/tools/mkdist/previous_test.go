package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// follow makes the repository of the next release after one.
func follow(t *testing.T, older release, s *signer) (release, error) {
	t.Helper()
	r := release{out: t.TempDir(), date: day}
	makeDeb(t, r.out, "talos-agent", "1.2.3", "amd64", map[string]string{"/usr/bin/talos-agent": "1.2.3"})
	return r, r.writeRepository(filepath.Join(older.out, "apt"), s)
}

// moveDeb makes a package and puts it somewhere under a name.
func moveDeb(t *testing.T, to, name, version string) {
	t.Helper()
	made := makeDeb(t, t.TempDir(), name, version, "amd64", map[string]string{"/usr/bin/" + name: "another"})
	if err := os.Rename(made, to); err != nil {
		t.Fatal(err)
	}
}

// TestPrevious: the packages of an older repository are signed again only if it is
// signed with the same key and lists them as they are. Without a key they must be as it
// lists them.
func TestPrevious(t *testing.T) {
	s, other := newSigner(t), newSigner(t)
	const deb = "talos-agent_1.2.2-1_amd64.deb"
	change := func(name, from, to string) func(t *testing.T, top string) {
		return func(t *testing.T, top string) {
			text := readFile(t, top, name)
			changed := bytes.Replace(text, []byte(from), []byte(to), 1)
			if bytes.Equal(changed, text) {
				t.Fatalf("%s has no %s", name, from)
			}
			if err := os.WriteFile(filepath.Join(top, name), changed, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	// relist writes the lists again as they follow from the pool, and no signature.
	relist := func(t *testing.T, top string) {
		lists, err := listPackages(top)
		if err != nil {
			t.Fatal(err)
		}
		indexes, err := writeIndexes(filepath.Join(top, "dists", suite), lists, day)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeSuite(top, describeSuite([]string{"amd64", "arm64"}, indexes, day), nil); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		signed *signer // the older repository
		damage func(t *testing.T, top string)
		want   string // with the key; "": it is taken
		plain  string // without
	}{
		"as it was": {s, nil, "", ""},
		"a package of a package": {s, func(t *testing.T, top string) {
			moveDeb(t, filepath.Join(top, pool, "talos-agent_0.1_amd64.deb"), "openssl", "99.0")
		}, "talos-agent_0.1_amd64.deb lies in its pool, and none of its lists has it", "none of its lists has it"},
		"another package": {s, func(t *testing.T, top string) {
			moveDeb(t, filepath.Join(top, pool, deb), "talos-agent", "1.2.2")
		}, deb + " is not the package that its list has", "is not the package that its list has"},
		"another package that is listed": {s, func(t *testing.T, top string) {
			moveDeb(t, filepath.Join(top, pool, deb), "talos-agent", "1.2.2")
			relist(t, top)
		}, "Packages is not the list that the suite has", ""},
		"another list":            {s, change("dists/stable/main/binary-amd64/Packages", "Version", "Wersion"), "Packages is not the list that the suite has", "Packages is not the list that the suite has"},
		"another suite":           {s, change("dists/stable/InRelease", "Origin: talos-agent", "Origin: talos-agenT"), "InRelease is not signed with the key that is to sign now", ""},
		"an InRelease of nothing": {s, change("dists/stable/InRelease", "-----BEGIN PGP SIGNED MESSAGE-----", "-----BEGIN-----"), "InRelease has no signature in it", ""},
		"the key of another":      {other, nil, "InRelease is not signed with the key that is to sign now", ""},
		"not signed":              {nil, nil, "it is not signed, and its packages are to be signed now", ""},
		"no list": {s, func(t *testing.T, top string) {
			if err := os.Remove(filepath.Join(top, "dists/stable/main/binary-amd64/Packages")); err != nil {
				t.Fatal(err)
			}
		}, "no such file", "no such file"},
	} {
		for with, want := range map[*signer]string{s: c.want, nil: c.plain} {
			older := repositoryOf(t, c.signed, "1.2.2")
			top := filepath.Join(older.out, "apt")
			if c.damage != nil {
				c.damage(t, top)
			}
			r, err := follow(t, older, with)
			if want != "" {
				if err == nil || !strings.HasPrefix(err.Error(), "previous repository: ") || !strings.Contains(err.Error(), want) {
					t.Errorf("%s, with a key: %v: %v, want %s", name, with != nil, err, want)
				}
				if _, err := os.Stat(filepath.Join(r.out, "apt")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: there is a repository all the same: %v", name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s, with a key: %v: %v", name, with != nil, err)
				continue
			}
			if !bytes.Equal(readFile(t, r.out, "apt", pool, deb), readFile(t, top, pool, deb)) {
				t.Errorf("%s: the package is another", name)
			}
		}
	}
}

// TestPackagesAreNamed: whatever has a package, the repository has it only if it is one
// of talos-agent, under its own name.
func TestPackagesAreNamed(t *testing.T) {
	for file, c := range map[string]struct{ name, version, want string }{
		"talos-agent_0.1_amd64.deb":      {"openssl", "99.0", `it is a package of "openssl"`},
		"talos-agent_0.1-1_amd64.deb":    {"talos-agent", "99.0", "by its control file it is talos-agent_99.0-1_amd64.deb"},
		"talos-agent_99.0-1_arm64.deb":   {"talos-agent", "99.0", "by its control file it is talos-agent_99.0-1_amd64.deb"},
		"talos-agent_99.0-1_amd64.deb":   {"talos-agent", "99.0", ""},
		"talos-agent_1.0~rc-1_amd64.deb": {"talos-agent", "1.0~rc", ""},
	} {
		r := release{out: t.TempDir(), date: day}
		moveDeb(t, filepath.Join(r.out, file), c.name, c.version)
		if err := r.writeRepository("", nil); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %s", file, err, c.want)
		}
	}
}

// TestChildrenHaveNoPassphrase: what mkdist runs does not need it.
func TestChildrenHaveNoPassphrase(t *testing.T) {
	t.Setenv(passphraseVariable, "open sesame")
	t.Setenv("OTHER", "kept")
	if got := printed(t, ".", "sh", "-c", "echo ${"+passphraseVariable+"-none} $OTHER"); got != "none kept\n" {
		t.Errorf("a child has %s", got)
	}
}
