package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// stagedRelease is a release whose stage has a program for each platform that needs
// no compiler: its name.
func stagedRelease(t *testing.T, platforms ...platform) release {
	t.Helper()
	r := release{top: t.TempDir(), stage: t.TempDir(), out: t.TempDir(), version: "v1.2.3", date: day}
	files := map[string]string{
		filepath.Join(r.top, "LICENSE"): "Apache", filepath.Join(r.top, "README.md"): "Read me",
		filepath.Join(r.stage, "manual/talos-agent.1.gz"): "manual", filepath.Join(r.stage, "manual/talos-agent-config.5.gz"): "manual",
	}
	for _, shell := range []string{"bash", "fish", "zsh", "ps1"} {
		files[filepath.Join(r.stage, "manual/talos-agent."+shell)] = "complete " + shell
	}
	for _, p := range platforms {
		files[filepath.Join(r.folder(p), "talos-agent")] = p.String()
		files[filepath.Join(r.folder(p), otherCopyrightFile)] = "copyright"
		files[filepath.Join(r.folder(p), billFile)] = "{}"
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil { // the mode here does not count
			t.Fatal(err)
		}
	}
	return r
}

func readFile(t *testing.T, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// listTarGz describes each file of an archive on a line.
func listTarGz(t *testing.T, archive []byte) string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out.String()
		} else if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %04o %s:%s %d:%d %s %s\n", h.Name, h.Mode, h.Uname, h.Gname, h.Uid, h.Gid, h.ModTime.UTC().Format(time.RFC3339), content)
	}
}

// TestArchive: an archive has the program, its licences and what shells and man(1)
// know, all of root and of the commit's date.
func TestArchive(t *testing.T) {
	p := platform{"darwin", "arm64"}
	r := stagedRelease(t, p)
	if err := r.writeArchive(p); err != nil {
		t.Fatal(err)
	}
	const top = "talos-agent_1.2.3_darwin_arm64"
	want := ""
	for _, file := range []string{
		"talos-agent 0755 darwin/arm64", "LICENSE 0644 Apache", "README.md 0644 Read me", "copyright.txt 0644 copyright", "sbom.cdx.json 0644 {}",
		"completions/talos-agent.bash 0644 complete bash", "completions/talos-agent.fish 0644 complete fish", "completions/talos-agent.zsh 0644 complete zsh",
		"man/talos-agent.1.gz 0644 manual", "man/talos-agent-config.5.gz 0644 manual",
	} {
		f := strings.SplitN(file, " ", 3)
		want += fmt.Sprintf("%s/%s %s root:root 0:0 2026-11-22T02:15:20Z %s\n", top, f[0], f[1], f[2])
	}
	if got := listTarGz(t, readFile(t, r.out, top+".tar.gz")); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := readFile(t, r.out, top+".cdx.json"); string(got) != "{}" {
		t.Errorf("the bill of materials beside it is %q", got)
	}
}

// TestArchiveForWindows: a zip, with what Windows knows.
func TestArchiveForWindows(t *testing.T) {
	p := platform{"windows", "amd64"}
	r := stagedRelease(t, p)
	if err := r.writeArchive(p); err != nil {
		t.Fatal(err)
	}
	archive := readFile(t, r.out, "talos-agent_1.2.3_windows_amd64.zip")
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range z.File {
		got = append(got, strings.TrimPrefix(f.Name, "talos-agent_1.2.3_windows_amd64/"))
		if !f.Modified.Equal(day) {
			t.Errorf("%s is of %s", f.Name, f.Modified)
		}
	}
	if want := "talos-agent.exe LICENSE README.md copyright.txt sbom.cdx.json completions/talos-agent.ps1"; strings.Join(got, " ") != want {
		t.Errorf("it has %v, want %s", got, want)
	}
	content, err := z.Open("talos-agent_1.2.3_windows_amd64/talos-agent.exe")
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if b, err := io.ReadAll(content); err != nil || string(b) != "windows/amd64" {
		t.Errorf("the program is %q, %v", b, err)
	}
}

// TestArchiveIsReproducible: the same release gives the same bytes elsewhere, whatever
// the dates and modes of the files are there.
func TestArchiveIsReproducible(t *testing.T) {
	platforms := []platform{{"linux", "amd64"}, {"windows", "arm64"}}
	var releases []release
	for range 2 {
		r := stagedRelease(t, platforms...)
		for _, p := range platforms {
			program := filepath.Join(r.folder(p), "talos-agent")
			date := day.AddDate(len(releases), 0, 0)
			if err := errors.Join(os.Chtimes(program, date, date), os.Chmod(program, []os.FileMode{0o700, 0o755}[len(releases)]), r.writeArchive(p)); err != nil {
				t.Fatal(err)
			}
		}
		releases = append(releases, r)
	}
	for _, name := range []string{"talos-agent_1.2.3_linux_amd64.tar.gz", "talos-agent_1.2.3_windows_arm64.zip"} {
		if !bytes.Equal(readFile(t, releases[0].out, name), readFile(t, releases[1].out, name)) {
			t.Errorf("%s differs", name)
		}
	}
}

// TestArchiveLacksNothing: an archive without completions is none.
func TestArchiveLacksNothing(t *testing.T) {
	p := platform{"linux", "amd64"}
	r := stagedRelease(t, p)
	if err := os.Remove(filepath.Join(r.stage, "manual/talos-agent.zsh")); err != nil {
		t.Fatal(err)
	}
	if err := r.writeArchive(p); err == nil || !strings.Contains(err.Error(), "no talos-agent.zsh is staged") {
		t.Errorf("error %v", err)
	}
}

func TestParsePlatforms(t *testing.T) {
	if got, err := parsePlatforms([]string{"linux/amd64", "windows/arm64"}); err != nil || fmt.Sprint(got) != "[linux/amd64 windows/arm64]" {
		t.Errorf("%v, %v", got, err)
	}
	for _, name := range []string{"", "linux", "linux/", "/amd64"} {
		if got, err := parsePlatforms([]string{name}); err == nil {
			t.Errorf("%q became %v", name, got)
		}
	}
}
