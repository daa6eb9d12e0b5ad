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
	"text/tabwriter"

	"github.com/blakesmith/ar"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the format
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/ulikunitz/xz"
)

// packed is a finished package.
type packed struct {
	path            string
	size, installed int64 // bytes
}

// makePackages makes the package of each architecture, and prints how large they are.
func (r release) makePackages(architectures []string) error {
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PACKAGE\tSIZE\tINSTALLED\tMODULES")
	for _, arch := range architectures {
		p, modules, err := r.makePackage(platform{"linux", arch})
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		fmt.Fprintf(tw, "%s\t%.1f MiB\t%.1f MiB\t%d\n", filepath.Base(p.path), mib(p.size), mib(p.installed), len(modules))
	}
	return tw.Flush()
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func (r release) makePackage(on platform) (packed, []module, error) {
	info, err := r.list(on.arch)
	if err != nil {
		return packed{}, nil, err
	}
	modules, err := r.describe(on)
	if err != nil {
		return packed{}, nil, err
	}
	log, err := r.changelog(info)
	if err != nil {
		return packed{}, nil, err
	}
	zipped, err := compressed(log)
	if err != nil {
		return packed{}, nil, err
	}
	if err := os.WriteFile(filepath.Join(r.folder(on), "changelog.Debian.gz"), zipped, 0o644); err != nil {
		return packed{}, nil, err
	}
	p, err := pack(info, r.out)
	if err != nil {
		return packed{}, nil, err
	}
	return p, modules, p.writeProgram(filepath.Join(r.folder(on), "packaged"))
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

// readDeb reads one file of a package: inside of the member control.tar or data.tar.
func readDeb(path, member, inside string, read func(io.Reader) error) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for members := ar.NewReader(f); ; {
		h, err := members.Next()
		if err != nil {
			return fmt.Errorf("%s: find %s: %w", path, member, err)
		}
		name := strings.TrimRight(h.Name, "/")
		if !strings.HasPrefix(name, member+".") {
			continue
		}
		unpacked, err := unpack(name, members)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", path, name, err)
		}
		for files := tar.NewReader(unpacked); ; {
			h, err := files.Next()
			if err != nil {
				return fmt.Errorf("%s: find %s: %w", path, inside, err)
			}
			if strings.TrimPrefix(h.Name, "./") == inside {
				return read(files)
			}
		}
	}
}

// unpack reads a member of a package as its name says it is compressed.
func unpack(name string, r io.Reader) (io.Reader, error) {
	switch filepath.Ext(name) {
	case ".gz":
		return gzip.NewReader(r)
	case ".xz":
		return xz.NewReader(r)
	}
	return nil, fmt.Errorf("how %s is compressed is not known", name)
}

// writeProgram takes the program out of a package again, so that what is measured is
// what is shipped.
func (p packed) writeProgram(to string) error {
	return readDeb(p.path, "data.tar", "usr/bin/talos-agent", func(r io.Reader) error {
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		return errors.Join(err, out.Close())
	})
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
