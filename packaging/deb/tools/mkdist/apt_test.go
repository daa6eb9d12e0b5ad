package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// newAptHost has what a host has that the package depends on, and no source yet.
func newAptHost(t *testing.T) aptHost {
	t.Helper()
	for _, program := range []string{"apt-get", "wget"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("there is no " + program)
		}
	}
	h := aptHost{t, t.TempDir()}
	for _, dir := range []string{"bin", "download", "etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "etc/trusted.gpg.d", "state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	status := ""
	for _, name := range []string{"ca-certificates", "procps", "systemd"} {
		status += "Package: " + name + "\nStatus: install ok installed\nVersion: 999\nArchitecture: " + runtime.GOARCH + "\nMaintainer: test\nDescription: test\n\n"
	}
	h.write("status", status)
	h.write("apt.conf", `Dir "`+h.dir+`"; Dir::Etc "etc"; Dir::State "state"; Dir::State::status "`+h.dir+`/status"; Dir::Cache "cache"; Dir::Log "`+h.dir+`";
APT::Architecture "`+runtime.GOARCH+`"; APT::Architectures { "`+runtime.GOARCH+`"; }; APT::Sandbox::User "";
Acquire::Languages "none"; Acquire::http::Proxy "DIRECT"; APT::Update::Error-Mode "any";
`)
	// What is installed needs root; which package would be is seen without.
	h.write("bin/apt", "#!/bin/sh\ncase $1 in install) exec apt-get --simulate \"$@\" ;; *) exec apt-get \"$@\" ;; esac\n")
	return h
}

// serve has a web server for a repository, and returns the commands of
// docs/how-to/install.md that set it up and, after these, those that install from it.
func (h aptHost) serve(repository string) (setUp, install string) {
	h.t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(repository)))
	h.t.Cleanup(server.Close)
	block := docsBlock(h.t, "install.md", "TestAptTakesTheRepository")
	setUp, install, ok := strings.Cut(strings.NewReplacer("https://apt.example.org", server.URL, "/etc/apt/", h.dir+"/etc/").Replace(block), "apt update\n")
	if !ok {
		h.t.Fatalf("it updates nothing: %s", block)
	}
	return setUp, "apt update\n" + install
}

// docsBlock is the block of commands of a page that a test runs.
func docsBlock(t *testing.T, page, test string) string {
	t.Helper()
	_, after, ok := strings.Cut(string(readFile(t, "../../../../docs/how-to", page)), "<!-- checked: by "+test+" -->\n```sh\n")
	block, _, closed := strings.Cut(after, "```")
	if !ok || !closed {
		t.Fatalf("%s has no block that %s checks", page, test)
	}
	return block
}

func (h aptHost) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

// run has a shell run commands where packages are downloaded to.
func (h aptHost) run(script string) (string, error) {
	cmd := exec.CommandContext(h.t.Context(), "sh", "-ec", script)
	cmd.Dir = filepath.Join(h.dir, "download")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(h.dir, "bin")+":"+os.Getenv("PATH"), "APT_CONFIG="+filepath.Join(h.dir, "apt.conf"), "LC_ALL=C", "http_proxy=", "HTTP_PROXY=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestAptTakesTheRepository: the real apt, set up as the documentation has it, believes
// the signature, and gets the newest package, and an older one by its version.
func TestAptTakesTheRepository(t *testing.T) {
	s := newSigner(t)
	older := repositoryOf(t, s, "1.2.2")
	r := release{out: t.TempDir(), date: day}
	deb := makeDeb(t, r.out, "talos-agent", "1.2.3~rc.1", runtime.GOARCH, nil)
	if err := r.writeRepository(filepath.Join(older.out, "apt"), s); err != nil {
		t.Fatal(err)
	}
	h := newAptHost(t)
	setUp, install := h.serve(filepath.Join(r.out, "apt"))
	if out, err := h.run(setUp + install); err != nil || !strings.Contains(out, "Inst talos-agent (1.2.3~rc.1-1 talos-agent:stable ["+runtime.GOARCH+"])") {
		t.Fatalf("%v: %s", err, out)
	}
	for wanted, want := range map[string]string{"talos-agent": deb, "talos-agent=1.2.2-1": filepath.Join(older.out, "talos-agent_1.2.2-1_"+runtime.GOARCH+".deb")} {
		if out, err := h.run("apt-get download " + wanted); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !bytes.Equal(readFile(t, h.dir, "download", filepath.Base(want)), readFile(t, want)) {
			t.Errorf("%s is another package", wanted)
		}
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
			change("dists/stable/main/binary-"+runtime.GOARCH+"/Packages.gz")(t, top)
			change("dists/stable/main/binary-"+runtime.GOARCH+"/Packages")(t, top)
		}, "Hash Sum mismatch", false},
		"another InRelease":           {s, change("dists/stable/InRelease"), "The following signatures were invalid", false},
		"another Release":             {s, func(t *testing.T, top string) { remove("InRelease")(t, top); change("dists/stable/Release")(t, top) }, "The following signatures were invalid", false},
		"without signatures":          {s, remove("InRelease", "Release.gpg"), "is not signed", false},
		"not signed":                  {nil, nil, "is not signed", false},
		"with another key":            {newSigner(t), nil, "NO_PUBKEY", false},
		"another file in the pool":    {s, change(pool + "/talos-agent_1.2.3-1_" + runtime.GOARCH + ".deb"), "Hash Sum mismatch", true},
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
			if err := os.WriteFile(filepath.Join(top, keyFile), believed, 0o644); err != nil {
				t.Fatal(err)
			}
			h := newAptHost(t)
			setUp, _ := h.serve(top)
			out, err := h.run(setUp)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			out, err = h.run("apt update")
			if c.updates {
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				out, err = h.run("apt-get download talos-agent")
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
				if out, err := h.run("apt-get download talos-agent"); err == nil {
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

// TestRepositoryFollowsItself: the repository that is there may be the previous one, and
// stays as it is if the new one cannot be made.
func TestRepositoryFollowsItself(t *testing.T) {
	r := repositoryOf(t, nil, "1.2.2")
	top := filepath.Join(r.out, "apt")
	next := release{out: r.out, date: day}
	if err := os.Remove(filepath.Join(r.out, "talos-agent_1.2.2-1_amd64.deb")); err != nil {
		t.Fatal(err)
	}
	makeDeb(t, r.out, "talos-agent", "1.2.3", "amd64", nil)
	if err := next.writeRepository(top, nil); err != nil {
		t.Fatal(err)
	}
	packages := readFile(t, top, "dists/stable/main/binary-amd64/Packages")
	for _, version := range []string{"1.2.2-1", "1.2.3-1"} {
		if !strings.Contains(string(packages), "\nVersion: "+version+"\n") {
			t.Errorf("%s is missing: %s", version, packages)
		}
	}
	makeDeb(t, r.out, "talos-agent", "1.2.3", "amd64", map[string]string{"/usr/bin/talos-agent": "another"})
	if err := next.writeRepository(top, nil); err == nil {
		t.Error("another package of a released version is taken")
	}
	if !bytes.Equal(readFile(t, top, "dists/stable/main/binary-amd64/Packages"), packages) {
		t.Error("the repository was changed all the same")
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
