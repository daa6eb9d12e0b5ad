//go:build unix

package terminal

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// notifyResize has the changes of the terminal's size sent to c.
func notifyResize(c chan<- os.Signal) { signal.Notify(c, unix.SIGWINCH) }
