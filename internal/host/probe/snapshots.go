//go:build linux

package probe

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
)

// findSnapshots finds where snapshots of etcd are kept, as the config has it. A folder that is
// not there yet is made on the file system of the one that it will be in.
func findSnapshots(s config.Settings) (doctor.Snapshots, error) {
	out := doctor.Snapshots{Disabled: s.Snapshots.Disabled, Directory: s.Snapshots.Directory, Keys: len(s.Snapshots.Recipients)}
	if out.Directory == "" {
		return out, errors.New("the config was not loaded")
	}
	if out.Disabled {
		return out, nil
	}
	kept, err := findDisk(out.Directory)
	state, failed := findDisk(s.StateDir)
	out.Beside = kept == state
	return out, errors.Join(err, failed)
}

// findDisk returns the number of the file system that a folder is on, or will be.
func findDisk(dir string) (uint64, error) {
	for {
		var st unix.Stat_t
		err := unix.Stat(dir, &st)
		switch up := filepath.Dir(dir); {
		case err == nil:
			return uint64(st.Dev), nil
		case !errors.Is(err, fs.ErrNotExist) || up == dir:
			return 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
		default:
			dir = up
		}
	}
}
