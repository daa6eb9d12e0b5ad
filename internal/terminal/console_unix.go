//go:build unix

package terminal

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// notifyResize has the changes of the terminal's size sent to c.
func notifyResize(c chan<- os.Signal) { signal.Notify(c, unix.SIGWINCH) }

// takesSequences reports whether a terminal acts on control sequences. TERM has what is
// to be known of one that does not.
func takesSequences(*os.File) bool { return true }
