//go:build !linux

package worker

import (
	"os"
	"runtime/debug"
)

// findProgram is this program.
func findProgram() (string, error) { return os.Executable() }

// listEnvironment is that of a worker.
func listEnvironment() []string { return []string{"GOTRACEBACK=none"} }

// confineProcess bounds the garbage of this process. The daemon runs on Linux only; where people
// look at their own repository, the time of the parent bounds a worker.
func confineProcess(l Limits) error {
	debug.SetMemoryLimit(l.Memory * 3 / 4)
	return nil
}
