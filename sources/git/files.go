package git

import (
	"bytes"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// contents is where a files reads from: a tree object or a directory.
type contents interface {
	// list gives the entries of a directory, sorted by name.
	list(path string, dir node) ([]node, error)
	// size gives the size of a regular file.
	size(path string, n node) (int64, error)
	// read gives a regular file, within the limits.
	read(path string, n node) ([]byte, error)
	// checkDepth refuses paths that are too deep.
	checkDepth(path string) error
	modTime() time.Time
}

// files makes an fs.FS of contents: read-only, without links.
type files struct {
	contents
	mu   sync.Mutex
	dirs map[string][]node // listed before
}

var (
	_ fs.ReadDirFS  = (*files)(nil)
	_ fs.ReadFileFS = (*files)(nil)
	_ fs.StatFS     = (*files)(nil)
)

var rootNode = node{name: ".", mode: fs.ModeDir | 0o555}

// find walks to a name. It does not follow links, so a path through one does
// not exist.
func (f *files) find(name string) (node, error) {
	if !fs.ValidPath(name) {
		return node{}, fs.ErrInvalid
	}
	if err := f.checkDepth(name); err != nil {
		return node{}, err
	}
	at, dir := rootNode, "."
	if name == "." {
		return at, nil
	}
	for element := range strings.SplitSeq(name, "/") {
		if !at.mode.IsDir() {
			if at.mode.IsRegular() {
				return node{}, fs.ErrNotExist
			}
			return node{}, errNotRegular(at.mode)
		}
		nodes, err := f.entries(dir, at)
		if err != nil {
			return node{}, err
		}
		i, ok := slices.BinarySearchFunc(nodes, element, func(n node, s string) int { return strings.Compare(n.name, s) })
		if !ok {
			return node{}, fs.ErrNotExist
		}
		at, dir = nodes[i], path.Join(dir, element)
	}
	return at, nil
}

func (f *files) entries(dir string, at node) ([]node, error) {
	f.mu.Lock()
	nodes, ok := f.dirs[dir]
	f.mu.Unlock()
	if ok {
		return nodes, nil
	}
	nodes, err := f.list(dir, at)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirs[dir] = nodes
	return nodes, nil
}

// Open implements fs.FS. A regular file is read whole.
func (f *files) Open(name string) (fs.File, error) {
	n, err := f.find(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	switch {
	case n.mode.IsDir():
		entries, err := f.dirEntries(name, n)
		if err != nil {
			return nil, pathError("open", name, err)
		}
		return &openDir{info: f.info(n, 0), entries: entries}, nil
	case !n.mode.IsRegular():
		return nil, pathError("open", name, errNotRegular(n.mode))
	}
	b, err := f.read(name, n)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &openFile{Reader: bytes.NewReader(b), info: f.info(n, int64(len(b)))}, nil
}

// ReadFile implements fs.ReadFileFS; the caller owns the bytes.
func (f *files) ReadFile(name string) ([]byte, error) {
	n, err := f.find(name)
	switch {
	case err != nil:
	case n.mode.IsDir():
		err = errIsDir
	case !n.mode.IsRegular():
		err = errNotRegular(n.mode)
	default:
		var b []byte
		if b, err = f.read(name, n); err == nil {
			return b, nil
		}
	}
	return nil, pathError("read", name, err)
}

// ReadDir implements fs.ReadDirFS. Links and submodules are listed as such.
func (f *files) ReadDir(name string) ([]fs.DirEntry, error) {
	n, err := f.find(name)
	if err == nil && !n.mode.IsDir() {
		err = fs.ErrInvalid
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	entries, err := f.dirEntries(name, n)
	return entries, pathError("readdir", name, err)
}

// Stat implements fs.StatFS; it does not read the file.
func (f *files) Stat(name string) (fs.FileInfo, error) {
	n, err := f.find(name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	info, err := f.stat(name, n)
	return info, pathError("stat", name, err)
}

func (f *files) stat(name string, n node) (fs.FileInfo, error) {
	if !n.mode.IsRegular() {
		return f.info(n, 0), nil
	}
	size, err := f.size(name, n)
	if err != nil {
		return nil, err
	}
	return f.info(n, size), nil
}

func (f *files) dirEntries(name string, n node) ([]fs.DirEntry, error) {
	nodes, err := f.entries(name, n)
	if err != nil {
		return nil, err
	}
	entries := make([]fs.DirEntry, len(nodes))
	for i, n := range nodes {
		entries[i] = dirEntry{n, path.Join(name, n.name), f}
	}
	return entries, nil
}

func (f *files) info(n node, size int64) fileInfo { return fileInfo{n, size, f.modTime()} }

type fileInfo struct {
	node
	size int64
	time time.Time
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.size }
func (i fileInfo) Mode() fs.FileMode  { return i.mode }
func (i fileInfo) ModTime() time.Time { return i.time }
func (i fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i fileInfo) Sys() any           { return nil }

type dirEntry struct {
	node
	path  string
	files *files
}

func (d dirEntry) Name() string               { return d.name }
func (d dirEntry) IsDir() bool                { return d.mode.IsDir() }
func (d dirEntry) Type() fs.FileMode          { return d.mode.Type() }
func (d dirEntry) Info() (fs.FileInfo, error) { return d.files.stat(d.path, d.node) }

type openFile struct {
	*bytes.Reader
	info fileInfo
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *openFile) Close() error               { return nil }

type openDir struct {
	info    fileInfo
	entries []fs.DirEntry // not read yet
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *openDir) Close() error               { return nil }

func (d *openDir) Read([]byte) (int, error) { return 0, pathError("read", d.info.name, errIsDir) }

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		n = len(d.entries)
	} else if len(d.entries) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.entries))
	out := d.entries[:n]
	d.entries = d.entries[n:]
	return out, nil
}
