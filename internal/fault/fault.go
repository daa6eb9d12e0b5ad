// Package fault is the one kind of error that carries a hint: what a person can
// do about it, apart from what is wrong.
//
// Rooms keep types of their own only where callers ask for more than the text: a
// kind, a status, a field. Such a type holds no hint; the room returns it wrapped
// in an Error, where errors.Is and errors.As find it.
//
// It knows none of our rooms, and neither logs nor prints.
package fault

import (
	"errors"
	"fmt"
)

// Error is a failure, and what to do about it.
type Error struct {
	Op   string // what was done, or what is wrong; empty: Err says it
	Err  error  // the cause; nil: Op says it
	Hint string // what to do; empty: nothing, but to wait
}

// Error implements error: without the hint, which is shown apart from it.
func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.Op
	case e.Op == "":
		return e.Err.Error()
	}
	return e.Op + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// WithHint returns err with a hint, under the same text.
func WithHint(err error, hint string) error { return &Error{Err: err, Hint: hint} }

// Errorf is fmt.Errorf with a hint.
func Errorf(hint, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Hint: hint}
}

// Internal is the error of a panic with v that was caught: a bug, which nobody can fix on
// the host.
func Internal(v any) error {
	return Errorf("please report it, with the agent's log", "internal error: %v", v)
}

// HintOf returns the outermost hint in the chain of err, or "".
func HintOf(err error) string {
	for e := (*Error)(nil); errors.As(err, &e); err = e.Err {
		if e.Hint != "" {
			return e.Hint
		}
	}
	return ""
}
