package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/blakesmith/ar"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the format
	"github.com/goreleaser/nfpm/v2/files"
)

// packed is a finished package.
type packed struct {
	path            string
	size, installed int64 // bytes
}

// list reads what packaging/deb/nfpm.yaml says of the package of one
// architecture.
func (r release) list(arch string) (*nfpm.Info, error) {
	version, err := debianVersion(r.version, r.date)
	if err != nil {
		return nil, err
	}
	values := map[string]string{"ARCH": arch, "VERSION": version, "STAGE": r.stage}
	path := filepath.Join(r.top, "packaging/deb/nfpm.yaml")
	c, err := nfpm.ParseFileWithEnvMapping(path, func(name string) string { return values[name] })
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	info, err := c.Get("deb")
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	r.place(info, values)
	return info, nil
}

// pack writes a package into a folder.
func pack(info *nfpm.Info, out string) (packed, error) {
	deb, err := nfpm.Get("deb")
	if err != nil {
		return packed{}, err
	}
	p := packed{path: filepath.Join(out, deb.ConventionalFileName(info))}
	f, err := os.Create(p.path)
	if err != nil {
		return packed{}, err
	}
	if err := errors.Join(deb.Package(info, f), f.Close()); err != nil {
		return packed{}, errors.Join(fmt.Errorf("write %s: %w", p.path, err), os.Remove(p.path))
	}
	stat, err := os.Stat(p.path)
	if err != nil {
		return packed{}, err
	}
	p.size = stat.Size()
	for _, file := range info.Contents {
		if file.Type == files.TypeFile || file.Type == "" {
			p.installed += file.Size()
		}
	}
	return p, nil
}

// program takes the program out of a package again, so that what is measured is
// what is shipped.
func (p packed) program(to string) (err error) {
	f, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	const data, inside = "data.tar.gz", "./usr/bin/talos-agent"
	for members := ar.NewReader(f); ; {
		h, err := members.Next()
		if err != nil {
			return fmt.Errorf("%s: find %s: %w", p.path, data, err)
		}
		if strings.TrimRight(h.Name, "/") != data {
			continue
		}
		unzipped, err := gzip.NewReader(members)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", p.path, data, err)
		}
		for files := tar.NewReader(unzipped); ; {
			h, err := files.Next()
			if err != nil {
				return fmt.Errorf("%s: find %s: %w", p.path, inside, err)
			}
			if h.Name == inside {
				return writeFrom(files, to)
			}
		}
	}
}

// writeFrom writes a program.
func writeFrom(r io.Reader, to string) error {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, r)
	return errors.Join(err, out.Close())
}

// place has every path begin where it is looked for, and every file bear the
// commit's date.
func (r release) place(info *nfpm.Info, values map[string]string) {
	at := func(path string) string {
		path = os.Expand(path, func(name string) string { return values[name] })
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(r.top, path)
	}
	info.MTime = r.date
	for _, s := range []*string{&info.Scripts.PreInstall, &info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove} {
		*s = at(*s)
	}
	for _, c := range info.Contents {
		c.Source = at(c.Source)
		if c.FileInfo == nil {
			c.FileInfo = &files.ContentFileInfo{}
		}
		c.FileInfo.Owner, c.FileInfo.Group, c.FileInfo.MTime = "root", "root", r.date
		c.Destination = strings.ReplaceAll(c.Destination, "//", "/")
	}
}
