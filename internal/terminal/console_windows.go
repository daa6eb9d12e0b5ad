package terminal

import "os"

// notifyResize sends nothing: Windows has no such signal, and the next tick draws with
// the new size.
func notifyResize(chan<- os.Signal) {}
