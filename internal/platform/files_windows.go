package platform

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// Flags of an open beside those of package os. Windows has neither: a link needs a
// privilege to be made, and a pipe is no name in a folder.
const (
	NoFollow = 0
	NoWait   = 0
)

// ErrLocked means that another open file has the lock.
const ErrLocked = windows.ERROR_LOCK_VIOLATION

// IsLink reports whether an open with NoFollow failed because of a symbolic link.
func IsLink(error) bool { return false }

// Lock locks a file for this open of it alone, until it is closed or the process
// ends. It does not wait: where the lock is taken it is ErrLocked.
func Lock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{})
}

// Owner is the user and the group that a file belongs to; false where files have
// none that are numbers.
func Owner(fs.FileInfo) (uid, gid int, ok bool) { return 0, 0, false }

// FreeSpace returns how many bytes an ordinary user may still write to the disk of
// a directory.
func FreeSpace(dir string) (int64, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free uint64
	err = windows.GetDiskFreeSpaceEx(name, &free, nil, nil)
	return int64(free), err
}

// Sync makes a file durable, which takes a handle that may write. The names in a
// directory Windows writes by itself.
func Sync(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}

// SyncDir makes the names in a directory durable that is open. Windows writes them by
// itself.
func SyncDir(*os.Root) error { return nil }
