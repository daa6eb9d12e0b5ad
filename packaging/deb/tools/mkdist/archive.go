package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// gzipLevel is how hard archives and layers are compressed: 9 saves another
// 1.4 % of the program, and takes seven times as long.
const gzipLevel = 7

// entry is one file of an archive. Its mode has the type: a regular file has its
// content here or in a file, a symbolic link has its target.
type entry struct {
	name    string
	mode    fs.FileMode
	content []byte
	path    string // of the content, if it is in a file
	target  string
}

// open is the content of a regular file, and its size.
func (e entry) open() (io.ReadCloser, int64, error) {
	if e.path == "" {
		return io.NopCloser(bytes.NewReader(e.content)), int64(len(e.content)), nil
	}
	f, err := os.Open(e.path)
	if err != nil {
		return nil, 0, err
	}
	stat, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, stat.Size(), nil
}

// writeArchive writes the archive of a platform, .zip for Windows and .tar.gz for
// others, and its bill of materials beside it.
func (r release) writeArchive(p platform) error {
	top := fmt.Sprintf("%s_%s_%s", r.name(), p.os, p.arch)
	entries, err := r.listArchive(p, top)
	if err != nil {
		return err
	}
	bill, err := os.ReadFile(filepath.Join(r.folder(p), billFile))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.out, top+".cdx.json"), bill, 0o644); err != nil {
		return err
	}
	extension, write := ".tar.gz", writeTarGz
	if p.os == "windows" {
		extension, write = ".zip", writeZip
	}
	return writeFile(filepath.Join(r.out, top+extension), func(w io.Writer) error { return write(w, r.date, entries) })
}

// listArchive is what the archive of a platform has: the program, its licences and
// bill of materials, and what shells and man(1) of that platform know.
func (r release) listArchive(p platform, top string) ([]entry, error) {
	program := "talos-agent"
	if p.os == "windows" {
		program += ".exe"
	}
	from := []entry{
		{name: program, mode: 0o755, path: filepath.Join(r.folder(p), "talos-agent")},
		{name: "LICENSE", path: filepath.Join(r.top, "LICENSE")},
		{name: "README.md", path: filepath.Join(r.top, "README.md")},
		{name: otherCopyrightFile, path: filepath.Join(r.folder(p), otherCopyrightFile)},
		{name: billFile, path: filepath.Join(r.folder(p), billFile)},
	}
	patterns := map[string][]string{
		"completions": {"talos-agent.bash", "talos-agent.fish", "talos-agent.zsh"},
		"man":         {"*.1.gz", "*.5.gz"},
	}
	if p.os == "windows" {
		patterns = map[string][]string{"completions": {"talos-agent.ps1"}}
	}
	for _, folder := range []string{"completions", "man"} {
		for _, pattern := range patterns[folder] {
			found, err := filepath.Glob(filepath.Join(r.stage, "manual", pattern))
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				return nil, fmt.Errorf("no %s is staged", pattern)
			}
			for _, path := range found {
				from = append(from, entry{name: folder + "/" + filepath.Base(path), path: path})
			}
		}
	}
	for i := range from {
		from[i].name = top + "/" + from[i].name
		if from[i].mode == 0 {
			from[i].mode = 0o644
		}
	}
	return from, nil
}

// writeFile writes a file, and removes it again if that fails.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(path))
	}
	return nil
}

func writeTarGz(w io.Writer, date time.Time, entries []entry) error {
	z, err := gzip.NewWriterLevel(w, gzipLevel)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(z, date, entries), z.Close())
}

// writeTar writes entries in their order, all of root and of one date.
func writeTar(w io.Writer, date time.Time, entries []entry) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		if err := writeTarEntry(t, date, e); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return t.Close()
}

func writeTarEntry(t *tar.Writer, date time.Time, e entry) (err error) {
	h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), ModTime: date, Uname: "root", Gname: "root", Format: tar.FormatPAX}
	if e.mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch e.mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		return t.WriteHeader(h)
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.target
		return t.WriteHeader(h)
	}
	content, size, err := e.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	h.Typeflag, h.Size = tar.TypeReg, size
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(t, content)
	return err
}

// writeZip writes entries that are regular files, in their order and of one date.
func writeZip(w io.Writer, date time.Time, entries []entry) error {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, gzipLevel) })
	for _, e := range entries {
		if err := writeZipEntry(z, date, e); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return z.Close()
}

func writeZipEntry(z *zip.Writer, date time.Time, e entry) (err error) {
	h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: date}
	h.SetMode(e.mode)
	to, err := z.CreateHeader(h)
	if err != nil {
		return err
	}
	content, _, err := e.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	_, err = io.Copy(to, content)
	return err
}
