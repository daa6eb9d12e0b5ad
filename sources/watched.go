package sources

import (
	"errors"
	"io"
	"io/fs"

	"github.com/talos-agent/talos-agent/sources/git"
)

// watched is a file system that remembers when reading failed for a reason
// that has nothing to do with what is in it: a tree that cannot be read must
// never look like an inventory that is wrong, or empty.
type watched struct {
	fs.FS
	failed error
}

// isPermanent reports whether an error is a property of the files and would be
// the same for everybody who reads them.
func isPermanent(err error) bool {
	for _, kind := range []error{fs.ErrNotExist, fs.ErrInvalid, git.ErrLimit, git.ErrNotRegular, git.ErrUnsupported} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (w *watched) note(err error) error {
	if err != nil && w.failed == nil && !errors.Is(err, io.EOF) && !isPermanent(err) {
		w.failed = err
	}
	return err
}

// Open implements fs.FS.
func (w *watched) Open(name string) (fs.File, error) {
	f, err := w.FS.Open(name)
	if err != nil {
		return nil, w.note(err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(w.note(err), f.Close())
	}
	if info.IsDir() {
		return f, nil // listed through ReadDir
	}
	return &watchedFile{File: f, w: w}, nil
}

// ReadDir implements fs.ReadDirFS.
func (w *watched) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	return entries, w.note(err)
}

type watchedFile struct {
	fs.File
	w *watched
}

func (f *watchedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	return n, f.w.note(err)
}
