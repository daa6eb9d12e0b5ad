package main

import (
	"bytes"
	_ "embed"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// busyboxSums are the packages of Debian that the shell of the image is taken out
// of, one for each architecture, as sha256sum lists them. ../get-busybox gets them.
//
//go:embed busybox.sums
var busyboxSums string

// busybox is where these packages are, and what they must be.
type busybox struct{ dir, sums string }

// applets are what the image has of busybox: a shell, and what scripts of CI use.
const applets = "[ ash awk base64 basename cat chmod chown cmp cp cut date dd df diff dirname du echo egrep env expr false fgrep find " +
	"grep groups gunzip gzip head hostname id kill less ln ls md5sum mkdir mkfifo mktemp mv nproc od paste printf ps pwd readlink " +
	"realpath rm rmdir sed seq sh sha1sum sha256sum sha512sum sleep sort stat stty tail tar tee test timeout touch tr true tty " +
	"uname uniq unzip vi wc wget which whoami xargs xz yes zcat"

// writeImage writes a container image for the platforms of Linux as an OCI layout,
// in a tar: the program, authorities for TLS, and busybox for the scripts of CI.
func (r release) writeImage(platforms []platform, shell busybox) error {
	work := filepath.Join(r.stage, "image")
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		if !p.hasImage() {
			continue
		}
		image, err := r.buildImage(p, shell, filepath.Join(work, p.arch))
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}}})
	}
	dir := filepath.Join(work, "layout")
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": strings.TrimPrefix(r.version, "v")}
	if err := to.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	entries, err := listFolder(dir)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(r.out, r.name()+"_oci.tar"), func(w io.Writer) error { return writeTar(w, r.date, entries) })
}

// listFolder is what a folder has below it.
func listFolder(top string) ([]entry, error) {
	var out []entry
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == top {
			return err
		}
		name, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		e := entry{name: filepath.ToSlash(name), mode: 0o644, path: path}
		if d.IsDir() {
			e = entry{name: e.name, mode: fs.ModeDir | 0o755}
		}
		out = append(out, e)
		return nil
	})
	return out, err
}

// buildImage makes the image of a platform: a layer that seldom changes, and one with
// the program.
func (r release) buildImage(p platform, shell busybox, work string) (v1.Image, error) {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	base, err := listBase(p.arch, shell)
	if err != nil {
		return nil, err
	}
	doc := "usr/share/doc/talos-agent"
	program := []entry{
		{name: "usr/bin/talos-agent", mode: 0o755, path: filepath.Join(r.folder(p), "talos-agent")},
		{name: doc, mode: fs.ModeDir | 0o755},
		{name: doc + "/LICENSE", mode: 0o644, path: filepath.Join(r.top, "LICENSE")},
		{name: doc + "/" + otherCopyrightFile, mode: 0o644, path: filepath.Join(r.folder(p), otherCopyrightFile)},
		{name: doc + "/" + billFile, mode: 0o644, path: filepath.Join(r.folder(p), billFile)},
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range []struct {
		name    string
		entries []entry
	}{{"base", base}, {"program", program}} {
		path := filepath.Join(work, l.name+".tar.gz")
		if err := writeFile(path, func(w io.Writer) error { return writeTarGz(w, r.date, l.entries) }); err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromFile(path, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		made := v1.History{Created: v1.Time{Time: r.date}, CreatedBy: "mkdist", Comment: l.name}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: made}); err != nil {
			return nil, err
		}
	}
	return r.configureImage(image, p)
}

// configureImage sets what is run, and where. The user is root: the folders that the
// runners of CI mount belong to whoever they please.
func (r release) configureImage(image v1.Image, p platform) (v1.Image, error) {
	c, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = p.os, p.arch, v1.Time{Time: r.date}
	c.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/talos-agent"},
		Env:        []string{"PATH=/usr/bin:/bin", "HOME=/root"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "talos-agent",
			"org.opencontainers.image.version":  strings.TrimPrefix(r.version, "v"),
			"org.opencontainers.image.source":   "https://" + ours,
			"org.opencontainers.image.licenses": "Apache-2.0 AND GPL-2.0-only",
		},
	}
	return mutate.ConfigFile(image, c)
}

// listBase is what the image has besides the program.
func listBase(arch string, shell busybox) ([]entry, error) {
	folder := func(name string, mode fs.FileMode) entry { return entry{name: name, mode: fs.ModeDir | mode} }
	program, licence, err := shell.read(arch)
	if err != nil {
		return nil, err
	}
	out := []entry{
		folder("bin", 0o755), folder("etc", 0o755), folder("etc/ssl", 0o755), folder("etc/ssl/certs", 0o755), folder("root", 0o700),
		folder("tmp", 0o777|fs.ModeSticky), folder("usr", 0o755), folder("usr/bin", 0o755), folder("usr/share", 0o755),
		folder("usr/share/doc", 0o755), folder("usr/share/doc/busybox-static", 0o755),
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/bin/sh\n")},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\n")},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: listAuthorities()},
		{name: "bin/busybox", mode: 0o755, content: program},
		{name: "usr/bin/env", mode: fs.ModeSymlink | 0o777, target: "/bin/busybox"},
		{name: "usr/share/doc/busybox-static/copyright", mode: 0o644, content: licence},
	}
	for _, name := range strings.Fields(applets) {
		out = append(out, entry{name: "bin/" + name, mode: fs.ModeSymlink | 0o777, target: "busybox"})
	}
	return out, nil
}

// listAuthorities are those that Mozilla believes, as the Go project passes them on.
// Those that it believes under conditions are left out: a file of certificates cannot
// hold conditions.
func listAuthorities() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return b.Bytes()
}

// read takes the program and its licence out of Debian's package, which must
// be the one that is expected.
func (b busybox) read(arch string) (program, licence []byte, _ error) {
	want, file, err := b.find(arch)
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(b.dir, file)
	sum, _, err := hashFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("busybox: %w", err)
	}
	if sum != want {
		return nil, nil, fmt.Errorf("%s has SHA-256 %s, and %s is expected", path, sum, want)
	}
	for name, to := range map[string]*[]byte{"usr/bin/busybox": &program, "usr/share/doc/busybox-static/copyright": &licence} {
		err := readDeb(path, "data.tar", name, func(r io.Reader) (err error) {
			*to, err = io.ReadAll(r)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return program, licence, nil
}

// find is the package of an architecture, and its hash.
func (b busybox) find(arch string) (sum, file string, _ error) {
	for line := range strings.Lines(b.sums) {
		sum, file, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if ok && strings.HasSuffix(file, "_"+arch+".deb") {
			return sum, file, nil
		}
	}
	return "", "", fmt.Errorf("busybox.sums names no package for %s", arch)
}
