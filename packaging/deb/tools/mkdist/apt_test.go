package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/files"
)

// makeDeb makes a small package.
func makeDeb(t *testing.T, out, name, version, arch string, contents map[string]string) string {
	t.Helper()
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	info := &nfpm.Info{
		Name: name, Arch: arch, Platform: "linux", Version: version, VersionSchema: "none", Release: "1", MTime: day,
		Maintainer: "test <test@example.org>", Description: "a test\nof two lines",
	}
	for path, text := range contents {
		source := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		info.Contents = append(info.Contents, &files.Content{Source: source, Destination: path, FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: day}})
	}
	p, err := pack(nfpm.WithDefaults(info), out)
	if err != nil {
		t.Fatal(err)
	}
	return p.path
}

// repositoryOf makes the apt repository of a release with the packages of versions.
func repositoryOf(t *testing.T, s *signer, versions ...string) release {
	t.Helper()
	r := release{out: t.TempDir(), date: day}
	for _, v := range versions {
		for _, arch := range []string{"amd64", "arm64"} {
			makeDeb(t, r.out, "talos-agent", v, arch, map[string]string{"/usr/bin/talos-agent": v + arch})
		}
	}
	if err := r.writeRepository("", s); err != nil {
		t.Fatal(err)
	}
	return r
}

// aptHost is as much of a host as apt needs: nothing of this machine's config is read,
// and root is not needed.
type aptHost struct {
	t   *testing.T
	dir string
}

// newAptHost has one source, a repository on a web server, as
// docs/how-to/install.md has it.
func newAptHost(t *testing.T, repository, key string) aptHost {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("there is no apt")
	}
	server := httptest.NewServer(http.FileServer(http.Dir(repository)))
	t.Cleanup(server.Close)
	h := aptHost{t, t.TempDir()}
	for _, dir := range []string{"etc/parts", "etc/sources", "etc/trusted", "etc/preferences", "state/lists/partial", "cache/archives/partial", "download"} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sources := "Types: deb\nURIs: " + server.URL + "\nSuites: stable\nComponents: main\n"
	if key != "" {
		sources += "Signed-By: " + key + "\n"
	}
	h.write("etc/sources/talos-agent.sources", sources)
	h.write("status", "")
	h.write("apt.conf", `Dir "`+h.dir+`";
Dir::State "state"; Dir::State::status "`+h.dir+`/status"; Dir::Cache "cache";
Dir::Etc "etc"; Dir::Etc::main "none"; Dir::Etc::parts "parts"; Dir::Etc::sourcelist "none"; Dir::Etc::sourceparts "sources";
Dir::Etc::trusted "none"; Dir::Etc::trustedparts "trusted"; Dir::Etc::preferences "none"; Dir::Etc::preferencesparts "preferences";
Dir::Log "`+h.dir+`";
APT::Architecture "amd64"; APT::Architectures { "amd64"; }; APT::Sandbox::User "";
Acquire::Languages "none"; Acquire::http::Proxy "DIRECT";
APT::Update::Error-Mode "any";
`)
	return h
}

