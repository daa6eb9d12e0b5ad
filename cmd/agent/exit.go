package main

import (
	"errors"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// The exit codes of the program, as docs/reference/exit-codes.md lists them.
const (
	exitOK          = 0
	exitFailed      = 1  // it failed, or the inventory is invalid
	exitUsage       = 2  // wrong usage
	exitReconciling = 3  // status: not Ready, working on it
	exitStalled     = 4  // status: stalled, blocked or unknown
	exitNoDaemon    = 5  // the daemon cannot be reached
	exitNoSecrets   = 6  // validate: valid, and secrets are missing
	exitIncomplete  = 7  // import: written, and not valid yet
	exitChanges     = 10 // plan: there are changes; diff: there are differences
	exitDestructive = 11 // plan: there are destructive ones
)

// exitError ends the program with a code of its own. With a nil err everything
// was reported already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// exitCode is the code for the error a command returned.
func exitCode(err error) int {
	var own *exitError
	var usage *fault.Usage
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &own):
		return own.code
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, api.ErrNoDaemon):
		return exitNoDaemon
	default:
		return exitFailed
	}
}

// errSilent ends a command that has reported everything already.
func errSilent(code int) error {
	if code == exitOK {
		return nil
	}
	return &exitError{code: code}
}
