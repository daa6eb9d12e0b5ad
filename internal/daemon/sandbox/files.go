package sandbox

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/talos-agent/talos-agent/internal/worker"
)

// entry is what a worker knows of a file or folder. It implements fs.FileInfo.
type entry struct {
	Label string
	Kind  fs.FileMode
	Bytes int64
}

func (e entry) Name() string       { return e.Label }
func (e entry) Size() int64        { return e.Bytes }
func (e entry) Mode() fs.FileMode  { return e.Kind }
func (e entry) ModTime() time.Time { return time.Time{} }
func (e entry) IsDir() bool        { return e.Kind.IsDir() }
func (e entry) Sys() any           { return nil }

// askedFiles are files that a worker has its parent read.
type askedFiles struct{ ask worker.Ask }

func (f askedFiles) question(op, name string) (reply, error) {
	r, err := worker.AskFor[reply](f.ask, question{op, name})
	switch {
	case err != nil:
	case r.Missing:
		err = fs.ErrNotExist
	case r.Err != "":
		err = errors.New(r.Err)
	}
	if err != nil {
		err = &fs.PathError{Op: op, Path: name, Err: err}
	}
	return r, err
}

// Stat implements fs.StatFS.
func (f askedFiles) Stat(name string) (fs.FileInfo, error) {
	r, err := f.question(opStat, name)
	if err == nil && len(r.Entries) != 1 {
		err = fs.ErrInvalid
	}
	if err != nil {
		return nil, err
	}
	return r.Entries[0], nil
}

// ReadDir implements fs.ReadDirFS.
func (f askedFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	r, err := f.question(opList, name)
	return listEntries(r.Entries), err
}

// Open implements fs.FS. A folder can only be asked what it is.
func (f askedFiles) Open(name string) (fs.File, error) {
	info, err := f.Stat(name)
	if err != nil {
		return nil, err
	}
	return &askedFile{FileInfo: info, files: f, path: name}, nil
}

// askedFile is read when it is read first.
type askedFile struct {
	fs.FileInfo
	files askedFiles
	path  string
	data  io.Reader
}

func (f *askedFile) Stat() (fs.FileInfo, error) { return f.FileInfo, nil }
func (f *askedFile) Close() error               { return nil }

func (f *askedFile) Read(p []byte) (int, error) {
	if f.data == nil {
		r, err := f.files.question(opRead, f.path)
		if err != nil {
			return 0, err
		}
		f.data = bytes.NewReader(r.Data)
	}
	return f.data.Read(p)
}