func (h aptHost) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// get runs apt-get where it downloads to.
func (h aptHost) get(args ...string) (string, error) {
	cmd := exec.CommandContext(h.t.Context(), "apt-get", args...)
	cmd.Dir = filepath.Join(h.dir, "download")
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(h.dir, "apt.conf"), "LC_ALL=C", "http_proxy=", "HTTP_PROXY=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestAptTakesTheRepository: the real apt believes the signature, and gets the newest
// package, and an older one by its version.
func TestAptTakesTheRepository(t *testing.T) {
	s := newSigner(t)
	older := repositoryOf(t, s, "1.2.2")
	r := release{out: t.TempDir(), date: day}
	deb := makeDeb(t, r.out, "talos-agent", "1.2.3~rc.1", "amd64", nil)
	makeDeb(t, r.out, "talos-agent", "1.2.3~rc.1", "arm64", nil)
	if err := r.writeRepository(filepath.Join(older.out, "apt"), s); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(r.out, "apt")
	h := newAptHost(t, top, filepath.Join(top, keyFile))
	if out, err := h.get("update"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for wanted, want := range map[string]string{"talos-agent": deb, "talos-agent=1.2.2-1": filepath.Join(older.out, "talos-agent_1.2.2-1_amd64.deb")} {
		if out, err := h.get("download", wanted); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !bytes.Equal(readFile(t, h.dir, "download", filepath.Base(want)), readFile(t, want)) {
			t.Errorf("%s is another package", wanted)
		}
	}
	if out, err := h.get("install", "--simulate", "talos-agent"); err != nil || !strings.Contains(out, "Inst talos-agent (1.2.3~rc.1-1 talos-agent:stable [amd64])") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestAptRefuses: a repository of which anything was changed, or that is not signed,
// or not with the key that is believed.
func TestAptRefuses(t *testing.T) {
	s := newSigner(t)
	change := func(name string) func(t *testing.T, top string) {
		return func(t *testing.T, top string) {
			path := filepath.Join(top, name)
			text := readFile(t, path)
			changed := bytes.Replace(text, []byte("Origin: talos-agent"), []byte("Origin: talos-agenT"), 1)
			if bytes.Equal(text, changed) {
				changed[len(changed)-1] ^= 1
			}
			if err := os.WriteFile(path, changed, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(names ...string) func(t *testing.T, top string) {
		return func(t *testing.T, top string) {
			for _, name := range names {
				if err := os.Remove(filepath.Join(top, "dists/stable", name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		signer  *signer // nil: not signed
		damage  func(t *testing.T, top string)
		prints  string
		updates bool // and the download fails
	}{
		"other packages": {s, func(t *testing.T, top string) {
			change("dists/stable/main/binary-amd64/Packages.gz")(t, top)
			change("dists/stable/main/binary-amd64/Packages")(t, top)
		}, "Hash Sum mismatch", false},
		"another InRelease":           {s, change("dists/stable/InRelease"), "The following signatures were invalid", false},
		"another Release":             {s, func(t *testing.T, top string) { remove("InRelease")(t, top); change("dists/stable/Release")(t, top) }, "The following signatures were invalid", false},
		"without signatures":          {s, remove("InRelease", "Release.gpg"), "is not signed", false},
		"not signed":                  {nil, nil, "is not signed", false},
		"with another key":            {newSigner(t), nil, "NO_PUBKEY", false},
		"another file in the pool":    {s, change(pool + "/talos-agent_1.2.3-1_amd64.deb"), "Hash Sum mismatch", true},
		"the other signature is left": {s, remove("InRelease"), "", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := repositoryOf(t, c.signer, "1.2.3")
			top := filepath.Join(r.out, "apt")
			if c.damage != nil {
				c.damage(t, top)
			}
			believed, err := s.public()
			if err != nil {
				t.Fatal(err)
			}
			h := newAptHost(t, top, filepath.Join(top, "believed.asc"))
			if err := os.WriteFile(filepath.Join(top, "believed.asc"), believed, 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := h.get("update")
			if c.updates {
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				out, err = h.get("download", "talos-agent")
			}
			if c.prints == "" {
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
				return
			}
			if err == nil || !strings.Contains(out, c.prints) {
				t.Errorf("%v, want %q: %s", err, c.prints, out)
			}
			if !c.updates {
				if out, err := h.get("download", "talos-agent"); err == nil {
					t.Errorf("it gets the package all the same: %s", out)
				}
			}
		})
	}
}

// TestRepositoryIsReproducible: the same packages give the same repository.
func TestRepositoryIsReproducible(t *testing.T) {
	s := newSigner(t)
	a, b := repositoryOf(t, s, "1.2.2", "1.2.3"), repositoryOf(t, s, "1.2.2", "1.2.3")
	all, err := listFolder(filepath.Join(a.out, "apt"))
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, e := range all {
		if e.path == "" {
			continue
		}
		compared++
		if !bytes.Equal(readFile(t, e.path), readFile(t, b.out, "apt", e.name)) {
			t.Errorf("%s differs", e.name)
		}
	}
	if compared != 4+4+4 {
		t.Errorf("it has %d files", compared)
	}
}

// TestReleasedVersionStays: another package of a version that was released before is
// refused.
func TestReleasedVersionStays(t *testing.T) {
	older := repositoryOf(t, nil, "1.2.3")
	r := release{out: t.TempDir(), date: day}
	makeDeb(t, r.out, "talos-agent", "1.2.3", "amd64", map[string]string{"/usr/bin/talos-agent": "another"})
	if err := r.writeRepository(filepath.Join(older.out, "apt"), nil); err == nil || !strings.Contains(err.Error(), "differs from the package of this version") {
		t.Errorf("error %v", err)
	}
	if err := r.writeRepository(t.TempDir(), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a previous repository that is none: %v", err)
	}
}
