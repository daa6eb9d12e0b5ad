package git

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unicode"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// What kind of failure an error is, for callers that act on it. Test with
// errors.Is; the text has the rest, and many carry a Hint.
var (
	// ErrUnreachable: no usable answer from the server; the next pass may succeed.
	ErrUnreachable = errors.New("repository unreachable")
	// ErrAuth: the server refused our credentials, or asks for some.
	ErrAuth = errors.New("access to the repository refused")
	// ErrHostKey: the ssh server is not the one known_hosts names.
	ErrHostKey = errors.New("host key not trusted")
	// ErrNotFound: the server knows no such repository, or hides it from us.
	ErrNotFound = errors.New("repository not found")
	// ErrNoBranch: the repository has no such branch; it may be empty.
	ErrNoBranch = errors.New("no such branch")
	// ErrEmpty is ErrNoBranch of a repository to which nothing was pushed yet.
	ErrEmpty = fmt.Errorf("%w, nor any other", ErrNoBranch)
	// ErrUnsupported: the repository is of a kind that cannot be read here.
	ErrUnsupported = errors.New("unsupported repository")
	// ErrDisk: the copy in Config.Dir cannot be written: no room, or read-only.
	ErrDisk = errors.New("the copy of the repository cannot be written")
	// ErrLimit: something is larger than the limits allow.
	ErrLimit = errors.New("limit exceeded")
	// ErrNotRegular: the path is a symbolic link, a submodule, a device or a
	// Git LFS pointer, none of which is read.
	ErrNotRegular = errors.New("not a regular file")
	// ErrChanged: the directory changed between Head and the read.
	ErrChanged = errors.New("directory changed while it was read")
)

// Error is a failure with its kind, its cause and, where a person can do
// something about it, what to do.
type Error struct {
	// Kind is one of the sentinels of this package.
	Kind  error
	fault fault.Error
}

// Error implements error.
func (e *Error) Error() string { return e.fault.Error() }

// Unwrap makes errors.Is find both the kind and the cause, and the hint be found.
func (e *Error) Unwrap() []error { return []error{e.Kind, &e.fault} }

// newError makes an Error; err may be nil.
func newError(kind error, hint string, err error, format string, args ...any) error {
	return &Error{Kind: kind, fault: fault.Error{Op: fmt.Sprintf(format, args...), Err: err, Hint: hint}}
}

// isKnown reports whether err is classified already: a kind of ours, or the
// caller's own cancellation.
func isKnown(err error) bool {
	var e *Error
	return errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// asUnreachable makes ErrUnreachable of an unclassified error.
func asUnreachable(err error, doing string) error {
	if err == nil || isKnown(err) {
		return err
	}
	return newError(ErrUnreachable, "", err, "%s", doing)
}

// onDisk makes ErrDisk of an error of the file system that a new copy would meet
// again. Any other it returns as it is.
func onDisk(dir string, err error) error {
	for _, is := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS} {
		if errors.Is(err, is) && !isKnown(err) {
			return newError(ErrDisk, "make room on the file system of "+dir+" and let the agent write to it, or set cache_dir to a directory on another one", err,
				"the copy of the repository cannot be written")
		}
	}
	return err
}

// FieldError is one field of a Config that cannot be used.
type FieldError struct {
	// Field is the name the host's configuration has for it, such as "url".
	Field string
	text  string
	hint  string
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.text }

// Unwrap holds what to write instead.
func (e *FieldError) Unwrap() error { return &fault.Error{Op: e.text, Hint: e.hint} }

// cleanRemark returns the other side's message, made fit for one line of ours: the
// first non-empty line, printable, of bounded length.
func cleanRemark(s string) string {
	const most = 200
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return ' '
			}
			return r
		}, line))
		if line == "" || line == "remote:" {
			continue
		}
		if runes := []rune(line); len(runes) > most {
			line = string(runes[:most]) + "..."
		}
		return line
	}
	return ""
}
