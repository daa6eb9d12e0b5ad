// Package harden keeps what this process knows from others. It knows none of our
// rooms.
package harden

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Process keeps what the process knows to itself: nobody can read its memory, no
// core of it is written, and files that a library makes are for their owner
// only, whatever started it.
func Process() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close the memory to other processes: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	unix.Umask(0o077)
	return nil
}
