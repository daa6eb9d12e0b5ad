package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/platform"
	"github.com/talos-agent/talos-agent/reconcile/journal"
)

// MaxFile bounds a file of the state directory: thousands of pins fit.
const MaxFile = 1 << 20

// Dir is the journal's file system: one directory that only the agent may read.
// Files are never followed through symbolic links, and a rename is durable when
// it returns. One that Open did not return is not locked.
type Dir struct{ Path string }

var _ journal.Files = Dir{}

// Open makes the state directory and takes its lock, so that exactly one
// agent works with it. The lock goes with the process.
func Open(dir string) (Dir, func(), error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Dir{}, nil, fault.WithHint(fmt.Errorf("make state directory: %w", err), journal.RecordsHint(err))
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|platform.NoFollow, 0o600)
	if err != nil {
		return Dir{}, nil, fault.WithHint(fmt.Errorf("open the lock of state directory: %w", err), journal.RecordsHint(err))
	}
	if err := platform.Lock(f); err != nil {
		_ = f.Close()
		if errors.Is(err, platform.ErrLocked) {
			return Dir{}, nil, fault.WithHint(fmt.Errorf("another agent works with state directory %s", dir),
				"stop it first: two agents on one state directory would fight over the same VMs")
		}
		return Dir{}, nil, fmt.Errorf("lock state directory %s: %w", dir, err)
	}
	return Dir{Path: dir}, func() { _ = f.Close() }, nil
}

// Read implements journal.Files.
func (s Dir) Read(name string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(s.Path, name), os.O_RDONLY|platform.NoFollow|platform.NoWait, 0)
	if platform.IsLink(err) {
		return nil, s.odd(name, "a symbolic link")
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case info.IsDir():
		return nil, s.odd(name, "a directory")
	case !info.Mode().IsRegular():
		return nil, s.odd(name, "not a regular file")
	case info.Size() > MaxFile:
		return nil, s.odd(name, fmt.Sprintf("larger than %d bytes", MaxFile))
	}
	b := make([]byte, info.Size())
	n, err := f.ReadAt(b, 0)
	if n == len(b) {
		err = nil
	}
	return b[:n], err
}

// odd is about a file that the agent did not write.
func (s Dir) odd(name, what string) error {
	return fault.WithHint(fmt.Errorf("%s is %s", filepath.Join(s.Path, name), what),
		"the agent writes plain files only: put the right one back from a backup, or move it away; then what it held counts as lost")
}

// Write implements journal.Files. It refuses what Read would refuse.
func (s Dir) Write(name string, data []byte) error {
	if len(data) > MaxFile {
		return fmt.Errorf("%s would be larger than %d bytes", name, MaxFile)
	}
	path := filepath.Join(s.Path, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|platform.NoFollow, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// Append adds to a file that only its owner may read, and makes it if there is
// none. It is not durable when it returns.
func (s Dir) Append(name string, data []byte) error {
	f, err := os.OpenFile(filepath.Join(s.Path, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND|platform.NoFollow|platform.NoWait, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", name)
	case info.Size()+int64(len(data)) > MaxFile:
		err = fmt.Errorf("%s would be larger than %d bytes", name, MaxFile)
	default:
		if _, err = f.Write(data); err != nil {
			// Where there was room for a part, what comes next would be glued to it.
			err = errors.Join(err, f.Truncate(info.Size()))
		}
	}
	return errors.Join(err, f.Close())
}

// Sync implements journal.Files.
func (s Dir) Sync(name string) error { return platform.Sync(filepath.Join(s.Path, name)) }

// Rename implements journal.Files.
func (s Dir) Rename(from, to string) error {
	if err := os.Rename(filepath.Join(s.Path, from), filepath.Join(s.Path, to)); err != nil {
		return err
	}
	return platform.Sync(s.Path)
}

// Remove implements journal.Files.
func (s Dir) Remove(name string) error {
	if err := os.Remove(filepath.Join(s.Path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return platform.Sync(s.Path)
}

// Journals lists the clusters that have a journal: they are managed before
// the repository can be read.
func (s Dir) Journals() ([]string, error) {
	entries, err := os.ReadDir(s.Path)
	if err != nil {
		return nil, fmt.Errorf("list the journals: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && e.Type().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}
