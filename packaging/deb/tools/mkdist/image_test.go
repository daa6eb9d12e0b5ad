package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// busyboxOf makes packages like those of Debian, of which the program is the name of
// the architecture.
func busyboxOf(t *testing.T, architectures ...string) busybox {
	t.Helper()
	b := busybox{dir: t.TempDir()}
	for _, arch := range architectures {
		path := makeDeb(t, b.dir, "busybox-static", "1.37.0", arch, map[string]string{"/usr/bin/busybox": "busybox for " + arch, "/usr/share/doc/busybox-static/copyright": "GPL-2"})
		sum, _, err := hashFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b.sums += sum + "  " + filepath.Base(path) + "\n"
	}
	return b
}

// openImages reads the images of an archive back, by architecture, and the name of
// their index.
func openImages(t *testing.T, archive string) (name string, _ map[string]v1.Image) {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	extract(t, f, dir)
	path, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	listed, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(listed.Manifests) != 1 {
		t.Fatalf("the layout has %d images, and tools that copy one want one", len(listed.Manifests))
	}
	index, err := top.ImageIndex(listed.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]v1.Image{}
	for _, m := range manifest.Manifests {
		if images[m.Platform.Architecture], err = index.Image(m.Digest); err != nil {
			t.Fatal(err)
		}
	}
	return listed.Manifests[0].Annotations["org.opencontainers.image.ref.name"], images
}

// extract unpacks a tar of folders, files and symbolic links.
func extract(t *testing.T, r io.Reader, dir string) {
	t.Helper()
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // a layer's folders may be in the one below
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, h.FileInfo().Mode().Perm())
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			var f *os.File
			if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, h.FileInfo().Mode().Perm()); err == nil {
				_, err = io.Copy(f, files)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestImage: an OCI layout with an image for each architecture of Linux, each with its
// program and shell, and authorities.
func TestImage(t *testing.T) {
	platforms := []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}}
	r := stagedRelease(t, platforms...)
	if err := r.writeImage(platforms, busyboxOf(t, "amd64", "arm64")); err != nil {
		t.Fatal(err)
	}
	name, images := openImages(t, filepath.Join(r.out, "talos-agent_1.2.3_oci.tar"))
	if name != "1.2.3" || len(images) != 2 {
		t.Errorf("it is %q with %d images", name, len(images))
	}
	for arch, image := range images {
		c, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.OS != "linux" || c.Architecture != arch || !c.Created.Equal(day) || !slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/talos-agent"}) || c.Config.Cmd != nil {
			t.Errorf("%s: config %+v", arch, c)
		}
		dir := t.TempDir()
		flat := mutate.Extract(image)
		extract(t, flat, dir)
		if err := flat.Close(); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{"usr/bin/talos-agent": "linux/" + arch, "bin/sh": "busybox for " + arch, "bin/tail": "busybox for " + arch, "usr/share/doc/busybox-static/copyright": "GPL-2"} {
			if got := readFile(t, dir, file); string(got) != want {
				t.Errorf("%s: %s is %q", arch, file, got)
			}
		}
		if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(readFile(t, dir, "etc/ssl/certs/ca-certificates.crt")) {
			t.Errorf("%s: there are no authorities", arch)
		}
	}
}

// TestImageIsReproducible: the same release gives the same image elsewhere.
func TestImageIsReproducible(t *testing.T) {
	platforms := []platform{{"linux", "amd64"}}
	var made [][]byte
	for range 2 {
		r := stagedRelease(t, platforms...)
		if err := r.writeImage(platforms, busyboxOf(t, "amd64")); err != nil {
			t.Fatal(err)
		}
		made = append(made, readFile(t, r.out, "talos-agent_1.2.3_oci.tar"))
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Error("it differs")
	}
}

// TestImageRefuses: a busybox that is another, or none for an architecture.
func TestImageRefuses(t *testing.T) {
	amd64 := []platform{{"linux", "amd64"}}
	changed := busyboxOf(t, "amd64")
	changed.sums = strings.Repeat("0", 64) + changed.sums[64:]
	for want, c := range map[string]struct {
		platforms []platform
		shell     busybox
	}{
		"is expected":                  {amd64, changed},
		"no such file":                 {amd64, busybox{dir: t.TempDir(), sums: busyboxSums}},
		"names no package for amd64":   {amd64, busyboxOf(t, "arm64")},
		"names no package for riscv64": {[]platform{{"linux", "riscv64"}}, busybox{dir: t.TempDir(), sums: busyboxSums}},
	} {
		r := stagedRelease(t, c.platforms...)
		if err := r.writeImage(c.platforms, c.shell); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if found, err := filepath.Glob(filepath.Join(r.out, "*")); err != nil || len(found) > 0 {
			t.Errorf("%s: it made %v all the same (%v)", want, found, err)
		}
	}
}

// TestAuthorities: each is one that Go can read, and there are as many as browsers
// have.
func TestAuthorities(t *testing.T) {
	rest, n := listAuthorities(), 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Error(err)
		}
		n++
	}
	if n < 50 {
		t.Errorf("only %d", n)
	}
}
