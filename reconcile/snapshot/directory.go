package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// Directory is where files are. What is written is durable only after Sync, of the file
// and then of the directory. Errors are those of package fs.
type Directory interface {
	List() ([]string, error)             // the names of regular files
	Open(name string) (File, error)      // to read it
	Create(name string) (NewFile, error) // for its owner alone; not where there is one
	Rename(from, to string) error        // not where there is one
	Remove(name string) error
	Sync() error                           // names are durable
	Lock() (release func() error, _ error) // for one process; it does not wait
}

// File is a file that is read.
type File interface {
	io.ReaderAt
	io.Closer
	Size() int64
	Changed() time.Time // when its content was written last
}

// NewFile is a file that is written.
type NewFile interface {
	io.WriteCloser
	Sync() error // its content is durable
}

// lockFile is locked by whoever writes.
const lockFile = ".talos-agent.lock"

// Folder is a Directory on this host: the one that is at its path now. Another file system
// may be mounted there while it is open, and it may be moved away or re-created.
type Folder struct {
	path string

	mu   sync.Mutex
	root *os.Root
}

var _ Directory = (*Folder)(nil)

// OpenFolder opens a folder, and makes it for its owner alone if there is none.
func OpenFolder(path string) (*Folder, error) {
	err := os.MkdirAll(path, 0o700)
	if err != nil {
		return nil, err
	}
	return FindFolder(path)
}

// FindFolder opens a folder that is there.
func FindFolder(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Folder{path: path, root: root}, nil
}

// Close closes the folder. Files that are open stay so.
func (f *Folder) Close() error { return f.opened().Close() }

// opened returns the folder as it was opened last.
func (f *Folder) opened() *os.Root {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.root
}

// reopen opens the folder again where another one is at its path now: what is begun belongs there.
// What others do in the one of before fails.
func (f *Folder) reopen() (*os.Root, error) {
	there, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if was, err := f.root.Stat("."); err == nil && os.SameFile(was, there) {
		return f.root, nil
	}
	root, err := os.OpenRoot(f.path)
	if err != nil {
		return nil, err
	}
	err = f.root.Close()
	f.root = root
	return root, err
}

// List implements Directory.
func (f *Folder) List() ([]string, error) {
	root, err := f.reopen()
	if err != nil {
		return nil, err
	}
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	entries, err := dir.ReadDir(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Open implements Directory. A symbolic link is not followed, and a pipe not waited for.
func (f *Folder) Open(name string) (File, error) {
	root := f.opened()
	before, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("it is not a regular file")}
	}
	file, err := root.OpenFile(name, os.O_RDONLY|platform.NoWait, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !os.SameFile(before, info) {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("it was replaced while it was opened")}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return readFile{file, info.Size(), info.ModTime()}, nil
}

// readFile is a File as it was when it was opened.
type readFile struct {
	*os.File
	size    int64
	changed time.Time
}

func (f readFile) Size() int64 { return f.size }

func (f readFile) Changed() time.Time { return f.changed }

// Create implements Directory.
func (f *Folder) Create(name string) (NewFile, error) {
	return f.opened().OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// Rename implements Directory.
func (f *Folder) Rename(from, to string) error {
	root := f.opened()
	if _, err := root.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(&fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}, err)
	}
	return root.Rename(from, to)
}

// Remove implements Directory.
func (f *Folder) Remove(name string) error { return f.opened().Remove(name) }

// Sync implements Directory.
func (f *Folder) Sync() error { return platform.SyncDir(f.opened()) }

// Lock implements Directory.
func (f *Folder) Lock() (release func() error, _ error) {
	root, err := f.reopen()
	if err != nil {
		return nil, err
	}
	file, err := root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE|platform.NoWait, 0o600)
	if err != nil {
		return nil, err
	}
	err = platform.Lock(file)
	if errors.Is(err, platform.ErrLocked) {
		err = fault.Errorf("wait until the other one has ended", "another process writes to %s", f.path)
	} else if err != nil {
		err = fmt.Errorf("lock %s: %w", f.path, err)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file.Close, nil
}
