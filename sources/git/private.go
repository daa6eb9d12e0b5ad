package git

import (
	"os"
	"path"

	"github.com/go-git/go-billy/v5"
)

// privateFS keeps everything go-git creates to its owner, whatever the umask:
// go-git asks for 0666 and 0755.
type privateFS struct{ billy.Filesystem }

func (p privateFS) Create(name string) (billy.File, error) {
	return p.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (p privateFS) OpenFile(name string, flag int, perm os.FileMode) (billy.File, error) {
	if flag&os.O_CREATE != 0 {
		if err := p.MkdirAll(path.Dir(name), 0o700); err != nil {
			return nil, err
		}
	}
	return p.Filesystem.OpenFile(name, flag, perm&0o700)
}

func (p privateFS) Rename(from, to string) error {
	if err := p.MkdirAll(path.Dir(to), 0o700); err != nil {
		return err
	}
	return p.Filesystem.Rename(from, to)
}

func (p privateFS) MkdirAll(name string, perm os.FileMode) error {
	return p.Filesystem.MkdirAll(name, perm&0o700)
}

func (p privateFS) TempFile(dir, prefix string) (billy.File, error) {
	if err := p.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return p.Filesystem.TempFile(dir, prefix)
}

func (p privateFS) Chroot(name string) (billy.Filesystem, error) {
	sub, err := p.Filesystem.Chroot(name)
	if err != nil {
		return nil, err
	}
	return privateFS{sub}, nil
}
