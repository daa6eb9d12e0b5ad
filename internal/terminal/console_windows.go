package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

// notifyResize sends nothing: Windows has no such signal, and the next tick draws with
// the new size.
func notifyResize(chan<- os.Signal) {}

// takesSequences reports whether a console acts on control sequences, which each
// program has to ask for.
func takesSequences(f *os.File) bool {
	var mode uint32
	console := windows.Handle(f.Fd())
	if windows.GetConsoleMode(console, &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
