//go:build unix

package platform

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags of an open beside those of package os.
const (
	NoFollow = unix.O_NOFOLLOW // of a symbolic link fails, with a link for IsLink
	NoWait   = unix.O_NONBLOCK // of a pipe does not wait for who writes to it
)

// ErrLocked means that another open file has the lock.
const ErrLocked = unix.EWOULDBLOCK

// IsLink reports whether an open with NoFollow failed because of a symbolic link.
func IsLink(err error) bool { return errors.Is(err, unix.ELOOP) }

// Lock locks a file for this open of it alone, until it is closed or the process
// ends. It does not wait: where the lock is taken it is ErrLocked.
func Lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// Owner is the user and the group that a file belongs to; false where files have
// none that are numbers.
func Owner(info fs.FileInfo) (uid, gid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(st.Uid), int(st.Gid), true
}

// FreeSpace returns how many bytes an ordinary user may still write to the disk of
// a directory.
func FreeSpace(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// Sync makes a file durable, or the names in a directory.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}

// SyncDir makes the names in a directory durable that is open.
func SyncDir(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}
